//! Reports about a run for logs and dashboards.

use super::RunLoop;
use crate::{
    group::{IdleReason, WorkerStatus},
    prelude::*,
    protocol::{
        Phase, WorkerState,
        message::{LedgerReport, RunRow, RunStatus},
        printable,
    },
    time::Micros,
};

impl RunLoop {
    /// Returns the status of the run.
    #[must_use]
    pub fn status(&self, now: Micros) -> RunStatus {
        let ledger = self.group.ledger();
        RunStatus {
            run: self.number,
            phase: self.phase.to_wire(),
            env: self.config.env().into(),
            algo: self.algo.clone(),
            seed: self.config.rollout.seed,
            num_slots: self.config.num_slots(),
            slots_per_worker: self.config.slots_per_worker(),
            iteration: self.iteration,
            env_steps: self.env_steps,
            episodes: self.episodes.finished(),
            episode_return_mean: self.episodes.return_mean().map_or(f32::NAN, |mean| mean as f32),
            stop_return: self.stop_return().map_or(f32::NAN, |target| target as f32),
            max_env_steps: self.config.stop.env_steps,
            wall_ms: self.elapsed(now).0 / 1_000,
            steps_per_s: self.steps_per_s as f32,
            watched_slot: self.watched_slot,
            granted: ledger.granted,
            committed: ledger.committed,
            superseded: ledger.superseded,
            rejected: ledger.rejected.total(),
            expired: ledger.expired.total(),
            outstanding: ledger.outstanding,
            error: self.error.clone(),
            run_dir: self.run_dir.clone(),
            failures: self.group.failures().0,
            last_failure: self.last_failure().unwrap_or_default(),
            waiting: self.waiting(now).unwrap_or_default(),
        }
    }

    /// Returns the run as lists of runs in progress show it: without values that change all the time.
    #[must_use]
    pub fn row(&self, now: Micros) -> RunRow {
        RunRow { env_steps: 0, episode_return_mean: f32::NAN, ..self.final_row(now) }
    }

    /// Returns the run as lists of past runs show it.
    #[must_use]
    pub fn final_row(&self, now: Micros) -> RunRow {
        let status = self.status(now);
        RunRow {
            run: status.run,
            phase: status.phase,
            place: 0,
            env: status.env,
            algo: status.algo,
            seed: status.seed,
            env_steps: status.env_steps,
            episode_return_mean: status.episode_return_mean,
            error: status.error,
            run_dir: status.run_dir,
        }
    }

    /// Returns what the run waits for, if no worker can sample for it now.
    #[must_use]
    pub fn waiting(&self, now: Micros) -> Option<String> {
        let is_running = self.phase == Phase::Running && !self.is_local();
        let mut workers = self.group.workers(now).filter(|_| is_running);
        let Some(first) = workers.next() else {
            return is_running.then(|| "waiting for workers: none is connected".into());
        };
        let can_sample = |worker: &WorkerStatus<'_>| {
            matches!(worker.state, WorkerState::Unanswered | WorkerState::Idle | WorkerState::Sampling)
        };
        let others = workers.try_fold(1, |count, worker| (!can_sample(&worker)).then_some(count + 1));
        let count = others.filter(|_| !can_sample(&first))?;
        let reason = first.idle.map_or_else(|| "it is leaving".into(), |reason| reason.to_string());
        let reason = printable(&reason);
        Some(format!(
            "waiting for workers: none of the {count} that are connected can continue, worker {}: {reason}",
            first.worker
        ))
    }

    /// Returns the latest failure, where it happened, and on which worker.
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        let (worker, failure) = self.group.failures().1.next_back()?;
        Some(format!("{failure} (worker {worker})"))
    }

    /// Returns why no worker can make the rows of this run, if that is known.
    #[must_use]
    pub fn fatal_failure(&self) -> Option<String> {
        Some(self.group.fatal_failure()?.explain(&self.config.rollout))
    }

    /// Returns the text of why a worker makes no rows, with details that the group does not know.
    fn idle_text(&self, reason: IdleReason<'_>) -> String {
        match reason {
            IdleReason::Paused if self.phase == Phase::Draining => "the run is draining".into(),
            IdleReason::Learner if !self.has_begun() => "waiting for the local workers".into(),
            IdleReason::Learner if self.is_sampling_only() => "waiting for the caller to take a batch".into(),
            reason => reason.to_string(),
        }
    }

    /// Returns what to show of a worker's state, and why it makes no rows. A lease may take a millisecond: sampled ten times a
    /// second, a worker with a lease in every iteration would appear idle most of the time.
    #[must_use]
    pub fn shown_state(&self, worker: &WorkerStatus<'_>) -> (WorkerState, String) {
        match (worker.state, worker.idle) {
            (WorkerState::Idle | WorkerState::Sampling, _)
                if self.phase == Phase::Running && worker.env_steps_per_s > 0.0 =>
            {
                (WorkerState::Sampling, String::new())
            }
            (WorkerState::Sampling, Some(reason)) => (WorkerState::Idle, self.idle_text(reason)),
            (state, reason) => (state, reason.map_or_else(String::new, |reason| self.idle_text(reason))),
        }
    }

    /// Returns the ledger for dashboards, without what the hub adds about its workers.
    #[must_use]
    pub fn ledger_report(&self) -> LedgerReport {
        LedgerReport { run: self.number, ledger: *self.group.ledger(), num_worker_restarts: 0 }
    }
}
