//! Settings that are known to work, by environment and algorithm.

use crate::config::Config;

/// Environment, algorithm, and settings over the defaults, as JSON.
const PRESETS: &[(&str, &str, &str)] = &[(
    "Pendulum-v1",
    "ppo",
    r#"{
        "rollout_fragment_length": 128,
        "policy_config": {
            "gamma": 0.9, "lambda": 0.95, "lr": 0.001, "num_epochs": 10, "minibatch_size": 128,
            "anneal_over_env_steps": 0
        }
    }"#,
)];

/// Settings over the defaults for a run that learns from files.
const FROM_FILES: &str = r#"{
    "algorithm": "bc", "num_workers": 0, "num_envs": 1, "rollout_fragment_length": "auto", "train_batch_size": 2000,
    "evaluation": {"horizon": 100000}
}"#;

/// MARWIL weighs actions by their advantages, which are computed as rows are read.
const MARWIL: &str = r#"{"io_config": {"postprocess_inputs": true}}"#;

/// The preset of a run that learns from files by an algorithm.
#[must_use]
pub fn from_files(algorithm: Option<&str>) -> Config {
    let own = if algorithm == Some("marwil") { MARWIL } else { "{}" };
    let [usual, own] = [FROM_FILES, own].map(|text| text.parse().unwrap_or_default());
    Config::merged(&usual, &own)
}

/// The preset of an environment under an algorithm: settings over the defaults, none if it has none.
#[must_use]
pub fn of(env: &str, algorithm: Option<&str>) -> Config {
    let found = PRESETS.iter().find(|(name, algo, _)| *name == env && Some(*algo) == algorithm);
    found.and_then(|(_, _, settings)| settings.parse().ok()).unwrap_or_default()
}

/// All presets: environment, algorithm and settings.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, Config)> {
    PRESETS.iter().map(|(env, algorithm, _)| (*env, *algorithm, of(env, Some(algorithm))))
}
