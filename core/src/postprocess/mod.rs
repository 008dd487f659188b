//! What is derived from fragments before learning.

use crate::{
    batch::{
        ACTION_LOGP, ACTIONS, ADVANTAGES, BatchError, OBS, REWARDS, SampleBatch, SlotFragment, TERMINATEDS, TRUNCATEDS,
        VALUE_TARGETS, VF_PREDS,
    },
    column::ColumnData,
    prelude::*,
};

/// Advantages and value targets of one piece of an episode, by generalised advantage estimation (Schulman et al., 2015).
///
/// `rewards` and `values` have a row per step; `bootstrap` is the value of what follows the last one, 0 after a
/// terminal state. Writes `delta_t + gamma lambda delta_(t+1) + …` with
/// `delta_t = r_t + gamma V_(t+1) - V_t` to `advantages`, and advantage plus value to `targets`.
#[doc(alias = "compute_advantages")]
pub fn gae(
    rewards: &[f32],
    values: &[f32],
    bootstrap: f32,
    gamma: f64,
    lambda: f64,
    advantages: &mut [f32],
    targets: &mut [f32],
) {
    let mut next_value = f64::from(bootstrap);
    let mut advantage = 0.0;
    let inputs = rewards.iter().zip(values).rev();
    let outputs = advantages.iter_mut().zip(targets).rev();
    for ((&reward, &value), (out, target)) in inputs.zip(outputs) {
        let value = f64::from(value);
        let delta = f64::from(reward) + gamma * next_value - value;
        advantage = delta + gamma * lambda * advantage;
        *out = advantage as f32;
        *target = (advantage + value) as f32;
        next_value = value;
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rewards: &[f32], values: &[f32], bootstrap: f32, gamma: f64, lambda: f64) -> (Vec<f32>, Vec<f32>) {
        let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
        gae(rewards, values, bootstrap, gamma, lambda, &mut advantages, &mut targets);
        (advantages, targets)
    }

    #[test]
    fn by_hand() {
        let (advantages, targets) = run(&[1.0, 2.0], &[0.5, 1.0], 3.0, 0.5, 0.5);
        // delta_1 = 2 + 1.5 - 1 = 2.5, delta_0 = 1 + 0.5 - 0.5 = 1
        assert_eq!(advantages, [1.0 + 0.25 * 2.5, 2.5]);
        assert_eq!(targets, [2.125, 3.5]);
    }

    #[test]
    fn lambda_one_gives_discounted_returns() {
        let (_, targets) = run(&[1.0, 1.0, 1.0], &[0.3, -7.0, 2.0], 8.0, 0.5, 1.0);
        assert_eq!(targets, [1.0 + 0.5 + 0.25 + 1.0, 1.0 + 0.5 + 2.0, 1.0 + 4.0]);
    }

    #[test]
    fn nothing_flows_across_a_terminal_state() {
        let (advantages, _) = run(&[1.0], &[0.25], 0.0, 0.99, 0.95);
        assert_eq!(advantages, [0.75]);
    }
}
