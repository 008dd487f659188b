//! Rows of settings: ranges for validation, and descriptions for the schema of a run.

use rollmesh_core::run::schema::{Kind, Setting, shown};
use serde::Serialize;
use serde_json::Value;

use super::ConfigError;

pub(super) const fn row(name: &'static str, kinds: &'static [Kind], help: &'static str) -> Setting {
    Setting::new(name, kinds, help)
}

pub(super) const POSITIVE: &[Kind] = &[Kind::POSITIVE];

/// The settings that several algorithms have, which mean the same in each. An algorithm's own rows are in its file.
pub(super) const SHARED: &[Setting] = &[
    row("gamma", &[Kind::FRACTION], "Discount factor."),
    row("lambda", &[Kind::FRACTION], "Lambda of generalised advantage estimation."),
    row("use_gae", &[Kind::Flag], "Generalised advantage estimation; false for discounted returns."),
    row("use_critic", &[Kind::Flag], "Train a value network and subtract its estimates from the returns."),
    row("lr", POSITIVE, "Learning rate of AdamW, at the start if it is annealed."),
    row("adam_epsilon", POSITIVE, "Added to the root of AdamW's second moment."),
    row("weight_decay", &[Kind::NOT_NEGATIVE], "Decoupled weight decay of AdamW."),
    row("num_epochs", &[Kind::AT_LEAST_1], "Passes over a train batch."),
    row("minibatch_size", &[Kind::AT_LEAST_1], "Rows per gradient step, at most."),
    row("vf_loss_coeff", &[Kind::NOT_NEGATIVE], "Weight of the value loss."),
    row("entropy_coeff", &[Kind::NOT_NEGATIVE], "Weight of the entropy bonus."),
    row("grad_clip", POSITIVE, "Largest global norm of a gradient; 0 for no limit."),
    row(
        "anneal_over_env_steps",
        &[Kind::Whole { min: 1, max: u64::MAX }],
        "Env steps of the linear annealing; 0 for none.",
    ),
    row("anneal_to", &[Kind::FRACTION], "What remains after annealing, as a fraction."),
];

/// Checks an algorithm's settings, or another object's, against the rows that it has.
pub(crate) fn in_range<'a, T: Serialize>(
    config: &T,
    rows: impl IntoIterator<Item = &'a Setting>,
) -> Result<(), ConfigError> {
    let settings = serde_json::to_value(config).unwrap_or_default();
    // Settings that are not set are omitted: null is a number that JSON does not have.
    let wrong =
        rows.into_iter().find_map(|row| Some((row, settings.get(row.path).filter(|value| !row.allows(value))?)));
    match wrong {
        None => Ok(()),
        Some((row, Value::Null)) => Err(error(row, "not a finite number".into())),
        Some((row, value)) => Err(error(row, shown(value))),
    }
}

pub(super) fn error(row: &Setting, value: String) -> ConfigError {
    ConfigError { name: row.path, value, wanted: row.allowed() }
}
