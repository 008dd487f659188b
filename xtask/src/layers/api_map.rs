//! The map of RLlib's interface: every listed name has a row, every section states where its rows work, and in the
//! sections of groups and batches each row has one name and its tests.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Violation, read};

/// Names by section: `## ` and a heading of the map, then words.
const NAMES: &str = include_str!("rllib_names.txt");

/// The sections in which no two names share a row.
const ONE_BY_ONE: [&str; 2] = ["WorkerSet, EnvRunnerGroup", "Batches, policy maps, optimizers"];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let file = PathBuf::from("docs/api-map.md");
    let map = read(root, &file)?;
    let mut wrong = [missing(NAMES, &map), without_place(&map)].concat();
    wrong.extend(ONE_BY_ONE.iter().flat_map(|section| crowded(section, &map)));
    Ok(wrong.into_iter().map(|what| Violation { file: file.clone(), line: 0, what }).collect())
}

/// Returns the names without a row.
fn missing(names: &str, map: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for (heading, words) in sections(names) {
        let rows: Vec<&str> = sections(map).filter(|(of, _)| *of == heading).flat_map(|(_, text)| rows(text)).collect();
        let lacking = words.split_whitespace().filter(|name| !rows.contains(name));
        missing.extend(lacking.map(|name| format!("section '{heading}' has no row for `{name}`")));
    }
    missing
}

/// Returns the sections that do not state where their rows work.
fn without_place(map: &str) -> Vec<String> {
    let sections = sections(map).filter(|(_, text)| !text.contains("\n*Where*: "));
    sections.map(|(heading, _)| format!("section '{heading}' has no line '*Where*: …'")).collect()
}

/// Returns the rows of a section with several names, or without a test of their own.
fn crowded(section: &str, map: &str) -> Vec<String> {
    let lines = sections(map).filter(|(heading, _)| *heading == section).flat_map(|(_, text)| text.lines());
    let cells = lines.filter_map(|line| Some(line.strip_prefix('|')?.split('|').collect::<Vec<_>>()));
    let rows = cells.filter(|cells| !matches!(cells[0], " RLlib " | "---"));
    rows.filter_map(|cells| {
        let name = cells[0].trim();
        let tests = cells.get(2).copied().unwrap_or_default();
        if quoted(name).count() > 1 {
            Some(format!("the row {name} is of several names: each needs its own"))
        } else if !tests.contains("` in [") {
            Some(format!("the row {name} names no test"))
        } else {
            None
        }
    })
    .collect()
}

/// Returns the headings of the second level, each with the text below it.
fn sections(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")))
}

/// Returns the names in the first cells of all rows: `name`, `Class.name` or `name(arguments)`.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let first_cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    first_cells.flat_map(quoted).map(|quoted| {
        let name = quoted.split('(').next().unwrap_or_default();
        name.rsplit('.').next().unwrap_or_default()
    })
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_one_name_and_has_a_test() {
        let map = |rows: &str| {
            format!(
                "# Map\n\n## One\n\n| RLlib | here | shown by |\n|---|---|---|\n{rows}\n## Two\n\n| `x`, `y` | | |\n"
            )
        };
        let good =
            "| `a` | `b`, `c` | `test` in [file](file.rs) |\n| no counterpart | `d` | `test` in [file](file.rs) |\n";
        assert_eq!(crowded("One", &map(good)), [""; 0]);
        let bad = "| `a`, `b` | | `test` in [file](file.rs) |\n| `c` | `d` |  |\n";
        assert_eq!(
            crowded("One", &map(bad)),
            ["the row `a`, `b` is of several names: each needs its own", "the row `c` names no test"]
        );
    }

    #[test]
    fn every_section_says_where_its_rows_work() {
        let map = "# Map\n\n## One\n\n*Where*: process.\n\n## Two\n\n| `x` | *Where*: |\n";
        assert_eq!(without_place(map), ["section 'Two' has no line '*Where*: …'"]);
    }

    #[test]
    fn every_name_needs_a_row_in_its_section() {
        let names = "# What for\n\n## One\na b\nc\n\n## Two\na\n";
        let map = "# Map\n\n## One\n\n| RLlib | here |\n|---|---|\n| `a`, `Class.b(x, y)` | `c` |\n\n## Other\n\n| `a`, `c` |\n";
        assert_eq!(missing(names, map), ["section 'One' has no row for `c`", "section 'Two' has no row for `a`"]);
        assert_eq!(missing(names, &map.replace("| `c` |", "|\n| `c` | |").replace("Other", "Two")), [""; 0]);
    }
}
