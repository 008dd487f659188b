//! This tab at work for the hub.

use rollmesh_core::config::Config;
use serde::{Deserialize, Deserializer};

/// What this tab does for the hub.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TabWorker {
    /// Nothing.
    #[default]
    Out,
    /// A token was asked for.
    Joining(TabJob),
    /// The Web Worker is at it.
    In(TabJob, TabStatus),
}

/// What a tab can do.
#[derive(Clone, Debug, PartialEq)]
pub enum TabJob {
    /// Sample for the run.
    Sample,
    /// Evaluate for peers of the hub.
    Evaluate(TabEvaluator),
}

/// An evaluation worker in a tab.
#[derive(Clone, Debug, PartialEq)]
pub struct TabEvaluator {
    /// The name by which it is found at the hub.
    pub name: String,
    /// The environment in which it evaluates.
    pub env: String,
    /// The settings of the run whose policy it evaluates.
    pub run: Config,
}

impl TabWorker {
    /// What this tab does or is about to do.
    #[must_use]
    pub fn job(&self) -> Option<&TabJob> {
        match self {
            Self::Out => None,
            Self::Joining(job) | Self::In(job, _) => Some(job),
        }
    }

    /// The name under which this tab evaluates, if it does.
    #[must_use]
    pub fn evaluator(&self) -> Option<&TabEvaluator> {
        match self.job()? {
            TabJob::Sample => None,
            TabJob::Evaluate(evaluator) => Some(evaluator),
        }
    }
}

/// What the Web Worker says of itself, a few times a second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TabStatus {
    /// `connecting`, `waiting`, `idle`, `unable`, `sampling`, `evaluating`, or `ended`.
    pub state: String,
    /// Why it ended or cannot run the hub's run, else empty.
    pub reason: String,
    /// The id that the hub gave to a worker, 0 before.
    pub worker: u32,
    /// Env steps done.
    pub env_steps: u64,
    /// Fragments delivered.
    pub fragments: u64,
    /// Evaluations that came to a result.
    pub evaluations: u64,
    /// Version of the weights that act.
    pub weights_version: u64,
    /// Env steps per second over the last seconds; NaN if unknown.
    #[serde(deserialize_with = "number_or_nan")]
    pub steps_per_s: f64,
}

/// Reads a number; JSON has none that are not finite, and writes `null` for them.
fn number_or_nan<'de, D: Deserializer<'de>>(number: D) -> Result<f64, D::Error> {
    Option::deserialize(number).map(|number| number.unwrap_or(f64::NAN))
}

impl TabStatus {
    /// Has it come to an end by itself?
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == "ended"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_with_a_number_that_is_not_finite_keeps_everything_else() {
        let text = r#"{"state": "sampling", "worker": 3, "env_steps": 70, "steps_per_s": null}"#;
        let status: TabStatus = serde_json::from_str(text).expect("a status");
        assert_eq!((&*status.state, status.worker, status.env_steps), ("sampling", 3, 70));
        assert!(status.steps_per_s.is_nan());
    }
}
