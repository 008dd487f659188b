//! From fragments of slots to one batch with every column.

use crate::{
    batch::{
        ADVANTAGES, AGENT_INDEX, BatchError, EPS_ID, NEW_OBS, REWARDS, SampleBatch, SlotFragment, T, UNROLL_ID,
        VALUE_TARGETS, VF_PREDS,
    },
    column::ColumnData,
    ids::{PolicyId, unroll_id},
    policy::{PolicyError, Postprocessing},
    postprocess::{AdvantageConfig, compute_advantages, gae},
    prelude::*,
    sampler::SampleError,
};

/// The rows of all fragments, one after the other, with the columns and in the order of [`Episodic`]'s. `pieces` counts
/// the pieces of each lane's trajectory so far.
///
/// [`Episodic`]: crate::sampler::Episodic
pub(super) fn finish(
    fragments: &[SlotFragment],
    pieces: &mut [u32],
    postprocessing: Postprocessing,
) -> Result<SampleBatch, SampleError> {
    let mut parts = Vec::with_capacity(fragments.len());
    for (fragment, piece) in fragments.iter().zip(pieces) {
        parts.push(derived(fragment, piece)?);
    }
    let batch = SampleBatch::concat(&parts)?;
    match postprocessing {
        Postprocessing::Advantages(config) => with_advantages(batch, fragments, &config),
        Postprocessing::None | Postprocessing::Custom => Ok(batch),
    }
}

fn derived(fragment: &SlotFragment, piece: &mut u32) -> Result<SampleBatch, BatchError> {
    let rows = fragment.with_derived()?;
    let mut unrolls = Vec::with_capacity(rows.len());
    for cut in &fragment.cuts {
        unrolls.resize(cut.end as usize, unroll_id(fragment.slot, *piece, 0));
        *piece = piece.wrapping_add(1);
    }
    let mut batch = fragment.rows.clone();
    let mut take = |name: &'static str| -> Result<(), BatchError> {
        let column = rows.column(name).cloned().ok_or_else(|| BatchError::MissingColumn(name.into()))?;
        batch.insert(name, column)
    };
    take(NEW_OBS.name())?;
    take(EPS_ID.name())?;
    let mut batch = batch.with(UNROLL_ID, ColumnData::scalars(unrolls))?;
    for name in [T.name(), AGENT_INDEX.name()] {
        let column = rows.column(name).cloned().ok_or_else(|| BatchError::MissingColumn(name.into()))?;
        batch.insert(name, column)?;
    }
    Ok(batch)
}

fn with_advantages(
    batch: SampleBatch,
    fragments: &[SlotFragment],
    config: &AdvantageConfig,
) -> Result<SampleBatch, SampleError> {
    if !(config.use_gae && config.use_critic) {
        return piece_by_piece(&batch, fragments, config);
    }
    let (rewards, values) = (batch.get(REWARDS)?, batch.get(VF_PREDS)?);
    let (mut advantages, mut targets) = (vec![0.0; batch.len()], vec![0.0; batch.len()]);
    let mut first = 0;
    for fragment in fragments {
        let mut start = first;
        for cut in &fragment.cuts {
            let piece = start..first + cut.end as usize;
            start = piece.end;
            let parts = rewards.get(piece.clone()).zip(values.get(piece.clone()));
            let out = advantages.get_mut(piece.clone()).zip(targets.get_mut(piece));
            if let (Some((rewards, values)), Some((advantages, targets))) = (parts, out) {
                gae(rewards, values, cut.bootstrap_value, config.gamma, config.lambda, advantages, targets);
            }
        }
        first += fragment.rows.len();
    }
    let batch = batch.with(ADVANTAGES, ColumnData::scalars(advantages))?;
    Ok(batch.with(VALUE_TARGETS, ColumnData::scalars(targets))?)
}

fn piece_by_piece(
    batch: &SampleBatch,
    fragments: &[SlotFragment],
    config: &AdvantageConfig,
) -> Result<SampleBatch, SampleError> {
    let failed = |error| SampleError::Policy { id: PolicyId::DEFAULT, source: PolicyError::Postprocess(error) };
    let (mut done, mut first) = (Vec::new(), 0);
    for fragment in fragments {
        let mut start = first;
        for cut in &fragment.cuts {
            let end = first + cut.end as usize;
            let piece = batch.index_slice(start..end);
            done.push(compute_advantages(&piece, cut.bootstrap_value, config).map_err(failed)?);
            start = end;
        }
        first += fragment.rows.len();
    }
    Ok(SampleBatch::concat(&done)?)
}
