//! Licences of the crates that programs built from this repository contain.

use anyhow::{Result, bail};

use crate::{job::Job, workspace::cargo};

/// Licences that let anyone use, change and sell what contains the crate, under other terms.
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

/// Checks that every crate may be used under a permissive licence, on every system and with every feature.
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
    job.note(format!("{} crates", crates.len()));
    Ok(())
}

/// Whether one of the alternatives of an SPDX expression has permissive licences only.
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
