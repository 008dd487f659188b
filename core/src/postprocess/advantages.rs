//! Computes advantages and value targets of a batch of one trajectory.

use serde::{Deserialize, Serialize};

use super::{
    PostprocessError,
    discount::{discounted_returns, last_r, values_bootstrapped},
    gae::gae,
    read::{floats, optional, scalars},
};
use crate::{
    batch::{
        ADVANTAGES, AGENT_INDEX, EPS_ID, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS, UNROLL_ID, VALUE_TARGETS,
        VALUES_BOOTSTRAPPED, VF_PREDS,
    },
    column::ColumnData,
    prelude::*,
};

/// The kind of advantages to compute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdvantageConfig {
    /// Discount per step.
    pub gamma: f64,
    /// Decay of generalised advantage estimation: 0 relies on the value estimates, 1 on the rewards.
    pub lambda: f64,
    /// Whether to use generalised advantage estimation; otherwise Monte-Carlo returns.
    pub use_gae: bool,
    /// Whether to subtract value estimates from the returns.
    pub use_critic: bool,
}

/// RLlib's defaults.
impl Default for AdvantageConfig {
    fn default() -> Self {
        Self { gamma: 0.9, lambda: 1.0, use_gae: true, use_critic: true }
    }
}

impl AdvantageConfig {
    pub(super) const fn check(&self) -> Result<(), PostprocessError> {
        if self.use_gae && !self.use_critic { Err(PostprocessError::GaeNeedsCritic) } else { Ok(()) }
    }

    /// Writes the advantages and targets of one piece, as described for [`compute_advantages`]. All slices have a row per
    /// step, except for `values` without a critic.
    pub(super) fn write<R: Copy + Into<f64>, V: Copy + Into<f64>>(
        &self,
        rewards: &[R],
        values: &[V],
        last_r: f32,
        advantages: &mut [f32],
        targets: &mut [f32],
    ) {
        if self.use_gae {
            return gae(rewards, values, last_r, self.gamma, self.lambda, advantages, targets);
        }
        let returns = discounted_returns(rewards, last_r, self.gamma);
        for (advantage, total) in advantages.iter_mut().zip(&returns) {
            *advantage = *total as f32;
        }
        if self.use_critic {
            for ((advantage, target), (total, &value)) in
                advantages.iter_mut().zip(targets).zip(returns.into_iter().zip(values))
            {
                (*advantage, *target) = ((total - value.into()) as f32, *advantage);
            }
        } else {
            targets.fill(0.0);
        }
    }
}

/// Returns the batch, one piece of one trajectory, with `advantages` and `value_targets`.
///
/// `last_r` is the value of the state after the last row. With `use_gae`, advantages are those of [`gae`]; otherwise they
/// are the discounted returns, including `last_r`, minus the value estimates if `use_critic` is set. Targets are advantages
/// plus values with a critic, and 0 without. Rewards and values may be 32- or 64-bit floats; the results are 32-bit.
///
/// # Errors
/// [`PostprocessError::GaeNeedsCritic`]; [`PostprocessError::Batch`] without `rewards`, or without `vf_preds` with a critic;
/// [`PostprocessError::NotScalar`].
pub fn compute_advantages(
    batch: &SampleBatch,
    last_r: f32,
    config: &AdvantageConfig,
) -> Result<SampleBatch, PostprocessError> {
    config.check()?;
    let rewards = floats(batch, REWARDS)?;
    let values = if config.use_critic { floats(batch, VF_PREDS)? } else { Cow::Borrowed(&[][..]) };
    let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
    config.write(&rewards, &values, last_r, &mut advantages, &mut targets);
    let batch = batch.clone().with(ADVANTAGES, ColumnData::scalars(advantages))?;
    Ok(batch.with(VALUE_TARGETS, ColumnData::scalars(targets))?)
}

/// Applies [`compute_advantages`] to a batch with its `terminateds`, and adds `values_bootstrapped` where there are value
/// estimates.
///
/// `bootstrap_value` is the estimate for the observation after the last row. It counts unless the trajectory terminates
/// there ([`last_r`]).
///
/// # Errors
/// The errors of [`compute_advantages`], [`PostprocessError::NotOneTrajectory`] for a batch with more than one trajectory,
/// and [`PostprocessError::Batch`] without `terminateds`.
pub fn compute_gae_for_sample_batch(
    batch: &SampleBatch,
    bootstrap_value: f32,
    config: &AdvantageConfig,
) -> Result<SampleBatch, PostprocessError> {
    check_single_trajectory(batch)?;
    let last_r = last_r(scalars(batch, TERMINATEDS)?, bootstrap_value);
    let done = compute_advantages(batch, last_r, config)?;
    if batch.column(VF_PREDS.name()).is_none() {
        return Ok(done);
    }
    let values: Vec<f32> = floats(batch, VF_PREDS)?.iter().map(|&value| value as f32).collect();
    let next = values_bootstrapped(&values, last_r);
    Ok(done.with(VALUES_BOOTSTRAPPED, ColumnData::scalars(next))?)
}

/// Checks that the batch has one agent's contiguous rows of one episode, with no flag before the last row. Missing columns
/// are not checked.
pub(super) fn check_single_trajectory(batch: &SampleBatch) -> Result<(), PostprocessError> {
    for key in [TERMINATEDS, TRUNCATEDS] {
        let flags = optional(batch, key)?.unwrap_or_default();
        let before_last = flags.split_last().map_or(&[][..], |(_, before)| before);
        if let Some(row) = before_last.iter().position(|&flag| flag) {
            return Err(PostprocessError::NotOneTrajectory { column: key.name(), row });
        }
    }
    for key in [EPS_ID, UNROLL_ID, AGENT_INDEX] {
        let ids = optional(batch, key)?.unwrap_or_default();
        if let Some(row) = ids.windows(2).position(|pair| pair[0] != pair[1]) {
            return Err(PostprocessError::NotOneTrajectory { column: key.name(), row });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::ColumnKey;

    fn batch(terminated: bool, truncated: bool) -> SampleBatch {
        SampleBatch::new()
            .with(REWARDS, ColumnData::scalars(vec![1.0, 2.0, 3.0]))
            .and_then(|b| b.with(VF_PREDS, ColumnData::scalars(vec![0.5, 0.6, 0.7])))
            .and_then(|b| b.with(TERMINATEDS, ColumnData::scalars(vec![false, false, terminated])))
            .and_then(|b| b.with(TRUNCATEDS, ColumnData::scalars(vec![false, false, truncated])))
            .unwrap()
    }

    fn assert_close(batch: &SampleBatch, key: ColumnKey<f32>, expected: [f32; 3]) {
        let found = batch.get(key).unwrap();
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{}: {found:?}", key.name());
    }

    const GAE: AdvantageConfig = AdvantageConfig { gamma: 0.9, lambda: 0.8, use_gae: true, use_critic: true };

    #[test]
    fn terminated_trajectories_end_with_nothing() {
        for truncated in [false, true] {
            let done = compute_gae_for_sample_batch(&batch(true, truncated), 4.0, &GAE).unwrap();
            assert_close(&done, ADVANTAGES, [3.69392, 3.68600, 2.3]);
            assert_close(&done, VALUE_TARGETS, [4.19392, 4.28600, 3.0]);
            assert_close(&done, VALUES_BOOTSTRAPPED, [0.6, 0.7, 0.0]);
        }
    }

    #[test]
    fn truncated_and_cut_trajectories_are_bootstrapped() {
        for truncated in [false, true] {
            let done = compute_gae_for_sample_batch(&batch(false, truncated), 4.0, &GAE).unwrap();
            assert_close(&done, ADVANTAGES, [5.56016, 6.27800, 5.9]);
            assert_close(&done, VALUE_TARGETS, [6.06016, 6.878, 6.6]);
            assert_close(&done, VALUES_BOOTSTRAPPED, [0.6, 0.7, 4.0]);
        }
    }

    #[test]
    fn monte_carlo_with_and_without_a_critic() {
        let returns = AdvantageConfig { use_gae: false, lambda: 1.0, ..GAE };
        for config in [returns, AdvantageConfig { lambda: 1.0, ..GAE }] {
            let done = compute_advantages(&batch(false, false), 4.0, &config).unwrap();
            assert_close(&done, ADVANTAGES, [7.646, 7.34, 5.9]);
            assert_close(&done, VALUE_TARGETS, [8.146, 7.94, 6.6]);
        }
        let done =
            compute_advantages(&batch(false, false), 4.0, &AdvantageConfig { use_critic: false, ..returns }).unwrap();
        assert_close(&done, ADVANTAGES, [8.146, 7.94, 6.6]);
        assert_close(&done, VALUE_TARGETS, [0.0; 3]);
    }

    #[test]
    fn gae_needs_a_critic_and_a_critic_needs_values() {
        let rewards = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0])).unwrap();
        let error = compute_advantages(&rewards, 0.0, &AdvantageConfig { use_critic: false, ..GAE }).unwrap_err();
        assert_eq!(error, PostprocessError::GaeNeedsCritic);
        for use_gae in [false, true] {
            let error = compute_advantages(&rewards, 0.0, &AdvantageConfig { use_gae, ..GAE }).unwrap_err();
            assert_eq!(error.to_string(), "the batch has no column 'vf_preds'");
        }
    }

    #[test]
    fn logged_doubles_are_welcome() {
        let wide = |values: &[f64]| ColumnData::scalars(values.to_vec());
        let mut doubles = batch(false, false);
        doubles.insert(REWARDS.name(), wide(&[1.0, 2.0, 3.0])).unwrap();
        let done = compute_advantages(&doubles, 4.0, &GAE).unwrap();
        assert_close(&done, ADVANTAGES, [5.56016, 6.27800, 5.9]);
        // A 32-bit float cannot represent 2^24 + 1.
        let mut large = SampleBatch::new().with(TERMINATEDS, ColumnData::scalars(vec![true])).unwrap();
        large.insert(REWARDS.name(), wide(&[16_777_217.0])).unwrap();
        large.insert(VF_PREDS.name(), wide(&[16_777_216.0])).unwrap();
        for use_gae in [false, true] {
            let done = compute_gae_for_sample_batch(&large, 0.0, &AdvantageConfig { use_gae, ..GAE }).unwrap();
            assert_eq!(done.get(ADVANTAGES).unwrap(), [1.0]);
        }
    }

    #[test]
    fn two_trajectories_are_not_one() {
        let middle = batch(false, false).with(TERMINATEDS, ColumnData::scalars(vec![false, true, false])).unwrap();
        let error = compute_gae_for_sample_batch(&middle, 0.0, &GAE).unwrap_err();
        assert_eq!(error, PostprocessError::NotOneTrajectory { column: "terminateds", row: 1 });
        for key in [AGENT_INDEX, UNROLL_ID] {
            let two = batch(true, false).with(key, ColumnData::scalars(vec![0, 0, 1])).unwrap();
            let error = compute_gae_for_sample_batch(&two, 0.0, &GAE).unwrap_err();
            assert_eq!(error, PostprocessError::NotOneTrajectory { column: key.name(), row: 1 });
        }
        let episodes = batch(true, false).with(EPS_ID, ColumnData::scalars(vec![1, 2, 2])).unwrap();
        let error = compute_gae_for_sample_batch(&episodes, 0.0, &GAE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the trajectory ends within the batch, by 'eps_id' at row 0; split the batch by episode first"
        );
    }
}
