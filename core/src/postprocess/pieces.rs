//! Splits a batch of many trajectories into pieces.

use super::{
    PostprocessError,
    read::{optional, scalars},
};
use crate::{
    batch::{AGENT_INDEX, EPS_ID, SampleBatch, TERMINATEDS, TRUNCATEDS, UNROLL_ID},
    prelude::*,
};

/// Returns the ends of the pieces of a batch: one past the last row of each, in order; the last one is the end of the batch.
///
/// A piece is a run of one agent's consecutive steps: it ends after a terminated or truncated row, and where `eps_id`,
/// `unroll_id` or `agent_index` changes. Only `terminateds` is required.
///
/// # Errors
/// [`PostprocessError::Batch`] without `terminateds` or for a column of another type, [`PostprocessError::NotScalar`].
pub fn piece_ends(batch: &SampleBatch) -> Result<Vec<usize>, PostprocessError> {
    let mut ends = scalars(batch, TERMINATEDS)?.to_vec();
    if let Some(truncateds) = optional(batch, TRUNCATEDS)? {
        for (end, &truncated) in ends.iter_mut().zip(truncateds) {
            *end |= truncated;
        }
    }
    for key in [EPS_ID, UNROLL_ID, AGENT_INDEX] {
        let Some(ids) = optional(batch, key)? else { continue };
        for (end, pair) in ends.iter_mut().zip(ids.windows(2)) {
            *end |= pair[0] != pair[1];
        }
    }
    if let Some(last) = ends.last_mut() {
        *last = true;
    }
    Ok(ends.iter().enumerate().filter_map(|(row, &end)| end.then_some(row + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::BatchParts, column::ColumnData};

    /// Rows of (terminated, truncated, episode).
    type Row = (bool, bool, i64);

    fn batch(rows: &[Row]) -> SampleBatch {
        SampleBatch::new()
            .with(TERMINATEDS, ColumnData::scalars(rows.iter().map(|row| row.0).collect()))
            .and_then(|b| b.with(TRUNCATEDS, ColumnData::scalars(rows.iter().map(|row| row.1).collect())))
            .and_then(|b| b.with(EPS_ID, ColumnData::scalars(rows.iter().map(|row| row.2).collect())))
            .unwrap()
    }

    #[test]
    fn flags_and_ids_cut() {
        let rows = [(false, false, 1), (true, false, 1), (false, true, 1), (false, false, 2), (false, false, 3)];
        let whole = batch(&rows);
        assert_eq!(piece_ends(&whole).unwrap(), [2, 3, 4, 5]);
        let agents = whole.clone().with(AGENT_INDEX, ColumnData::scalars(vec![0, 1, 1, 1, 1])).unwrap();
        assert_eq!(piece_ends(&agents).unwrap(), [1, 2, 3, 4, 5]);
        let unrolls = whole.with(UNROLL_ID, ColumnData::scalars(vec![0, 1, 1, 1, 1])).unwrap();
        assert_eq!(piece_ends(&unrolls).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(piece_ends(&batch(&[])).unwrap(), [0usize; 0]);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let two = batch(&[(true, false, 1), (false, false, 2)]);
        let pairs = ColumnData::new(vec![1i64; 4], crate::column::RowShape::vector(2)).unwrap();
        let error = piece_ends(&two.with(EPS_ID, pairs).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "column 'eps_id' has rows of shape (2), one value per row is needed");
    }

    /// Zero rows between sequences are ordinary rows: they form two more pieces, which end where the episode changes.
    #[test]
    fn padded_batches_are_taken_row_by_row() {
        let rows = [(false, false, 7), (false, false, 7), (true, false, 8)];
        let parts = batch(&rows).into_parts();
        let sequences = BatchParts { seq_lens: Some(ColumnData::scalars(vec![2, 1])), ..parts };
        let padded = SampleBatch::from_parts(sequences).and_then(|batch| batch.right_zero_pad(3)).unwrap();
        assert_eq!(piece_ends(&padded).unwrap(), [2, 3, 4, 6]);
    }
}
