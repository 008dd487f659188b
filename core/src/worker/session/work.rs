//! Leases of a session: taking, running, uploading, refusing.

use core::slice;

use super::{ActiveRun, MAX_BACKLOG_BYTES, SessionTurn, WorkerSession, is_report_due};
use crate::{
    batch::SlotFragment,
    ids::LeaseId,
    prelude::*,
    protocol::{
        FailureKind, FragmentFailure, Message, TooLarge, convert,
        message::{LeaseGrant, LeaseRefused, Progress, WeightsApplied},
    },
    time::Micros,
    worker::Advance,
};

/// The remedy for an upload that is too large.
const SHORTER: &str = "set a shorter `rollout_fragment_length`, or a `horizon` with complete_episodes";

impl WorkerSession {
    /// Handles a grant: the lease follows the one before or replaces it, if the hub has given that up. Refuses the replaced
    /// ones that had not begun, in case the hub still counts on them.
    pub(super) fn take_lease(&mut self, grant: &LeaseGrant) {
        let id = LeaseId(grant.lease);
        if self.leases.was_revoked(id) {
            return;
        }
        let Some(run) = self.run.as_ref().filter(|run| run.number == grant.run) else {
            return self.refuse(id, &format!("run {} is not the one in progress here", grant.run));
        };
        let queued = run
            .read_lease(grant)
            .and_then(|(lease, acting)| self.leases.queue(lease, acting).map_err(|error| error.to_string()));
        match queued {
            Ok(Some(replaced)) => {
                self.abandon();
                replaced.into_iter().for_each(|replaced| self.refuse(replaced, "another lease took its place"));
            }
            Ok(None) => {}
            Err(reason) => self.refuse(id, &reason),
        }
    }

    /// Drops a lease and confirms it, even if it is unknown here: the hub may be asking for a sign of life.
    pub(super) fn revoke(&mut self, lease: LeaseId) {
        self.counters.leases_revoked += 1;
        if self.leases.running() == Some(lease) {
            self.abandon();
        } else {
            self.leases.revoke(lease);
            self.apply_weights();
        }
        self.send(&Message::LeaseRefused(LeaseRefused::whole(lease, "revoked")));
    }

    fn abandon(&mut self) {
        if let Some(ActiveRun { runner: Ok(runner), .. }) = &mut self.run {
            runner.slots.abandon();
        }
        self.finish();
    }

    /// Ends the running lease.
    fn finish(&mut self) {
        self.leases.finish();
        self.apply_weights();
    }

    pub(super) fn may_begin(&self) -> bool {
        let version = self.weights_version();
        version.is_some_and(|version| self.leases.is_ready(version))
            && self.connection.queued_bytes() < MAX_BACKLOG_BYTES
    }

    pub(super) fn begin_next(&mut self, now: Micros) {
        let Some(ActiveRun { number, runner: Ok(runner), reported, step_times, .. }) = &mut self.run else { return };
        let mut applied = None;
        let (id, slots, begun) = match self.leases.next(runner.slots.weights_version()) {
            None => return,
            Some(SessionTurn::Refuse(id, error)) => (id, Vec::new(), Err((None, error.to_string()))),
            Some(SessionTurn::Run(lease, weights)) => {
                let (id, slots) = (lease.id, lease.slots.iter().map(|leased| leased.slot).collect());
                runner.slots.set_sequential(step_times.begin(lease.slots.len()));
                let set = weights.map_or(Ok(()), |weights| {
                    applied = Some(WeightsApplied { run: *number, version: weights.version().0 });
                    runner.slots.set_weights(&weights)
                });
                let begun = set.and_then(|()| runner.slots.begin(lease));
                (id, slots, begun.map_err(|error| (Some(error.failure_kind()), error.to_string())))
            }
        };
        *reported = now;
        match (begun, applied) {
            (Ok(()), Some(applied)) => self.send(&Message::WeightsApplied(applied)),
            (Ok(()), None) => {}
            (Err((kind, reason)), _) => {
                self.leases.finish();
                match kind.filter(|kind| *kind != FailureKind::Fragment) {
                    None => self.refuse(id, &reason),
                    // The policies fail with these weights in every slot.
                    Some(kind) => slots
                        .into_iter()
                        .map(|slot| FragmentFailure::new(kind, Some(slot), (0, 0), &reason))
                        .for_each(|failure| self.give_up(id, &failure)),
                }
            }
        }
    }

    pub(super) fn advance(&mut self, max_vector_steps: u32, now: Micros) {
        let Some(ActiveRun { number, runner: Ok(runner), reported, step_times, .. }) = &mut self.run else { return };
        let run = *number;
        step_times.look(now);
        match runner.slots.advance(max_vector_steps) {
            Advance::Idle => self.finish(),
            Advance::Working { lease, env_steps } => {
                step_times.advance_to(env_steps);
                if is_report_due(*reported, now) {
                    *reported = now;
                    self.send(&Message::Progress(Progress { lease: lease.0, env_steps }));
                }
            }
            Advance::Part { lease, env_steps, fragments } => {
                step_times.advance_to(env_steps);
                *reported = now;
                self.send(&Message::Progress(Progress { lease: lease.0, env_steps }));
                self.upload(run, lease, &fragments);
            }
            Advance::Failed { lease, failure, .. } => {
                self.give_up(lease, &failure);
                // If it was the last fragment, the lease is over for the hub, and the next one may begin.
                self.advance(0, now);
            }
            Advance::Done { lease, fragments } => {
                step_times.end();
                self.counters.leases_done += 1;
                self.upload(run, lease, &fragments);
                self.finish();
            }
        }
    }

    /// Uploads fragments, separately if they do not fit into one message. One that cannot be sent at all is reported as
    /// failed.
    fn upload(&mut self, run: u32, lease: LeaseId, fragments: &[SlotFragment]) {
        if fragments.is_empty() {
            // The remaining fragments of the lease have failed.
            return;
        }
        let has_agents = fragments.iter().any(|fragment| fragment.agents.is_some());
        let short = match &self.run {
            Some(ActiveRun { runner: Ok(runner), .. }) => runner.slots.for_upload(fragments),
            _ => Cow::Borrowed(fragments),
        };
        let upload = match has_agents {
            true => convert::agent_upload(run, lease, &short).map(Message::AgentUpload),
            false => convert::fragment_upload(run, lease, &short).map(Message::FragmentUpload),
        };
        let pushed = upload
            .map_err(|error| error.to_string())
            .and_then(|upload| self.push_upload(upload).map_err(|error| format!("{error}; {SHORTER}")));
        match (pushed, fragments) {
            (Ok(()), _) => self.counters.env_steps += fragments.iter().map(SlotFragment::env_steps).sum::<u64>(),
            (Err(reason), [only]) => {
                let at = (only.first_episode, only.first_t);
                self.give_up(lease, &FragmentFailure::new(FailureKind::Fragment, Some(only.slot), at, &reason));
            }
            (Err(_), _) => fragments.iter().for_each(|one| self.upload(run, lease, slice::from_ref(one))),
        }
    }

    /// Queues an upload, compressed if the link is slower than the codec.
    fn push_upload(&mut self, upload: Message) -> Result<(), TooLarge> {
        // One that is too large is refused as it is.
        if self.uplink.is_slow() {
            match convert::compressed(&upload).map(Message::CompressedUpload) {
                Some(short) => return self.connection.push(&short),
                None => self.uplink.give_up(),
            }
        }
        self.connection.push(&upload)
    }

    fn give_up(&mut self, lease: LeaseId, failure: &FragmentFailure) {
        self.counters.fragments_failed += 1;
        self.send(&Message::LeaseRefused(LeaseRefused::one(lease, failure)));
    }

    fn refuse(&mut self, lease: LeaseId, reason: &str) {
        self.counters.leases_refused += 1;
        self.send(&Message::LeaseRefused(LeaseRefused::whole(lease, reason)));
    }
}
