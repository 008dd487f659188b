//! Lists settings that are known to work, by environment and algorithm.

use crate::config::Config;

/// Environment, algorithm, and settings over the defaults, as JSON. docs/how-to/train.md lists the returns that they reach,
/// and `cargo xtask test learning` checks the goals.
///
/// Pendulum: gamma, lambda, learning rate and epochs of RL Baselines3 Zoo (hyperparams/ppo.yml).
///
/// Stateless CartPole: the LSTM with gamma 0.99 of RLlib's stateless_cartpole_ppo.py, the initial learning rate of RL
/// Baselines3 Zoo (hyperparams/ppo_lstm.yml, CartPoleNoVel-v1). Policy and value share the LSTM, and value losses are around
/// 100: with a weight of 0.5 they would dominate the clipped gradient.
const PRESETS: &[(&str, &str, &str)] = &[
    (
        "Pendulum-v1",
        "ppo",
        r#"{
            "rollout_fragment_length": 128,
            "policy_config": {
                "gamma": 0.9, "lambda": 0.95, "lr": 0.001, "num_epochs": 10, "minibatch_size": 128,
                "anneal_over_env_steps": 0
            }
        }"#,
    ),
    (
        "StatelessCartPole-v1",
        "ppo",
        r#"{
            "rollout_fragment_length": 128,
            "model_config": {"fcnet_hiddens": [64], "use_lstm": true, "lstm_cell_size": 64, "max_seq_len": 32},
            "policy_config": {
                "gamma": 0.99, "lambda": 0.95, "lr": 0.001, "num_epochs": 10, "minibatch_size": 256,
                "vf_loss_coeff": 0.001, "anneal_over_env_steps": 0
            }
        }"#,
    ),
];

/// Settings over the defaults for a run that trains from files.
const FROM_FILES: &str = r#"{
    "algorithm": "bc", "num_workers": 0, "num_envs": 1, "rollout_fragment_length": "auto", "train_batch_size": 2000,
    "evaluation": {"horizon": 100000}
}"#;

/// MARWIL weights actions by their advantages, which the reader computes.
const MARWIL: &str = r#"{"io_config": {"postprocess_inputs": true}}"#;

/// Returns the preset of a run that trains from files with an algorithm.
#[must_use]
pub fn from_files(algorithm: Option<&str>) -> Config {
    let own = if algorithm == Some("marwil") { MARWIL } else { "{}" };
    let [usual, own] = [FROM_FILES, own].map(|text| text.parse().unwrap_or_default());
    Config::merged(&usual, &own)
}

/// The environment whose episodes clients drive. Workers in other processes cannot sample it, whatever the algorithm is.
const EXTERNAL: (&str, &str) = ("External-v0", r#"{"num_workers": 0}"#);

/// Returns the preset of an environment and an algorithm: settings over the defaults; empty if there is none.
#[must_use]
pub fn of(env: &str, algorithm: Option<&str>) -> Config {
    if env == EXTERNAL.0 {
        return EXTERNAL.1.parse().unwrap_or_default();
    }
    let found = PRESETS.iter().find(|(name, algo, _)| *name == env && Some(*algo) == algorithm);
    found.and_then(|(_, _, settings)| settings.parse().ok()).unwrap_or_default()
}

/// Iterates over all presets: environment, algorithm and settings.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, Config)> {
    PRESETS.iter().map(|(env, algorithm, _)| (*env, *algorithm, of(env, Some(algorithm))))
}
