//! Dependencies inside the native crate: lower modules never use upper ones, so no circle is wider than a module and
//! its children.

use std::path::Path;

use anyhow::Result;

use super::{
    Violation, files,
    modules::{module_path, uses},
    read,
    source::{Code, line_at, shipped_code},
};

const SOURCE: &str = "native-worker/src";

/// The layers, from the bottom to the top. A module may use those of lower layers and itself, not its neighbours.
const LAYERS: &[&[&str]] = &[
    &["files", "panics", "private_file", "program", "pulse", "terminal"],
    &["child", "kernels", "learner", "lines", "net", "policies"],
    &["checkpoint", "data_parallel", "envs", "offline"],
    &["external", "launch", "monitor", "registry", "rllink"],
    &["shell"],
    &["machine"],
    &["control", "worker"],
    &["eval"],
    &["runs"],
    &["hub"],
    &["worker_group"],
    &["evaluator", "relay", "train"],
    &["children"],
    &["cli"],
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let reexports = reexports(&shipped_code(&read(root, &Path::new(SOURCE).join("lib.rs"))?));
    let mut violations = Vec::new();
    for file in files(root, Path::new(SOURCE), "rs")? {
        let is_test = file.with_extension("").iter().any(|part| part == "tests");
        if !is_test {
            violations.extend(check_file(&file, &shipped_code(&read(root, &file)?), &reexports));
        }
    }
    Ok(violations)
}

/// Returns the name and the module of every item that the crate's root re-exports from a module: `pub use hub::{Hub,
/// HubConfig};`.
fn reexports(root: &Code) -> Vec<(String, String)> {
    let uses = root.text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    uses.filter_map(|path| path.split_once("::"))
        .flat_map(|(module, names)| {
            let names =
                names.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|name| !name.is_empty());
            names.map(|name| (name.to_owned(), module.to_owned()))
        })
        .collect()
}

fn check_file(file: &Path, code: &Code, reexports: &[(String, String)]) -> Vec<Violation> {
    let at =
        |offset: usize, what: String| Violation { file: file.to_path_buf(), line: line_at(&code.text, offset), what };
    let path = module_path(SOURCE, file);
    let Some(module) = path.first().filter(|module| *module != "main") else { return Vec::new() };
    let Some(own) = layer(module) else {
        return vec![at(0, format!("module `{module}` has no layer yet: give it one in xtask/src/layers/native.rs"))];
    };
    let mut violations = Vec::new();
    for (offset, used) in uses(&code.text, path.len()) {
        let used = reexports.iter().find(|(name, _)| *name == used).map_or(&used, |(_, module)| module);
        // Other names at the root are those of core's types.
        let Some(other) = layer(used) else { continue };
        if used != module && other >= own {
            violations.push(at(offset, format!("`{module}` uses `{used}`, which is not below it")));
        }
    }
    violations
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(file: &str, source: &str) -> Vec<String> {
        let root = shipped_code("pub use registry::native;\npub use worker_group::{\n    WorkerGroup,\n};\nmod hub;");
        let found = check_file(&Path::new(SOURCE).join(file), &shipped_code(source), &reexports(&root));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_lower_modules_may_be_used() {
        let source = "use crate::{\n    Registry,\n    child::spawn,\n    hub::Hub,\n};\n";
        assert_eq!(breaches("worker_group/hub_thread.rs", source), [""; 0]);
        let found = breaches("launch/local.rs", source);
        assert_eq!(found, ["native-worker/src/launch/local.rs:1: `launch` uses `hub`, which is not below it"]);
        assert_eq!(breaches("net/mod.rs", "use super::child::spawn;").len(), 1);
        assert!(breaches("surprise.rs", "")[0].contains("`surprise` has no layer"));
    }

    #[test]
    fn reexport_at_the_root_counts_as_its_module() {
        assert_eq!(breaches("envs/mod.rs", "let registry = crate::native(registry);").len(), 1);
        assert_eq!(breaches("runs/request.rs", "use crate::{WorkerGroup, net::TOKEN_VARIABLE};").len(), 1);
        assert_eq!(breaches("train.rs", "use crate::{WorkerGroup, native};"), [""; 0]);
    }

    #[test]
    fn circle_of_modules_is_found() {
        let circle = ["hub", "runs", "worker_group"];
        let uses = circle.iter().zip(circle.iter().cycle().skip(1));
        let found: Vec<String> = uses
            .flat_map(|(module, used)| breaches(&format!("{module}/mod.rs"), &format!("use crate::{used}::X;")))
            .collect();
        assert_eq!(found, ["native-worker/src/runs/mod.rs:1: `runs` uses `worker_group`, which is not below it"]);
        // In any order of two modules, one of them breaks the order if they use each other.
        let modules: Vec<&str> = LAYERS.concat();
        for (number, one) in modules.iter().enumerate() {
            for other in &modules[number + 1..] {
                let found = [(one, other), (other, one)].map(|(module, used)| {
                    breaches(&format!("{module}/mod.rs"), &format!("use crate::{used}::X;")).len()
                });
                assert_ne!(found, [0, 0], "{one} and {other}");
            }
        }
    }
}
