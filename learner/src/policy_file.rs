//! `policy.json`: the description of a policy, next to its weights.

use rollmesh_core::{
    hub::RunLoop,
    ids::PolicyId,
    policy::{ModelConfig, Postprocessing},
    run::RunConfig,
};
use serde::{Deserialize, Serialize};

/// The discount that is written for a policy without one: RLlib's default.
const USUAL_GAMMA: f64 = 0.99;

/// A policy after training or during it, without its weights: they are a safetensors file,
/// [`Weights::to_safetensors`](rollmesh_core::weights::Weights::to_safetensors).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// The layout's number, [`FORMAT`](Self::FORMAT).
    pub format: u32,
    /// The algorithm, for example `ppo`.
    pub algo: String,
    /// The discount that it learned with.
    pub gamma: f64,
    /// Iterations behind the weights.
    pub iteration: u64,
    /// Env steps behind the weights.
    pub env_steps: u64,
    /// The run's policies, whose weights these are.
    pub policies: Vec<PolicyId>,
    /// Version of the weights.
    pub weights_version: u64,
    /// Hash of the weights, in hexadecimal digits.
    pub weights_hash: String,
    /// The networks.
    pub model: ModelConfig,
    /// The run, without the settings of the machine that it was started on.
    pub run: RunConfig,
}

impl PolicyFile {
    /// The layout of the file; a later one has another number.
    pub const FORMAT: u32 = 1;

    /// Describes the policy that a run has learned so far.
    #[must_use]
    pub fn of_run(state: &RunLoop, gamma: f64) -> Self {
        let run = state.config();
        Self {
            format: Self::FORMAT,
            algo: state.algo().into(),
            gamma,
            iteration: state.iteration(),
            env_steps: state.env_steps(),
            policies: state.policies().to_vec(),
            weights_version: state.weights().version().0,
            weights_hash: state.weights_hash().to_string(),
            // A run's settings have been read before, and its model with them.
            model: ModelConfig::of(&run.default_policy_config()).unwrap_or_default(),
            run: run.for_wire(),
        }
    }
}

/// Returns the discount with which rows are postprocessed.
#[must_use]
pub fn gamma_of(postprocessing: Postprocessing) -> f64 {
    match postprocessing {
        Postprocessing::Advantages(config) => config.gamma,
        Postprocessing::None | Postprocessing::Custom => USUAL_GAMMA,
    }
}
