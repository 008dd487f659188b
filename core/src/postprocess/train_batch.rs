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
/// [`BatchError`] when a fragment lacks a column.
#[doc(alias = "postprocess_trajectory")]
pub fn train_batch(fragments: &[SlotFragment], gamma: f64, lambda: f64) -> Result<SampleBatch, BatchError> {
    let rows = fragments.iter().map(|fragment| fragment.rows.len()).sum();
    let (mut advantages, mut targets) = (vec![0.0; rows], vec![0.0; rows]);
    let mut first = 0;
    for fragment in fragments {
        let (rewards, values) = (fragment.rows.get(REWARDS)?, fragment.rows.get(VF_PREDS)?);
        let mut start = 0;
        for cut in &fragment.cuts {
            let piece = start..(cut.end as usize).min(rewards.len()).max(start);
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
