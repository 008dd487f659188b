//! What people are told of a run.

use rollmesh_core::{
    batch::{OBS, SlotFragment},
    group::{Expired, IdleReason, Rejected},
    protocol::{
        FailureKind, Phase,
        message::{EnvTrace, ExpiredCounts, Iteration, LedgerReport, RejectedCounts, RunStatus},
    },
};

use super::{super::metrics::IterationMetrics, Run};

/// A directory's name that fits into a status beside everything else.
const MAX_RUN_DIR_BYTES: usize = 1_024;

impl Run {
    pub(crate) fn status(&self) -> RunStatus {
        let ledger = self.group.ledger();
        RunStatus {
            run: self.number,
            phase: self.phase.to_wire(),
            env: self.config().env().into(),
            algo: self.terms.algo.clone(),
            seed: self.config().rollout.seed,
            num_slots: self.config().num_slots(),
            iteration: self.iteration,
            env_steps: self.env_steps,
            episodes: self.episodes.finished,
            episode_return_mean: self.episodes.return_mean().map_or(f32::NAN, |mean| mean as f32),
            stop_return: self.terms.stop_return.map_or(f32::NAN, |target| target as f32),
            max_env_steps: self.terms.max_env_steps,
            wall_ms: self.stopwatch.elapsed().as_millis() as u64,
            steps_per_s: self.steps_per_s as f32,
            watched_slot: self.watched_slot,
            granted: ledger.granted,
            committed: ledger.committed,
            superseded: ledger.superseded,
            rejected: ledger.rejected.total(),
            expired: ledger.expired.total(),
            outstanding: ledger.outstanding,
            error: self.error.clone(),
            run_dir: self.run_dir(),
            failures: self.group.failures().0,
            last_failure: self.last_failure().unwrap_or_default(),
        }
    }

    /// What failed last, where, and on which worker.
    pub(crate) fn last_failure(&self) -> Option<String> {
        let (worker, failure) = self.group.failures().1.next_back()?;
        Some(format!("{failure} (worker {worker})"))
    }

    /// Why no worker can make the rows of this run, if that is known.
    pub(crate) fn fatal_failure(&self) -> Option<String> {
        let fatal = self.group.fatal_failure()?;
        let rollout = &self.config().rollout;
        let is_of_env = matches!(
            fatal.failure.kind,
            FailureKind::Env | FailureKind::Panic | FailureKind::Invalid | FailureKind::Hang
        );
        let advice = match is_of_env && !rollout.restart_failed_sub_environments {
            true => "; fix the environment, or set restart_failed_sub_environments to drop such episodes",
            false => "",
        };
        Some(format!("{}, {fatal}{advice}", self.config().env()))
    }

    /// Why a worker makes no rows, with what the group does not know of the run.
    pub(crate) fn idle_text(&self, reason: IdleReason<'_>) -> String {
        match reason {
            IdleReason::Paused if self.phase == Phase::Draining => "the run is draining".into(),
            IdleReason::Learner if !self.has_begun() => "waiting for the local workers".into(),
            IdleReason::Learner if self.has_taker() => "waiting for the caller to take a batch".into(),
            reason => reason.to_string(),
        }
    }

    /// The directory as people are told it, where that is not far too long.
    fn run_dir(&self) -> String {
        let directory = self.request.run_dir.as_ref();
        let text = directory.map_or_else(String::new, |directory| directory.display().to_string());
        if text.len() <= MAX_RUN_DIR_BYTES { text } else { String::new() }
    }

    /// The books for dashboards, without what the hub adds about its workers.
    pub(crate) fn ledger_report(&self) -> LedgerReport {
        let ledger = self.group.ledger();
        LedgerReport {
            run: self.number,
            granted: ledger.granted,
            committed: ledger.committed,
            superseded: ledger.superseded,
            rejected: rejected(&ledger.rejected),
            expired: expired(&ledger.expired),
            outstanding: ledger.outstanding,
            queued: ledger.queued,
            consumed: ledger.consumed,
            dropped_stale: ledger.dropped_stale,
            regenerated: ledger.regenerated,
            abandoned_episodes: ledger.abandoned_episodes,
            uninvited_superseded: ledger.uninvited.superseded,
            uninvited_rejected: rejected(&ledger.uninvited.rejected),
            ..LedgerReport::default()
        }
    }

    /// A point for dashboards.
    pub(crate) fn point(&self, metrics: &IterationMetrics) -> Iteration {
        Iteration {
            run: self.number,
            iteration: metrics.iteration,
            env_steps: metrics.env_steps,
            wall_ms: (metrics.wall_s * 1e3) as u64,
            episode_return_mean: metrics.episode_return_mean.map_or(f32::NAN, |mean| mean as f32),
            episode_len_mean: metrics.episode_len_mean.map_or(f32::NAN, |mean| mean as f32),
            steps_per_s: metrics.steps_per_s as f32,
            policy_loss: metrics.policy_loss as f32,
            vf_loss: metrics.vf_loss as f32,
            entropy: metrics.entropy as f32,
            kl: metrics.kl as f32,
        }
    }

    /// What the watched slot saw.
    pub(super) fn trace(&self, fragments: &[SlotFragment]) -> EnvTrace {
        let mut trace = EnvTrace {
            run: self.number,
            slot: self.watched_slot,
            episode: 0,
            t: 0,
            obs_len: 0,
            obs: Vec::new(),
            dones: Vec::new(),
        };
        // In slot order; the latest of the slot, if there are several, and maybe none.
        let Some(fragment) = fragments.iter().rfind(|fragment| fragment.slot.0 == self.watched_slot) else {
            return trace;
        };
        if let (Ok(obs), Ok(dones)) = (fragment.rows.data(OBS), fragment.rows.dones()) {
            (trace.episode, trace.t) = (fragment.first_episode, fragment.first_t);
            trace.obs_len = obs.shape().elements() as u32;
            trace.obs = obs.values().iter().flat_map(|value| value.to_le_bytes()).collect();
            trace.dones = dones.into_iter().map(u8::from).collect();
        }
        trace
    }
}

fn rejected(counts: &Rejected) -> RejectedCounts {
    let Rejected { late, duplicate, not_leased, corrupt, mismatched, stale, early, wrong_length, audit } = *counts;
    RejectedCounts { late, duplicate, not_leased, corrupt, mismatched, stale, early, wrong_length, audit }
}

fn expired(counts: &Expired) -> ExpiredCounts {
    let Expired { timed_out, left, refused, revoked } = *counts;
    ExpiredCounts { timed_out, left, refused, revoked }
}
