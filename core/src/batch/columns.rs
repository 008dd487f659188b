//! The well-known columns, with the names RLlib gives them.

use crate::{
    column::{ColumnKey, ColumnName},
    prelude::*,
};

/// What the policy saw. The element type follows the observation space; this is the usual one.
pub const OBS: ColumnKey<f32> = ColumnKey::new("obs");
/// What came of it: the observation after the step. Follows from the others, so fragments do not carry it.
pub const NEW_OBS: ColumnKey<f32> = ColumnKey::new("new_obs");
/// Discrete actions.
pub const ACTIONS: ColumnKey<i64> = ColumnKey::new("actions");
/// Discrete action of the step before; 0 at the start of an episode.
pub const PREV_ACTIONS: ColumnKey<i64> = ColumnKey::new("prev_actions");
/// Rewards of the steps.
pub const REWARDS: ColumnKey<f32> = ColumnKey::new("rewards");
/// Reward of the step before; 0 at the start of an episode.
pub const PREV_REWARDS: ColumnKey<f32> = ColumnKey::new("prev_rewards");
/// The episode reached a terminal state in this step: the value of what follows is zero.
pub const TERMINATEDS: ColumnKey<bool> = ColumnKey::new("terminateds");
/// The episode was cut in this step from outside (time limit, horizon): what follows has a value.
pub const TRUNCATEDS: ColumnKey<bool> = ColumnKey::new("truncateds");
/// Name of the column with what the environment told besides, one JSON document per row: never counted.
pub const INFOS: &str = "infos";
/// Id of the episode, see [`eps_id`](crate::ids::eps_id).
pub const EPS_ID: ColumnKey<i64> = ColumnKey::new("eps_id");
/// Id of the piece of an agent's trajectory that went through postprocessing together.
pub const UNROLL_ID: ColumnKey<i64> = ColumnKey::new("unroll_id");
/// Number of the agent within its episode, by first appearance.
pub const AGENT_INDEX: ColumnKey<i64> = ColumnKey::new("agent_index");
/// Number of the sub-environment.
pub const ENV_ID: ColumnKey<i64> = ColumnKey::new("env_id");
/// Step within the episode, from 0.
pub const T: ColumnKey<i64> = ColumnKey::new("t");
/// What the policy's distribution was made of: one row of numbers per step.
pub const ACTION_DIST_INPUTS: ColumnKey<f32> = ColumnKey::new("action_dist_inputs");
/// Probability of the action under the policy that took it.
pub const ACTION_PROB: ColumnKey<f32> = ColumnKey::new("action_prob");
/// Log-probability of the action under the policy that took it.
pub const ACTION_LOGP: ColumnKey<f32> = ColumnKey::new("action_logp");
/// Value estimate of the observation.
pub const VF_PREDS: ColumnKey<f32> = ColumnKey::new("vf_preds");
/// Value estimate of the observation after the step; that of the last row is the bootstrap value.
pub const VALUES_BOOTSTRAPPED: ColumnKey<f32> = ColumnKey::new("values_bootstrapped");
/// Advantage estimates.
pub const ADVANTAGES: ColumnKey<f32> = ColumnKey::new("advantages");
/// Targets of the value function.
pub const VALUE_TARGETS: ColumnKey<f32> = ColumnKey::new("value_targets");
/// Version of the weights that acted.
pub const WEIGHTS_VERSION: ColumnKey<i64> = ColumnKey::new("weights_version");

/// Recurrent states before the rows; one row per sequence if the batch has sequences.
pub(super) const STATE_IN: &str = "state_in_";
/// Recurrent states after the rows, one row per step.
pub(super) const STATE_OUT: &str = "state_out_";

/// Name of the `index`-th recurrent state that goes into the policy, one row per sequence: `state_in_0`, …
#[must_use]
pub fn state_in(index: usize) -> ColumnName {
    format!("{STATE_IN}{index}").into()
}

/// Name of the `index`-th recurrent state that comes out of the policy, one row per step: `state_out_0`, …
#[must_use]
pub fn state_out(index: usize) -> ColumnName {
    format!("{STATE_OUT}{index}").into()
}

/// True for `name` itself and for its parts, `name.…`.
pub(super) fn is_or_is_part_of(column: &str, name: &str) -> bool {
    column.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
