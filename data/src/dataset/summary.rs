//! Summarises a data set without holding it in memory.

use rollmesh_core::{
    by_type,
    column::{Column, ColumnType, Element as _, RowShape},
};

use super::DatasetError;

/// The summary of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Number of steps.
    pub rows: u64,
    /// Number of steps of each episode; an unfinished one at the end counts.
    pub episode_lengths: Vec<u64>,
    /// The columns by name.
    pub columns: Vec<(String, ColumnSummary)>,
}

/// The summary of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSummary {
    /// Type of its elements.
    pub column_type: ColumnType,
    /// Shape of a row.
    pub shape: RowShape,
    /// Number of rows.
    pub rows: u64,
    /// Sum of all elements; 0 for texts.
    pub sum: f64,
    /// Its first row, as a column of one.
    pub first: Column,
    /// Its last row.
    pub last: Column,
    /// Row 100 if it exists, otherwise the last.
    pub row_100: Column,
}

/// Summarises columns piece by piece.
#[derive(Clone, Debug, Default)]
pub struct SummaryBuilder {
    columns: Vec<(String, ColumnSummary)>,
}

impl SummaryBuilder {
    /// Adds more rows of a column.
    ///
    /// # Errors
    /// [`DatasetError::Shape`] if they differ from earlier rows in type or shape.
    pub fn push(&mut self, name: &str, column: &Column) -> Result<(), DatasetError> {
        let (column_type, shape, rows) = (column.column_type(), column.shape(), column.rows() as u64);
        let Some(last_row) = column.rows().checked_sub(1) else { return Ok(()) };
        let row = |row: usize| column.slice(row..row + 1).copy();
        let Some((_, known)) = self.columns.iter_mut().find(|(known, _)| known == name) else {
            let last = row(last_row);
            let summary = ColumnSummary {
                column_type,
                shape,
                rows,
                sum: sum(column),
                first: row(0),
                row_100: row(last_row.min(100)),
                last,
            };
            self.columns.push((name.to_string(), summary));
            return Ok(());
        };
        if (known.column_type, known.shape) != (column_type, shape) {
            let problem =
                format!("rows of {} {} follow on rows of {} {}", column_type, shape, known.column_type, known.shape);
            return Err(DatasetError::Shape { name: name.to_string(), problem });
        }
        if known.rows <= 100 {
            known.row_100 = row(last_row.min(100 - known.rows as usize));
        }
        known.rows += rows;
        known.sum += sum(column);
        known.last = row(last_row);
        Ok(())
    }

    /// Returns the summary, with the lengths of the episodes.
    #[must_use]
    pub fn finish(self, episode_lengths: Vec<u64>) -> Summary {
        Summary { rows: episode_lengths.iter().sum(), episode_lengths, columns: self.columns }
    }
}

fn sum(column: &Column) -> f64 {
    by_type!(
        Column,
        column,
        data => data.values().iter().map(|x| x.to_f64()).sum(),
        Column::Bytes(_) | Column::Compressed(_) => 0.0,
    )
}

#[cfg(test)]
mod tests {
    use rollmesh_core::column::ColumnData;

    use super::*;

    #[test]
    fn pieces_sum_up_to_all_rows() {
        let column = Column::from(ColumnData::scalars((0..250i64).collect()));
        for cuts in [vec![0, 250], vec![0, 99, 101, 250], vec![0, 100, 250], vec![0, 1, 100, 101, 102, 250]] {
            let mut builder = SummaryBuilder::default();
            for cut in cuts.windows(2) {
                builder.push("x", &column.slice(cut[0]..cut[1])).unwrap();
            }
            let summary = builder.finish(vec![250]);
            let (_, x) = &summary.columns[0];
            assert_eq!((x.rows, x.sum), (250, 31125.0), "{cuts:?}");
            let row = |n: i64| Column::from(ColumnData::scalars(vec![n]));
            assert_eq!((&x.first, &x.row_100, &x.last), (&row(0), &row(100), &row(249)), "{cuts:?}");
        }
    }

    #[test]
    fn rows_must_stay_alike() {
        let mut builder = SummaryBuilder::default();
        builder.push("x", &ColumnData::scalars(vec![1.0f32]).into()).unwrap();
        assert!(builder.push("x", &ColumnData::scalars(vec![1i64]).into()).is_err());
    }
}
