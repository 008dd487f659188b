//! Sampling and learning in one call, in small batches.

use super::RolloutWorker;
use crate::{
    batch::{AnyBatch, BatchError, SampleBatch, SliceBy},
    column::{Column, ColumnData},
    ids::{PolicyId, SlotId},
    math,
    policy::LearnInfo,
    prelude::*,
    rng::{Purpose, Streams},
    worker::RolloutError,
};

/// How [`RolloutWorker::sample_and_learn`] learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SgdOptions {
    /// Passes over the sample; at least one.
    pub num_sgd_iter: u32,
    /// Rows of a small batch; 0 for the whole sample.
    #[doc(alias = "sgd_minibatch_size")]
    pub minibatch_size: usize,
    /// Columns of one number per row that are brought to mean 0 and deviation 1, over the whole sample.
    pub standardize_fields: Vec<String>,
}

impl Default for SgdOptions {
    fn default() -> Self {
        Self { num_sgd_iter: 1, minibatch_size: 0, standardize_fields: Vec::new() }
    }
}

/// What every policy says of its learning: means over all small batches.
pub type TrainInfo = BTreeMap<PolicyId, LearnInfo>;

impl RolloutWorker {
    /// Samples, and lets every policy that is trained learn from its rows in small batches, shuffled anew for every pass.
    /// Rows in sequences stay together, in their order. Gives the number of env steps, too.
    ///
    /// # Errors
    /// [`RolloutError::Count`] unless the sample has `expected` env steps, [`RolloutError::Batch`] for a column that is
    /// not there: nobody has learned then. Else as [`sample`](Self::sample) and
    /// [`learn_on_batch`](Self::learn_on_batch).
    pub fn sample_and_learn(
        &mut self,
        expected: usize,
        options: &SgdOptions,
    ) -> Result<(TrainInfo, usize), RolloutError> {
        let (batch, found) = self.sample_with_count()?;
        if found != expected {
            return Err(RolloutError::Count { expected, found });
        }
        let mut rows = self.trained_rows(&batch)?;
        for (_, rows) in &mut rows {
            for field in &options.standardize_fields {
                standardize(rows, field)?;
            }
        }
        self.learned = self.learned.wrapping_add(1);
        let mut infos = TrainInfo::new();
        for (place, (id, rows)) in rows.into_iter().enumerate() {
            let info = self.descend(&id, place as u16, rows, options)?;
            infos.insert(id, info);
        }
        Ok((infos, found))
    }

    fn descend(
        &mut self,
        id: &PolicyId,
        place: u16,
        rows: SampleBatch,
        options: &SgdOptions,
    ) -> Result<LearnInfo, RolloutError> {
        let streams = Streams::new(self.parts.seed, Purpose::Shuffle);
        let worker = SlotId(self.parts.place.worker_index);
        let (mut sums, mut batches) = (LearnInfo::new(), 0u32);
        for pass in 0..options.num_sgd_iter.max(1) {
            let mut rows = rows.clone();
            if options.minibatch_size > 0 && rows.seq_lens().is_none() {
                rows.shuffle(&mut streams.at(worker, self.learned, pass, place))?;
            }
            let size = if options.minibatch_size == 0 { rows.len().max(1) } else { options.minibatch_size };
            for small in rows.timeslices(SliceBy::Size(size))? {
                let info = self.learn_on_batch(&of_policy(id, small))?;
                for (name, value) in info.into_values().flatten() {
                    *sums.entry(name).or_default() += value;
                }
                batches += 1;
            }
        }
        sums.values_mut().for_each(|sum| *sum /= f64::from(batches.max(1)));
        Ok(sums)
    }
}

fn of_policy(id: &PolicyId, rows: SampleBatch) -> AnyBatch {
    let steps = rows.len();
    crate::batch::MultiAgentBatch::new([(id.clone(), rows)].into(), steps).into()
}

/// Brings a column to mean 0 and deviation 1. As RLlib 2.9.3, a deviation below 1e-4 counts as 1e-4.
pub(super) fn standardize(rows: &mut SampleBatch, field: &str) -> Result<(), BatchError> {
    let column = rows.column(field).ok_or_else(|| BatchError::MissingColumn(field.into()))?;
    let data = column.typed::<f32>().map_err(|source| BatchError::Column { name: field.into(), source })?;
    let n = data.values().len().max(1) as f64;
    let mean = data.values().iter().map(|value| f64::from(*value)).sum::<f64>() / n;
    let squares = data.values().iter().map(|value| (f64::from(*value) - mean) * (f64::from(*value) - mean));
    let deviation = math::sqrt_f64(squares.sum::<f64>() / n).max(1e-4);
    let values: Vec<f32> = data.values().iter().map(|value| ((f64::from(*value) - mean) / deviation) as f32).collect();
    let shape = data.shape();
    let standard =
        ColumnData::new(values, shape).map_err(|source| BatchError::Column { name: field.into(), source })?;
    rows.insert(String::from(field), Column::from_typed(standard))
}
