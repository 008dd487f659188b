//! Tables and counts as text.

use crate::terminal::printable;

/// Formats a count like `1 line`, `2 lines`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns rows as lines of cells that are two spaces apart; the first row has all columns, and `is_right` returns true for
/// those that are aligned right. Control characters are replaced.
pub(super) fn table(rows: &[impl AsRef<[String]>], is_right: impl Fn(usize) -> bool) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| printable(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match is_right(i) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(|row| line(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let rows = [["column".to_owned(), "type".to_owned()], ["\u{1b}[2Jobs\n".to_owned(), "float32".to_owned()]];
        assert_eq!(table(&rows, |_| false), "column    type\n [2Jobs   float32\n");
    }
}
