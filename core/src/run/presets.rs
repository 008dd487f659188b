//! Lists settings that are known to work, by environment, algorithm and source of rows.

use super::RunConfig;
use crate::config::Config;

/// Settings over the defaults for some runs.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The environment of these runs; none for any.
    pub env: Option<&'static str>,
    /// Their algorithm; none for any.
    pub algorithm: Option<&'static str>,
    /// Whether they read their rows from files instead of sampling them.
    pub reads_input: bool,
    /// The settings, as JSON.
    settings: &'static str,
}

/// All presets. Of several that apply to a run, the later ones override the earlier ones.
///
/// docs/how-to/train.md lists the returns that they reach, and `cargo xtask test learning` checks the goals.
///
/// Pendulum: gamma, lambda, learning rate and epochs of RL Baselines3 Zoo (hyperparams/ppo.yml).
///
/// Stateless CartPole: the LSTM with gamma 0.99 of RLlib's stateless_cartpole_ppo.py, the initial learning rate of RL
/// Baselines3 Zoo (hyperparams/ppo_lstm.yml, CartPoleNoVel-v1). Policy and value share the LSTM, and value losses are around
/// 100: with a weight of 0.5 they would dominate the clipped gradient.
///
/// LunarLander: gamma, lambda, learning rate, epochs and entropy of RL Baselines3 Zoo (hyperparams/ppo.yml), with smaller
/// batches. HalfCheetah: its gamma and lambda, the learning rate and the epochs of CleanRL's ppo_continuous_action.py; the filter
/// takes float32 observations. Its standard deviations are weights of their own, as there: a policy with a deviation for every
/// observation learns wide ones where it is stuck, and its most likely actions then remain stuck.
///
/// External-v0: clients drive its episodes, so workers in other processes cannot sample it.
///
/// MARWIL weights actions by their advantages, which the reader computes.
pub const PRESETS: &[Preset] = &[
    Preset {
        env: Some("Pendulum-v1"),
        algorithm: Some("ppo"),
        reads_input: false,
        settings: r#"{
            "rollout_fragment_length": 128,
            "policy_config": {
                "gamma": 0.9, "lambda": 0.95, "lr": 0.001, "num_epochs": 10, "minibatch_size": 128,
                "anneal_over_env_steps": 0
            }
        }"#,
    },
    Preset {
        env: Some("StatelessCartPole-v1"),
        algorithm: Some("ppo"),
        reads_input: false,
        settings: r#"{
            "rollout_fragment_length": 128,
            "model_config": {"fcnet_hiddens": [64], "use_lstm": true, "lstm_cell_size": 64, "max_seq_len": 32},
            "policy_config": {
                "gamma": 0.99, "lambda": 0.95, "lr": 0.001, "num_epochs": 10, "minibatch_size": 256,
                "vf_loss_coeff": 0.001, "anneal_over_env_steps": 0
            }
        }"#,
    },
    Preset {
        env: Some("gym:LunarLander-v3"),
        algorithm: Some("ppo"),
        reads_input: false,
        settings: r#"{
            "num_slots": 16, "rollout_fragment_length": 128, "observation_filter": "MeanStdFilter",
            "policy_config": {
                "gamma": 0.999, "lambda": 0.98, "lr": 0.0003, "num_epochs": 4, "minibatch_size": 64, "entropy_coeff": 0.01,
                "anneal_over_env_steps": 1000000
            }
        }"#,
    },
    Preset {
        env: Some("gym:HalfCheetah-v5"),
        algorithm: Some("ppo"),
        reads_input: false,
        settings: r#"{
            "env_config": {"observation_dtype": "float32"},
            "num_slots": 8, "rollout_fragment_length": 256, "observation_filter": "MeanStdFilter",
            "model_config": {"free_log_std": true},
            "policy_config": {
                "gamma": 0.98, "lambda": 0.92, "lr": 0.0003, "num_epochs": 10, "minibatch_size": 64, "entropy_coeff": 0.0,
                "anneal_over_env_steps": 1000000
            }
        }"#,
    },
    Preset { env: Some("External-v0"), algorithm: None, reads_input: false, settings: r#"{"num_workers": 0}"# },
    Preset {
        env: None,
        algorithm: None,
        reads_input: true,
        settings: r#"{
            "algorithm": "bc", "num_workers": 0, "num_envs": 1, "rollout_fragment_length": "auto",
            "train_batch_size": 2000, "evaluation": {"horizon": 100000}
        }"#,
    },
    Preset {
        env: None,
        algorithm: Some("marwil"),
        reads_input: true,
        settings: r#"{"io_config": {"postprocess_inputs": true}}"#,
    },
];

impl Preset {
    /// Returns the settings over the defaults.
    #[must_use]
    pub fn settings(&self) -> Config {
        self.settings.parse().unwrap_or_default()
    }

    fn applies_to(&self, run: &RunConfig) -> bool {
        self.env.is_none_or(|env| env == run.env())
            && self.algorithm.is_none_or(|algorithm| Some(algorithm) == run.algorithm.as_deref())
            && self.reads_input == run.reads_input()
    }
}

/// Returns the settings of all presets that apply to a run; empty if there is none.
#[must_use]
pub fn of(run: &RunConfig) -> Config {
    let presets = PRESETS.iter().filter(|preset| preset.applies_to(run));
    presets.fold(Config::new(), |settings, preset| settings.merged(&preset.settings()))
}
