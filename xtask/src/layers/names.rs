//! Names of types: each is unique in its crate, so that a name alone says which type is meant.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{
    Violation, files, read,
    source::{Code, line_at, shipped_code},
};

const CRATES: [&str; 10] = [
    "core/kernels/src",
    "core/src",
    "learner/src",
    "data/src",
    "native-worker/src",
    "web/src",
    "web/registry/src",
    "web/wasm/modules/src",
    "web/wasm/src",
    "python/src",
];

/// Bodies of messages are named as their kinds, and written `message::Name` where the type that they are converted to has the
/// same name.
const MESSAGES: [&str; 4] = ["message.rs", "dashboard.rs", "external.rs", "requests.rs"];

/// The place where a type is declared.
struct Declared {
    file: PathBuf,
    line: usize,
}

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for of_crate in CRATES {
        let mut types: BTreeMap<String, Vec<Declared>> = BTreeMap::new();
        for file in files(root, Path::new(of_crate), "rs")?.into_iter().filter(|file| is_checked(file)) {
            let Code { text, .. } = shipped_code(&read(root, &file)?);
            for (offset, name) in declared(&text) {
                let line = line_at(&text, offset);
                types.entry(name.to_owned()).or_default().push(Declared { file: file.clone(), line });
            }
        }
        violations.extend(types.into_iter().flat_map(|(name, places)| repeated(&name, &places)));
    }
    Ok(violations)
}

/// Returns whether the file has shipped types of its own; modules of tests are declared in other files.
fn is_checked(file: &Path) -> bool {
    let is_test =
        |part: &str| part == "tests" || part.ends_with("tests.rs") || part == "laws.rs" || part == "test_support.rs";
    MESSAGES.iter().all(|messages| file != Path::new("core/src/protocol").join(messages))
        && !file.iter().any(|part| part.to_str().is_some_and(is_test))
}

/// Returns the types that are declared in a module itself or in modules within it, each with its offset.
fn declared(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = std::iter::once(0).chain(code.match_indices('\n').map(|(at, _)| at + 1));
    starts.zip(code.lines()).filter_map(|(offset, line)| {
        let item = line.trim_start();
        let item = match item.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.strip_prefix(' ')?,
            None => item,
        };
        let (keyword, rest) = item.split_once(' ')?;
        // A type within an item, as of a trait, is no type of the module.
        let is_type = match keyword {
            "struct" | "enum" | "trait" | "union" => true,
            "type" => !line.starts_with(' '),
            _ => false,
        };
        let end = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
        (is_type && end > 0).then(|| (offset, &rest[..end]))
    })
}

fn repeated(name: &str, places: &[Declared]) -> Vec<Violation> {
    let Some((first, others)) = places.split_first() else { return Vec::new() };
    let others = others.iter().map(|other| Violation {
        file: other.file.clone(),
        line: other.line,
        what: format!("`{name}` is the name of a type in {}, too: choose another one", first.file.display()),
    });
    others.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_a_module_are_found() {
        let code = "pub struct One<T>(T);\npub(crate) enum Two {\n    Three,\n}\ntrait Four {\n    type Five;\n}\npub type Six = u8;\n";
        assert_eq!(declared(code).map(|(_, name)| name).collect::<Vec<_>>(), ["One", "Two", "Four", "Six"]);
    }

    #[test]
    fn second_type_of_a_name_is_a_violation() {
        let place = |file: &str| Declared { file: file.into(), line: 3 };
        assert_eq!(repeated("Frame", &[place("a.rs")]), []);
        let [violation] = &repeated("Frame", &[place("a.rs"), place("b.rs")])[..] else { panic!() };
        assert_eq!((violation.file.as_path(), violation.line), (Path::new("b.rs"), 3));
    }
}
