//! Checks of the architecture: dependencies between crates, code that core must not contain, links of documents, names,
//! dependencies in the public API, controls of the page without a test, and words that hide the actor.
//!
//! They read text, not types, so they take milliseconds; the compiler and tests find the rest.

mod api_map;
mod crates;
mod documents;
mod features;
mod modules;
mod names;
mod native;
mod public;
mod source;
mod test_ids;
mod words;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A violation of the architecture.
#[derive(Debug, PartialEq)]
pub(crate) struct Violation {
    file: PathBuf,
    /// The line, from 1; 0 means the whole file.
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.what),
        }
    }
}

/// Returns every violation in the repository at `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = modules::check(root)?;
    violations.extend(native::check(root)?);
    violations.extend(crates::check(root)?);
    violations.extend(documents::check(root)?);
    violations.extend(api_map::check(root)?);
    violations.extend(features::check(root)?);
    violations.extend(names::check(root)?);
    violations.extend(public::check(root)?);
    violations.extend(test_ids::check(root)?);
    violations.extend(words::check(root)?);
    Ok(violations)
}

fn read(root: &Path, file: &Path) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
}

/// Returns the files below `folder` with that extension, sorted, relative to `root`.
fn files(root: &Path, folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(root.join(folder)).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = folder.join(entry?.file_name());
        if root.join(&path).is_dir() {
            found.extend(files(root, &path, extension)?);
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
