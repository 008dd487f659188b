//! What is asked of a run: what its worker is told, and what there is to know besides.

use std::num::NonZeroU32;

use rollmesh_core::{
    config::Config,
    worker::{InputSource, RolloutConfig},
};
use serde::{Deserialize, Serialize};

use crate::{
    Registry,
    cli::{
        exit::Failure,
        train::{TrainAlgo, TrainArgs},
    },
    offline::{DATASET, DATASET_SETTINGS, INPUT_SETTINGS},
    train::TrainConfig,
};

/// What the worker's settings do not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) algo: TrainAlgo,
    /// Widths of the policy's hidden layers.
    pub(super) hidden: Vec<u32>,
    /// Rows to learn from.
    pub(super) max_env_steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stop_return: Option<f64>,
    pub(super) checkpoint_interval: u64,
    /// Updates between two evaluations, if somebody has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) evaluation_interval: Option<u64>,
    pub(super) evaluation_episodes: u32,
    pub(super) evaluation_horizon: u32,
    /// Seconds.
    pub(super) evaluation_timeout: NonZeroU32,
}

impl Plan {
    pub(super) fn new(args: &TrainArgs, config: &TrainConfig) -> Result<Self, Failure> {
        let algo = args.algo();
        if algo == TrainAlgo::Ppo {
            return Err(Failure::usage(
                "ppo learns from what it samples itself: learn from files with --algo bc or marwil",
            ));
        }
        let plan = Self {
            algo,
            hidden: config.hidden.clone(),
            max_env_steps: config.max_env_steps,
            stop_return: config.stop_return,
            checkpoint_interval: config.checkpoint_interval,
            evaluation_interval: args.files.evaluation_interval,
            evaluation_episodes: args.files.evaluation_episodes.unwrap_or(20),
            evaluation_horizon: args.files.evaluation_horizon,
            evaluation_timeout: config.evaluation.timeout_s,
        };
        plan.checked()
    }

    /// The same with what flags say of its end, its checkpoints and its evaluations.
    pub(super) fn with(self, args: &TrainArgs) -> Result<Self, Failure> {
        let plan = Self {
            max_env_steps: args.max_env_steps.unwrap_or(self.max_env_steps),
            stop_return: args.stop_return.or(self.stop_return),
            checkpoint_interval: args.checkpoint_interval.unwrap_or(self.checkpoint_interval),
            evaluation_interval: args.files.evaluation_interval.or(self.evaluation_interval),
            evaluation_episodes: args.files.evaluation_episodes.unwrap_or(self.evaluation_episodes),
            evaluation_timeout: args.files.evaluation_timeout.unwrap_or(self.evaluation_timeout),
            ..self
        };
        plan.checked()
    }

    fn checked(self) -> Result<Self, Failure> {
        match (self.evaluation_episodes, self.stop_return) {
            (0, Some(_)) => Err(Failure::usage(
                "--stop-return is a mean of the policy's own episodes: let --evaluation-episodes be more than 0",
            )),
            _ => Ok(self),
        }
    }

    /// Whether the policy is evaluated after so many updates.
    pub(super) fn is_evaluated(&self, updates: u64) -> bool {
        let interval = self.evaluation_interval.or_else(|| self.stop_return.map(|_| 10));
        interval.is_some_and(|interval| updates.is_multiple_of(interval.max(1)))
    }
}

/// What `rollmesh learn --config` takes, too.
pub(super) fn config(args: &TrainArgs, run: &TrainConfig, algo: TrainAlgo) -> Result<RolloutConfig, Failure> {
    let input = match args.files.input.as_slice() {
        [mixture] if mixture.trim_start().starts_with('{') => {
            let mixture = serde_json::from_str(mixture);
            InputSource::Mixture(mixture.map_err(|error| Failure::usage(format!("--input is no mixture: {error}")))?)
        }
        [name] => InputSource::Name(name.clone()),
        several => InputSource::Files(several.to_vec()),
    };
    let usual = Config::new().with("postprocess_inputs", algo == TrainAlgo::Marwil).map_err(Failure::usage)?;
    let config = RolloutConfig {
        env_config: run.env_config.clone(),
        seed: run.seed,
        input,
        io_config: usual.merged(&args.files.input_config),
        policy_config: args.files.policy_config.clone(),
        train_batch_size: args.files.train_batch_size.max(1),
        ..RolloutConfig::new(run.env.clone())
    };
    Ok(config
        .rollout_fragment_length(args.files.train_batch_size.max(1))
        .single_policy(algo.name())
        .fcnet_hiddens(&run.hidden))
}

/// A setting that means nothing to files is a mistake; those of registered inputs are their own.
pub(super) fn check_settings(config: &RolloutConfig, registry: &Registry) -> Result<(), Failure> {
    let is_file = |name: &String| registry.input(name).is_err();
    let only_files = match &config.input {
        InputSource::Name(name) => is_file(name),
        InputSource::Files(_) => true,
        InputSource::Mixture(mixture) => mixture.keys().all(is_file),
    };
    let has_paths = config.input == InputSource::Name(DATASET.into());
    let of_paths = DATASET_SETTINGS.iter().filter(|_| has_paths);
    let known: Vec<&str> = INPUT_SETTINGS.iter().chain(of_paths).copied().collect();
    match config.io_config.check_known(&known) {
        Err(unknown) if only_files => Err(Failure::usage(format!("--input-config: {unknown}"))),
        _ => Ok(()),
    }
}
