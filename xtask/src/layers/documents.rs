//! Documents: relative links lead to something that is there, and the tests that they name are in the files they name.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, read, source::line_at};

const DOCUMENTS: [&str; 22] = [
    "README.md",
    "ARCHITECTURE.md",
    "PROTOCOL.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/command-line.md",
    "docs/features.md",
    "docs/gpu.md",
    "docs/evaluation.md",
    "docs/same-bits.md",
    "docs/performance.md",
    "docs/reliability.md",
    "docs/rllib-differences.md",
    "docs/api-map.md",
    "examples/traffic_grid/README.md",
    "examples/own-env/README.md",
    "examples/worker_group/README.md",
    "examples/external/README.md",
    "examples/tab/README.md",
    "web/npm/README.md",
    "tests/peers/README.md",
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in DOCUMENTS.map(PathBuf::from) {
        if !root.join(&file).exists() {
            continue;
        }
        let text = read(root, &file)?;
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        for (offset, link) in relative_links(&text) {
            if !root.join(folder).join(link).exists() {
                let what = format!("the link to `{link}` leads nowhere");
                violations.push(Violation { file: file.clone(), line: line_at(&text, offset), what });
            } else if link.ends_with(".rs") {
                let linked = read(root, &folder.join(link))?;
                let missing =
                    functions_named_before(&text[..offset]).into_iter().filter(|name| !has_function(&linked, name));
                violations.extend(missing.map(|name| Violation {
                    file: file.clone(),
                    line: line_at(&text, offset),
                    what: format!("there is no `{name}` in {link}"),
                }));
            }
        }
    }
    Ok(violations)
}

/// Targets of links and pictures that lie in the repository, without the part after `#`.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let ends = [("](", ')'), ("src=\"", '"'), ("href=\"", '"'), ("srcset=\"", '"')];
    let mut links = Vec::new();
    for (start, end) in ends {
        for (offset, _) in text.match_indices(start) {
            let target = text[offset + start.len()..].split([end, '\n', ' ', '#']).next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !elsewhere {
                links.push((offset, target));
            }
        }
    }
    links
}

/// `a` and `b` of a text that ends in "`a`, `b` in [label": the functions that the link's file is said to hold.
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
    fn only_links_into_the_repository_are_followed() {
        let text =
            "[a](docs/a.md#part) [b](#here) [c](https://example.org/x) ![d](pic.png \"title\") <img src=\"e.svg\">";
        let links: Vec<&str> = relative_links(text).into_iter().map(|(_, link)| link).collect();
        assert_eq!(links, ["docs/a.md", "pic.png", "e.svg"]);
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
