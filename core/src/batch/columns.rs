//! Defines the well-known columns, with RLlib's names.

use crate::{
    column::{ColumnKey, ColumnName},
    prelude::*,
};

/// The observation before the action. The element type follows the observation space; this is the usual one.
pub const OBS: ColumnKey<f32> = ColumnKey::new("obs");
/// The observation after the step. It follows from the other columns, so fragments do not contain it.
pub const NEW_OBS: ColumnKey<f32> = ColumnKey::new("new_obs");
/// Discrete actions.
pub const ACTIONS: ColumnKey<i64> = ColumnKey::new("actions");
/// Discrete action of the previous step; 0 at the start of an episode.
pub const PREV_ACTIONS: ColumnKey<i64> = ColumnKey::new("prev_actions");
/// Rewards of the steps.
pub const REWARDS: ColumnKey<f32> = ColumnKey::new("rewards");
/// Reward of the previous step; 0 at the start of an episode.
pub const PREV_REWARDS: ColumnKey<f32> = ColumnKey::new("prev_rewards");
/// Whether the episode reached a terminal state in this step: the value of the next state is zero.
pub const TERMINATEDS: ColumnKey<bool> = ColumnKey::new("terminateds");
/// Whether the episode was truncated in this step (time limit, horizon): the next state has a value.
pub const TRUNCATEDS: ColumnKey<bool> = ColumnKey::new("truncateds");
/// Name of the column with the environment's info dicts, one JSON document per row; never counted as steps.
pub const INFOS: &str = "infos";
/// Id of the episode, see [`eps_id`](crate::ids::eps_id).
pub const EPS_ID: ColumnKey<i64> = ColumnKey::new("eps_id");
/// Id of the part of an agent's trajectory that was postprocessed together.
pub const UNROLL_ID: ColumnKey<i64> = ColumnKey::new("unroll_id");
/// Number of the agent within its episode, in order of first appearance.
pub const AGENT_INDEX: ColumnKey<i64> = ColumnKey::new("agent_index");
/// Number of the sub-environment.
pub const ENV_ID: ColumnKey<i64> = ColumnKey::new("env_id");
/// Step within the episode, from 0.
pub const T: ColumnKey<i64> = ColumnKey::new("t");
/// Parameters of the policy's action distribution: one row of numbers per step.
pub const ACTION_DIST_INPUTS: ColumnKey<f32> = ColumnKey::new("action_dist_inputs");
/// Probability of the action under the policy that took it.
pub const ACTION_PROB: ColumnKey<f32> = ColumnKey::new("action_prob");
/// Log-probability of the action under the policy that took it.
pub const ACTION_LOGP: ColumnKey<f32> = ColumnKey::new("action_logp");
/// Value estimate of the observation.
pub const VF_PREDS: ColumnKey<f32> = ColumnKey::new("vf_preds");
/// Value estimate of the observation after the step; in the last row, the bootstrap value.
pub const VALUES_BOOTSTRAPPED: ColumnKey<f32> = ColumnKey::new("values_bootstrapped");
/// Advantage estimates.
pub const ADVANTAGES: ColumnKey<f32> = ColumnKey::new("advantages");
/// Targets of the value function.
pub const VALUE_TARGETS: ColumnKey<f32> = ColumnKey::new("value_targets");
/// Version of the weights that chose the action.
pub const WEIGHTS_VERSION: ColumnKey<i64> = ColumnKey::new("weights_version");

/// Recurrent states before the rows; one row per sequence if the batch has sequences.
pub(crate) const STATE_IN: &str = "state_in_";
/// Recurrent states after the rows, one row per step.
pub(super) const STATE_OUT: &str = "state_out_";

/// Returns the name of the `index`-th recurrent input state, one row per sequence: `state_in_0`, …
#[must_use]
pub fn state_in(index: usize) -> ColumnName {
    format!("{STATE_IN}{index}").into()
}

/// Returns the name of the `index`-th recurrent output state, one row per step: `state_out_0`, …
#[must_use]
pub fn state_out(index: usize) -> ColumnName {
    format!("{STATE_OUT}{index}").into()
}

/// Returns true for `name` itself and for its parts, `name.…`.
pub(super) fn is_or_is_part_of(column: &str, name: &str) -> bool {
    column.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
