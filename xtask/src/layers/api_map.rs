//! The map of RLlib's interface: every name that it promises to have a row has one.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, read};

/// Names by section: `## ` and a heading of the map, then words.
const NAMES: &str = include_str!("rllib_names.txt");

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let file = PathBuf::from("docs/api-map.md");
    let map = read(root, &file)?;
    let missing = missing(NAMES, &map);
    Ok(missing.into_iter().map(|what| Violation { file: file.clone(), line: 0, what }).collect())
}

/// What the map lacks.
fn missing(names: &str, map: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for (heading, words) in sections(names) {
        let rows: Vec<&str> = sections(map).filter(|(of, _)| *of == heading).flat_map(|(_, text)| rows(text)).collect();
        let lacking = words.split_whitespace().filter(|name| !rows.contains(name));
        missing.extend(lacking.map(|name| format!("section '{heading}' has no row for `{name}`")));
    }
    missing
}

/// Headings of the second level, and what is below each.
fn sections(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")))
}

/// What the first cells of all rows name: `name`, `Class.name` or `name(arguments)`.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let first_cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(|quoted| {
        let name = quoted.split('(').next().unwrap_or_default();
        name.rsplit('.').next().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_needs_a_row_in_its_section() {
        let names = "# What for\n\n## One\na b\nc\n\n## Two\na\n";
        let map = "# Map\n\n## One\n\n| RLlib | here |\n|---|---|\n| `a`, `Class.b(x, y)` | `c` |\n\n## Other\n\n| `a`, `c` |\n";
        assert_eq!(missing(names, map), ["section 'One' has no row for `c`", "section 'Two' has no row for `a`"]);
        assert_eq!(missing(names, &map.replace("| `c` |", "|\n| `c` | |").replace("Other", "Two")), [""; 0]);
    }
}
