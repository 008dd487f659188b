//! The settings of all algorithms, one row each: ranges for validation, and what the schema of a run says of them.

use rollmesh_core::run::schema::{Kind, Setting, shown};
use serde::Serialize;
use serde_json::Value;

use super::ConfigError;

const fn row(name: &'static str, kinds: &'static [Kind], help: &'static str) -> Setting {
    Setting::new(name, kinds, help)
}

const POSITIVE: &[Kind] = &[Kind::POSITIVE];

/// A name means the same in every algorithm that has it.
pub(super) const SETTINGS: &[Setting] = &[
    row("gamma", &[Kind::FRACTION], "Discount factor."),
    row("lambda", &[Kind::FRACTION], "Lambda of generalised advantage estimation."),
    row("use_gae", &[Kind::Flag], "Generalised advantage estimation; false for discounted returns."),
    row("use_critic", &[Kind::Flag], "Train a value network and subtract its estimates from the returns."),
    row("lr", POSITIVE, "Learning rate of AdamW, at the start if it is annealed."),
    row("adam_epsilon", POSITIVE, "Added to the root of AdamW's second moment."),
    row("weight_decay", &[Kind::NOT_NEGATIVE], "Decoupled weight decay of AdamW."),
    row("num_epochs", &[Kind::AT_LEAST_1], "Passes over a train batch."),
    row("minibatch_size", &[Kind::AT_LEAST_1], "Rows per gradient step, at most."),
    row("clip_param", POSITIVE, "How far the probability ratio may move from 1 with profit."),
    row("vf_clip_range", POSITIVE, "How far a value may move from the acting value with profit; 0 for no limit."),
    row("vf_loss_coeff", &[Kind::NOT_NEGATIVE], "Weight of the value loss."),
    row("entropy_coeff", &[Kind::NOT_NEGATIVE], "Weight of the entropy bonus."),
    row("grad_clip", POSITIVE, "Largest global norm of a gradient; 0 for no limit."),
    row("target_kl", POSITIVE, "No epoch begins with a mean KL divergence above 1.5 times this; 0 for no limit."),
    row("kl_coeff", &[Kind::NOT_NEGATIVE], "Weight of the KL divergence in the loss, at the start."),
    row("kl_target", POSITIVE, "KL divergence by which kl_coeff adapts."),
    row(
        "anneal_over_env_steps",
        &[Kind::Whole { min: 1, max: u64::MAX }],
        "Env steps of the linear annealing; 0 for none.",
    ),
    row("anneal_to", &[Kind::FRACTION], "What remains after annealing, as a fraction."),
    row("beta", &[Kind::NOT_NEGATIVE], "How much better actions weigh more; 0 for behaviour cloning."),
    row("bc_logstd_coeff", &[Kind::NOT_NEGATIVE], "Weight of the mean log standard deviation of continuous actions."),
    row("moving_average_sqd_adv_norm_start", POSITIVE, "Running mean of squared advantages before the first step."),
    row("moving_average_sqd_adv_norm_update_rate", &[Kind::FRACTION], "Fraction of that mean that each step replaces."),
];

/// Checks every setting of an algorithm, or of another object with such rows.
pub(in super::super) fn in_range<T: Serialize>(config: &T, rows: &[Setting]) -> Result<(), ConfigError> {
    let settings = serde_json::to_value(config).unwrap_or_default();
    // What is not set is left out: null is a number that JSON does not have.
    let wrong = rows.iter().find_map(|row| Some((row, settings.get(row.path).filter(|value| !row.allows(value))?)));
    match wrong {
        None => Ok(()),
        Some((row, Value::Null)) => Err(error(row, "not a finite number".into())),
        Some((row, value)) => Err(error(row, shown(value))),
    }
}

/// What is known of the setting of this name.
pub(super) fn row_of(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|row| row.path == name)
}

pub(super) fn error(row: &Setting, value: String) -> ConfigError {
    ConfigError { name: row.path, value, wanted: row.allowed() }
}
