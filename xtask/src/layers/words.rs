//! Words: sentences name the peer, worker or caller that they are about, in documents, comments, names and texts.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, documents, files, read};

/// Subjects that hide who acts.
const WORDS: [&str; 3] = ["nobody", "somebody", "whoever"];

/// This file has to spell them.
const HERE: &str = "xtask/src/layers/words.rs";

const FOLDERS: [&str; 10] =
    ["core", "data", "docs", "examples", "learner", "native-worker", "python", "tests", "web", "xtask"];
const EXTENSIONS: [&str; 8] = ["rs", "md", "py", "js", "mjs", "ts", "toml", "html"];

/// Folders with files of others.
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
        violations.extend(found(&text).map(|(line, word)| Violation {
            file: file.clone(),
            line,
            what: format!("name the actor instead of `{word}`"),
        }));
    }
    Ok(violations)
}

/// The words in a text, each with its line, from 1.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().zip(1..).flat_map(|(line, number)| {
        let line = line.to_ascii_lowercase();
        WORDS.into_iter().filter(move |word| line.contains(word)).map(move |word| (number, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_names_and_at_the_start_of_sentences() {
        let text = "fn worker_waits() {}\n// Nobody waits.\nfn ends_with_whoever_leaves() {}\n";
        assert_eq!(found(text).collect::<Vec<_>>(), [(2, "nobody"), (3, "whoever")]);
    }
}
