//! Fragments joined to a batch to learn from.

use super::gae;
use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, ADVANTAGES, BatchError, OBS, REWARDS, SampleBatch, SlotFragment, TERMINATEDS, TRUNCATEDS,
        VALUE_TARGETS, VF_PREDS,
    },
    column::ColumnData,
    prelude::*,
};

/// One batch to learn from: the fragments' rows in order, with `advantages` and `value_targets`.
///
/// # Errors
/// [`BatchError`] when a fragment lacks a column; [`BatchError::LengthMismatch`] if its cuts do not cover its rows, or
/// rewards or values are not one per row.
#[doc(alias = "postprocess_trajectory")]
pub fn train_batch(fragments: &[SlotFragment], gamma: f64, lambda: f64) -> Result<SampleBatch, BatchError> {
    let rows = fragments.iter().map(|fragment| fragment.rows.len()).sum();
    let (mut advantages, mut targets) = (vec![0.0; rows], vec![0.0; rows]);
    let mut first = 0;
    for fragment in fragments {
        let (rewards, values) = (fragment.rows.get(REWARDS)?, fragment.rows.get(VF_PREDS)?);
        let expected = fragment.rows.len();
        let covered = fragment.cuts.iter().map(|cut| cut.end as usize).max().unwrap_or(0);
        let lengths = [(REWARDS.name(), rewards.len()), (VF_PREDS.name(), values.len()), (ADVANTAGES.name(), covered)];
        if let Some(&(name, found)) = lengths.iter().find(|(_, found)| *found != expected) {
            return Err(BatchError::LengthMismatch { name: name.to_string(), expected, found });
        }
        let mut start = 0;
        for cut in &fragment.cuts {
            let piece = start..(cut.end as usize).max(start);
            let out = first + piece.start..first + piece.end;
            gae(
                &rewards[piece.clone()],
                &values[piece.clone()],
                cut.bootstrap_value,
                gamma,
                lambda,
                &mut advantages[out.clone()],
                &mut targets[out],
            );
            start = piece.end;
        }
        first += rewards.len();
    }
    let keys = [
        OBS.name(),
        ACTIONS.name(),
        REWARDS.name(),
        TERMINATEDS.name(),
        TRUNCATEDS.name(),
        ACTION_LOGP.name(),
        VF_PREDS.name(),
    ];
    let parts: Vec<SampleBatch> = fragments.iter().map(|fragment| fragment.rows.clone()).collect();
    let joined = SampleBatch::concat(&parts)?;
    for key in keys {
        if joined.column(key).is_none() && !joined.is_empty() {
            return Err(BatchError::MissingColumn(key.to_string()));
        }
    }
    joined.with(ADVANTAGES, ColumnData::scalars(advantages))?.with(VALUE_TARGETS, ColumnData::scalars(targets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{Cut, CutReason},
        ids::{FragmentNo, SlotId, WeightsVersion},
    };

    /// Three rows with these cuts.
    fn fragment(ends: &[u32]) -> SlotFragment {
        let floats = || ColumnData::scalars(vec![1.0f32; 3]);
        let flags = || ColumnData::scalars(vec![false; 3]);
        let mut rows = SampleBatch::new();
        for key in [OBS, REWARDS, ACTION_LOGP, VF_PREDS] {
            rows = rows.with(key, floats()).unwrap();
        }
        rows = rows.with(TERMINATEDS, flags()).and_then(|rows| rows.with(TRUNCATEDS, flags())).unwrap();
        rows.insert(ACTIONS.name(), ColumnData::scalars(vec![0i64; 3])).unwrap();
        let cut = |&end: &u32| Cut { end, reason: CutReason::FragmentEnd, bootstrap_value: 2.0 };
        SlotFragment {
            slot: SlotId(0),
            fragment: FragmentNo(0),
            weights_version: WeightsVersion(0),
            first_episode: 0,
            first_t: 0,
            rows,
            cuts: ends.iter().map(cut).collect(),
            final_obs: SampleBatch::new(),
            episodes: Vec::new(),
            state: Vec::new(),
        }
    }

    #[test]
    fn each_piece_has_its_own_end() {
        let batch = train_batch(&[fragment(&[2, 3]), fragment(&[3])], 0.5, 0.0).unwrap();
        assert_eq!(batch.get(ADVANTAGES).unwrap(), [0.5, 1.0, 1.0, 0.5, 0.5, 1.0]);
        assert_eq!(batch.get(VALUE_TARGETS).unwrap(), [1.5, 2.0, 2.0, 1.5, 1.5, 2.0]);
    }

    #[test]
    fn cuts_cover_the_rows() {
        for (ends, found) in [(&[][..], 0), (&[2], 2), (&[2, 4], 4)] {
            let error = train_batch(&[fragment(&[3]), fragment(ends)], 0.9, 0.9).unwrap_err();
            assert_eq!(error, BatchError::LengthMismatch { name: "advantages".into(), expected: 3, found });
        }
    }
}
