//! Words in documents, comments, names and texts: sentences name the peer, worker or caller that they are about, and
//! concepts have one name.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, documents, files, read};

/// Words that hide the actor, and words that have a standard term, each with its replacement. They are beginnings of
/// words, unless a space follows.
const WORDS: [(&str, &str); 11] = [
    ("nobody", "the actor"),
    ("somebody", "the actor"),
    ("whoever", "the actor"),
    ("convict", "failed audit"),
    ("liar", "divergent worker"),
    ("accus", "failed audit"),
    ("books", "ledger"),
    ("doorstep", "handshake"),
    ("knock", "handshake"),
    ("hoard", "partial messages"),
    ("beside ", "next to, alongside or compared with"),
];

/// This file, which contains these words.
const HERE: &str = "xtask/src/layers/words.rs";

const FOLDERS: [&str; 10] =
    ["core", "data", "docs", "examples", "learner", "native-worker", "python", "tests", "web", "xtask"];
const EXTENSIONS: [&str; 8] = ["rs", "md", "py", "js", "mjs", "ts", "toml", "html"];

/// Folders with files of other projects.
const OF_OTHERS: [&str; 3] = ["node_modules", "dist", "target"];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut checked: Vec<PathBuf> = documents::FILES.map(PathBuf::from).into();
    for folder in FOLDERS {
        for extension in EXTENSIONS {
            checked.extend(files(root, Path::new(folder), extension)?);
        }
    }
    let is_ours =
        |file: &Path| file != Path::new(HERE) && OF_OTHERS.iter().all(|of| !file.iter().any(|part| part == *of));
    let mut violations = Vec::new();
    for file in checked.into_iter().filter(|file| is_ours(file)) {
        let text = read(root, &file)?;
        violations.extend(found(&text).map(|(line, word, instead)| Violation {
            file: file.clone(),
            line,
            what: format!("write {instead} instead of `{word}`"),
        }));
    }
    Ok(violations)
}

/// Returns the words in a text, each with its line, from 1, and its replacement.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str, &'static str)> {
    text.lines().zip(1..).flat_map(|(line, number)| {
        let line = line.to_ascii_lowercase();
        let begins = move |word: &str| {
            line.match_indices(word.trim_end()).any(|(at, found)| {
                let ends = !line[at + found.len()..].starts_with(|after: char| after.is_alphabetic() || after == '_');
                !line[..at].ends_with(char::is_alphabetic) && (ends || found == word)
            })
        };
        WORDS.into_iter().filter(move |(word, _)| begins(word)).map(move |(word, instead)| (number, word, instead))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_names_and_at_the_start_of_sentences() {
        let text = "fn familiar_worker_waits() {}\n// Nobody waits besides.\nfn ends_with_a_liar() {}\n// beside\n";
        let found: Vec<_> = found(text).map(|(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(2, "nobody"), (3, "liar"), (4, "beside ")]);
    }
}
