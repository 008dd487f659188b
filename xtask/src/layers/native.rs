//! Inside the native crate: lower modules never use upper ones, and no circle is wider than the one that is named here.

use std::path::Path;

use anyhow::Result;

use super::{
    Violation, files,
    modules::{module_path, uses},
    read,
    source::{Code, line_at, shipped_code},
};

const SOURCE: &str = "native-worker/src";

/// From the bottom to the top. A module may use those of lower layers and itself, not its neighbours.
const LAYERS: &[&[&str]] = &[
    &["panics", "private_file", "program", "pulse", "terminal"],
    &["child", "kernels", "learner", "lines", "net", "policies"],
    &["checkpoint", "data_parallel", "envs", "offline"],
    &["external", "launch", "monitor", "registry", "rllink"],
    &["shell"],
    &["machine"],
    &["control", "worker"],
    &["eval"],
    CIRCLE,
    &["evaluator", "relay"],
    &["children"],
    &["cli"],
];

/// A hub executes runs of `train`, which call workers through a hub. These may use each other.
const CIRCLE: &[&str] = &["hub", "train", "worker_group"];

/// Functions that the crate's root takes from a module of another name.
const REEXPORTS: &[(&str, &str)] = &[("child_process", "children"), ("main_with", "cli"), ("native", "registry")];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in files(root, Path::new(SOURCE), "rs")? {
        let is_test = file.with_extension("").iter().any(|part| part == "tests");
        if !is_test {
            violations.extend(check_file(&file, &shipped_code(&read(root, &file)?)));
        }
    }
    Ok(violations)
}

fn check_file(file: &Path, code: &Code) -> Vec<Violation> {
    let at =
        |offset: usize, what: String| Violation { file: file.to_path_buf(), line: line_at(&code.text, offset), what };
    let path = module_path(SOURCE, file);
    let Some(module) = path.first().filter(|module| *module != "main") else { return Vec::new() };
    let Some(own) = layer(module) else {
        return vec![at(0, format!("module `{module}` has no layer yet: give it one in xtask/src/layers/native.rs"))];
    };
    let circle = |module: &str| CIRCLE.contains(&module);
    let mut violations = Vec::new();
    for (offset, used) in uses(&code.text, path.len()) {
        let used = REEXPORTS.iter().find(|(name, _)| *name == used).map_or(&*used, |(_, module)| module);
        // Other names at the root are those of core's types.
        let Some(other) = layer(used) else { continue };
        if used != module && other >= own && !(circle(used) && circle(module)) {
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
        check_file(Path::new(file), &shipped_code(source)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_lower_modules_and_the_circle_may_be_used() {
        let source = "use crate::{\n    Registry,\n    child::spawn,\n    hub::Hub,\n};\n";
        assert_eq!(breaches("native-worker/src/train/run/mod.rs", source), [""; 0]);
        let found = breaches("native-worker/src/launch/local.rs", source);
        assert_eq!(found, ["native-worker/src/launch/local.rs:1: `launch` uses `hub`, which is not below it"]);
        assert_eq!(breaches("native-worker/src/envs/mod.rs", "let registry = crate::native(registry);").len(), 1);
        assert_eq!(breaches("native-worker/src/net/mod.rs", "use super::child::spawn;").len(), 1);
        assert!(breaches("native-worker/src/surprise.rs", "")[0].contains("`surprise` has no layer"));
    }
}
