//! The filter of a run: where fragments come together.

use super::{
    Filter, FilterDelta, FilterError, FilterKind, FilterTensorError, FrozenStat, MeanStdConfig, MeanStdFilter,
    RunningStat,
};
use crate::{
    batch::{OBS, SampleBatch, SlotFragment},
    column::{ColumnData, RowShape},
    ids::WeightsVersion,
    prelude::*,
    weights::Weights,
};

/// What is called so among a policy's weights are the statistics of its observation filter: whoever acts with the weights
/// normalises with them.
pub const FILTER_PREFIX: &str = "filter";

/// The statistics of a run by version of the weights, and what has been seen since the newest.
///
/// Fragments hold observations as the environment gave them. What a fragment adds to the statistics follows from its rows,
/// the observations that were acted on, so nobody has to say it: the number of rows that the statistics count is that of
/// the rows in the batches, whatever became of the workers that made them. Slots' shares are merged in order of the slots,
/// so how slots are split among workers leaves no trace.
///
/// ```
/// use rollmesh_core::{
///     column::RowShape,
///     filter::{FilterKind, FrozenStat, RunFilter},
///     ids::WeightsVersion,
///     kernels::Kernels,
///     policy::ModelSpec,
///     worker::{Registry, RolloutConfig, RolloutWorker},
/// };
///
/// let first = ModelSpec { obs_len: 4, dist_inputs_len: 2, hidden: vec![8], lstm_cell_size: None }.init_weights(7)?;
/// let mut filter = RunFilter::new(FilterKind::MeanStdFilter, RowShape::vector(4), first.version())?.expect("one");
/// let mut worker = RolloutWorker::new(RolloutConfig::new("CartPole-v1").num_envs(3), &Registry::builtin(), Kernels::PORTABLE)?;
/// filter.observe(&worker.sample_fragments(50)?)?;
/// // A learner would have made other weights of them.
/// let second = filter.publish(&first.with_version(WeightsVersion(1)));
/// assert_eq!(FrozenStat::of_weights(&second)?.expect("statistics").running().n(), 150);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunFilter {
    /// Ascending, never empty.
    versions: VecDeque<(WeightsVersion, FrozenStat)>,
    /// The statistics that the next version will have.
    next: FrozenStat,
}

impl RunFilter {
    /// The filter of a run that begins with weights of this version, for observations of this shape; none without a filter.
    ///
    /// # Errors
    /// [`FilterError::BadShape`].
    pub fn new(kind: FilterKind, shape: RowShape, first: WeightsVersion) -> Result<Option<Self>, FilterError> {
        match kind {
            FilterKind::NoFilter => Ok(None),
            FilterKind::MeanStdFilter | FilterKind::ConcurrentMeanStdFilter => {
                let frozen = FrozenStat::new(RunningStat::new(shape)?, MeanStdConfig::UNCLIPPED)?;
                Ok(Some(Self::of(first, frozen)))
            }
        }
    }

    /// The filter of a run that goes on with these weights, and the weights without it; none if there is none among them.
    ///
    /// # Errors
    /// [`FilterTensorError`].
    pub fn split_from(weights: &Weights) -> Result<(Weights, Option<Self>), FilterTensorError> {
        match FrozenStat::of_weights(weights)? {
            None => Ok((weights.clone(), None)),
            Some(frozen) => Ok((weights.split_filter(FILTER_PREFIX)?.0, Some(Self::of(weights.version(), frozen)))),
        }
    }

    fn of(version: WeightsVersion, frozen: FrozenStat) -> Self {
        Self { versions: [(version, frozen.clone())].into(), next: frozen }
    }

    /// The statistics with which weights of this version act.
    ///
    /// # Errors
    /// [`FilterError::NoStatistics`] for versions that were not published, or forgotten.
    pub fn frozen(&self, version: WeightsVersion) -> Result<&FrozenStat, FilterError> {
        let at = self.versions.binary_search_by_key(&version, |(version, _)| *version);
        let found = at.ok().and_then(|at| self.versions.get(at));
        found.map(|(_, frozen)| frozen).ok_or(FilterError::NoStatistics(version))
    }

    /// Rows counted by the statistics of the next version.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.next.running().n()
    }

    /// Counts the observations of a batch, once per row.
    ///
    /// # Errors
    /// [`FilterError::NotObserved`] for fragments without observations of 32-bit floats, [`FilterError::DuplicateDelta`],
    /// others of [`FrozenStat::merged`]. Nothing has changed then.
    pub fn observe(&mut self, fragments: &[SlotFragment]) -> Result<(), FilterError> {
        let deltas = fragments.iter().map(|fragment| self.delta(fragment)).collect::<Result<Vec<_>, _>>()?;
        self.next = self.next.merged(&deltas)?;
        Ok(())
    }

    /// What a fragment adds to the statistics.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn delta(&self, fragment: &SlotFragment) -> Result<FilterDelta, FilterError> {
        let mut stat = RunningStat::new(self.next.running().shape())?;
        let rows = floats(fragment, &fragment.rows)?;
        let count = stat.check_rows(rows)?;
        stat.check_count(count as u64)?;
        rows.chunks_exact(stat.mean().len()).for_each(|row| stat.push_checked(row));
        Ok(FilterDelta { slot: fragment.slot, fragment: fragment.fragment, stat })
    }

    /// The fragments with observations as the policy saw them: normalised with the statistics of their own weights.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn normalized(&self, fragments: &[SlotFragment]) -> Result<Vec<SlotFragment>, FilterError> {
        let normalize = |fragment: &SlotFragment| {
            let frozen = self.frozen(fragment.weights_version)?;
            let apply = |batch: &SampleBatch| {
                let not_observed = || FilterError::NotObserved { slot: fragment.slot };
                let mut rows = floats(fragment, batch)?.to_vec();
                frozen.normalize(&mut rows)?;
                let column = ColumnData::new(rows, frozen.running().shape()).map_err(|_| not_observed())?;
                let mut batch = batch.clone();
                batch.insert(OBS.name(), column).map_err(|_| not_observed())?;
                Ok::<_, FilterError>(batch)
            };
            Ok(SlotFragment {
                rows: apply(&fragment.rows)?,
                final_obs: apply(&fragment.final_obs)?,
                ..fragment.clone()
            })
        };
        fragments.iter().map(normalize).collect()
    }

    /// The next weights of the run with the statistics of all rows so far.
    #[must_use]
    pub fn publish(&mut self, weights: &Weights) -> Weights {
        let version = weights.version();
        self.versions.retain(|(older, _)| *older < version);
        self.versions.push_back((version, self.next.clone()));
        let running = self.next.running();
        let mut buffer = running.clone();
        buffer.reset();
        match MeanStdFilter::from_parts(self.next.config(), running.clone(), buffer) {
            Ok(filter) => weights.with_filter(FILTER_PREFIX, &Filter::MeanStdFilter(filter)),
            // Two statistics of one shape, with a clip that was checked, are always a filter's.
            Err(_) => weights.clone(),
        }
    }

    /// Forgets the statistics of versions before this one. The newest stay.
    pub fn forget_before(&mut self, oldest: WeightsVersion) {
        while self.versions.len() > 1 && self.versions.front().is_some_and(|(version, _)| *version < oldest) {
            self.versions.pop_front();
        }
    }
}

impl FrozenStat {
    /// The statistics among the weights of a policy, if it has a filter.
    ///
    /// # Errors
    /// [`FilterTensorError`] when tensors are missing or hold no filter.
    pub fn of_weights(weights: &Weights) -> Result<Option<Self>, FilterTensorError> {
        match Filter::from_weights(weights, FILTER_PREFIX)? {
            Filter::NoFilter => Ok(None),
            Filter::MeanStdFilter(filter) => {
                let frozen = Self::new(filter.running().clone(), filter.config());
                frozen.map(Some).map_err(|_| FilterTensorError::Damaged(FILTER_PREFIX.into()))
            }
        }
    }
}

fn floats<'a>(fragment: &SlotFragment, batch: &'a SampleBatch) -> Result<&'a [f32], FilterError> {
    batch.get(OBS).map_err(|_| FilterError::NotObserved { slot: fragment.slot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FragmentNo, SlotId};

    fn fragment(slot: u32, number: u64, version: u64, obs: &[f32]) -> SlotFragment {
        let batch = |obs: &[f32]| SampleBatch::new().with(OBS, ColumnData::scalars(obs.to_vec())).unwrap();
        SlotFragment {
            slot: SlotId(slot),
            fragment: FragmentNo(number),
            weights_version: WeightsVersion(version),
            first_episode: 0,
            first_t: 0,
            rows: batch(obs),
            cuts: Vec::new(),
            final_obs: batch(&[100.0]),
            agents: None,
            episodes: Vec::new(),
            state: Vec::new(),
        }
    }

    fn filter() -> RunFilter {
        RunFilter::new(FilterKind::MeanStdFilter, RowShape::SCALAR, WeightsVersion(0)).unwrap().unwrap()
    }

    fn weights(version: u64) -> Weights {
        Weights::new(WeightsVersion(version), Vec::new()).unwrap()
    }

    #[test]
    fn every_row_counts_once_and_is_normalised_as_it_was_acted_on() {
        let mut filter = filter();
        let first = [fragment(0, 0, 0, &[1.0, 3.0]), fragment(1, 0, 0, &[2.0, 2.0])];
        filter.observe(&first).unwrap();
        // The final observation is normalised, but nobody acted on it.
        assert_eq!(filter.rows(), 4);
        assert_eq!(filter.normalized(&first).unwrap(), first, "nothing had been seen before");
        let published = filter.publish(&weights(1));
        let late = [fragment(0, 1, 0, &[2.0, 3.0]), fragment(1, 1, 1, &[2.0, 3.0])];
        let normalized = filter.normalized(&late).unwrap();
        assert_eq!(normalized[0], late[0], "made with version 0");
        let std = (2.0f64 / 3.0).sqrt() + 1e-6;
        assert_eq!(normalized[1].rows.get(OBS).unwrap(), [0.0, (1.0 / std) as f32]);
        assert_eq!(normalized[1].final_obs.get(OBS).unwrap(), [(98.0 / std) as f32]);

        let (plain, again) = RunFilter::split_from(&published).unwrap();
        assert_eq!((plain, again.as_ref().map(RunFilter::rows)), (weights(1), Some(4)));
        filter.forget_before(WeightsVersion(9));
        assert_eq!(again, Some(filter.clone()));
        assert_eq!(filter.normalized(&late), Err(FilterError::NoStatistics(WeightsVersion(0))));
        assert_eq!(RunFilter::split_from(&weights(3)), Ok((weights(3), None)));
    }

    #[test]
    fn the_order_of_slots_is_the_order_of_merging() {
        let batch = [fragment(2, 0, 0, &[0.1, 7.7]), fragment(0, 0, 0, &[1e9, 0.3]), fragment(1, 0, 0, &[-5.1, 0.9])];
        let mut reversed = batch.clone();
        reversed.reverse();
        let merged = |fragments: &[SlotFragment]| {
            let mut filter = filter();
            filter.observe(fragments).unwrap();
            filter
        };
        assert_eq!(merged(&batch), merged(&reversed));
    }

    #[test]
    fn what_was_not_observed_changes_nothing() {
        let mut filter = filter();
        let twice = [fragment(3, 5, 0, &[1.0]), fragment(3, 5, 0, &[1.0])];
        assert!(matches!(filter.observe(&twice), Err(FilterError::DuplicateDelta { .. })));
        let without = SlotFragment { rows: SampleBatch::new(), ..fragment(3, 0, 0, &[]) };
        let error = filter.observe(&[fragment(0, 0, 0, &[1.0]), without]).unwrap_err().to_string();
        assert_eq!(error, "a fragment of slot 3 has no float32 observations, which the filter takes");
        assert!(filter.observe(&[fragment(0, 0, 0, &[f32::NAN])]).is_err());
        assert_eq!(filter, self::filter());
        assert_eq!(RunFilter::new(FilterKind::NoFilter, RowShape::SCALAR, WeightsVersion(0)), Ok(None));
    }
}
