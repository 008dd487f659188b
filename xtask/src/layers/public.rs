//! The public API of the published crates: functions, fields, variants, constants and implementations of `From` have no
//! types of dependencies, so that a newer dependency breaks no user. The exceptions are JSON values, and candle's types
//! in the learner. Errors, their kinds and reasons are non-exhaustive, so that a new one breaks no user.

use std::path::Path;

use anyhow::Result;

use super::{
    Violation, files, read,
    source::{line_at, shipped_code},
};

const SOURCES: [&str; 5] = ["core/kernels/src", "core/src", "data/src", "learner/src", "native-worker/src"];

/// Dependencies, and types of them that are used without a path.
const FOREIGN: [&str; 19] = [
    "AsyncRead",
    "AsyncWrite",
    "Bytes",
    "JoinHandle",
    "ValueEnum",
    "arrow_array",
    "arrow_schema",
    "clap",
    "getrandom",
    "glob",
    "hdf5_pure",
    "hyper",
    "oneshot",
    "parquet",
    "rustls",
    "safetensors",
    "tokio",
    "tungstenite",
    "watch",
];

/// Endings of the names of enums that grow.
const GROWING: [&str; 3] = ["Error", "ErrorKind", "Reason"];

/// Reasons that do not grow, so that other crates match all of them.
const CLOSED: [&str; 1] = ["CutReason"];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for source in SOURCES {
        for file in files(root, Path::new(source), "rs")? {
            let text = shipped_code(&read(root, &file)?).text;
            violations.extend(foreign(&text).map(|(offset, name)| Violation {
                file: file.clone(),
                line: line_at(&text, offset),
                what: format!(
                    "`{name}` of a dependency is in a public signature: wrap it, or make the item pub(crate)"
                ),
            }));
            violations.extend(exhaustive(&text).map(|(offset, name)| Violation {
                file: file.clone(),
                line: line_at(&text, offset),
                what: format!("`{name}` grows: make it #[non_exhaustive]"),
            }));
        }
    }
    Ok(violations)
}

/// Returns the public enums that grow without being non-exhaustive, each with its place.
fn exhaustive(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("\npub enum ").filter_map(|(at, keyword)| {
        let rest = &text[at + keyword.len()..];
        let name = &rest[..rest.find(|next: char| !next.is_alphanumeric())?];
        let grows = GROWING.iter().any(|ending| name.ends_with(ending)) && !CLOSED.contains(&name);
        let attributes = text[..=at].rsplit("\n\n").next().unwrap_or_default();
        (grows && !attributes.contains("#[non_exhaustive]")).then_some((at + 1, name))
    })
}

/// Returns the foreign names in public signatures, each with the place of the signature. All `pub` items are reachable:
/// a lint of the compiler checks it.
fn foreign(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let items = text.match_indices("pub ").filter(|(at, _)| text[..*at].trim_end_matches(' ').ends_with('\n'));
    let signatures = items.flat_map(move |(at, _)| {
        let item = &text[at + 4..];
        let is_fn = item.lines().next().is_some_and(|line| line.contains("fn "));
        let indent = text[..at].len() - text[..at].trim_end_matches(' ').len();
        let end = match item {
            _ if is_fn => item.find(['{', ';']),
            _ if item.starts_with("enum ") => item.find(&format!("\n{}}}", " ".repeat(indent))),
            _ => item.find('\n'),
        };
        // Fields of tuples are private.
        let is_name = ["mod ", "struct ", "use "].iter().any(|item_of| item.starts_with(item_of));
        let signature = if is_name { "" } else { &item[..end.unwrap_or(item.len())] };
        foreign_in(signature).map(move |name| (at, name))
    });
    let conversions = text.match_indices("\nimpl From<").filter_map(|(at, _)| {
        let (from, to) = text[at + 1..].split_once('{')?.0.split_once(" for ")?;
        let name = to.split(['<', ' ']).next()?;
        let is_public = ["enum", "struct"].iter().any(|kind| text.contains(&format!("pub {kind} {name}")));
        is_public.then(|| foreign_in(from).map(move |name| (at + 1, name)))
    });
    signatures.chain(conversions.flatten())
}

/// Returns the foreign names in a signature. The first word of each line of an enum is the name of a variant or field.
fn foreign_in(signature: &str) -> impl Iterator<Item = &'static str> {
    let is_enum = signature.starts_with("enum ");
    let words = signature.lines().flat_map(move |line| {
        let words = line.trim_start().split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.skip(usize::from(is_enum))
    });
    words.filter_map(|word| FOREIGN.into_iter().find(|name| *name == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_types_are_found_in_public_signatures_only() {
        let text = "\npub fn a(\n    x: &[u8],\n) -> Option<Bytes> {\n    tokio::spawn(x);\n}\n    pub(crate) fn b() -> Bytes {}\n\
                    \x20   pub c: watch::Receiver<u8>,\npub use bytes::Error;\npub fn d(bytes: BytesColumn) {}\n";
        let found: Vec<&str> = foreign(text).map(|(_, name)| name).collect();
        assert_eq!(found, ["Bytes", "watch"]);
    }

    #[test]
    fn enums_that_grow_are_found_unless_they_are_non_exhaustive() {
        let text = "#[non_exhaustive]\n\npub enum AError {\n}\n\n#[derive(Debug)]\n#[non_exhaustive]\npub enum BReason<'a> {\n}\n\n\
                    pub enum CErrorKind {\n}\n\npub enum D {\n}\n\npub enum CutReason {\n}\n";
        let found: Vec<&str> = exhaustive(text).map(|(_, name)| name).collect();
        assert_eq!(found, ["AError", "CErrorKind"]);
    }

    #[test]
    fn foreign_types_are_found_in_variants_and_conversions_of_public_types() {
        let text = "\npub enum E {\n    Bytes(u8),\n    A(#[from] rustls::Error),\n}\nenum F {\n    B(hyper::Error),\n}\n\
                    impl From<tokio::Error> for E {\n}\nimpl From<glob::Error> for F {\n}\n";
        let found: Vec<&str> = foreign(text).map(|(_, name)| name).collect();
        assert_eq!(found, ["rustls", "tokio"]);
    }
}
