//! The matrix of docs/features.md: every cell is an answer, and every answer has its test or its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Violation, read};

/// A test that cells refer to by its label.
struct Test<'a> {
    line: usize,
    /// The path, relative to the folder of the document.
    file: &'a str,
    name: &'a str,
}

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let file = PathBuf::from("docs/features.md");
    let matrix = read(root, &file)?;
    let mut wrong = answers(&matrix);
    wrong.extend(repeated_labels(&matrix));
    for (label, test) in tests_by_label(&matrix) {
        let path = Path::new("docs").join(test.file);
        if !root.join(&path).exists() {
            wrong.push((test.line, format!("test {label} is in {}, which does not exist", test.file)));
        } else if !has_test(&read(root, &path)?, test.name) {
            wrong.push((test.line, format!("there is no test `{}` in {}", test.name, test.file)));
        }
    }
    Ok(wrong.into_iter().map(|(line, what)| Violation { file: file.clone(), line, what }).collect())
}

/// Returns the cells that are no answer, answers without their test or reason, tests and reasons without an answer.
fn answers(matrix: &str) -> Vec<(usize, String)> {
    let (tests, reasons) = (tests_by_label(matrix), reasons(matrix));
    let (mut of_tests, mut of_reasons) = (BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for (line, text) in numbered(matrix) {
        let Some(row) = text.strip_prefix("| ").filter(|row| !row.starts_with("feature |")) else { continue };
        for cell in row.trim_end_matches('|').split('|').skip(1).map(str::trim) {
            let labels = cell.strip_prefix("yes [").and_then(|labels| labels.strip_suffix(']'));
            let reason = cell.strip_prefix("[no ").and_then(|reason| reason.strip_suffix("](#why-not)"));
            match (cell, labels, reason) {
                ("", ..) => {}
                (_, Some(labels), _) => of_tests.extend(labels.split("] [").map(|label| (label, line))),
                (_, _, Some(reason)) => _ = of_reasons.insert((reason, line)),
                _ => wrong
                    .push((line, format!("the cell '{cell}' must be 'yes [TEST]', '[no REASON](#why-not)' or empty"))),
            }
        }
    }
    let known: BTreeMap<&str, usize> = tests.iter().map(|(label, test)| (*label, test.line)).collect();
    wrong.extend(unmatched("test", &of_tests, &known));
    wrong.extend(unmatched("reason", &of_reasons, &reasons));
    wrong
}

/// Returns the labels that cells refer to and that are not `known`, and those that no cell refers to.
fn unmatched(
    what: &str,
    referred: &BTreeSet<(&str, usize)>,
    known: &BTreeMap<&str, usize>,
) -> impl Iterator<Item = (usize, String)> {
    let missing = referred.iter().filter(|(label, _)| !known.contains_key(label));
    let missing = missing.map(|(label, line)| (*line, format!("there is no {what} {label}")));
    let unused = known.iter().filter(|(label, _)| !referred.iter().any(|(of, _)| of == *label));
    missing
        .chain(unused.map(|(label, line)| (*line, format!("no cell refers to {what} {label}"))))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns the labels of tests that are defined more than once: cells would refer to only one of these tests.
fn repeated_labels(matrix: &str) -> Vec<(usize, String)> {
    let mut known = BTreeMap::new();
    let again = |(label, test): (_, Test<'_>)| {
        let first = known.insert(label, test.line)?;
        Some((test.line, format!("label {label} is defined in line {first} already: give this test another one")))
    };
    labelled_tests(matrix).filter_map(again).collect()
}

fn tests_by_label(matrix: &str) -> BTreeMap<&str, Test<'_>> {
    labelled_tests(matrix).collect()
}

/// Returns the lines `[LABEL]: FILE "NAME"`.
fn labelled_tests(matrix: &str) -> impl Iterator<Item = (&str, Test<'_>)> {
    numbered(matrix).filter_map(|(line, text)| {
        let (label, test) = text.strip_prefix('[')?.split_once("]: ")?;
        let (file, name) = test.split_once(' ')?;
        Some((label, Test { line, file, name: name.trim_matches('"') }))
    })
}

/// Returns the numbers of the list below `## Why not`, with their lines.
fn reasons(matrix: &str) -> BTreeMap<&str, usize> {
    let list = numbered(matrix).skip_while(|(_, text)| *text != "## Why not").skip(1);
    let list = list.take_while(|(_, text)| !text.starts_with("## "));
    list.filter_map(|(line, text)| Some((text.split_once(". ")?.0, line))).collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Returns whether a source has the function, or for JavaScript the text after `test(`.
fn has_test(source: &str, name: &str) -> bool {
    let quotes = ['"', '`'];
    ["fn", "def"].iter().any(|word| source.contains(&format!("{word} {name}(")))
        || quotes.iter().any(|q| source.contains(&format!("test({q}{name}{q}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATRIX: &str = "# M

| feature | here | there |
|---|---|---|
| one | yes [1] [2] | [no 1](#why-not) |
| two | yes [1] |  |

## Why not

1. So.

## Tests

[1]: ../a.rs \"first\"
[2]: ../b.mjs \"second of them\"
";

    #[test]
    fn labels_are_defined_once() {
        assert_eq!(repeated_labels(MATRIX), []);
        let again = format!("{MATRIX}[1]: ../c.rs \"third\"\n");
        let wanted = "label 1 is defined in line 14 already: give this test another one".to_owned();
        assert_eq!(repeated_labels(&again), [(16, wanted)]);
    }

    #[test]
    fn answers_need_their_test_or_reason() {
        assert_eq!(answers(MATRIX), []);
        let bad =
            MATRIX.replace("[2] |", "[3] |").replace("[no 1]", "[no 4]").replace("| two | yes [1]", "| two | untested");
        let found: Vec<String> = answers(&bad).into_iter().map(|(line, what)| format!("{line}: {what}")).collect();
        assert_eq!(
            found,
            [
                "6: the cell 'untested' must be 'yes [TEST]', '[no REASON](#why-not)' or empty",
                "5: there is no test 3",
                "15: no cell refers to test 2",
                "5: there is no reason 4",
                "10: no cell refers to reason 1",
            ]
        );
    }

    #[test]
    fn tests_are_found_by_their_whole_name() {
        let test = &tests_by_label(MATRIX)["2"];
        assert_eq!((test.file, test.name), ("../b.mjs", "second of them"));
        assert!(has_test("#[test]\nfn first() {}", "first") && !has_test("fn first_one() {}", "first"));
        assert!(has_test("test(\"second of them\", () => {", "second of them"));
        assert!(!has_test("test(`second of them all`, () => {", "second of them"));
    }
}
