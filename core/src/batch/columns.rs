//! The well-known columns, with the names RLlib gives them.

use crate::column::ColumnKey;

/// What the policy saw. The element type follows the observation space; this is the usual one.
pub const OBS: ColumnKey<f32> = ColumnKey::new("obs");
/// What came of it: the observation after the step. Follows from the others, so fragments do not carry it.
pub const NEW_OBS: ColumnKey<f32> = ColumnKey::new("new_obs");
/// Discrete actions.
pub const ACTIONS: ColumnKey<i64> = ColumnKey::new("actions");
/// Rewards of the steps.
pub const REWARDS: ColumnKey<f32> = ColumnKey::new("rewards");
/// The episode reached a terminal state in this step: the value of what follows is zero.
pub const TERMINATEDS: ColumnKey<bool> = ColumnKey::new("terminateds");
/// The episode was cut in this step from outside (time limit, horizon): what follows has a value.
pub const TRUNCATEDS: ColumnKey<bool> = ColumnKey::new("truncateds");
/// Id of the episode, see [`eps_id`](crate::ids::eps_id).
pub const EPS_ID: ColumnKey<i64> = ColumnKey::new("eps_id");
/// Number of the agent within its episode, by first appearance.
pub const AGENT_INDEX: ColumnKey<i64> = ColumnKey::new("agent_index");
/// Step within the episode, from 0.
pub const T: ColumnKey<i64> = ColumnKey::new("t");
/// Log-probability of the action under the policy that took it.
pub const ACTION_LOGP: ColumnKey<f32> = ColumnKey::new("action_logp");
/// Value estimate of the observation.
pub const VF_PREDS: ColumnKey<f32> = ColumnKey::new("vf_preds");
/// Advantage estimates.
pub const ADVANTAGES: ColumnKey<f32> = ColumnKey::new("advantages");
/// Targets of the value function.
pub const VALUE_TARGETS: ColumnKey<f32> = ColumnKey::new("value_targets");
