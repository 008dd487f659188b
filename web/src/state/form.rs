//! The form that starts a run.

use rollmesh_core::{filter::FilterKind, protocol::message::StartRun};

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
    /// What observations go through.
    pub observation_filter: String,
    /// Which fragments make a batch, by the name that the hub knows.
    pub mode: String,
    /// How many versions the weights of a batch's rows may be behind the newest, in other modes than the synchronous one.
    pub max_staleness: u64,
    /// Milliseconds of an iteration in deadline mode.
    pub deadline_ms: u64,
}

/// The sampling modes, as the hub and as people call them.
pub const MODES: [(&str, &str); 3] = [("sync", "Synchronous"), ("async", "Asynchronous"), ("deadline", "Deadline")];

impl Default for StartForm {
    fn default() -> Self {
        Self {
            env: "CartPole-v1".into(),
            seed: 1,
            num_workers: 2,
            num_envs_per_worker: 8,
            stop_return: 475.0,
            max_env_steps: 500_000,
            observation_filter: FilterKind::NoFilter.name().into(),
            mode: "sync".into(),
            max_staleness: 1,
            deadline_ms: 1_000,
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
    /// Reads what a person chose, environment, filter and mode, and the fields as typed: seed, workers, envs per worker,
    /// stop return, most env steps, max staleness and deadline.
    ///
    /// # Errors
    /// The first field that is not valid, and what it must be.
    pub fn parse(
        [env, filter, mode]: [&str; 3],
        [seed, workers, envs, stop_return, steps, staleness, deadline]: [&str; 7],
    ) -> Result<Self, FormError> {
        Ok(Self {
            env: env.into(),
            observation_filter: filter.into(),
            mode: mode.into(),
            seed: whole(seed).ok_or(error("Seed", "a whole number from 0"))?,
            num_workers: in_range(workers, 0, 64).ok_or(error("Workers", "a whole number from 0 to 64"))?,
            num_envs_per_worker: in_range(envs, 1, 4096)
                .ok_or(error("Envs per worker", "a whole number from 1 to 4096"))?,
            stop_return: number(stop_return).ok_or(error("Stop return", "a number"))?,
            max_env_steps: whole(steps)
                .filter(|steps| *steps > 0)
                .ok_or(error("Most env steps", "a whole number from 1"))?,
            max_staleness: whole(staleness).ok_or(error("Max staleness", "a whole number from 0"))?,
            deadline_ms: in_range(deadline, 0, 86_400_000)
                .ok_or(error("Deadline in ms", "a whole number from 0 to 86,400,000"))?
                .into(),
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
            observation_filter: self.observation_filter.clone(),
            mode: self.mode.clone(),
            max_staleness: self.max_staleness,
            // A fragment of every slot.
            batch_env_steps: 0,
            deadline_ms: self.deadline_ms,
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

    const CHOSEN: [&str; 3] = ["CartPole-v1", "MeanStdFilter", "deadline"];

    #[test]
    fn typed_fields_become_a_run() {
        let form = StartForm::parse(CHOSEN, ["7", "3", "4", " 475 ", "100,000", "2", "1 500"]).expect("valid");
        assert_eq!((form.seed, form.num_workers, form.num_envs_per_worker), (7, 3, 4));
        assert_eq!((form.stop_return, form.max_env_steps), (475.0, 100_000));
        let start = form.message(9);
        assert_eq!((start.request, &*start.observation_filter, &*start.mode), (9, "MeanStdFilter", "deadline"));
        assert_eq!((start.max_staleness, start.batch_env_steps, start.deadline_ms), (2, 0, 1_500));
    }

    #[test]
    fn the_first_bad_field_is_named() {
        let field = |at: usize, text| {
            let mut fields = ["1", "2", "8", "475", "1", "1", "1000"];
            fields[at] = text;
            StartForm::parse(CHOSEN, fields).expect_err("a bad field").field
        };
        assert_eq!(field(0, "-1"), "Seed");
        assert_eq!(field(1, "65"), "Workers");
        assert_eq!(field(2, "0"), "Envs per worker");
        assert_eq!(field(3, "nan"), "Stop return");
        assert_eq!(field(4, "0"), "Most env steps");
        assert_eq!(field(5, "-1"), "Max staleness");
        assert_eq!(field(6, "86400001"), "Deadline in ms");
    }
}
