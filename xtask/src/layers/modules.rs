//! Dependencies inside core: lower modules never use upper ones, and no module uses a function whose results differ
//! between machines.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{
    Violation, files, read,
    source::{Code, line_at, shipped_code},
};

const SOURCE: &str = "core/src";
/// The hot loops and `math`, which stand below all modules of core.
const KERNELS: &str = "core/kernels/src";

/// The layers, from the bottom to the top. A module may use those of lower layers and itself, not its neighbours.
const LAYERS: &[&[&str]] = &[
    &["prelude"],
    &["ids", "lists", "encoding", "math", "time", "config"],
    &["rng", "kernels"],
    &["column"],
    &["space"],
    &["batch", "action", "distribution", "preprocess"],
    &["weights", "view"],
    &["lease", "hash", "env", "postprocess", "filter", "estimate", "episode"],
    &["policy"],
    &["callbacks"],
    &["sampler"],
    &["evaluation"],
    &["run"],
    &["protocol", "readers"],
    &["worker", "group"],
    &["calls", "eval_worker", "hub"],
];

/// The texts that core must not contain, each with the reason or the replacement. A leading dot means a method call.
const BANNED: &[(&str, &str)] = &[
    ("HashMap", "its order differs from run to run: BTreeMap"),
    ("HashSet", "its order differs from run to run: BTreeSet"),
    ("libm::", "crate::math is the only source of it"),
    ("mul_add", "fused on some machines only"),
    ("std::", "core has no operating system: core:: or alloc::"),
    (".sin(", "platform arithmetic: crate::math"),
    (".cos(", "platform arithmetic: crate::math"),
    (".tan(", "platform arithmetic: crate::math"),
    (".tanh(", "platform arithmetic: crate::math"),
    (".exp(", "platform arithmetic: crate::math"),
    (".exp_m1(", "platform arithmetic: crate::math"),
    (".ln(", "platform arithmetic: crate::math"),
    (".ln_1p(", "platform arithmetic: crate::math"),
    (".log2(", "platform arithmetic: crate::math"),
    (".log10(", "platform arithmetic: crate::math"),
    (".sqrt(", "platform arithmetic: crate::math"),
    (".powf(", "platform arithmetic: crate::math"),
    (".powi(", "platform arithmetic: crate::math"),
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut test_modules: Vec<PathBuf> = Vec::new();
    let mut sources = Vec::new();
    for file in [files(root, Path::new(SOURCE), "rs")?, files(root, Path::new(KERNELS), "rs")?].concat() {
        let code = shipped_code(&read(root, &file)?);
        test_modules.extend(code.test_modules.iter().map(|name| submodule(&file, name)));
        sources.push((file, code));
    }
    for (file, code) in &sources {
        let is_test = test_modules.iter().any(|module| file.starts_with(module) || file.with_extension("") == *module);
        if !is_test {
            let is_kernel = file.starts_with(KERNELS);
            violations.extend(if is_kernel { check_banned(file, code) } else { check_file(file, code) });
        }
    }
    violations.extend(undescribed(root)?);
    violations.extend(without_example(root, &sources)?);
    Ok(violations)
}

/// Returns the path of a submodule of the module in `file`, without extension.
fn submodule(file: &Path, name: &str) -> PathBuf {
    let is_folder = file.file_stem().is_some_and(|stem| stem == "mod" || stem == "lib");
    let folder = if is_folder { file.parent().map(Path::to_path_buf) } else { Some(file.with_extension("")) };
    folder.unwrap_or_default().join(name)
}

/// Returns the names of the modules from the root of the crate in `source` down to the one in `file`.
pub(super) fn module_path(source: &str, file: &Path) -> Vec<String> {
    let below = file.strip_prefix(source).unwrap_or(file).with_extension("");
    let mut names: Vec<String> = below.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| last == "mod" || last == "lib") {
        names.pop();
    }
    names
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

fn check_file(file: &Path, code: &Code) -> Vec<Violation> {
    let at =
        |offset: usize, what: String| Violation { file: file.to_path_buf(), line: line_at(&code.text, offset), what };
    let path = module_path(SOURCE, file);
    let Some(module) = path.first() else { return Vec::new() };
    let mut violations = check_banned(file, code);
    let Some(own) = layer(module) else {
        violations
            .push(at(0, format!("module `{module}` has no layer yet: give it one in xtask/src/layers/modules.rs")));
        return violations;
    };
    for (offset, used) in uses(&code.text, path.len()) {
        match layer(&used) {
            _ if used == *module => {}
            None => violations
                .push(at(offset, format!("`crate::{used}` is no module with a layer: name where it is declared"))),
            Some(other) if other >= own => {
                violations.push(at(offset, format!("`{module}` uses `{used}`, which is not below it")));
            }
            Some(_) => {}
        }
    }
    violations
}

/// Returns the uses of functions whose results differ between machines: only `math` may use `libm`, and only the
/// detection of the CPU may use the operating system.
fn check_banned(file: &Path, code: &Code) -> Vec<Violation> {
    let is = |name: &str| file == Path::new(KERNELS).join(name);
    let is_allowed = |name: &str| (name == "libm::" && is("math.rs")) || (name == "std::" && is("wide.rs"));
    let found = banned(&code.text).into_iter().filter(|(_, name, _)| !is_allowed(name));
    let violation = |(offset, name, why)| Violation {
        file: file.to_path_buf(),
        line: line_at(&code.text, offset),
        what: format!("`{name}` in core: {why}"),
    };
    found.map(violation).collect()
}

fn banned(code: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (name, why) in BANNED {
        for (offset, _) in code.match_indices(name) {
            let inside_a_word = !name.starts_with('.') && code[..offset].ends_with(is_word);
            if !inside_a_word {
                found.push((offset, *name, *why));
            }
        }
    }
    found
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Returns the top-level modules that the code names, by `crate::` or by as many `super::` as lead to the root.
pub(super) fn uses(code: &str, depth: usize) -> Vec<(usize, String)> {
    let to_root = "super::".repeat(depth);
    let mut used = Vec::new();
    for root in ["crate::", to_root.as_str()] {
        for (offset, _) in code.match_indices(root) {
            let before = &code[..offset];
            if before.ends_with(is_word) || before.ends_with("super::") {
                continue;
            }
            let names = first_names(code[offset + root.len()..].trim_start());
            used.extend(names.into_iter().filter(|name| name != "super").map(|name| (offset, name)));
        }
    }
    used
}

/// Returns `a` of `a::b`, or `a` and `c` of `{a::{b, x}, c}`.
fn first_names(path: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|char| is_word(*char)).collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut starts) = (0_usize, vec![0]);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts.push(at + 1),
            _ => {}
        }
    }
    starts.into_iter().map(|at| word(group[at..].trim_start())).filter(|name| !name.is_empty()).collect()
}

/// Returns the modules of core that ARCHITECTURE.md does not name.
fn undescribed(root: &Path) -> Result<Vec<Violation>> {
    let file = Path::new("ARCHITECTURE.md");
    if !root.join(file).exists() {
        return Ok(Vec::new());
    }
    let text = read(root, file)?;
    let described =
        |module: &&str| text.contains(&format!("`{module}`")) || text.contains(&format!("core/src/{module}"));
    let modules = LAYERS.iter().flat_map(|layer| layer.iter().copied()).filter(|module| *module != "prelude");
    let missing = modules.filter(|module| !described(module));
    Ok(missing
        .map(|module| Violation { file: file.to_path_buf(), line: 0, what: format!("does not name core's `{module}`") })
        .collect())
}

/// Returns the public modules of core without an example of their use.
fn without_example(root: &Path, sources: &[(PathBuf, Code)]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let is_public = |path: &[String]| path.len() == 1 && path[0] != "prelude";
    for (file, _) in sources.iter().filter(|(file, _)| is_public(&module_path(SOURCE, file))) {
        if !read(root, file)?.lines().any(|line| line.starts_with("//! ```")) {
            violations.push(Violation {
                file: file.clone(),
                line: 0,
                what: "shows no example in its documentation".into(),
            });
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(file: &str, source: &str) -> Vec<String> {
        check_file(Path::new(file), &shipped_code(source)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lower_modules_may_be_used() {
        let source = "use crate::{\n    batch::{SampleBatch, SlotFragment},\n    ids::SlotId,\n    prelude::*,\n};\n";
        assert_eq!(breaches("core/src/lease.rs", source), [""; 0]);
    }

    #[test]
    fn upper_modules_may_not() {
        let found = breaches("core/src/ids.rs", "\nuse crate::{prelude::*, batch::SampleBatch};");
        assert_eq!(found, ["core/src/ids.rs:2: `ids` uses `batch`, which is not below it"]);
        assert_eq!(breaches("core/src/column/mod.rs", "fn f() -> crate::lease::Lease { x }").len(), 1);
    }

    #[test]
    fn super_leads_no_way_around() {
        assert_eq!(breaches("core/src/ids.rs", "use super::lease::Lease;").len(), 1);
        assert_eq!(breaches("core/src/column/key.rs", "use super::super::lease::Lease;").len(), 1);
        assert_eq!(breaches("core/src/column/key.rs", "use super::data::Data;").len(), 0);
    }

    #[test]
    fn platform_arithmetic_and_std_are_found_in_code_only() {
        let found = breaches("core/src/ids.rs", "let y = x.tanh();\nuse std::fmt; // std::io\nlet a = tanh(x);");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(breaches("core/src/rng.rs", "libm::sqrtf(x)").len(), 1);
        let breaches_of_kernels = |file: &str, source: &str| check_banned(Path::new(file), &shipped_code(source)).len();
        assert_eq!(breaches_of_kernels("core/kernels/src/math.rs", "libm::sqrtf(x)"), 0);
        assert_eq!(breaches_of_kernels("core/kernels/src/wide.rs", "std::f32::consts::PI.sqrt()"), 1);
        assert_eq!(breaches_of_kernels("core/kernels/src/draw.rs", "libm::sqrtf(std::mem::take(x))"), 2);
        assert_eq!(breaches("core/src/ids.rs", "#[cfg(test)]\nmod tests { use std::vec; }"), [""; 0]);
    }

    #[test]
    fn a_new_module_needs_a_layer() {
        assert!(breaches("core/src/surprise.rs", "")[0].contains("`surprise` has no layer"));
    }

    #[test]
    fn a_reexport_at_the_root_hides_the_module() {
        assert!(breaches("core/src/lease.rs", "use crate::SampleBatch;")[0].contains("crate::SampleBatch"));
    }

    #[test]
    fn submodules_are_next_to_mod_and_below_other_files() {
        assert_eq!(submodule(Path::new("core/src/group/mod.rs"), "tests"), Path::new("core/src/group/tests"));
        assert_eq!(submodule(Path::new("core/src/rng.rs"), "laws"), Path::new("core/src/rng/laws"));
    }
}
