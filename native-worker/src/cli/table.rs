//! Tables and counts as text.

/// Formats a count like `1 line`, `2 lines`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns rows as lines of cells that are two spaces apart; the first row has all columns, and `is_right` returns true for
/// those that are aligned right.
pub(super) fn table(rows: &[impl AsRef<[String]>], is_right: impl Fn(usize) -> bool) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |i: usize| rows.iter().filter_map(|row| row.as_ref().get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match is_right(i) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(|row| line(row.as_ref())).collect()
}
