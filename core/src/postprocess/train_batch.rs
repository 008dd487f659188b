//! Builds batches from slots' fragments: one for callers that sample, one for training.

use super::{AdvantageConfig, PostprocessError, read::scalars};
use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, ADVANTAGES, BatchError, Derived, MultiAgentBatch, OBS, REWARDS, SampleBatch,
        SlotFragment, TERMINATEDS, TRUNCATEDS, UNROLL_ID, VALUE_TARGETS, VF_PREDS, WEIGHTS_VERSION,
    },
    column::{ColumnData, Recycler, RowShape},
    ids::SlotId,
    prelude::*,
};

/// Builds finished batches from fragments. It reuses its buffers once all references to their columns are dropped: a caller
/// that drops a batch before it requests the next one avoids allocations.
///
/// ```
/// use rollmesh_core::{
///     kernels::Kernels,
///     postprocess::{AdvantageConfig, Finisher},
///     worker::{Registry, RolloutConfig, RolloutWorker},
/// };
///
/// let config = RolloutConfig::new("CartPole-v1").num_envs(4);
/// let mut worker = RolloutWorker::new(config, &Registry::builtin(), Kernels::PORTABLE)?;
/// let fragments = worker.sample_fragments(50)?;
/// let batch = Finisher::default().finish(&fragments, Some(&AdvantageConfig::default()))?;
/// assert_eq!((batch.len(), batch.iter().count()), (200, 14));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Finisher {
    derived: Derived,
    advantages: AdvantageBuffers,
}

#[derive(Debug, Default)]
struct AdvantageBuffers {
    advantages: Recycler,
    targets: Recycler,
}

impl Finisher {
    /// Returns the number of a slot's steps so far, from which `unroll_id` follows.
    #[must_use]
    pub fn steps(&self, slot: SlotId) -> u64 {
        self.derived.steps(slot)
    }

    /// Sets the number of a slot's steps so far.
    pub fn set_steps(&mut self, slot: SlotId, steps: u64) {
        self.derived.set_steps(slot, steps);
    }

    /// Builds one batch with the fragments' rows in order and the derived columns of [`SampleBatch::from_fragments`]. If
    /// requested, adds `advantages` and `value_targets`: those of [`compute_advantages`](super::compute_advantages) for each
    /// piece up to its cut.
    ///
    /// # Errors
    /// [`PostprocessError::Batch`] for the errors of [`SampleBatch::from_fragments`]; [`PostprocessError::GaeNeedsCritic`],
    /// [`PostprocessError::NotScalar`].
    #[doc(alias = "postprocess_batch_so_far")]
    pub fn finish(
        &mut self,
        fragments: &[SlotFragment],
        advantages: Option<&AdvantageConfig>,
    ) -> Result<SampleBatch, PostprocessError> {
        let batch = SampleBatch::from_fragments(fragments, &mut self.derived)?;
        match advantages {
            Some(config) if !batch.is_empty() => self.advantages.add(fragments, batch, config),
            _ => Ok(batch),
        }
    }
}

/// Builds one batch for training: the fragments' rows in order, with `advantages` and `value_targets`, and with the columns
/// that a learner needs to correct rows of older weights: `weights_version`, and `unroll_id`, which numbers the batch's
/// pieces.
///
/// # Errors
/// [`PostprocessError::Batch`] when a fragment lacks a column or its cuts do not cover its rows;
/// [`PostprocessError::NotScalar`] if rewards or values are not one per row.
#[doc(alias = "postprocess_trajectory")]
pub fn train_batch(fragments: &[SlotFragment], advantages: &AdvantageConfig) -> Result<SampleBatch, PostprocessError> {
    let joined = SampleBatch::concat(fragments.iter().map(|fragment| &fragment.rows))?;
    let keys = [
        OBS.name(),
        ACTIONS.name(),
        REWARDS.name(),
        TERMINATEDS.name(),
        TRUNCATEDS.name(),
        ACTION_LOGP.name(),
        VF_PREDS.name(),
    ];
    if joined.is_empty() {
        return Ok(joined);
    }
    if let Some(missing) = keys.into_iter().find(|key| joined.column(key).is_none()) {
        return Err(BatchError::MissingColumn(missing.to_string()).into());
    }
    let batch = AdvantageBuffers::default().add(fragments, joined, advantages)?;
    let pieces = fragments.iter().flat_map(SlotFragment::pieces).zip(0i64..);
    let unroll_ids = pieces.flat_map(|((rows, _), piece)| core::iter::repeat_n(piece, rows.len())).collect();
    let versions = fragments.iter().flat_map(|fragment| versions(fragment, fragment.rows.len())).collect();
    Ok(batch.with(UNROLL_ID, ColumnData::scalars(unroll_ids))?.with(WEIGHTS_VERSION, ColumnData::scalars(versions))?)
}

/// Builds one batch for training by policy: the rows of fragments that workers have postprocessed, with `weights_version`.
///
/// # Errors
/// [`PostprocessError::Batch`] when the fragments' columns differ.
pub fn train_batch_by_policy(fragments: &[SlotFragment]) -> Result<MultiAgentBatch, PostprocessError> {
    let versioned = fragments.iter().filter_map(|fragment| Some((fragment, fragment.agents.as_ref()?)));
    let versioned = versioned.map(|(fragment, agents)| {
        let mut agents = agents.clone();
        for batch in agents.policy_batches.values_mut() {
            let versions = versions(fragment, batch.len()).collect();
            batch.insert(WEIGHTS_VERSION.name(), ColumnData::scalars(versions))?;
        }
        Ok(agents)
    });
    Ok(MultiAgentBatch::concat(&versioned.collect::<Result<Vec<_>, BatchError>>()?)?)
}

/// Iterates over a fragment's version of the weights, once per row.
fn versions(fragment: &SlotFragment, rows: usize) -> impl Iterator<Item = i64> + use<> {
    core::iter::repeat_n(fragment.weights_version.0 as i64, rows)
}

impl AdvantageBuffers {
    /// Adds advantages and targets to `batch`, which has the rows of the fragments.
    fn add(
        &mut self,
        fragments: &[SlotFragment],
        batch: SampleBatch,
        config: &AdvantageConfig,
    ) -> Result<SampleBatch, PostprocessError> {
        config.check()?;
        for fragment in fragments {
            fragment.check_covered(ADVANTAGES.name())?;
        }
        let rewards = scalars(&batch, REWARDS)?;
        let values = if config.use_critic { scalars(&batch, VF_PREDS)? } else { &[] };
        let (mut advantages, mut targets) = (self.advantages.buffer(), self.targets.buffer());
        advantages.resize(rewards.len(), 0.0);
        targets.resize(rewards.len(), 0.0);
        let mut first = 0;
        for fragment in fragments {
            for (piece, cut) in fragment.pieces() {
                let rows = first + piece.start..first + piece.end;
                let (rewards, values) = (&rewards[rows.clone()], values.get(rows.clone()).unwrap_or_default());
                let out = (&mut advantages[rows.clone()], &mut targets[rows]);
                config.write(rewards, values, cut.bootstrap_value, out.0, out.1);
            }
            first += fragment.rows.len();
        }
        let advantages = self.advantages.freeze(advantages, RowShape::SCALAR);
        let targets = self.targets.freeze(targets, RowShape::SCALAR);
        Ok(batch.with(ADVANTAGES, advantages)?.with(VALUE_TARGETS, targets)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{AGENT_INDEX, Cut, CutReason, EPS_ID, NEW_OBS, T, UNROLL_ID},
        column::{Column, ColumnData},
        ids::{FragmentNo, PolicyId, SlotId, WeightsVersion},
    };

    fn half() -> AdvantageConfig {
        AdvantageConfig { gamma: 0.5, lambda: 0.0, ..AdvantageConfig::default() }
    }

    /// Returns three rows with these cuts.
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
            first_episode: 4,
            first_t: 7,
            rows,
            cuts: ends.iter().map(cut).collect(),
            final_obs: SampleBatch::new().with(OBS, ColumnData::scalars(vec![9.0; ends.len()])).unwrap(),
            agents: None,
            episodes: Vec::new(),
            state: Vec::new(),
        }
    }

    #[test]
    fn each_piece_has_its_own_end() {
        let batch = train_batch(&[fragment(&[2, 3]), fragment(&[3])], &half()).unwrap();
        assert_eq!(batch.get(ADVANTAGES).unwrap(), [0.5, 1.0, 1.0, 0.5, 0.5, 1.0]);
        assert_eq!(batch.get(VALUE_TARGETS).unwrap(), [1.5, 2.0, 2.0, 1.5, 1.5, 2.0]);
    }

    #[test]
    fn rows_name_their_piece_and_the_version_that_acted() {
        let later = SlotFragment { weights_version: WeightsVersion(7), ..fragment(&[3]) };
        let batch = train_batch(&[fragment(&[2, 3]), later.clone()], &half()).unwrap();
        assert_eq!(batch.get(UNROLL_ID).unwrap(), [0, 0, 1, 2, 2, 2]);
        assert_eq!(batch.get(WEIGHTS_VERSION).unwrap(), [0, 0, 0, 7, 7, 7]);
        let by_policy = |fragment: SlotFragment| {
            let agents = MultiAgentBatch::new([(PolicyId::DEFAULT, fragment.rows.clone())].into(), 3);
            SlotFragment { agents: Some(agents), ..fragment }
        };
        let batch = train_batch_by_policy(&[by_policy(later), by_policy(fragment(&[3]))]).unwrap();
        let versions = batch.policy_batches[&PolicyId::DEFAULT].get(WEIGHTS_VERSION).unwrap();
        assert_eq!((versions, batch.env_steps), (&[7, 7, 7, 0, 0, 0][..], 6));
    }

    #[test]
    fn a_finished_batch_has_every_column() {
        let second = SlotFragment { slot: SlotId(1), fragment: FragmentNo(2), ..fragment(&[3]) };
        let mut finisher = Finisher::default();
        let config = AdvantageConfig { gamma: 0.5, lambda: 0.0, ..AdvantageConfig::default() };
        let batch = finisher.finish(&[fragment(&[2, 3]), second.clone()], Some(&config)).unwrap();
        assert_eq!(batch.get(NEW_OBS).unwrap(), [1.0, 9.0, 9.0, 1.0, 1.0, 9.0]);
        let eps = |slot: i64, episode: i64| slot << 32 | episode;
        assert_eq!(batch.get(EPS_ID).unwrap(), [eps(0, 4), eps(0, 4), eps(0, 5), eps(1, 4), eps(1, 4), eps(1, 4)]);
        assert_eq!(batch.get(T).unwrap(), [7, 8, 0, 7, 8, 9]);
        let unroll = |slot: i64, step: i64| step << 32 | slot << 16;
        let [a, b, c] = [unroll(0, 0), unroll(0, 2), unroll(1, 0)];
        assert_eq!(batch.get(UNROLL_ID).unwrap(), [a, a, b, c, c, c]);
        assert_eq!((finisher.steps(SlotId(0)), finisher.steps(SlotId(2))), (3, 0));
        assert_eq!(batch.get(AGENT_INDEX).unwrap(), [0; 6]);
        assert_eq!(batch.get(ADVANTAGES).unwrap(), [0.5, 1.0, 1.0, 0.5, 0.5, 1.0]);
        assert_eq!(batch.get(VALUE_TARGETS).unwrap(), [1.5, 2.0, 2.0, 1.5, 1.5, 2.0]);

        // Processing fragments one at a time gives the same rows, and unreferenced buffers are reused.
        let alone = second.with_derived().unwrap();
        assert!(
            alone.iter().all(|(name, column)| batch.column(name).map(|all| all.slice(3..6)).as_ref() == Some(column))
        );
        let address = |batch: &SampleBatch| batch.get(ADVANTAGES).unwrap().as_ptr();
        let before = address(&batch);
        let kept = finisher.finish(core::slice::from_ref(&second), Some(&config)).unwrap();
        assert_ne!(address(&kept), before);
        let kept_at = address(&kept);
        drop(kept);
        assert_eq!(address(&finisher.finish(&[second], Some(&config)).unwrap()), kept_at);
    }

    #[test]
    fn advantages_are_what_the_config_says() {
        let config = AdvantageConfig { gamma: 0.5, lambda: 0.0, use_gae: false, use_critic: false };
        let finish = |config| Finisher::default().finish(&[fragment(&[2, 3])], Some(&config));
        let batch = finish(config).unwrap();
        // The next state has value 2 at every cut: 1 + 0.5 x 2, and the same again one row before.
        assert_eq!(batch.get(ADVANTAGES).unwrap(), [2.0, 2.0, 2.0]);
        assert_eq!(batch.get(VALUE_TARGETS).unwrap(), [0.0; 3]);
        assert_eq!(finish(AdvantageConfig { use_gae: true, ..config }), Err(PostprocessError::GaeNeedsCritic));
        let plain = Finisher::default().finish(&[fragment(&[2, 3])], None).unwrap();
        assert!(plain.column(ADVANTAGES.name()).is_none());
        assert!(Finisher::default().finish(&[], Some(&config)).unwrap().is_empty());
    }

    #[test]
    fn cuts_cover_the_rows() {
        for (ends, found) in [(&[][..], 0), (&[2], 2), (&[2, 4], 4)] {
            let fragments = [fragment(&[3]), fragment(ends)];
            let mismatch = |name: &str| {
                Err(PostprocessError::Batch(BatchError::LengthMismatch { name: name.into(), expected: 3, found }))
            };
            assert_eq!(train_batch(&fragments, &half()), mismatch("advantages"));
            assert_eq!(Finisher::default().finish(&fragments, None), mismatch("eps_id"));
        }
        let mut fragment = fragment(&[2, 3]);
        fragment.final_obs = fragment.final_obs.slice_rows(0..1);
        let error = fragment.with_derived().unwrap_err();
        assert_eq!(error, BatchError::LengthMismatch { name: "new_obs".into(), expected: 2, found: 1 });
        fragment.final_obs = SampleBatch::new();
        fragment.final_obs.insert(OBS.name(), Column::from(ColumnData::scalars(vec![1i64, 2]))).unwrap();
        assert!(matches!(fragment.with_derived(), Err(BatchError::Column { .. })));
    }
}
