//! Builds sequences for recurrent policies: rows split where a state is not passed on, padded to one length.

use crate::{
    column::{Column, ColumnData, ColumnType, RowBuffer, RowShape},
    prelude::*,
};

/// Ids of rows, one of each per row. A sequence has only one value of each.
#[derive(Clone, Copy, Debug)]
pub struct SequenceIds<'a> {
    /// Episodes, `eps_id`.
    pub episode_ids: &'a [i64],
    /// Fragments of trajectories, `unroll_id`.
    pub unroll_ids: &'a [i64],
    /// Agents, `agent_index`.
    pub agent_indices: &'a [i64],
}

/// Rows as sequences of one padded length.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequences {
    /// `sequences * padded_len` rows each: a sequence's rows, then zeros.
    pub features: Vec<Column>,
    /// One row per sequence: that of its first step.
    pub states: Vec<Column>,
    /// Steps of each sequence.
    pub seq_lens: ColumnData<i32>,
    /// Rows of each sequence in `features`, zeros included.
    pub padded_len: usize,
}

/// The reason why rows cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// Columns or ids differ in length.
    #[error("{name} has {found} rows, there are {expected} episode ids")]
    LengthMismatch {
        /// The ids, features or states.
        name: String,
        /// Number of episode ids.
        expected: usize,
        /// Rows found.
        found: usize,
    },
    /// The sequence length is zero.
    #[error("max_seq_len must be at least 1")]
    ZeroLength,
    /// Only numbers can be padded with zeros.
    #[error("{name} holds {found}, which cannot be padded with zeros")]
    NoNumbers {
        /// The features or states.
        name: String,
        /// The type of their elements.
        found: ColumnType,
    },
    /// The rows do not split into sequences of this length.
    #[error("{rows} rows are no whole sequences of {padded_len}")]
    RaggedSequences {
        /// Rows of the column.
        rows: usize,
        /// Rows of a sequence.
        padded_len: usize,
    },
    /// The sequences need too much memory.
    #[error(
        "{sequences} sequences padded to {padded_len} rows are too large; use dynamic_max or a smaller max_seq_len"
    )]
    TooLarge {
        /// Number of sequences.
        sequences: usize,
        /// Rows of each.
        padded_len: usize,
    },
}

/// Returns the lengths of the sequences in order: split where an id changes and at `max_seq_len` steps.
///
/// # Errors
/// [`SequenceError::LengthMismatch`], [`SequenceError::ZeroLength`].
pub fn sequence_lengths(ids: SequenceIds<'_>, max_seq_len: usize) -> Result<ColumnData<i32>, SequenceError> {
    let rows = ids.episode_ids.len();
    for (name, found) in [("unroll_ids", ids.unroll_ids.len()), ("agent_indices", ids.agent_indices.len())] {
        same_length(|| name.to_string(), rows, found)?;
    }
    if max_seq_len == 0 {
        return Err(SequenceError::ZeroLength);
    }
    let longest = i32::try_from(max_seq_len).unwrap_or(i32::MAX);
    let mut seq_lens: Vec<i32> = Vec::new();
    let mut before = None;
    for id in ids.episode_ids.iter().zip(ids.unroll_ids).zip(ids.agent_indices) {
        match seq_lens.last_mut() {
            Some(len) if before == Some(id) && *len < longest => *len += 1,
            _ => seq_lens.push(1),
        }
        before = Some(id);
    }
    Ok(ColumnData::scalars(seq_lens))
}

/// Splits rows into sequences at changes of ids and at `max_seq_len` steps ([`sequence_lengths`]).
///
/// Features are padded with zeros to `max_seq_len` rows, or, with `dynamic_max`, to the longest sequence. Of the states,
/// each sequence keeps the first row.
///
/// # Errors
/// The errors of [`sequence_lengths`], for features and states too; [`SequenceError::NoNumbers`],
/// [`SequenceError::TooLarge`].
pub fn chop_into_sequences(
    ids: SequenceIds<'_>,
    features: &[Column],
    states: &[Column],
    max_seq_len: usize,
    dynamic_max: bool,
) -> Result<Sequences, SequenceError> {
    let seq_lens = sequence_lengths(ids, max_seq_len)?;
    let lens: Vec<usize> = seq_lens.values().iter().map(|&len| len.unsigned_abs() as usize).collect();
    let padded_len = if dynamic_max { lens.iter().copied().max().unwrap_or(0) } else { max_seq_len };
    let too_large = || SequenceError::TooLarge { sequences: lens.len(), padded_len };
    let rows = ids.episode_ids.len();
    let chop = |kind: &str, i: usize, column: &Column, keep: &dyn Fn(usize) -> usize, padded: usize| {
        same_length(|| format!("{kind} {i}"), rows, column.rows())?;
        let values = column
            .array()
            .map_err(|_| SequenceError::NoNumbers { name: format!("{kind} {i}"), found: column.column_type() })?;
        let width = column.shape().elements();
        let mut out = RowBuffer::new(values.dtype());
        let elements = lens.len().checked_mul(padded).and_then(|rows| rows.checked_mul(width));
        if !elements.is_some_and(|elements| out.try_reserve(elements)) {
            return Err(too_large());
        }
        let mut start = 0;
        for &len in &lens {
            let kept = keep(len);
            if let Some(part) = values.get(start * width..(start + kept) * width) {
                out.push(part);
            }
            out.push_zeros((padded - kept) * width);
            start += len;
        }
        out.into_column(column.shape()).map_err(|_| too_large())
    };
    let feature = |(i, column)| chop("feature", i, column, &|len| len, padded_len);
    let state = |(i, column)| chop("state", i, column, &|_| 1, 1);
    let features = features.iter().enumerate().map(feature).collect::<Result<_, _>>()?;
    let states = states.iter().enumerate().map(state).collect::<Result<_, _>>()?;
    Ok(Sequences { features, states, seq_lens, padded_len })
}

/// Returns a column of padded sequences with a row per sequence instead of one per step: `(sequences, padded_len, …)`.
///
/// # Errors
/// [`SequenceError::RaggedSequences`] if the rows do not form whole sequences or the shape would have too many dimensions,
/// [`SequenceError::NoNumbers`].
pub fn add_time_dimension(column: &Column, padded_len: usize) -> Result<Column, SequenceError> {
    let ragged = || SequenceError::RaggedSequences { rows: column.rows(), padded_len };
    let values = column
        .array()
        .map_err(|_| SequenceError::NoNumbers { name: "the column".to_string(), found: column.column_type() })?;
    if padded_len == 0 || !column.rows().is_multiple_of(padded_len) {
        return Err(ragged());
    }
    let shape = in_front(padded_len, column.shape()).ok_or_else(ragged)?;
    let mut out = RowBuffer::new(values.dtype());
    out.push(values);
    out.into_column(shape).map_err(|_| ragged())
}

/// Returns a row shape with one more dimension in front.
pub(super) fn in_front(dimension: usize, shape: RowShape) -> Option<RowShape> {
    let mut dims = vec![u32::try_from(dimension).ok()?];
    dims.extend_from_slice(shape.dims());
    RowShape::new(&dims).ok()
}

fn same_length(name: impl Fn() -> String, expected: usize, found: usize) -> Result<(), SequenceError> {
    if found == expected { Ok(()) } else { Err(SequenceError::LengthMismatch { name: name(), expected, found }) }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn ids<'a>(episodes: &'a [i64], unrolls: &'a [i64], agents: &'a [i64]) -> SequenceIds<'a> {
        SequenceIds { episode_ids: episodes, unroll_ids: unrolls, agent_indices: agents }
    }

    fn floats(values: &[f32]) -> Column {
        ColumnData::scalars(values.to_vec()).into()
    }

    #[test]
    fn episodes_and_the_limit_cut() {
        let ids = ids(&[1, 1, 5, 5, 5, 5], &[4; 6], &[1; 6]);
        let features = [floats(&[101.0, 102.0, 201.0, 202.0, 203.0, 204.0])];
        let states = [floats(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0])];
        let chopped = chop_into_sequences(ids, &features, &states, 3, false).unwrap();
        assert_eq!(chopped.features, [floats(&[101.0, 102.0, 0.0, 201.0, 202.0, 203.0, 204.0, 0.0, 0.0])]);
        assert_eq!(chopped.states, [floats(&[9.0, 7.0, 4.0])]);
        assert_eq!(chopped.seq_lens.values(), [2, 3, 1]);
    }

    #[test]
    fn agents_cut_and_padding_may_follow_the_longest() {
        let ids = ids(&[1; 5], &[1; 5], &[1, 1, 2, 2, 2]);
        let features = [floats(&[1.0, 2.0, 3.0, 4.0, 5.0])];
        let chopped = chop_into_sequences(ids, &features, &features, 10, true).unwrap();
        assert_eq!(chopped.features, [floats(&[1.0, 2.0, 0.0, 3.0, 4.0, 5.0])]);
        assert_eq!(chopped.states, [floats(&[1.0, 3.0])]);
        assert_eq!((chopped.seq_lens.values(), chopped.padded_len), (&[2, 3][..], 3));
        let fixed = chop_into_sequences(ids, &features, &[], 10, false).unwrap();
        assert_eq!((fixed.features[0].rows(), fixed.padded_len), (20, 10));
        let batched = add_time_dimension(&fixed.features[0], 10).unwrap();
        assert_eq!((batched.rows(), batched.shape()), (2, RowShape::vector(10)));
    }

    #[test]
    fn errors_name_the_column() {
        let good = ids(&[1, 2], &[1, 1], &[1, 1]);
        let error = chop_into_sequences(good, &[floats(&[1.0])], &[], 3, true).unwrap_err();
        assert_eq!(error.to_string(), "feature 0 has 1 rows, there are 2 episode ids");
        let error = sequence_lengths(ids(&[1, 2], &[1], &[1, 1]), 3).unwrap_err();
        assert_eq!(error.to_string(), "unroll_ids has 1 rows, there are 2 episode ids");
        assert_eq!(sequence_lengths(good, 0).unwrap_err(), SequenceError::ZeroLength);
        let error = chop_into_sequences(good, &[floats(&[1.0, 2.0])], &[], usize::MAX, false).unwrap_err();
        assert_eq!(error, SequenceError::TooLarge { sequences: 2, padded_len: usize::MAX });
        assert!(chop_into_sequences(good, &[], &[], usize::MAX, false).is_ok());
        let error = add_time_dimension(&floats(&[1.0, 2.0]), 3).unwrap_err();
        assert_eq!(error, SequenceError::RaggedSequences { rows: 2, padded_len: 3 });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn no_row_is_lost_and_no_sequence_mixes_ids(
            rows in vec((0i64..3, 0i64..2, 0i64..2), 0..40),
            max_seq_len in 1usize..6,
        ) {
            let episodes: Vec<i64> = rows.iter().map(|row| row.0).collect();
            let unrolls: Vec<i64> = rows.iter().map(|row| row.1).collect();
            let agents: Vec<i64> = rows.iter().map(|row| row.2).collect();
            let numbers: Column = ColumnData::scalars((1..=rows.len() as i64).collect()).into();
            let ids = ids(&episodes, &unrolls, &agents);
            let chopped = chop_into_sequences(ids, &[numbers], &[], max_seq_len, true).unwrap();
            let padded = chopped.features[0].typed::<i64>().unwrap().values().to_vec();
            let mut next = 0;
            for (sequence, &len) in padded.chunks(chopped.padded_len.max(1)).zip(chopped.seq_lens.values()) {
                let len = len as usize;
                prop_assert!((1..=max_seq_len).contains(&len));
                prop_assert!(rows[next..next + len].iter().all(|row| *row == rows[next]));
                let expected: Vec<i64> = (next..next + len).map(|row| row as i64 + 1).collect();
                prop_assert_eq!(&sequence[..len], &expected[..]);
                prop_assert!(sequence[len..].iter().all(|&value| value == 0));
                next += len;
            }
            prop_assert_eq!(next, rows.len());
        }
    }
}
