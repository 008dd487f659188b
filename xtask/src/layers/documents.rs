//! Documents: relative links lead to files and headings that exist, the tests that documents name are in the named
//! files, and the book's summary lists every page.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Violation, files, read, source::line_at};

/// Folders whose documents are checked, with their subfolders.
const FOLDERS: [&str; 3] = [BOOK, "examples", "tests/peers"];

/// Documents elsewhere.
pub(super) const FILES: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "PROTOCOL.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "python/README.md",
    "web/npm/README.md",
];

/// The folder of the book, and its table of contents there.
const BOOK: &str = "docs";
const SUMMARY: &str = "SUMMARY.md";

/// A relative link.
#[derive(Debug, PartialEq)]
struct Link<'a> {
    /// Byte offset of the mark before the target.
    offset: usize,
    /// Path of the target, relative to the document's folder; empty for the document itself.
    file: &'a str,
    anchor: Option<&'a str>,
}

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = unlisted(root)?;
    let mut documents: Vec<PathBuf> = FILES.map(PathBuf::from).into();
    for folder in FOLDERS {
        documents.extend(files(root, Path::new(folder), "md")?);
    }
    for document in documents {
        let prose = without_code(&read(root, &document)?);
        for link in links(&prose) {
            let line = line_at(&prose, link.offset);
            let wrong = wrong(root, &document, &prose, &link)?.into_iter();
            violations.extend(wrong.map(|what| Violation { file: document.clone(), line, what }));
        }
    }
    Ok(violations)
}

/// Returns the pages that the book's summary lacks.
fn unlisted(root: &Path) -> Result<Vec<Violation>> {
    let summary = Path::new(BOOK).join(SUMMARY);
    let text = read(root, &summary)?;
    let listed: BTreeSet<PathBuf> = links(&text).iter().map(|link| Path::new(BOOK).join(link.file)).collect();
    let pages = files(root, Path::new(BOOK), "md")?;
    let missing = pages.iter().filter(|page| **page != summary && !listed.contains(*page));
    let violation = |page: &PathBuf| {
        let what = format!("the summary does not list {}", page.display());
        Violation { file: summary.clone(), line: 0, what }
    };
    Ok(missing.map(violation).collect())
}

/// Returns the problems of a link of a document.
fn wrong(root: &Path, document: &Path, prose: &str, link: &Link<'_>) -> Result<Vec<String>> {
    let target = match link.file {
        "" => document.to_path_buf(),
        file => document.parent().unwrap_or_else(|| Path::new("")).join(file),
    };
    if !root.join(&target).exists() {
        return Ok(vec![format!("the link to `{}` leads nowhere", link.file)]);
    }
    if link.file.ends_with(".rs") {
        let source = read(root, &target)?;
        let missing =
            functions_named_before(&prose[..link.offset]).into_iter().filter(|name| !has_function(&source, name));
        return Ok(missing.map(|name| format!("there is no `{name}` in {}", link.file)).collect());
    }
    let Some(anchor) = link.anchor.filter(|_| target.extension().is_some_and(|of| of == "md")) else {
        return Ok(Vec::new());
    };
    let is_there = anchors(&without_code(&read(root, &target)?)).contains(anchor);
    Ok(if is_there { Vec::new() } else { vec![format!("there is no heading `#{anchor}` in {}", target.display())] })
}

/// Returns the text with the lines of fenced code blocks empty: code has neither links nor headings.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    prose
}

/// Returns the links and pictures whose targets are in the repository.
fn links(text: &str) -> Vec<Link<'_>> {
    let ends = [("](", ')'), ("src=\"", '"'), ("href=\"", '"'), ("srcset=\"", '"')];
    let mut links = Vec::new();
    for (start, end) in ends {
        for (offset, _) in text.match_indices(start) {
            let target = text[offset + start.len()..].split([end, '\n', ' ']).next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !elsewhere {
                let (file, anchor) =
                    target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
                links.push(Link { offset, file, anchor });
            }
        }
    }
    links
}

/// Returns the anchors of a document's headings, as GitHub and mdBook derive them.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    for heading in headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        let anchor = anchor_of(heading);
        // Equal headings are numbered from the second one on.
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

/// Returns the anchor of a heading: its letters, digits, hyphens and underscores in lower case, with hyphens for
/// spaces.
fn anchor_of(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns `a` and `b` of a text that ends in "`a`, `b` in [label": the functions that should be in the link's file.
fn functions_named_before(text: &str) -> Vec<&str> {
    let Some((text, _)) = text.rsplit_once('[') else { return Vec::new() };
    let Some(mut rest) = text.strip_suffix(" in ") else { return Vec::new() };
    let mut names = Vec::new();
    while let Some((before, name)) = rest.strip_suffix('`').and_then(|rest| rest.rsplit_once('`')) {
        names.push(name);
        rest = before.trim_end_matches([',', ' ']);
    }
    names
}

fn has_function(source: &str, name: &str) -> bool {
    source.contains(&format!("fn {name}("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_repository_have_file_and_anchor() {
        let text =
            "[a](docs/a.md#part) [b](#here) [c](https://example.org/x) ![d](pic.png \"title\") <img src=\"e.svg\">";
        let links: Vec<_> = links(text).into_iter().map(|link| (link.file, link.anchor)).collect();
        assert_eq!(links, [("docs/a.md", Some("part")), ("", Some("here")), ("pic.png", None), ("e.svg", None)]);
    }

    #[test]
    fn code_has_neither_links_nor_headings() {
        let prose = without_code("# One\n```sh\n# a comment [x](y)\n```\n[a](b)\n");
        assert_eq!(links(&prose), [Link { offset: 11, file: "b", anchor: None }]);
        assert_eq!(anchors(&prose), BTreeSet::from(["one".to_owned()]));
    }

    #[test]
    fn anchors_follow_from_headings() {
        let found = anchors("# An *own* `Env`, in Rust\n## RLlib's x_y: 2-fold\n### Part\n#### Part\n#hashtag\n");
        let expected = ["an-own-env-in-rust", "part", "part-1", "rllibs-x_y-2-fold"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_named_test_must_be_in_its_file() {
        assert_eq!(
            functions_named_before("| guarded by `one_thing`, `another` in [the file"),
            ["another", "one_thing"]
        );
        assert_eq!(functions_named_before("see `Thing` and [the file"), [""; 0]);
        assert!(has_function("#[test]\nfn another() {}", "another"));
        assert!(!has_function("fn another_one() {}", "another"));
    }
}
