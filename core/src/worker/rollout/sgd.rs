//! Sampling and learning in minibatches in one call.

use core::iter;

use serde::{Deserialize, Serialize};

use super::RolloutWorker;
use crate::{
    batch::{AnyBatch, BatchError, SampleBatch, SliceBy},
    column::{Column, ColumnData},
    episode::GlobalVars,
    ids::{PolicyId, SlotId},
    lists::AtMost,
    math,
    policy::{LearnInfo, joined_info},
    prelude::*,
    rng::{Purpose, Streams},
    worker::RolloutError,
};

/// Settings of [`RolloutWorker::sample_and_learn`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SgdOptions {
    /// Passes over the sample, at least one.
    pub num_sgd_iter: u32,
    /// Rows of a minibatch; 0 for the whole sample.
    #[doc(alias = "sgd_minibatch_size")]
    pub minibatch_size: usize,
    /// Columns with one number per row that are standardised to mean 0 and deviation 1 over the whole sample.
    #[serde(with = "AtMost::<256>")]
    pub standardize_fields: Vec<String>,
}

impl Default for SgdOptions {
    fn default() -> Self {
        Self { num_sgd_iter: 1, minibatch_size: 0, standardize_fields: Vec::new() }
    }
}

/// Metrics of every policy's learning, [joined](joined_info) over all minibatches.
pub type TrainInfo = BTreeMap<PolicyId, LearnInfo>;

impl RolloutWorker {
    /// Samples, and lets every trained policy learn from its rows in minibatches, which are shuffled for every pass. Rows of
    /// a sequence stay together, in their order. Returns the number of env steps, too.
    ///
    /// The [global vars](Self::global_vars) advance by the env steps of the sample, of all ranks. Schedules of the policies,
    /// such as annealed learning rates, follow them: they stand still during the passes.
    ///
    /// With [data parallelism](Self::setup_data_parallel) every rank splits its own sample; the first minibatches of all
    /// ranks make up one step, the second ones the next, and so on; fields are standardised over all samples.
    ///
    /// # Errors
    /// [`RolloutError::Count`] unless the sample has `expected` env steps, [`RolloutError::Batch`] for a missing column: no
    /// policy has learned then. Else those of [`sample`](Self::sample) and [`learn_on_batch`](Self::learn_on_batch).
    pub fn sample_and_learn(
        &mut self,
        expected: usize,
        options: &SgdOptions,
    ) -> Result<(TrainInfo, usize), RolloutError> {
        let learned = self.sample_and_descend(expected, options);
        self.or_give_up(learned)
    }

    fn sample_and_descend(
        &mut self,
        expected: usize,
        options: &SgdOptions,
    ) -> Result<(TrainInfo, usize), RolloutError> {
        let (batch, found) = self.sample_with_count()?;
        if found != expected {
            return Err(RolloutError::Count { expected, found });
        }
        let rows = self.trained_rows(&batch)?.into_iter().collect();
        let mut rows = self.with_rows_anywhere("sample_and_learn", rows)?;
        for (_, rows) in &mut rows {
            for field in &options.standardize_fields {
                let own = moments(rows, field)?;
                let all = self.numbers_of_all(field, own)?;
                standardize(rows, field, &all)?;
            }
        }
        let env_steps = self.numbers_of_all("env steps", [found as f64])?.iter().map(|[own]| own).sum::<f64>();
        self.learned = self.learned.wrapping_add(1);
        let before = self.global_vars();
        let mut infos = TrainInfo::new();
        for (place, (id, rows)) in rows.into_iter().enumerate() {
            let info = self.descend(&id, place as u16, rows, options, &before)?;
            infos.insert(id, info);
        }
        let timestep = before.timestep.saturating_add(env_steps as u64);
        self.set_global_vars(&GlobalVars { timestep, ..before }, None)?;
        Ok((infos, found))
    }

    fn descend(
        &mut self,
        id: &PolicyId,
        place: u16,
        rows: SampleBatch,
        options: &SgdOptions,
        before: &GlobalVars,
    ) -> Result<LearnInfo, RolloutError> {
        let streams = Streams::new(self.parts.seed, Purpose::Shuffle);
        let worker = SlotId(self.parts.place.worker_index);
        let mut infos = Vec::new();
        for pass in 0..options.num_sgd_iter.max(1) {
            let mut rows = rows.clone();
            if options.minibatch_size > 0 && rows.seq_lens().is_none() {
                rows.shuffle(&mut streams.at(worker, self.learned, pass, place))?;
            }
            let size = if options.minibatch_size == 0 { rows.len().max(1) } else { options.minibatch_size };
            let pieces: Vec<SampleBatch> = rows.timeslices(SliceBy::Size(size))?.collect();
            let counts = self.numbers_of_all("number of small batches", [pieces.len() as f64])?;
            let most = counts.iter().fold(0.0, |most: f64, [count]| most.max(*count));
            // A rank with fewer minibatches takes part without rows.
            for small in pieces.into_iter().chain(core::iter::repeat_with(SampleBatch::new)).take(most as usize) {
                // A policy's clock counts every row that it learns from, however often it is learned from.
                self.parts.policies.policy_mut(id)?.on_global_var_update(before);
                infos.extend(self.learn_on_batch(&of_policy(id, small))?.into_values());
            }
        }
        Ok(joined_info(&infos))
    }
}

fn of_policy(id: &PolicyId, rows: SampleBatch) -> AnyBatch {
    let steps = rows.len();
    crate::batch::MultiAgentBatch::new(iter::once((id.clone(), rows)).collect_ordered(), steps).into()
}

/// Returns the number of rows, their mean, and the sum of squared distances from it. Without rows the column need not exist.
pub(super) fn moments(rows: &SampleBatch, field: &str) -> Result<[f64; 3], BatchError> {
    if rows.is_empty() {
        return Ok([0.0; 3]);
    }
    let values = floats(rows, field)?.values();
    let n = values.len().max(1) as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / n;
    let squares = values.iter().map(|value| (f64::from(*value) - mean) * (f64::from(*value) - mean));
    Ok([values.len() as f64, mean, squares.sum()])
}

/// Standardises a column to mean 0 and deviation 1 over rows with all of these moments. As in RLlib 2.9.3, a deviation below
/// 1e-4 counts as 1e-4.
pub(super) fn standardize(rows: &mut SampleBatch, field: &str, all: &[[f64; 3]]) -> Result<(), BatchError> {
    if rows.is_empty() {
        return Ok(());
    }
    let n = all.iter().map(|[n, ..]| n).sum::<f64>().max(1.0);
    let mean = match all {
        // Avoids a product that would round.
        [[_, mean, _]] => *mean,
        _ => all.iter().map(|[n, mean, _]| n * mean).sum::<f64>() / n,
    };
    let squares = all.iter().map(|[n, own, squares]| squares + n * (own - mean) * (own - mean)).sum::<f64>();
    let deviation = math::sqrt_f64(squares / n).max(1e-4);
    let data = floats(rows, field)?;
    let values: Vec<f32> = data.values().iter().map(|value| ((f64::from(*value) - mean) / deviation) as f32).collect();
    let shape = data.shape();
    let standard =
        ColumnData::new(values, shape).map_err(|source| BatchError::Column { name: field.into(), source })?;
    rows.insert(String::from(field), Column::from_typed(standard))
}

fn floats<'a>(rows: &'a SampleBatch, field: &str) -> Result<&'a ColumnData<f32>, BatchError> {
    let column = rows.column(field).ok_or_else(|| BatchError::MissingColumn(field.into()))?;
    column.typed::<f32>().map_err(|source| BatchError::Column { name: field.into(), source })
}
