//! Splits a batch of many trajectories into pieces, and computes the advantages of all of them at once.

use super::{
    PostprocessError,
    gae::gae,
    read::{Floats, floats, optional, scalars},
};
use crate::{
    batch::{
        ADVANTAGES, AGENT_INDEX, EPS_ID, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS, UNROLL_ID, VALUE_TARGETS,
        VF_PREDS,
    },
    column::ColumnData,
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

/// Returns the batch with `advantages` and `value_targets` of all its pieces ([`piece_ends`]), by [`gae`](super::gae()).
///
/// `bootstrap_values` has the value of the next state for each piece, in order; pieces that end with a terminated row do not
/// use theirs. The result equals that of one batch per piece, bit for bit.
///
/// # Errors
/// [`PostprocessError::Bootstraps`] for a wrong number of bootstrap values, [`PostprocessError::Batch`] without `rewards`,
/// `vf_preds` or `terminateds`.
pub fn gae_of_pieces(
    batch: &SampleBatch,
    bootstrap_values: &[f32],
    gamma: f64,
    lambda: f64,
) -> Result<SampleBatch, PostprocessError> {
    let (advantages, targets) = match (floats(batch, REWARDS)?, floats(batch, VF_PREDS)?) {
        (Floats::F32(rewards), Floats::F32(values)) => {
            by_piece(batch, rewards, values, bootstrap_values, gamma, lambda)
        }
        (rewards, values) => by_piece(batch, &rewards.widened(), &values.widened(), bootstrap_values, gamma, lambda),
    }?;
    let batch = batch.clone().with(ADVANTAGES, ColumnData::scalars(advantages))?;
    Ok(batch.with(VALUE_TARGETS, ColumnData::scalars(targets))?)
}

/// Computes advantages and value targets.
fn by_piece<F: Copy + Into<f64>>(
    batch: &SampleBatch,
    rewards: &[F],
    values: &[F],
    bootstrap_values: &[f32],
    gamma: f64,
    lambda: f64,
) -> Result<(Vec<f32>, Vec<f32>), PostprocessError> {
    let terminateds = scalars(batch, TERMINATEDS)?;
    let ends = piece_ends(batch)?;
    if ends.len() != bootstrap_values.len() {
        return Err(PostprocessError::Bootstraps { expected: ends.len(), found: bootstrap_values.len() });
    }
    let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
    let mut start = 0;
    for (&end, &bootstrap) in ends.iter().zip(bootstrap_values) {
        let piece = start..end;
        gae(
            &rewards[piece.clone()],
            &values[piece.clone()],
            super::last_r(&terminateds[piece.clone()], bootstrap),
            gamma,
            lambda,
            &mut advantages[piece.clone()],
            &mut targets[piece],
        );
        start = end;
    }
    Ok((advantages, targets))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::batch::BatchParts;

    /// Rows of (reward, value, terminated, truncated, episode).
    type Row = (f32, f32, bool, bool, i64);

    fn batch(rows: &[Row]) -> SampleBatch {
        SampleBatch::new()
            .with(REWARDS, ColumnData::scalars(rows.iter().map(|row| row.0).collect()))
            .and_then(|b| b.with(VF_PREDS, ColumnData::scalars(rows.iter().map(|row| row.1).collect())))
            .and_then(|b| b.with(TERMINATEDS, ColumnData::scalars(rows.iter().map(|row| row.2).collect())))
            .and_then(|b| b.with(TRUNCATEDS, ColumnData::scalars(rows.iter().map(|row| row.3).collect())))
            .and_then(|b| b.with(EPS_ID, ColumnData::scalars(rows.iter().map(|row| row.4).collect())))
            .unwrap()
    }

    #[test]
    fn flags_and_ids_cut() {
        let row = |terminated, truncated, episode| (1.0, 0.0, terminated, truncated, episode);
        let rows = [
            row(false, false, 1),
            row(true, false, 1),
            row(false, true, 1),
            row(false, false, 2),
            row(false, false, 3),
        ];
        let whole = batch(&rows);
        assert_eq!(piece_ends(&whole).unwrap(), [2, 3, 4, 5]);
        let agents = whole.clone().with(AGENT_INDEX, ColumnData::scalars(vec![0, 1, 1, 1, 1])).unwrap();
        assert_eq!(piece_ends(&agents).unwrap(), [1, 2, 3, 4, 5]);
        let unrolls = whole.with(UNROLL_ID, ColumnData::scalars(vec![0, 1, 1, 1, 1])).unwrap();
        assert_eq!(piece_ends(&unrolls).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(piece_ends(&batch(&[])).unwrap(), [0usize; 0]);
    }

    #[test]
    fn a_terminated_piece_is_not_bootstrapped() {
        let rows = [(1.0, 0.25, true, true, 1), (1.0, 0.25, false, true, 2), (1.0, 0.25, false, false, 3)];
        let done = gae_of_pieces(&batch(&rows), &[8.0, 8.0, 2.0], 0.5, 0.5).unwrap();
        assert_eq!(done.get(ADVANTAGES).unwrap(), [0.75, 4.75, 1.75]);
        assert_eq!(done.get(VALUE_TARGETS).unwrap(), [1.0, 5.0, 2.0]);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let two = batch(&[(1.0, 0.0, true, false, 1), (1.0, 0.0, false, false, 2)]);
        let error = gae_of_pieces(&two, &[0.0], 0.9, 0.9).unwrap_err();
        assert_eq!(error, PostprocessError::Bootstraps { expected: 2, found: 1 });
        let error = gae_of_pieces(&SampleBatch::new(), &[], 0.9, 0.9).unwrap_err();
        assert_eq!(error.to_string(), "the batch has no column 'rewards'");
        let pairs = ColumnData::new(vec![1i64; 4], crate::column::RowShape::vector(2)).unwrap();
        let error = piece_ends(&two.with(EPS_ID, pairs).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "column 'eps_id' has rows of shape (2), one value per row is needed");
    }

    /// Zero rows between sequences are ordinary rows: they form two more pieces, which end where the episode changes.
    #[test]
    fn padded_batches_are_taken_row_by_row() {
        let rows = [(1.0, 0.25, false, false, 7), (1.0, 0.25, false, false, 7), (1.0, 0.25, true, false, 8)];
        let parts = batch(&rows).into_parts();
        let sequences = BatchParts { seq_lens: Some(ColumnData::scalars(vec![2, 1])), ..parts };
        let padded = SampleBatch::from_parts(sequences).and_then(|batch| batch.right_zero_pad(3)).unwrap();
        assert_eq!(piece_ends(&padded).unwrap(), [2, 3, 4, 6]);
        let done = gae_of_pieces(&padded, &[2.0, 0.0, 2.0, 0.0], 0.5, 0.5).unwrap();
        assert_eq!(done.get(ADVANTAGES).unwrap(), [1.3125, 1.75, 0.0, 0.75, 0.0, 0.0]);
        assert_eq!(done.len(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_concatenation_of_episodes_equals_each_alone_bit_for_bit(
            episodes in vec((vec((-9.0f32..9.0, -99.0f32..99.0), 1..20), 0u8..4, -99.0f32..99.0), 1..12),
            lambda in 0.0f64..=1.0,
        ) {
            let (mut rows, mut bootstraps, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            for (id, (steps, end, bootstrap)) in episodes.iter().enumerate() {
                let (rewards, values): (Vec<f32>, Vec<f32>) = steps.iter().copied().unzip();
                let (mut advantages, mut targets) = (vec![0.0; steps.len()], vec![0.0; steps.len()]);
                let after = if *end & 1 == 1 { 0.0 } else { *bootstrap };
                gae(&rewards, &values, after, 0.97, lambda, &mut advantages, &mut targets);
                expected.extend(advantages.iter().zip(&targets).map(|(a, b)| (a.to_bits(), b.to_bits())));
                for (i, &(reward, value)) in steps.iter().enumerate() {
                    let last = i + 1 == steps.len();
                    rows.push((reward, value, last && end & 1 == 1, last && end & 2 == 2, id as i64));
                }
                bootstraps.push(*bootstrap);
            }
            let done = gae_of_pieces(&batch(&rows), &bootstraps, 0.97, lambda).unwrap();
            let (advantages, targets) = (done.get(ADVANTAGES).unwrap(), done.get(VALUE_TARGETS).unwrap());
            let found: Vec<_> = advantages.iter().zip(targets).map(|(a, b)| (a.to_bits(), b.to_bits())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
