//! The work of this tab for the hub.

use std::collections::BTreeMap;

use rollmesh_core::config::Config;
use serde::{Deserialize, Deserializer};

/// The work of this tab for the hub: one job, which each of its Web Workers does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TabWork {
    job: TabJob,
    /// Status of the Web Workers by number from 1; `None` while their token is requested.
    workers: BTreeMap<u32, Option<TabStatus>>,
}

/// A job of a tab.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TabJob {
    /// Sample for the run.
    #[default]
    Sample,
    /// Evaluate for peers of the hub.
    Evaluate(TabEvaluator),
}

/// An evaluation worker in a tab.
#[derive(Clone, Debug, PartialEq)]
pub struct TabEvaluator {
    /// The name by which peers find it at the hub.
    pub name: String,
    /// The environment in which it evaluates.
    pub env: String,
    /// The settings of the run whose policy it evaluates.
    pub run: Config,
}

impl TabWork {
    /// Returns whether this tab has no Web Workers.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.workers.is_empty()
    }

    /// Returns whether a token is requested.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.workers.values().any(Option::is_none)
    }

    /// Returns the job of this tab, which may still wait for a token.
    #[must_use]
    pub fn job(&self) -> Option<&TabJob> {
        Some(&self.job).filter(|_| !self.is_out())
    }

    /// Returns the Web Workers by number, without those that have no token yet.
    pub fn workers(&self) -> impl Iterator<Item = (u32, &TabStatus)> + Clone {
        self.workers.iter().filter_map(|(number, status)| Some((*number, status.as_ref()?)))
    }

    /// Returns the number of its Web Workers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// Returns the highest number of its Web Workers.
    #[must_use]
    pub fn latest(&self) -> Option<u32> {
        self.workers.keys().next_back().copied()
    }

    /// Returns the total of all Web Workers; the state is that of one at work, or of the first. `None` before any has a
    /// token.
    #[must_use]
    pub fn total(&self) -> Option<TabStatus> {
        self.workers().map(|(_, status)| status).cloned().reduce(|sum, next| TabStatus {
            state: if sum.is_at_work() || !next.is_at_work() { sum.state } else { next.state },
            reason: if sum.reason.is_empty() { next.reason } else { sum.reason },
            worker: sum.worker,
            env_steps: sum.env_steps + next.env_steps,
            fragments: sum.fragments + next.fragments,
            evaluations: sum.evaluations + next.evaluations,
            weights_version: sum.weights_version.max(next.weights_version),
            steps_per_s: match sum.steps_per_s.is_nan() {
                true => next.steps_per_s,
                false => sum.steps_per_s + if next.steps_per_s.is_nan() { 0.0 } else { next.steps_per_s },
            },
        })
    }

    /// Adds Web Workers, which wait for their token, at the lowest free numbers.
    pub(super) fn join(&mut self, job: TabJob, workers: u32) {
        self.job = job;
        let is_free = |number: &u32| !self.workers.contains_key(number);
        let free: Vec<u32> = (1..).filter(is_free).take(workers as usize).collect();
        self.workers.extend(free.into_iter().map(|number| (number, None)));
    }

    /// Marks the Web Workers that waited for the token as starting, and returns their numbers.
    pub(super) fn start(&mut self) -> Vec<u32> {
        let waiting = self.workers.iter_mut().filter(|(_, status)| status.is_none());
        let begin = |(number, status): (&u32, &mut Option<TabStatus>)| {
            *status = Some(TabStatus { state: "starting".into(), ..TabStatus::default() });
            *number
        };
        waiting.map(begin).collect()
    }

    /// Removes the Web Workers that wait for a token, since none will arrive.
    pub(super) fn give_up_joining(&mut self) {
        self.workers.retain(|_, status| status.is_some());
    }

    /// Removes a Web Worker, or all; returns the numbers of those that had started.
    pub(super) fn leave(&mut self, worker: Option<u32>) -> Vec<u32> {
        let left = self.workers.extract_if(.., |number, _| worker.is_none_or(|worker| worker == *number));
        left.filter_map(|(number, status)| status.map(|_| number)).collect()
    }

    /// Records a Web Worker's status; returns false if it has not started or has left.
    pub(super) fn record(&mut self, worker: u32, status: TabStatus) -> bool {
        self.workers.get_mut(&worker).and_then(Option::as_mut).map(|known| *known = status).is_some()
    }

    /// Returns the evaluator of this tab, if it evaluates.
    #[must_use]
    pub fn evaluator(&self) -> Option<&TabEvaluator> {
        match self.job()? {
            TabJob::Sample => None,
            TabJob::Evaluate(evaluator) => Some(evaluator),
        }
    }
}

/// The status that a Web Worker posts, a few times a second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TabStatus {
    /// `starting`, `connecting`, `waiting`, `idle`, `unable`, `sampling`, `evaluating`, or `ended`.
    pub state: String,
    /// The reason why it ended or cannot execute the hub's run; empty otherwise.
    pub reason: String,
    /// The id that the hub gave to a worker, 0 before.
    pub worker: u32,
    /// Env steps done.
    pub env_steps: u64,
    /// Fragments delivered.
    pub fragments: u64,
    /// Evaluations with a result.
    pub evaluations: u64,
    /// Version of the weights in use.
    pub weights_version: u64,
    /// Env steps per second over the last seconds; NaN if unknown.
    #[serde(deserialize_with = "number_or_nan")]
    pub steps_per_s: f64,
}

/// Reads a number; `null` is NaN, since JSON has no numbers that are not finite.
fn number_or_nan<'de, D: Deserializer<'de>>(number: D) -> Result<f64, D::Error> {
    Option::deserialize(number).map(|number| number.unwrap_or(f64::NAN))
}

impl TabStatus {
    /// Returns whether it samples or evaluates now.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        matches!(&*self.state, "sampling" | "evaluating")
    }

    /// Returns whether it has ended by itself.
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
