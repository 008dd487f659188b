//! Quarantine of sub-environments that fail repeatedly.

use crate::{env::EnvError, prelude::*};

/// Counts the failures of sub-environments that are restarted, and quarantines those that keep failing.
///
/// Consecutive failures are counted. The count is reset when the environment ends an episode itself, or after
/// [`STEPS_TO_RECOVER`](Self::STEPS_TO_RECOVER) steps without a failure; a restart, or a first step, is not enough. With
/// failure number [`MAX_FAILURES`](Self::MAX_FAILURES) the sub-environment is quarantined until the quarantine is
/// [lifted](Self::lift).
///
/// ```
/// use rollmesh_core::env::{EnvError, Health};
///
/// let mut health = Health::new(2);
/// let crash = || EnvError::Failed("core dumped".into());
/// for _ in 1..Health::MAX_FAILURES {
///     assert_eq!(health.failed(1, crash()), crash());
/// }
/// assert!(matches!(health.failed(1, crash()), EnvError::GivenUp { env: 1, .. }));
/// assert_eq!(health.quarantine(1), Some("the environment failed: core dumped"));
/// assert_eq!(health.all_given_up(), None); // the other one continues
/// health.lift(1);
/// assert_eq!(health.quarantine(1), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    subs: Vec<SubHealth>,
    /// The sub-environment that was quarantined last.
    last: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct SubHealth {
    /// Consecutive failures.
    failures: u32,
    /// Steps since the last failure.
    steps: u32,
    /// The reason why it is quarantined.
    quarantine: Option<String>,
}

impl Health {
    /// Consecutive failures after which a sub-environment is quarantined.
    pub const MAX_FAILURES: u32 = 5;
    /// Steps without a failure after which earlier failures no longer count.
    pub const STEPS_TO_RECOVER: u32 = 1_000;

    /// Creates counters for this many sub-environments, none of which has failed.
    #[must_use]
    pub fn new(num_envs: usize) -> Self {
        Self { subs: vec![SubHealth::default(); num_envs], last: 0 }
    }

    /// Records a step of a sub-environment; `over` says whether it ended its episode itself.
    pub fn stepped(&mut self, env: usize, over: bool) {
        let Some(sub) = self.subs.get_mut(env).filter(|sub| sub.failures > 0) else { return };
        sub.steps += 1;
        if over || sub.steps >= Self::STEPS_TO_RECOVER {
            (sub.failures, sub.steps) = (0, 0);
        }
    }

    /// Records a failure of a sub-environment. Returns the error to report: the failure itself, or [`EnvError::GivenUp`]
    /// once it is quarantined.
    pub fn failed(&mut self, env: usize, error: EnvError) -> EnvError {
        let Some(sub) = self.subs.get_mut(env) else { return error };
        (sub.failures, sub.steps) = (sub.failures.saturating_add(1), 0);
        if sub.failures < Self::MAX_FAILURES {
            return error;
        }
        let reason = match error {
            // It was quarantined before, and was used nevertheless.
            EnvError::GivenUp { reason, .. } => reason,
            error => error.to_string(),
        };
        let attempts = sub.failures;
        sub.quarantine = Some(reason.clone());
        self.last = env;
        EnvError::GivenUp { env, attempts, reason }
    }

    /// Returns the number of consecutive failures, from which a backoff may follow.
    #[must_use]
    pub fn failures(&self, env: usize) -> u32 {
        self.subs.get(env).map_or(0, |sub| sub.failures)
    }

    /// Returns why a sub-environment is quarantined, if it is.
    #[must_use]
    pub fn quarantine(&self, env: usize) -> Option<&str> {
        self.subs.get(env)?.quarantine.as_deref()
    }

    /// Returns the error for requests to a quarantined sub-environment; `None` if it is not.
    #[must_use]
    pub fn given_up(&self, env: usize) -> Option<EnvError> {
        let reason = self.quarantine(env)?.into();
        Some(EnvError::GivenUp { env, attempts: self.failures(env), reason })
    }

    /// Lifts the quarantine of a sub-environment and resets its failures.
    pub fn lift(&mut self, env: usize) {
        if let Some(sub) = self.subs.get_mut(env) {
            *sub = SubHealth::default();
        }
    }

    /// Returns the error once all sub-environments are quarantined, with the last one's reason; `None` before.
    #[must_use]
    pub fn all_given_up(&self) -> Option<EnvError> {
        let last = self.quarantine(self.last)?;
        let all = self.subs.iter().all(|sub| sub.quarantine.is_some());
        all.then(|| EnvError::AllGivenUp { num_envs: self.subs.len(), env: self.last, reason: last.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> EnvError {
        EnvError::Failed("out of memory".into())
    }

    fn fail(health: &mut Health, env: usize, times: u32) {
        for _ in 0..times {
            let _ = health.failed(env, failure());
        }
    }

    #[test]
    fn steps_do_not_end_a_row_of_failures_and_ends_of_episodes_do() {
        let mut health = Health::new(1);
        for _ in 1..Health::MAX_FAILURES {
            assert_eq!(health.failed(0, failure()), failure());
            health.stepped(0, false);
        }
        assert_eq!(health.failures(0), Health::MAX_FAILURES - 1);
        health.stepped(0, true);
        assert_eq!(health.failures(0), 0);
        fail(&mut health, 0, Health::MAX_FAILURES - 1);
        assert_eq!(health.quarantine(0), None);
    }

    #[test]
    fn many_steps_without_a_failure_end_a_row() {
        let mut health = Health::new(1);
        fail(&mut health, 0, 3);
        (1..Health::STEPS_TO_RECOVER).for_each(|_| health.stepped(0, false));
        assert_eq!(health.failures(0), 3);
        // The count of steps restarts with each failure.
        fail(&mut health, 0, 1);
        (1..Health::STEPS_TO_RECOVER).for_each(|_| health.stepped(0, false));
        assert_eq!(health.failures(0), 4);
        health.stepped(0, false);
        assert_eq!(health.failures(0), 0);
    }

    #[test]
    fn the_last_reason_is_reported_once_all_are_given_up() {
        let mut health = Health::new(2);
        fail(&mut health, 1, Health::MAX_FAILURES - 1);
        let reason = String::from("the environment failed: out of memory");
        let attempts = Health::MAX_FAILURES;
        assert_eq!(health.failed(1, failure()), EnvError::GivenUp { env: 1, attempts, reason: reason.clone() });
        assert_eq!(health.given_up(1), Some(EnvError::GivenUp { env: 1, attempts, reason: reason.clone() }));
        assert_eq!((health.quarantine(1), health.given_up(0), health.all_given_up()), (Some(&*reason), None, None));
        fail(&mut health, 0, Health::MAX_FAILURES - 1);
        let _ = health.failed(0, EnvError::Failed("on fire".into()));
        let all = health.all_given_up().unwrap();
        assert_eq!(all, EnvError::AllGivenUp { num_envs: 2, env: 0, reason: "the environment failed: on fire".into() });
        health.lift(1);
        assert_eq!((health.quarantine(1), health.failures(1), health.all_given_up()), (None, 0, None));
    }

    #[test]
    fn environment_out_of_range_counts_as_healthy() {
        let mut health = Health::new(0);
        health.stepped(3, true);
        health.lift(3);
        assert_eq!(health.failed(3, failure()), failure());
        assert_eq!((health.failures(3), health.quarantine(3), health.all_given_up()), (0, None, None));
    }
}
