//! The form that starts a run.

use rollmesh_core::protocol::message::StartRun;

/// The run to start. Fields hold what is valid; [`StartForm::parse`] makes them from text.
#[derive(Clone, Debug, PartialEq)]
pub struct StartForm {
    /// Registered name of the environment.
    pub env: String,
    /// Seed of the run.
    pub seed: u64,
    /// Local workers.
    pub num_workers: u32,
    /// Slots per worker.
    pub num_envs_per_worker: u32,
    /// Mean return at which the run is solved.
    pub stop_return: f32,
    /// Env steps at which the run ends.
    pub max_env_steps: u64,
}

impl Default for StartForm {
    fn default() -> Self {
        Self {
            env: "CartPole-v1".into(),
            seed: 1,
            num_workers: 2,
            num_envs_per_worker: 8,
            stop_return: 475.0,
            max_env_steps: 500_000,
        }
    }
}

/// A field that cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormError {
    /// Label of the field.
    pub field: &'static str,
    /// What it must be.
    pub expected: &'static str,
}

impl std::fmt::Display for FormError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} must be {}.", self.field, self.expected)
    }
}

impl StartForm {
    /// Reads the fields as a person typed them: seed, workers, envs per worker, stop return, most env steps.
    ///
    /// # Errors
    /// The first field that is not valid, and what it must be.
    pub fn parse(env: &str, [seed, workers, envs, stop_return, steps]: [&str; 5]) -> Result<Self, FormError> {
        Ok(Self {
            env: env.into(),
            seed: whole(seed).ok_or(error("Seed", "a whole number from 0"))?,
            num_workers: in_range(workers, 0, 64).ok_or(error("Workers", "a whole number from 0 to 64"))?,
            num_envs_per_worker: in_range(envs, 1, 4096)
                .ok_or(error("Envs per worker", "a whole number from 1 to 4096"))?,
            stop_return: number(stop_return).ok_or(error("Stop return", "a number"))?,
            max_env_steps: whole(steps)
                .filter(|steps| *steps > 0)
                .ok_or(error("Most env steps", "a whole number from 1"))?,
        })
    }

    pub(super) fn message(&self, request: u32) -> StartRun {
        StartRun {
            request,
            env: self.env.clone(),
            algo: "ppo".into(),
            seed: self.seed,
            num_workers: self.num_workers,
            num_envs_per_worker: self.num_envs_per_worker,
            stop_return: self.stop_return,
            max_env_steps: self.max_env_steps,
        }
    }
}

pub(super) const fn error(field: &'static str, expected: &'static str) -> FormError {
    FormError { field, expected }
}

pub(super) fn whole(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| !matches!(c, ' ' | ',' | '_' | '\u{2009}')).collect();
    digits.parse().ok()
}

pub(super) fn in_range(text: &str, least: u32, most: u32) -> Option<u32> {
    whole(text).and_then(|value| u32::try_from(value).ok()).filter(|value| (least..=most).contains(value))
}

fn number(text: &str) -> Option<f32> {
    text.trim().parse().ok().filter(|value: &f32| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_fields_become_a_run() {
        let form = StartForm::parse("CartPole-v1", ["7", "3", "4", " 475 ", "100,000"]).expect("valid");
        assert_eq!((form.seed, form.num_workers, form.num_envs_per_worker), (7, 3, 4));
        assert_eq!((form.stop_return, form.max_env_steps), (475.0, 100_000));
    }

    #[test]
    fn the_first_bad_field_is_named() {
        let field = |fields| StartForm::parse("CartPole-v1", fields).expect_err("a bad field").field;
        assert_eq!(field(["-1", "2", "8", "475", "1"]), "Seed");
        assert_eq!(field(["1", "65", "8", "475", "1"]), "Workers");
        assert_eq!(field(["1", "2", "0", "475", "1"]), "Envs per worker");
        assert_eq!(field(["1", "2", "8", "nan", "1"]), "Stop return");
        assert_eq!(field(["1", "2", "8", "475", "0"]), "Most env steps");
    }
}
