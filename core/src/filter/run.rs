//! Implements the filter of a run, which merges the fragments of all workers.

use super::{
    Filter, FilterDelta, FilterError, FilterKind, FilterTensorError, FrozenStat, MeanStdConfig, MeanStdFilter,
    RunningStat,
};
use crate::{
    batch::{NEW_OBS, OBS, SampleBatch, SlotFragment},
    column::{ColumnData, ColumnKey, RowShape},
    ids::{PolicyId, SlotId, WeightsVersion},
    prelude::*,
    weights::{FILTER_PREFIX, Weights},
};

/// The statistics of a run by policy and version of the weights, and the rows since the newest version.
///
/// Fragments hold the environment's raw observations. A fragment's contribution to a policy's statistics follows from the
/// policy's rows, including rows that callbacks added and excluding rows that they removed, so messages do not contain it: the
/// statistics count exactly the rows in the batches, even if their workers were lost later. Contributions are merged in
/// order of the slots, so the assignment of slots to workers does not change the result.
///
/// ```
/// use rollmesh_core::{
///     column::RowShape,
///     filter::{FilterKind, FrozenStat, RunFilter},
///     ids::{PolicyId, WeightsVersion},
///     kernels::Kernels,
///     policy::{ModelConfig, ModelSpec},
///     worker::{Registry, RolloutConfig, RolloutWorker},
/// };
///
/// let first = ModelSpec::new(&ModelConfig::of_widths(&[8]), &[4], 2)?.init_weights(7)?;
/// let shapes = [(PolicyId::DEFAULT, RowShape::vector(4))].into();
/// let mut filter = RunFilter::new(FilterKind::MeanStdFilter, &shapes, &[PolicyId::DEFAULT], first.version())?.expect("one");
/// let mut worker = RolloutWorker::new(RolloutConfig::new("CartPole-v1").num_envs(3), &Registry::builtin(), Kernels::PORTABLE)?;
/// filter.observe(&worker.sample_fragments(50)?)?;
/// // A learner would compute new weights from them.
/// let second = filter.publish(&first.with_version(WeightsVersion(1)));
/// assert_eq!(FrozenStat::of_weights(&second)?.expect("statistics").running().n(), 150);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunFilter {
    /// Name prefix of the tensors of each policy's statistics among the weights of the run.
    prefixes: BTreeMap<PolicyId, String>,
    /// Ascending, never empty.
    versions: VecDeque<(WeightsVersion, Statistics)>,
    /// The statistics of the next version.
    next: Statistics,
}

/// The statistics of each policy with normalised observations.
type Statistics = BTreeMap<PolicyId, FrozenStat>;

impl RunFilter {
    /// Creates the filter of a run of `policies` that begins with weights of this version, for the policies in `shapes`;
    /// returns `None` without a filter.
    ///
    /// # Errors
    /// [`FilterError::BadShape`].
    pub fn new(
        kind: FilterKind,
        shapes: &BTreeMap<PolicyId, RowShape>,
        policies: &[PolicyId],
        first: WeightsVersion,
    ) -> Result<Option<Self>, FilterError> {
        if kind == FilterKind::NoFilter {
            return Ok(None);
        }
        let frozen = |(id, shape): (&PolicyId, &RowShape)| {
            Ok((id.clone(), FrozenStat::new(RunningStat::new(*shape)?, MeanStdConfig::UNCLIPPED)?))
        };
        Ok(Some(Self::of(policies, first, shapes.iter().map(frozen).try_collect_ordered()?)))
    }

    /// Restores the filter of a resumed run of `policies` from its weights, and returns the weights without it; the filter
    /// is `None` if the weights have none.
    ///
    /// # Errors
    /// [`FilterTensorError`].
    pub fn split_from(weights: &Weights, policies: &[PolicyId]) -> Result<(Weights, Option<Self>), FilterTensorError> {
        let (mut plain, mut found) = (weights.clone(), Statistics::new());
        for (id, prefix) in prefixes(policies) {
            if let Some(frozen) = FrozenStat::under(&plain, &prefix)? {
                plain = plain.split_filter(&prefix)?.0;
                found.insert(id, frozen);
            }
        }
        let filter = (!found.is_empty()).then(|| Self::of(policies, weights.version(), found));
        Ok((plain, filter))
    }

    fn of(policies: &[PolicyId], version: WeightsVersion, next: Statistics) -> Self {
        Self { prefixes: prefixes(policies), versions: [(version, next.clone())].into(), next }
    }

    /// Returns the statistics of each policy for weights of this version.
    fn frozen(&self, version: WeightsVersion) -> Result<&Statistics, FilterError> {
        let at = self.versions.binary_search_by_key(&version, |(version, _)| *version);
        let found = at.ok().and_then(|at| self.versions.get(at));
        found.map(|(_, frozen)| frozen).ok_or(FilterError::NoStatistics(version))
    }

    /// Returns the number of rows of all policies in the statistics of the next version.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.next.values().map(|frozen| frozen.running().n()).sum()
    }

    /// Counts the observations of a batch, once per row.
    ///
    /// # Errors
    /// [`FilterError::NotObserved`] for rows without observations of 32-bit floats, [`FilterError::DuplicateDelta`], and the
    /// errors of [`FrozenStat::merged`]. On an error, the statistics stay as they are.
    pub fn observe(&mut self, fragments: &[SlotFragment]) -> Result<(), FilterError> {
        let merged = |(id, frozen): (&PolicyId, &FrozenStat)| {
            let deltas = fragments.iter().filter_map(|fragment| delta(frozen, id, fragment).transpose());
            Ok((id.clone(), frozen.merged(&deltas.collect::<Result<Vec<_>, _>>()?)?))
        };
        self.next = self.next.iter().map(merged).try_collect_ordered()?;
        Ok(())
    }

    /// Returns the fragments with observations as the policies saw them: normalised with the statistics of their own
    /// weights.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn normalized(&self, fragments: &[SlotFragment]) -> Result<Vec<SlotFragment>, FilterError> {
        let normalize = |fragment: &SlotFragment| {
            let mut fragment = fragment.clone();
            for (id, frozen) in self.frozen(fragment.weights_version)? {
                let slot = fragment.slot;
                match &mut fragment.agents {
                    Some(agents) => {
                        let Some(batch) = agents.policy_batches.get_mut(id) else { continue };
                        apply(frozen, slot, batch, OBS)?;
                        apply(frozen, slot, batch, NEW_OBS)?;
                    }
                    None => {
                        apply(frozen, slot, &mut fragment.rows, OBS)?;
                        apply(frozen, slot, &mut fragment.final_obs, OBS)?;
                    }
                }
            }
            Ok(fragment)
        };
        fragments.iter().map(normalize).collect()
    }

    /// Returns the next weights of the run with the statistics of all rows so far.
    #[must_use]
    pub fn publish(&mut self, weights: &Weights) -> Weights {
        let version = weights.version();
        self.versions.retain(|(older, _)| *older < version);
        self.versions.push_back((version, self.next.clone()));
        let mut published = weights.clone();
        for (frozen, prefix) in self.next.iter().filter_map(|(id, frozen)| Some((frozen, self.prefixes.get(id)?))) {
            let running = frozen.running();
            let mut buffer = running.clone();
            buffer.reset();
            // Two statistics of one shape, with a checked clip, always form a filter.
            if let Ok(filter) = MeanStdFilter::from_parts(frozen.config(), running.clone(), buffer) {
                published = published.with_filter(prefix, &Filter::MeanStdFilter(filter));
            }
        }
        published
    }

    /// Removes the statistics of versions before this one, but keeps the newest.
    pub fn forget_before(&mut self, oldest: WeightsVersion) {
        while self.versions.len() > 1 && self.versions.front().is_some_and(|(version, _)| *version < oldest) {
            self.versions.pop_front();
        }
    }
}

/// Returns the prefixes of the filters' names, see [`Weights::of_run`].
fn prefixes(policies: &[PolicyId]) -> BTreeMap<PolicyId, String> {
    let is_plain = policies == [PolicyId::DEFAULT];
    let prefix = |id: &PolicyId| if is_plain { FILTER_PREFIX.into() } else { format!("{id}/{FILTER_PREFIX}") };
    policies.iter().map(|id| (id.clone(), prefix(id))).collect_ordered()
}

/// Returns a fragment's contribution to the statistics of a policy; `None` without rows of the policy.
fn delta(frozen: &FrozenStat, id: &PolicyId, fragment: &SlotFragment) -> Result<Option<FilterDelta>, FilterError> {
    let batch = match &fragment.agents {
        Some(agents) => agents.policy_batches.get(id),
        None => Some(&fragment.rows),
    };
    let Some(batch) = batch else { return Ok(None) };
    let mut stat = RunningStat::new(frozen.running().shape())?;
    let rows = batch.get(OBS).map_err(|_| FilterError::NotObserved { slot: fragment.slot })?;
    let count = stat.check_rows(rows)?;
    stat.check_count(count as u64)?;
    rows.chunks_exact(stat.mean().len()).for_each(|row| stat.push_checked(row));
    Ok(Some(FilterDelta { slot: fragment.slot, fragment: fragment.fragment, stat }))
}

/// Normalises a column of observations.
fn apply(frozen: &FrozenStat, slot: SlotId, batch: &mut SampleBatch, key: ColumnKey<f32>) -> Result<(), FilterError> {
    let not_observed = || FilterError::NotObserved { slot };
    let mut rows = batch.get(key).map_err(|_| not_observed())?.to_vec();
    frozen.normalize(&mut rows)?;
    let column = ColumnData::new(rows, frozen.running().shape()).map_err(|_| not_observed())?;
    batch.insert(key.name(), column).map_err(|_| not_observed())?;
    Ok(())
}

impl FrozenStat {
    /// Returns the statistics among the weights of a policy, if it has a filter.
    ///
    /// # Errors
    /// [`FilterTensorError`] when tensors are missing or do not hold a filter.
    pub fn of_weights(weights: &Weights) -> Result<Option<Self>, FilterTensorError> {
        Self::under(weights, FILTER_PREFIX)
    }

    /// Returns the statistics with this prefix.
    fn under(weights: &Weights, prefix: &str) -> Result<Option<Self>, FilterTensorError> {
        match Filter::from_weights(weights, prefix)? {
            Filter::NoFilter => Ok(None),
            Filter::MeanStdFilter(filter) => {
                let frozen = Self::new(filter.running().clone(), filter.config());
                frozen.map(Some).map_err(|_| FilterTensorError::Damaged(prefix.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::MultiAgentBatch, ids::FragmentNo};

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
        let (policies, kind) = ([PolicyId::DEFAULT], FilterKind::MeanStdFilter);
        let shapes = policies.clone().map(|id| (id, RowShape::SCALAR)).into();
        RunFilter::new(kind, &shapes, &policies, WeightsVersion(0)).unwrap().unwrap()
    }

    fn weights(version: u64) -> Weights {
        Weights::new(WeightsVersion(version), Vec::new()).unwrap()
    }

    #[test]
    fn every_row_counts_once_and_is_normalised_as_it_was_acted_on() {
        let mut filter = filter();
        let first = [fragment(0, 0, 0, &[1.0, 3.0]), fragment(1, 0, 0, &[2.0, 2.0])];
        filter.observe(&first).unwrap();
        // The final observation is normalised, but no action followed it, so it is not counted.
        assert_eq!(filter.rows(), 4);
        assert_eq!(filter.normalized(&first).unwrap(), first, "nothing had been seen before");
        let published = filter.publish(&weights(1));
        let late = [fragment(0, 1, 0, &[2.0, 3.0]), fragment(1, 1, 1, &[2.0, 3.0])];
        let normalized = filter.normalized(&late).unwrap();
        assert_eq!(normalized[0], late[0], "made with version 0");
        let std = (2.0f64 / 3.0).sqrt() + 1e-6;
        assert_eq!(normalized[1].rows.get(OBS).unwrap(), [0.0, (1.0 / std) as f32]);
        assert_eq!(normalized[1].final_obs.get(OBS).unwrap(), [(98.0 / std) as f32]);

        let (plain, again) = RunFilter::split_from(&published, &[PolicyId::DEFAULT]).unwrap();
        assert_eq!((plain, again.as_ref().map(RunFilter::rows)), (weights(1), Some(4)));
        filter.forget_before(WeightsVersion(9));
        assert_eq!(again, Some(filter.clone()));
        assert_eq!(filter.normalized(&late), Err(FilterError::NoStatistics(WeightsVersion(0))));
        assert_eq!(RunFilter::split_from(&weights(3), &[PolicyId::DEFAULT]), Ok((weights(3), None)));
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
    fn refused_fragments_leave_the_filter_unchanged() {
        let mut filter = filter();
        let twice = [fragment(3, 5, 0, &[1.0]), fragment(3, 5, 0, &[1.0])];
        assert!(matches!(filter.observe(&twice), Err(FilterError::DuplicateDelta { .. })));
        let without = SlotFragment { rows: SampleBatch::new(), ..fragment(3, 0, 0, &[]) };
        let error = filter.observe(&[fragment(0, 0, 0, &[1.0]), without]).unwrap_err().to_string();
        assert_eq!(error, "a fragment of slot 3 has no float32 observations, which the filter takes");
        assert!(filter.observe(&[fragment(0, 0, 0, &[f32::NAN])]).is_err());
        assert_eq!(filter, self::filter());
        assert_eq!(RunFilter::new(FilterKind::NoFilter, &BTreeMap::new(), &[], WeightsVersion(0)), Ok(None));
    }

    #[test]
    fn each_policy_has_statistics_of_its_own_rows() {
        let [car, light, sign] = ["car", "light", "sign"].map(PolicyId::new);
        let policies = [car.clone(), light.clone(), sign.clone()];
        let shapes = [(car.clone(), RowShape::SCALAR), (light.clone(), RowShape::vector(2))].into();
        let first = WeightsVersion(0);
        let mut filter = RunFilter::new(FilterKind::MeanStdFilter, &shapes, &policies, first).unwrap().unwrap();
        let batch = |obs: &[f32], width: u32| {
            let column = |obs: &[f32]| ColumnData::new(obs.to_vec(), RowShape::vector(width)).unwrap();
            let next: Vec<f32> = obs.iter().map(|x| x + 1.0).collect();
            SampleBatch::new().with(OBS, column(obs)).and_then(|batch| batch.with(NEW_OBS, column(&next))).unwrap()
        };
        let agents = |batches: Vec<(&PolicyId, SampleBatch)>| {
            let batches = batches.into_iter().map(|(id, batch)| (id.clone(), batch)).collect();
            Some(MultiAgentBatch::new(batches, 2))
        };
        let signs = SampleBatch::new().with(OBS, ColumnData::scalars(vec![7.0; 3])).unwrap();
        let both = vec![(&car, batch(&[1.0, 3.0], 1)), (&light, batch(&[5.0, 0.0], 2)), (&sign, signs.clone())];
        let fragments = [
            SlotFragment { agents: agents(vec![(&car, batch(&[2.0, 2.0], 1))]), ..fragment(1, 0, 0, &[]) },
            SlotFragment { agents: agents(both), ..fragment(0, 0, 0, &[]) },
        ];
        filter.observe(&fragments).unwrap();
        assert_eq!(filter.rows(), 5, "four of cars, one of the light, none of signs");
        let published = filter.publish(&weights(1));
        let of_policies = published.of_policies(&policies).unwrap();
        let count = |id| FrozenStat::of_weights(&of_policies[id]).unwrap().map(|frozen| frozen.running().n());
        assert_eq!([&car, &light, &sign].map(count), [Some(4), Some(1), None]);
        assert_eq!(RunFilter::split_from(&published, &policies).unwrap().0, weights(1));

        let later = SlotFragment { weights_version: WeightsVersion(1), ..fragments[1].clone() };
        let seen = filter.normalized(&[later]).unwrap()[0].agents.clone().unwrap();
        let std = (2.0f64 / 3.0).sqrt() + 1e-6;
        let [obs, next] = [[-1.0f64, 1.0], [0.0, 2.0]].map(|row| row.map(|x| (x / std) as f32));
        let cars = &seen.policy_batches[&car];
        assert_eq!((cars.get(OBS).unwrap(), cars.get(NEW_OBS).unwrap()), (&obs[..], &next[..]));
        assert_eq!(seen.policy_batches[&sign], signs);
    }
}
