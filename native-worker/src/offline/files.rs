//! Finding files by path, directory or pattern.

use std::{
    cmp::Ordering,
    env,
    path::{Path, PathBuf},
};

use super::OfflineError;

/// Returns the path of an input on this machine.
pub(super) fn expand(input: &str) -> Result<PathBuf, OfflineError> {
    // A single letter is a Windows drive.
    if input.split_once("://").is_some_and(|(scheme, _)| scheme.len() > 1) {
        return Err(OfflineError::Remote(input.into()));
    }
    Ok(match (input.strip_prefix("~/"), env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(input),
    })
}

/// Returns the files that match a pattern, sorted; `input` is the user's text for error messages.
pub(super) fn matching_pattern(input: &str, pattern: &Path) -> Result<Vec<PathBuf>, OfflineError> {
    let found = glob::glob(&pattern.to_string_lossy());
    let found = found.map_err(|error| OfflineError::Pattern { pattern: input.into(), problem: error.to_string() })?;
    // Unreadable directories do not match.
    let mut files: Vec<PathBuf> = found.filter_map(Result::ok).collect();
    files.sort_by(|a, b| by_number(a, b));
    Ok(files)
}

/// Compares names with numbers by value: `…_10.json` was written after `…_9.json` and continues its episodes.
fn by_number(a: &Path, b: &Path) -> Ordering {
    let (left, right) = (a.to_string_lossy(), b.to_string_lossy());
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    loop {
        let (one, other) = match (left.split_first(), right.split_first()) {
            (Some(one), Some(other)) => (one, other),
            // The shorter name comes first; names that differ in leading zeros only are still ordered.
            (one, other) => return one.is_some().cmp(&other.is_some()).then_with(|| a.cmp(b)),
        };
        let order = if one.0.is_ascii_digit() && other.0.is_ascii_digit() {
            let (number, rest) = number(left);
            let (other_number, other_rest) = self::number(right);
            (left, right) = (rest, other_rest);
            number.len().cmp(&other_number.len()).then_with(|| number.cmp(other_number))
        } else {
            (left, right) = (one.1, other.1);
            one.0.cmp(other.0)
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Returns the digits at the start without leading zeros, and the rest.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (&digits[zeros..], rest)
}

pub(super) fn in_directory(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, OfflineError> {
    // Its JSON files would be read as damaged samples.
    if ["config.toml", "metrics.jsonl"].iter().all(|name| path.join(name).is_file()) {
        return Err(OfflineError::RunDirectory(path.into()));
    }
    let failed = |source| OfflineError::Read { path: path.into(), source };
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| endings.contains(&ending)) && file.is_file() {
            files.push(file);
        }
    }
    files.sort_by(|a, b| by_number(a, b));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        super::inputs::{DatasetFolders, Located, locate},
        *,
    };

    #[test]
    fn paths_directories_and_patterns_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.json", "a.json", "c.zip", "notes.txt"] {
            fs::write(folder.path().join(name), "{").unwrap();
        }
        let root = folder.path().to_str().unwrap();
        let names = |inputs: &[String]| -> Vec<String> {
            let found = locate(inputs, &DatasetFolders::default()).unwrap();
            found.iter().map(|found| found.path.file_name().unwrap().to_str().unwrap().into()).collect()
        };
        assert_eq!(names(&[root.into()]), ["a.json", "b.json", "c.zip"]);
        assert_eq!(names(&[format!("{root}/*.json")]), ["a.json", "b.json"]);
        let list = [format!("{root}/notes.txt"), format!("{root}/b*"), root.into()];
        assert_eq!(names(&list), ["notes.txt", "b.json", "a.json", "c.zip"]);
    }

    #[test]
    fn directory_of_a_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.toml", "metrics.jsonl", "policy.json"] {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        let error = locate(&[folder.path().to_str().unwrap().into()], &DatasetFolders::default()).unwrap_err();
        assert!(error.to_string().contains("is the directory of a run, not its rows"), "{error}");
    }

    #[test]
    fn rotated_files_come_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        for number in [10, 9, 0, 100, 2] {
            fs::write(folder.path().join(format!("output_2026-01-02_worker-3_{number}.json")), "").unwrap();
        }
        let root = folder.path().to_str().unwrap();
        for input in [root.to_owned(), format!("{root}/*.json")] {
            let found = locate(&[input], &DatasetFolders::default()).unwrap();
            let number = |found: &Located| {
                found.path.file_stem().unwrap().to_str().unwrap().rsplit_once('_').unwrap().1.to_owned()
            };
            assert_eq!(found.iter().map(number).collect::<Vec<_>>(), ["0", "2", "9", "10", "100"]);
        }
        let order = |a: &str, b: &str| by_number(a.as_ref(), b.as_ref());
        assert_eq!((order("a1b", "a01b"), order("a1b", "a1b")), (Ordering::Greater, Ordering::Equal));
        assert_eq!((order("a", "a1"), order("a2", "b1")), (Ordering::Less, Ordering::Less));
    }

    #[test]
    fn nothing_is_an_error() {
        let error = |input: &str| locate(&[input.into()], &DatasetFolders::default()).unwrap_err().to_string();
        assert!(error("/no/such/*.json").starts_with("there are no files /no/such/*.json"));
        assert!(error("s3://bucket/a.json").contains("another machine"));
        assert!(error("/tmp/***").contains("no pattern"));
    }
}
