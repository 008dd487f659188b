//! Formats batches as text.

use core::fmt;

use super::SampleBatch;
use crate::{
    column::{BytesColumn, Column, ColumnData, Element, by_type},
    prelude::*,
};

/// Number of rows shown at the start and at the end of a column.
const SHOWN_ROWS: usize = 3;
/// Number of elements shown of a row.
const SHOWN_ELEMENTS: usize = 8;
/// Number of characters shown of a ragged row.
const SHOWN_CHARS: usize = 32;

/// Formats the batch as RLlib does: `SampleBatch(10: ['a'])`, and with sequences `SampleBatch(6 (seqs=3): ['a',
/// 'state_in_0'])`. The alternate form `{:#}` adds a line per column: type, shape, and the first and last values.
impl fmt::Display for SampleBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleBatch({}", self.len())?;
        if let Some(lens) = self.seq_lens() {
            write!(f, " (seqs={})", lens.len())?;
        }
        if f.alternate() {
            return self.show_columns(f);
        }
        f.write_str(": [")?;
        for (i, (name, _)) in self.iter().enumerate() {
            write!(f, "{}'{name}'", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("])")
    }
}

impl SampleBatch {
    fn show_columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags =
            [(self.time_major, "time-major"), (self.zero_padded, "zero-padded"), (self.is_training, "for training")];
        for (_, flag) in flags.into_iter().filter(|(set, _)| *set) {
            write!(f, ", {flag}")?;
        }
        if let Some(updates) = self.num_grad_updates {
            write!(f, ", after {updates} updates")?;
        }
        f.write_str(")")?;
        let lens = self.seq_lens.clone().map(Column::from);
        let lines = self.iter().chain(lens.iter().map(|lens| ("seq_lens", lens)));
        let lines: Vec<(&str, String, &Column)> = lines.map(|(name, column)| (name, kind(column), column)).collect();
        let width = |of: fn(&(&str, String, &Column)) -> usize| lines.iter().map(of).max().unwrap_or(0);
        let (names, kinds) = (width(|line| line.0.len()), width(|line| line.1.len()));
        for (name, kind, column) in &lines {
            write!(f, "\n  {name:names$}  {kind:kinds$}  ")?;
            show_values(f, column)?;
        }
        Ok(())
    }
}

/// Returns type and shape of a column, rows first.
fn kind(column: &Column) -> String {
    let mut kind = format!("{} ({}", column.column_type(), column.rows());
    for dim in column.shape().dims() {
        kind.push_str(&format!(", {dim}"));
    }
    kind.push_str(if column.is_compressed() { ") compressed" } else { ")" });
    kind
}

fn show_values(f: &mut fmt::Formatter<'_>, column: &Column) -> fmt::Result {
    by_type!(
        Column,
        column,
        data => show_array(f, data),
        Column::Bytes(data) => show_rows(f, data.rows(), |f, row| show_bytes(f, data, row)),
        Column::Compressed(data) => write!(f, "{} bytes", data.size_bytes()),
    )
}

/// Writes the first and the last rows.
fn show_rows(
    f: &mut fmt::Formatter<'_>,
    rows: usize,
    show: impl Fn(&mut fmt::Formatter<'_>, usize) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    let cut = rows > 2 * SHOWN_ROWS;
    let first = if cut { SHOWN_ROWS } else { rows };
    let last = if cut { rows - SHOWN_ROWS..rows } else { 0..0 };
    for row in 0..first {
        f.write_str(if row > 0 { ", " } else { "" })?;
        show(f, row)?;
    }
    f.write_str(if cut { ", …" } else { "" })?;
    for row in last {
        f.write_str(", ")?;
        show(f, row)?;
    }
    f.write_str("]")
}

fn show_array<T: Element>(f: &mut fmt::Formatter<'_>, data: &ColumnData<T>) -> fmt::Result {
    let scalar = data.shape().dims().is_empty();
    show_rows(f, data.rows(), |f, row| {
        let values = data.row(row).unwrap_or_default();
        f.write_str(if scalar { "" } else { "[" })?;
        for (i, value) in values.iter().take(SHOWN_ELEMENTS).enumerate() {
            write!(f, "{}{value:?}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(if values.len() > SHOWN_ELEMENTS { ", …" } else { "" })?;
        f.write_str(if scalar { "" } else { "]" })
    })
}

fn show_bytes(f: &mut fmt::Formatter<'_>, data: &BytesColumn, row: usize) -> fmt::Result {
    let Some(text) = data.text(row).filter(|text| !text.chars().any(char::is_control)) else {
        return write!(f, "{} bytes", data.row(row).map_or(0, <[u8]>::len));
    };
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    write!(f, "{shown}{}", if shown.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::*;
    use crate::{
        batch::{ACTIONS, OBS, REWARDS, SampleBatch},
        column::{BytesColumn, ColumnData, Granularity, RowShape},
        prelude::*,
    };

    #[test]
    fn the_short_form_is_rllibs() {
        assert_eq!(rows(&[0; 10]).to_string(), "SampleBatch(10: ['a'])");
        assert_eq!(sequences(&[2, 3, 1]).to_string(), "SampleBatch(6 (seqs=3): ['a', 'state_in_0'])");
        assert_eq!(SampleBatch::new().to_string(), "SampleBatch(0: [])");
    }

    #[test]
    fn the_long_form_shows_values() {
        let obs = (0..20).map(|i| i as f32 / 2.0).collect();
        let mut batch = SampleBatch::new()
            .with(OBS, ColumnData::new(obs, RowShape::vector(2)).unwrap())
            .and_then(|b| b.with(ACTIONS, ColumnData::scalars((0..10).collect())))
            .and_then(|b| b.with(REWARDS, ColumnData::scalars(vec![1.0; 10])))
            .unwrap();
        batch.insert("infos", BytesColumn::json([r#"{"lives":3}"#; 10]).unwrap()).unwrap();
        batch.compress_columns(Granularity::Bulk, &["rewards"]).unwrap();
        batch.set_num_grad_updates(Some(2.5));
        let info = r#"{"lives":3}"#;
        let expected = format!(
            "SampleBatch(10, after 2.5 updates)
  obs      float32 (10, 2)          [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], …, [7.0, 7.5], [8.0, 8.5], [9.0, 9.5]]
  actions  int64 (10)               [0, 1, 2, …, 7, 8, 9]
  rewards  float32 (10) compressed  {} bytes
  infos    json (10)                [{info}, {info}, {info}, …, {info}, {info}, {info}]",
            batch.column("rewards").unwrap().size_bytes()
        );
        assert_eq!(format!("{batch:#}"), expected);
        let padded = format!("{:#}", sequences(&[1, 2]).right_zero_pad(2).unwrap());
        assert_eq!(
            padded,
            "SampleBatch(3 (seqs=2), zero-padded)
  a           int64 (4)    [1, 0, 2, 3]
  state_in_0  float64 (2)  [1.0, 3.0]
  seq_lens    int32 (2)    [1, 2]"
        );
    }
}
