//! The form that makes this tab an evaluation worker.

use rollmesh_core::{config::Config, evaluation::check_name, run::EvaluationConfig};
use serde_json::json;

use super::TabEvaluator;

/// A field whose value is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormError {
    /// Label of the field.
    pub field: &'static str,
    /// The values that it may have.
    pub expected: &'static str,
}

impl std::fmt::Display for FormError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} must be {}.", self.field, self.expected)
    }
}

const fn error(field: &'static str, expected: &'static str) -> FormError {
    FormError { field, expected }
}

fn whole(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| !matches!(c, ' ' | ',' | '_' | '\u{2009}')).collect();
    digits.parse().ok()
}

fn in_range(text: &str, least: u32, most: u32) -> Option<u32> {
    whole(text).and_then(|value| u32::try_from(value).ok()).filter(|value| (least..=most).contains(value))
}

/// Reads the fields that the user has typed: name, sub-environments, seed, widths of the policy's hidden layers.
///
/// # Errors
/// The first field that is not valid, with the values that it may have.
pub fn evaluator(env: &str, [name, envs, seed, hidden]: [&str; 4]) -> Result<TabEvaluator, FormError> {
    let name = name.trim();
    check_name(name).map_err(|_| error("Name", "up to 64 of a-z, A-Z, 0-9, '_', '-' and '.'"))?;
    let num_envs =
        in_range(envs, 1, EvaluationConfig::MAX_ENVS).ok_or(error("Envs", "a whole number from 1 to 4096"))?;
    let seed = whole(seed).ok_or(error("Seed", "a whole number from 0"))?;
    let widths: Option<Vec<u32>> = hidden.split_whitespace().map(|width| in_range(width, 1, 1 << 16)).collect();
    let widths = widths.ok_or(error("Hidden layers", "whole numbers from 1, with spaces between them"))?;
    let settings = [
        ("env", json!(env)),
        ("preset", json!("none")),
        ("seed", json!(seed)),
        ("model_config.fcnet_hiddens", json!(widths)),
        ("evaluation.num_envs", json!(num_envs)),
    ];
    let run = settings.into_iter().fold(Config::new(), |run, (path, value)| run.with_at(path, value));
    Ok(TabEvaluator { name: name.into(), env: env.into(), run })
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{eval_worker::EvalMakers, kernels::Kernels, run::RunConfig, worker::Registry};

    use super::*;

    #[test]
    fn typed_fields_become_an_evaluator_that_can_be_made() {
        let found = evaluator("CartPole-v1", [" judge ", "4", "7", "32 16"]).expect("valid");
        let TabEvaluator { name, env, run } = found;
        let run = RunConfig::of_wire_settings(&run.to_string()).expect("settings");
        assert_eq!((name.as_str(), env.as_str(), run.env()), ("judge", "CartPole-v1", "CartPole-v1"));
        assert_eq!((run.evaluation.num_envs, run.rollout.seed), (4, 7));
        assert_eq!(run.rollout.model_config.to_string(), r#"{"fcnet_hiddens":[32,16]}"#);
        let makers = EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).expect("known names");
        assert!(makers.evaluator().is_ok());
    }

    #[test]
    fn the_first_bad_field_is_named() {
        let field = |fields| evaluator("CartPole-v1", fields).expect_err("a bad field").field;
        assert_eq!(field(["a b", "1", "0", ""]), "Name");
        assert_eq!(field(["judge", "0", "0", ""]), "Envs");
        assert_eq!(field(["judge", "1", "-1", ""]), "Seed");
        assert_eq!(field(["judge", "1", "0", "64, x"]), "Hidden layers");
    }
}
