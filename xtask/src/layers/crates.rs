//! Dependencies between crates: `core` uses its kernels alone, the learner and the data formats use `core`, the shells
//! use these and not each other.

use std::path::Path;

use anyhow::Result;

use super::{Violation, read};

/// Every crate of the workspace by its folder, with the workspace crates it may use.
const CRATES: &[(&str, &[&str])] = &[
    ("core/kernels", &[]),
    ("core", &["rollmesh-kernels"]),
    ("learner", &["rollmesh-core"]),
    ("data", &["rollmesh-core"]),
    ("native-worker", &["rollmesh-core", "rollmesh-learner", "rollmesh-data"]),
    ("web", &["rollmesh-core", "rollmesh-data"]),
    ("web/registry", &["rollmesh-core"]),
    ("web/wasm", &["rollmesh-core", "rollmesh-learner", "rollmesh-web-registry"]),
    (
        "web/wasm/modules",
        &["rollmesh-core", "rollmesh-data", "rollmesh-learner", "rollmesh-wasm", "rollmesh-web-registry"],
    ),
    ("python", &["rollmesh-core", "rollmesh-data", "rollmesh"]),
    ("examples/own-env", &["rollmesh-core", "rollmesh"]),
    ("examples/worker_group", &["rollmesh-core", "rollmesh"]),
    ("tests", &["rollmesh-core", "rollmesh-data", "rollmesh", "rollmesh-web", "rollmesh-wasm"]),
    ("xtask", &[]),
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = unlisted(&read(root, Path::new("Cargo.toml"))?);
    for (folder, allowed) in CRATES {
        let file = Path::new(folder).join("Cargo.toml");
        let manifest = read(root, &file)?;
        for (line, used) in own_dependencies(&manifest) {
            if !allowed.contains(&used) {
                violations.push(Violation {
                    file: file.clone(),
                    line,
                    what: format!("`{folder}` must not use `{used}`"),
                });
            }
        }
    }
    Ok(violations)
}

/// Returns the members of the workspace that have no row in [`CRATES`].
fn unlisted(manifest: &str) -> Vec<Violation> {
    let members = manifest.lines().enumerate().find(|(_, line)| line.starts_with("members = ["));
    let Some((line, members)) = members else { return Vec::new() };
    let folders = members.split('"').skip(1).step_by(2);
    let unknown = folders.filter(|folder| CRATES.iter().all(|(known, _)| known != folder));
    let what = |folder: &str| format!("say in xtask/src/layers/crates.rs what `{folder}` may use");
    unknown.map(|folder| Violation { file: "Cargo.toml".into(), line: line + 1, what: what(folder) }).collect()
}

/// Returns the crates of this workspace that a manifest depends on in any way, with their lines from 1.
fn own_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut in_dependencies = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let section = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
        let name = if let Some(section) = section {
            in_dependencies = section.ends_with("dependencies");
            section.split_once("dependencies.").map_or("", |(_, name)| name)
        } else if in_dependencies {
            line.split(['.', '=', ' ']).next().unwrap_or_default()
        } else {
            ""
        };
        if name.starts_with("rollmesh") || name == "xtask" {
            found.push((index + 1, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_within_the_workspace_are_found() {
        let manifest = "[package]\nname = \"rollmesh-web\"\n[dependencies]\nserde.workspace = true\n\
                        rollmesh-core.workspace = true\n[dev-dependencies]\nrollmesh = { path = \"..\" }\n[lints]\nrollmesh = 1\n\
                        [target.'cfg(unix)'.dependencies.xtask]\npath = \"../xtask\"\n";
        assert_eq!(own_dependencies(manifest), [(5, "rollmesh-core"), (7, "rollmesh"), (10, "xtask")]);
    }

    #[test]
    fn a_new_member_needs_a_row() {
        assert_eq!(unlisted("[workspace]\nmembers = [\"core\", \"web/wasm\"]\n"), []);
        let found = unlisted("[workspace]\nmembers = [\"core\", \"extra\"]\n");
        assert_eq!(found.iter().map(|violation| violation.line).collect::<Vec<_>>(), [2]);
    }
}
