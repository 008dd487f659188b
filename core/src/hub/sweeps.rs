//! Workers that make no progress, and runs that no worker can sample for. The shell looks for them a few times per second.

use super::{Hub, HubEffect, HubRun, PeerConnection, RunEnd, RunLoop, RunStep, limits::RUN_ANSWER_PATIENCE};
use crate::{group::WorkerState, prelude::*, time::Micros};

/// Time that a run waits for an able worker when all its workers are unable or in quarantine.
const HOPE: Micros = Micros::from_secs(5);

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Handles workers that have hung for longer than the run's `hung_worker_timeout_s`. The shell ends those that it has
    /// [started](HubEffect::Hung); others are disconnected and may reconnect, so that their slots are tried again.
    pub fn sweep_hung(&mut self) {
        let now = self.now;
        let timeout_s = self.active_run().map_or(0.0, |run| run.config().hung_worker_timeout_s);
        if timeout_s <= 0.0 {
            return;
        }
        self.mark_unanswered();
        let patience = Micros::from_secs_f64(timeout_s);
        let overdue = self.hung.extract_if(.., |_, since| now.since(*since) >= patience);
        for (worker, _) in overdue.collect::<Vec<_>>() {
            let Some(peer) = self.peers.get(&worker) else { continue };
            match peer.child {
                Some(child) => self.effects.push_back(HubEffect::Hung { worker, child, patience }),
                None => {
                    peer.link.hang_up();
                    self.notice(1, format!("worker {worker} hangs for {patience}: it is disconnected"));
                }
            }
        }
    }

    /// Ends a run that no worker can sample for: all connected workers are unable or in quarantine, and the shell expects no other
    /// one. Remote workers have a few seconds to connect.
    pub fn sweep_hopeless(&mut self, expects_worker: bool) {
        let reason = if expects_worker { None } else { self.why_hopeless() };
        let Some(reason) = reason else {
            self.hopeless_since = None;
            return;
        };
        let since = *self.hopeless_since.get_or_insert(self.now);
        if self.now.since(since) >= HOPE {
            self.effects.push_back(HubEffect::Step(RunStep::End(RunEnd::Failed(reason))));
        }
    }

    /// Marks workers as hung that do not answer the announcement of the run, once for each announcement: their threads may have
    /// hung in the run before, and without a lease the group does not notice that.
    fn mark_unanswered(&mut self) {
        let Some(run) = self.active_run() else { return };
        let now = self.now;
        let unanswered = run.group.workers(now).filter(|worker| worker.state == WorkerState::Unanswered);
        let unanswered: Vec<u32> = unanswered.map(|worker| worker.worker.0).collect();
        for id in unanswered {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            if peer.announced_at.take_if(|at| now.since(*at) >= RUN_ANSWER_PATIENCE).is_some() {
                // From now on: after a suspension of the hub, the answer may have arrived and not been read yet.
                self.hung.insert(id, now);
            }
        }
    }

    fn active_run(&self) -> Option<&RunLoop> {
        self.state().filter(|run| !run.is_over())
    }

    fn why_hopeless(&self) -> Option<String> {
        let run = self.active_run()?;
        let mut reasons = Vec::new();
        for worker in run.group.workers(self.now) {
            let (WorkerState::Unable | WorkerState::Quarantined) = worker.state else { return None };
            // An untrusted worker must not be able to end a run that waits for others.
            if self.principal(worker.worker.0).is_none() {
                reasons.extend(worker.idle.map(|reason| format!("worker {}: {reason}", worker.worker)));
            }
        }
        let last = run.last_failure().map_or_else(String::new, |failure| format!("; the last failure: {failure}"));
        let first = reasons.first()?;
        Some(format!("none of the {} connected workers can continue, {first}{last}", reasons.len()))
    }
}
