//! The public functions, fields and constants of the published crates: types of their dependencies are not among them, so that
//! a newer dependency breaks no user. JSON values are the exception, and candle's types in the learner.

use std::path::Path;

use anyhow::Result;

use super::{
    Violation, files, read,
    source::{line_at, shipped_code},
};

const SOURCES: [&str; 5] = ["core/kernels/src", "core/src", "data/src", "learner/src", "native-worker/src"];

/// Dependencies, and types of them that are used by their name alone.
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
        }
    }
    Ok(violations)
}

/// The foreign names in public signatures, each with the place of the signature. What is `pub` is reachable: a lint of the
/// compiler sees to it.
fn foreign(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let signatures = text.match_indices("pub ").filter(|(at, _)| text[..*at].trim_end_matches(' ').ends_with('\n'));
    signatures.flat_map(move |(at, _)| {
        let item = &text[at + 4..];
        let is_fn = item.lines().next().is_some_and(|line| line.contains("fn "));
        let end = if is_fn { item.find(['{', ';']) } else { item.find('\n') };
        // Fields of tuples are private.
        let is_name = ["mod ", "struct ", "use "].iter().any(|item_of| item.starts_with(item_of));
        let signature = if is_name { "" } else { &item[..end.unwrap_or(item.len())] };
        let words = signature.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.filter_map(|word| FOREIGN.into_iter().find(|name| *name == word)).map(move |name| (at, name))
    })
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
}
