//! The table "Where to add what" of CONTRIBUTING.md: an example of each row as a patch, so that the table stays true.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    job::Job,
    suites::BROWSER_CRATES,
    workspace::{cargo, command, root, target},
};

const PATCHES: &str = "tests/additions";

/// Files that an addition may touch.
const MAX_FILES: usize = 4;

/// Applies every patch to a copy of the repository, and compiles them together.
pub(crate) fn check(job: &Job) -> Result<()> {
    let copy = copied(job)?;
    let patches = patches()?;
    for patch in &patches {
        let text = fs::read_to_string(patch).with_context(|| format!("cannot read {}", patch.display()))?;
        let files = touched(&text);
        if files > MAX_FILES {
            bail!(
                "{} touches {files} files, an addition may touch {MAX_FILES}: register things in fewer places",
                patch.display()
            );
        }
        // Git must not treat the copy as a part of the repository that contains it.
        let mut apply = Command::new("git");
        apply.args(["apply", "-C1"]).arg(patch).current_dir(&copy).env("GIT_CEILING_DIRECTORIES", target());
        job.run(&mut apply)?;
    }
    // Cargo gives the crates of the copy the same names as those of the repository: in one folder they would replace
    // them.
    let compiled = target().join("xtask/additions-target");
    let browsers = BROWSER_CRATES.map(|name| ["--package", name]);
    for options in [&["--lib", "--bins", "--test", "promises"][..], browsers.as_flattened()] {
        let mut check = cargo();
        check.args(["check", "--locked"]).args(options).current_dir(&copy).env("CARGO_TARGET_DIR", &compiled);
        job.run(&mut check)?;
    }
    job.note(format!("{} additions", patches.len()));
    Ok(())
}

/// Copies the repository's files, and replaces the last copy.
fn copied(job: &Job) -> Result<PathBuf> {
    let copy = target().join("xtask/additions");
    if copy.exists() {
        fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    }
    let listed = job.output(command("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    // A file that was removed is listed until that is committed.
    for file in listed.split_terminator('\0').map(Path::new).filter(|file| root().join(file).is_file()) {
        let to = copy.join(file);
        let folder = to.parent().unwrap_or(&copy);
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::copy(root().join(file), &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(copy)
}

fn patches() -> Result<Vec<PathBuf>> {
    let folder = root().join(PATCHES);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut patches = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    patches.sort();
    if patches.is_empty() {
        bail!("there are no patches in {}", folder.display());
    }
    Ok(patches)
}

/// Returns the number of files that a patch changes or adds.
fn touched(patch: &str) -> usize {
    patch.lines().filter(|line| line.starts_with("diff --git ")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies() {
        for patch in patches().unwrap() {
            let mut apply = Command::new("git");
            apply.args(["apply", "--check", "-C1"]).arg(&patch).current_dir(root());
            assert!(apply.status().unwrap().success(), "{} does not fit the sources any more", patch.display());
        }
    }

    #[test]
    fn every_row_of_the_table_links_a_patch_and_every_patch_has_a_row() {
        let document = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let (_, table) = document.split_once("## Where to add what").unwrap();
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| a")).collect();
        let link = format!("]({PATCHES}/");
        let mut linked: Vec<PathBuf> = rows
            .iter()
            .map(|row| {
                let (_, rest) = row.split_once(&link).unwrap_or_else(|| panic!("no example in: {row}"));
                root().join(PATCHES).join(rest.split(')').next().unwrap())
            })
            .collect();
        linked.sort();
        assert_eq!(linked, patches().unwrap());
    }

    #[test]
    fn every_patch_touches_few_files() {
        for patch in patches().unwrap() {
            let files = touched(&fs::read_to_string(&patch).unwrap());
            assert!((1..=MAX_FILES).contains(&files), "{} touches {files} files", patch.display());
        }
    }
}
