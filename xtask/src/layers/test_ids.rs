//! The page's controls: each control with a name for tests is used in a test of the page in a browser.

use std::path::Path;

use anyhow::Result;

use super::{Violation, files, read, source::line_at};

const PAGE: &str = "web/src";
const TESTS: &str = "tests/tests/e2e";

/// Elements that receive clicks or text: those of HTML, and the page's own with their name in `id`.
const CONTROLS: [(&str, &str); 6] = [
    ("<button", "data-testid=\""),
    ("<input", "data-testid=\""),
    ("<select", "data-testid=\""),
    ("<ActionButton", "id=\""),
    ("<AskFirst", "id=\""),
    ("<Toggle", "id=\""),
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut tests = String::new();
    for file in files(root, Path::new(TESTS), "rs")? {
        tests += &read(root, &file)?;
    }
    let mut violations = Vec::new();
    for file in files(root, Path::new(PAGE), "rs")? {
        let view = read(root, &file)?;
        let unused = controls(&view).filter(|(_, id)| !is_used(id, &tests));
        violations.extend(unused.map(|(offset, id)| Violation {
            file: file.clone(),
            line: line_at(&view, offset),
            what: format!("no test in {TESTS} uses the control `{id}`"),
        }));
    }
    Ok(violations)
}

/// Returns the controls of a view, each with its offset and its name, except those whose names are built at run time.
fn controls(view: &str) -> impl Iterator<Item = (usize, &str)> {
    CONTROLS.into_iter().flat_map(move |(element, name)| {
        view.match_indices(element).filter_map(move |(offset, _)| {
            let rest = &view[offset + element.len()..];
            let is_other_element = !rest.starts_with(char::is_whitespace);
            let (_, id) = up_to_element(rest).split_once(name).filter(|_| !is_other_element)?;
            Some((offset, id.split('"').next()?))
        })
    })
}

/// Returns the text up to the next tag, which may have the next name. Unlike the `<` of a comparison or of a type's
/// arguments, that of a tag is before a `/`, or after a space and before a letter.
fn up_to_element(text: &str) -> &str {
    let mut tags = text.match_indices('<').filter(|(at, _)| {
        let next = text[at + 1..].chars().next();
        let is_start = next.is_some_and(char::is_alphabetic) && text[..*at].ends_with(char::is_whitespace);
        is_start || next == Some('/')
    });
    tags.next().map_or(text, |(at, _)| &text[..at])
}

/// Returns whether tests have the name as a string of Rust, of JavaScript, or in a selector.
fn is_used(id: &str, tests: &str) -> bool {
    [format!("\"{id}\""), format!("'{id}'"), format!("={id}]")].iter().any(|use_of| tests.contains(use_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_with_a_literal_name_are_found() {
        let view = r#"<button
            type="button"
            disabled=move || saved.get() < Vec::<u8>::new().len()
            data-testid="save"
            on:click=save
        >"Save"</button>
        <input data-testid=id/>
        <p data-testid="note"></p>
        <ActionButton action=Action::Stop id="stop">"Stop"</ActionButton>"#;
        assert_eq!(controls(view).map(|(_, id)| id).collect::<Vec<_>>(), ["save", "stop"]);
    }

    #[test]
    fn control_is_used_where_its_whole_name_is() {
        let tests = r#"page.click("stop-cancel"); "['pause', 'resume']"; "[data-testid=join] button""#;
        assert_eq!(["stop", "pause", "join", "stop-cancel"].map(|id| is_used(id, tests)), [false, true, true, true]);
    }
}
