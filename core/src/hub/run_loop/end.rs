//! The conditions for the end of a run.

use super::{super::RunEnd, RunLoop};
use crate::{env::EnvState, group::UnbalancedLedger, prelude::*, time::Micros};

/// Number of iterations between two evaluations that decide on the end of a run, if it has no setting.
const JUDGED_EVERY: u64 = 10;

impl RunLoop {
    /// Returns why the run should end now, `None` if it should not.
    #[must_use]
    pub fn end_reached(&self, now: Micros) -> Option<RunEnd> {
        if self.stop_return().is_some_and(|target| self.has_reached(target)) {
            return Some(RunEnd::Solved);
        }
        self.is_used_up(now).then_some(RunEnd::Finished)
    }

    /// Returns the mean return at which the run is solved; `None` without a learner.
    #[must_use]
    pub fn stop_return(&self) -> Option<f64> {
        self.config.stop.episode_return_mean.filter(|_| !self.is_sampling_only())
    }

    fn has_reached(&self, target: f64) -> bool {
        if self.is_judged_by_evaluations() {
            return self.evaluated_return.is_some_and(|mean| mean >= target);
        }
        self.episodes.have_reached(target)
    }

    /// Returns whether evaluations decide on the end: rows that a run reads are no evidence about its policy.
    #[must_use]
    pub fn is_judged_by_evaluations(&self) -> bool {
        self.config.reads_input() && self.stop_return().is_some()
    }

    /// Returns whether the latest weights are to be evaluated: after every interval, and at the end of a run that reads its input.
    #[must_use]
    pub fn is_evaluation_due(&self, now: Micros) -> bool {
        let (evaluation, iteration) = (&self.config.evaluation, self.iteration);
        let is_interval_over = match evaluation.interval {
            0 if self.is_judged_by_evaluations() => iteration > 0 && iteration.is_multiple_of(JUDGED_EVERY),
            _ => evaluation.is_due(iteration),
        };
        is_interval_over || self.config.reads_input() && self.is_used_up(now)
    }

    /// Records the mean return that the latest evaluation found.
    pub fn handle_evaluated(&mut self, episode_return_mean: Option<f64>) {
        self.evaluated_return = episode_return_mean;
    }

    /// Returns true once all env steps or all of the time are used up.
    #[must_use]
    pub fn is_used_up(&self, now: Micros) -> bool {
        self.is_late(now) || self.env_steps >= self.config.stop.env_steps
    }

    /// Returns true once the time of the run is used up.
    #[must_use]
    pub fn is_late(&self, now: Micros) -> bool {
        let limit = self.config.stop.wall_s.map(Micros::from_secs_f64);
        limit.is_some_and(|limit| self.elapsed(now) >= limit)
    }

    /// Checks that no env step was lost or counted twice.
    ///
    /// # Errors
    /// [`UnbalancedLedger`], which holds the ledger.
    pub fn check_ledger(&self) -> Result<(), UnbalancedLedger> {
        self.group.ledger().check()
    }

    /// Ends the run: revokes its leases and stops its stopwatch.
    pub fn end(&mut self, end: &RunEnd, now: Micros) {
        self.stopwatch.pause(now);
        self.group.report_hung();
        self.phase = end.phase();
        // Rows of a lease that hangs are missing.
        let is_cut = matches!(end, RunEnd::Stopped | RunEnd::Drained);
        self.error = end.error().or_else(|| self.hang().filter(|_| is_cut)).unwrap_or_default();
        self.group.stop(now);
    }

    /// Returns the first hung fragment as text: its lease has expired without progress, and its worker has sent nothing since.
    fn hang(&self) -> Option<String> {
        let (worker, failure) = self.group.hung().next()?;
        Some(format!("{}, {failure} (worker {worker})", self.config.env()))
    }

    /// Returns the error of a run that is over, `None` if there was none.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        Some(self.error.clone()).filter(|error| !error.is_empty())
    }

    /// Marks a run that has ended as failed: its last files could not be written.
    pub fn fail(&mut self, error: String) {
        (self.phase, self.error) = (crate::protocol::Phase::Failed, error);
    }

    /// Records that the learner has used rows of a worker that failed an audit.
    pub fn taint(&mut self) {
        self.is_tainted = true;
    }

    /// Returns whether the learner has used rows of a worker that failed an audit.
    #[must_use]
    pub fn is_tainted(&self) -> bool {
        self.is_tainted
    }

    /// Records how many workers with input of their own were lost so far: their replacements begin other episodes.
    pub fn count_disturbances(&mut self, disturbances: u64) {
        self.disturbances = self.disturbances.max(disturbances);
    }

    /// Returns whether the run's own worker samples on a thread of its own, which new weights reach at any time.
    #[must_use]
    pub fn samples_ahead(&self) -> bool {
        let rollout = &self.config.rollout;
        self.is_local() && rollout.sample_async && rollout.input.is_sampler()
    }

    /// Returns why the same seed may give other rows, in the words of the summary; empty for a reproducible run.
    #[must_use]
    pub fn not_reproducible(&self) -> Vec<String> {
        let mut causes = Vec::new();
        if self.env_state == EnvState::Opaque {
            causes.push("the environment is opaque: its open episodes end where their slots move".into());
        }
        if self.env_state == EnvState::Replay && !self.config.episodes_move(self.env_state) {
            causes.push("replay_mismatch is abandon: open episodes may end where their slots move".into());
        }
        if self.config.device_rows {
            causes.push("device_rows is set: rows that policies on GPUs acted in have other bits".into());
        }
        if self.config.host.device != "cpu" && !self.is_sampling_only() {
            let device = &self.config.host.device;
            causes.push(format!("the learner computes on {device}: another device gives other weights"));
        }
        let abandoned = self.group.ledger().abandoned_episodes;
        if abandoned > 0 {
            causes.push(format!("{abandoned} open episodes were given up"));
        }
        if self.samples_ahead() {
            causes.push("sample_async is set: which weights sampled a row depends on time".into());
        }
        if !self.mode.is_synchronous() {
            causes.push(
                "which rows a batch has depends on time, unless its journal is replayed: mode is not synchronous"
                    .into(),
            );
        }
        if self.disturbances > 0 {
            let lost = self.disturbances;
            causes.push(format!("{lost} workers were lost, or joined late, and others began other episodes"));
        }
        if self.is_tainted {
            causes.push("rows were used that a worker had made up".into());
        }
        causes
    }
}
