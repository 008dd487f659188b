//! Licences and sources of the crates that programs built from this repository contain.

use std::fs;

use anyhow::{Result, bail};

use crate::{
    job::Job,
    workspace::{cargo, root},
};

/// Licences that permit use, change and sale of programs that contain the crate, under other terms.
const PERMISSIVE: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// The source of all crates that are not in this repository.
const REGISTRY: &str = r#"source = "registry+https://github.com/rust-lang/crates.io-index""#;

/// Checks that every crate is from the registry, and may be used under a permissive licence, on every system and with every feature.
pub(crate) fn check(job: &Job) -> Result<()> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--workspace", "--all-features", "--target", "all", "--edges", "normal,build"]);
    let listed = job.output(tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]))?;
    let mut crates: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once('|')).collect();
    crates.sort_unstable();
    crates.dedup();
    let refused: Vec<String> = crates
        .iter()
        .filter(|(_, licence)| !is_permissive(licence))
        .map(|(name, licence)| format!("{name}: {licence}"))
        .collect();
    if !refused.is_empty() {
        bail!("no permissive licence, replace the crate:\n  {}", refused.join("\n  "));
    }
    let locked = fs::read_to_string(root().join("Cargo.lock"))?;
    let elsewhere: Vec<&str> = other_sources(&locked).collect();
    if !elsewhere.is_empty() {
        bail!(
            "crates of Cargo.lock are not from crates.io, from which users cannot build:\n  {}",
            elsewhere.join("\n  ")
        );
    }
    job.note(format!("{} crates", crates.len()));
    Ok(())
}

/// Returns the sources in a lock file other than the registry.
fn other_sources(locked: &str) -> impl Iterator<Item = &str> {
    locked.lines().filter(|line| line.starts_with("source = ") && *line != REGISTRY)
}

/// Returns whether one of the alternatives of an SPDX expression has permissive licences only.
fn is_permissive(licence: &str) -> bool {
    let licence = licence.replace(" / ", " OR ").replace('/', " OR ");
    if let Some((all_of, and)) = licence.strip_prefix('(').and_then(|rest| rest.split_once(") AND ")) {
        return is_permissive(all_of) && is_permissive(and);
    }
    licence.split(" OR ").any(|one| one.split(" AND ").all(|name| PERMISSIVE.contains(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_other_than_the_registry_are_found() {
        let git = r#"source = "git+https://example.com/a#1""#;
        assert!(other_sources(&format!("name = \"a\"\n{REGISTRY}\n\n{git}\n")).eq([git]));
    }

    #[test]
    fn expression_is_permissive_if_one_alternative_is() {
        for permissive in
            ["MIT/Apache-2.0", "MIT OR LGPL-2.1-or-later", "(MIT OR GPL-2.0) AND Unicode-3.0", "Apache-2.0 AND ISC"]
        {
            assert!(is_permissive(permissive), "{permissive}");
        }
        for other in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0"] {
            assert!(!is_permissive(other), "{other}");
        }
    }
}
