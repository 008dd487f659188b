//! Documents: relative links lead to something that is there.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, read, source::line_at};

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for file in ["README.md", "ARCHITECTURE.md", "PROTOCOL.md", "CHANGELOG.md"].map(PathBuf::from) {
        if !root.join(&file).exists() {
            continue;
        }
        let text = read(root, &file)?;
        for (offset, link) in relative_links(&text) {
            if !root.join(link).exists() {
                let what = format!("the link to `{link}` leads nowhere");
                violations.push(Violation { file: file.clone(), line: line_at(&text, offset), what });
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
}
