//! Transitions after an event, step by step, until no further one follows.

use super::{
    ChildFate, Hub, HubEffect, HubRun, Peer, PeerConnection, Record, RunEnd, RunFacts, RunStep, clip::without_pictures,
    logs::worker_of,
};
use crate::{
    batch::SlotFragment,
    group::{AuditTask, Audits, ExpiryCause, FailedAudit, GroupCommand, GroupEvent, QuarantineCause, Verdict},
    ids::{FragmentNo, SlotId, WorkerId},
    prelude::*,
    protocol::{
        Message, TokenId, TooLarge,
        message::{EnvClip, Revoke, RunEnd as RunEndMessage},
    },
    time::Micros,
};

/// The audits of a run that is rolled back.
#[derive(Debug)]
pub struct RunAudits {
    run: u32,
    audits: Audits,
}

/// Minimum time between two sets of pictures of the watched slot.
const CLIP_INTERVAL: Micros = Micros::from_secs(1);

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Returns the next effect for the shell to execute; `None` once nothing is due until the next event.
    ///
    /// Of several transitions that are due the first one of this list is taken:
    ///
    /// 1. Effects of earlier transitions are executed.
    /// 2. Principals that failed an audit are expelled, and the run is to be rolled back or is tainted.
    /// 3. The group's commands are sent to workers.
    /// 4. The group's events are reported; they may expel workers.
    /// 5. A run that no worker can make rows for has failed.
    /// 6. A complete batch goes to its consumer, unless the previous one is still being consumed.
    /// 7. The group's decisions are written to the journal.
    /// 8. Weights that were set meanwhile are published: they need not wait until a consumer takes the batch.
    /// 9. Fragments to audit are recomputed.
    /// 10. The latest fragment of the watched slot is drawn.
    /// 11. The run takes the next step of its [course](super::RunCourse).
    /// 12. The start of a removed run is given up.
    /// 13. The run that has waited longest begins, once the one before it is finished.
    pub fn poll_effect(&mut self) -> Option<HubEffect<C>> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if !(self.quarantine_principal() || self.send_command() || self.report_event()) {
                break;
            }
        }
        self.poll_run().or_else(|| self.poll_start())
    }

    fn poll_run(&mut self) -> Option<HubEffect<C>> {
        let now = self.now;
        let run = self.run.as_mut()?.state_mut();
        if let Some(error) = run.fatal_failure().filter(|_| !run.is_over()) {
            return Some(HubEffect::Step(RunStep::End(RunEnd::Failed(error))));
        }
        if let Some(batch) = self.poll_batch() {
            return Some(batch);
        }
        let run = self.run.as_mut()?.state_mut();
        if let Some(entry) = run.group.poll_journal() {
            return Some(HubEffect::Journal(entry));
        }
        if run.has_next_weights()
            && let Err(error) = self.publish_weights()
        {
            return Some(HubEffect::Step(RunStep::End(RunEnd::Failed(error.to_string()))));
        }
        if let Some(next) = self.poll_audit().or_else(|| self.poll_clip()) {
            return Some(next);
        }
        let facts = self.facts()?;
        self.course.poll(self.run.as_ref()?.state(), &facts, now).map(HubEffect::Step)
    }

    /// Returns when something is due if nothing happens before: [`handle_timeout`](Self::handle_timeout) is called then.
    pub fn poll_timeout(&self) -> Option<Micros> {
        let run = self.state()?;
        let (group, course) = (run.group.poll_timeout(), self.course.poll_timeout(run, self.now));
        [group, course, self.inference_due()].into_iter().flatten().min()
    }

    /// Handles deadlines that are over.
    pub fn handle_timeout(&mut self) {
        let now = self.now;
        // Before the group: workers that wait for others do not hang.
        self.check_inference();
        self.state_mut().into_iter().for_each(|run| run.group.handle_timeout(now));
    }

    /// Returns what decides about the course of the run; `None` without one.
    pub(super) fn facts(&mut self) -> Option<RunFacts> {
        let num_unaudited = self.num_unaudited();
        let facts = self.run.as_mut()?.facts(self.course.roll_back_before(), self.now);
        Some(RunFacts { num_unaudited, ..facts })
    }

    /// Expels the workers of a principal that failed an audit, revokes its tokens, and undoes what it made, also in a run that
    /// is over. Returns whether there was one.
    fn quarantine_principal(&mut self) -> bool {
        let Some(failed_audit) = self.state_mut().and_then(|run| run.group.poll_failed_audit()) else { return false };
        let FailedAudit { principal, workers, first_doubtful, .. } = failed_audit;
        // Also the token of a worker that has disconnected already.
        let mut tokens: BTreeSet<TokenId> = self.tokens.of_principal(principal).into_iter().collect_ordered();
        for WorkerId(id) in workers {
            tokens.extend(self.peers.get(&id).into_iter().flat_map(|peer| [peer.token, peer.valid_by]));
            self.expel(id, "a fragment of its principal failed an audit");
        }
        let tokens = tokens.into_iter().filter(|token| !self.tokens.is_shared(*token)).collect();
        self.effects.push_back(HubEffect::Quarantine { principal, tokens, first_doubtful });
        let (Some(first), Some(run)) = (first_doubtful, &mut self.run) else { return true };
        if run.state().is_over() {
            self.notice(2, "the run that has ended contains rows of a quarantined principal: it is tainted".into());
        // Rows that were handed to a caller cannot be recalled.
        } else if self.setup.rolls_back && !run.state().is_sampling_only() {
            self.course.roll_back(first);
        } else {
            run.taint();
            self.notice(2, "the run continues with rows of a quarantined principal: it is tainted".into());
        }
        true
    }

    /// Sends the group's next command. Returns whether there was one.
    fn send_command(&mut self) -> bool {
        let Some(command) = self.state_mut().and_then(|run| run.group.poll_command()) else { return false };
        let WorkerId(worker) = command.worker();
        match &command {
            GroupCommand::Grant { lease, .. } => {
                self.record(Record::LeaseGranted { worker, lease: lease.id.0, slots: lease.slots.len() });
            }
            GroupCommand::Revoke { lease, .. } => self.record(Record::LeaseRevoked { worker, lease: lease.0 }),
            GroupCommand::Dismiss { .. } => {}
        }
        let (Some(peer), Some(run)) = (self.peers.get(&worker), &mut self.run) else { return true };
        let message = match command {
            GroupCommand::Grant { lease, .. } => {
                let (id, run) = (lease.id, run.state_mut());
                let message = run.grant(WorkerId(worker), lease);
                // Before the lease is sent.
                run.decoder(id).into_iter().for_each(|decoder| peer.link.record_lease(decoder));
                message
            }
            GroupCommand::Revoke { lease, .. } => Message::Revoke(Revoke { lease: lease.0 }),
            GroupCommand::Dismiss { .. } => {
                self.dismiss(worker);
                return true;
            }
        };
        if let Err(error) = peer.link.send(&message) {
            // A lease that cannot be sent can never be completed.
            self.effects.push_back(HubEffect::Step(RunStep::End(RunEnd::Failed(error.to_string()))));
        }
        true
    }

    /// Reports the group's next event. Returns whether there was one.
    fn report_event(&mut self) -> bool {
        let Some(event) = self.state_mut().and_then(|run| run.group.poll_event()) else { return false };
        match &event {
            GroupEvent::WorkerHung { worker, .. } => _ = self.hung.insert(worker.0, self.now),
            GroupEvent::WorkerRecovered { worker } => _ = self.hung.remove(&worker.0),
            GroupEvent::WorkerQuarantined { worker, cause: QuarantineCause::Failures } => {
                let child = self.peers.get(&worker.0).and_then(|peer| peer.child);
                self.decide(child, ChildFate::Replaced);
            }
            _ => {}
        }
        let text = event.to_string();
        worker_of(&event).into_iter().for_each(|worker| self.log(worker.0, 1, &text));
        // Workers can cause these as often as they like.
        let is_cheap = matches!(
            event,
            GroupEvent::FragmentsRejected { .. }
                | GroupEvent::WorkerUnable { .. }
                | GroupEvent::FragmentFailed { .. }
                | GroupEvent::LeaseExpired { cause: ExpiryCause::Refused, .. }
        );
        self.record(Record::Group { text: text.clone(), is_cheap });
        if is_cheap {
            self.notice_offence(text);
        } else {
            self.notice(1, text);
        }
        if let GroupEvent::FragmentsRejected { worker, .. } = event {
            self.count_offence(worker.0);
        }
        // The event may have removed a worker from the run; callers waiting for weights need not wait for it.
        self.effects.push_back(HubEffect::WeightsApplied);
        true
    }

    /// Returns the next batch if it is complete and the previous one has been consumed. Other ranks wait for one more batch of
    /// a run that was interrupted.
    fn poll_batch(&mut self) -> Option<HubEffect<C>> {
        let run = self.run.as_mut()?;
        if !self.course.may_take_batch(run.state()) {
            return None;
        }
        let has_ranks_to_notify = run.state().is_local() && run.facts(None, self.now).has_ranks_to_notify;
        let state = run.state_mut();
        let forced = if has_ranks_to_notify { state.force_due_batch() } else { None };
        let work = forced.map_or_else(|| state.poll_batch(), |work| Some(Ok(work)))?;
        if let Ok(work) = &work {
            state.is_watched = self.peers.values().any(Peer::is_dashboard);
            let watched = SlotId(state.watched_slot);
            let is_shown = |fragment: &&SlotFragment| state.is_watched || fragment.slot == watched;
            let fragments = work.fragments().iter().filter(is_shown);
            self.dashboards.fragments.add(fragments, watched, |version| state.weights_of(version));
        }
        Some(HubEffect::Consume(work))
    }

    /// Returns the latest fragment of the watched slot to be drawn, while a dashboard is connected: also after the run, for one
    /// that connects then. One is drawn at a time, and not more often than people see. Dashboards of a run
    /// without leases are sent the reason why there are no pictures.
    fn poll_clip(&mut self) -> Option<HubEffect<C>> {
        let is_due = self.dashboards.clip_due.is_some_and(|due| self.now >= due);
        if !is_due || !self.has_dashboards() {
            return None;
        }
        let run = self.run.as_ref()?.state();
        let (number, watched) = (run.number(), SlotId(run.watched_slot));
        if run.is_local() {
            if !self.dashboards.has_slot_clip() {
                self.dashboards.set_clip(without_pictures(
                    number,
                    &SlotFragment { slot: watched, ..SlotFragment::default() },
                    "the run has no leases: its own process samples or reads the rows, and the hub gets no fragments to draw",
                ));
            }
            return None;
        }
        let device_rows = run.config().device_rows;
        let job = self.dashboards.fragments.take_clip_job(number, watched)?;
        let job = job.and_then(|job| match device_rows {
            true => Err(Box::new(
                job.without_pictures("rows of devices cannot be recomputed bit for bit (device_rows is set)"),
            )),
            false => Ok(job),
        });
        (self.dashboards.clip_due, self.dashboards.clip_begun) = (None, self.now);
        match job {
            Ok(job) => Some(HubEffect::Draw(Box::new(job))),
            Err(clip) => {
                self.handle_clip(*clip);
                None
            }
        }
    }

    /// Records that the shell begins only now to draw the fragment of the latest [`HubEffect::Draw`].
    pub fn begin_clip(&mut self) {
        self.dashboards.clip_begun = self.now;
    }

    /// Handles the pictures of the watched slot: dashboards get them, also later ones.
    pub fn handle_clip(&mut self, clip: EnvClip) {
        // Of one core at most a tenth.
        let took = self.now.since(self.dashboards.clip_begun);
        self.dashboards.clip_due = Some(self.now + CLIP_INTERVAL.max(Micros(took.0.saturating_mul(9))));
        if self.state().is_some_and(|run| run.number() == clip.run) {
            self.dashboards.set_clip(clip);
        }
    }

    fn poll_audit(&mut self) -> Option<HubEffect<C>> {
        loop {
            let run = self.state_mut()?;
            let task = run.group.poll_audit()?;
            if let Some(weights) = run.weights_of(task.fragment.weights_version) {
                let run = run.number();
                self.audits.insert((run, task.number), run);
                return Some(HubEffect::Audit { run, task: Box::new(task), weights });
            }
            run.group.handle_audited(&task, Verdict::Unknown, Micros(0));
        }
    }

    /// Handles the result of an audit.
    pub fn handle_audited(&mut self, run: u32, task: &AuditTask, verdict: Verdict) {
        let (now, run) = (self.now, self.audits.remove(&(run, task.number)));
        if let Some(current) = self.state_mut().filter(|current| run == Some(current.number())) {
            current.group.handle_audited(task, verdict, now);
        }
    }

    /// Takes the audits of the run, which is about to be rolled back: [`continue_audits`](Self::continue_audits) follows once the
    /// run that continues it has begun. `None` without a run.
    #[must_use]
    pub fn take_audits(&mut self) -> Option<RunAudits> {
        let run = self.state_mut()?;
        Some(RunAudits { run: run.number(), audits: run.group.take_audits() })
    }

    /// Continues the audits of a run that was rolled back: those of fragments that stay.
    pub fn continue_audits(&mut self, RunAudits { run: earlier, audits }: RunAudits) {
        let Some(run) = self.run.as_mut().map(R::state_mut) else { return };
        let (number, undone) = (run.number(), FragmentNo(run.iteration()));
        run.group.continue_audits(audits, undone);
        let awaited = self.audits.iter_mut().filter(|((_, task), of)| **of == earlier && run.group.awaits_audit(*task));
        awaited.for_each(|(_, of)| *of = number);
    }

    /// Returns the number of pending audits of the current run.
    pub fn num_unaudited(&self) -> u64 {
        let number = self.state().map_or(0, |run| run.number());
        self.audits.values().filter(|run| **run == number).count() as u64
    }

    /// Publishes new weights and begins the next iteration.
    pub fn begin_iteration(&mut self) {
        let (now, published) = (self.now, self.publish_weights().map_err(|error| error.to_string()));
        let Some(run) = self.current().map(R::state_mut) else { return };
        let begun = published.and_then(|()| run.begin_iteration(now).map_err(|error| error.to_string()));
        if let Err(error) = begun {
            self.effects.push_back(HubEffect::Step(RunStep::End(RunEnd::Failed(error))));
        }
    }

    /// Sends new weights to all workers; they are encoded once.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn publish_weights(&mut self) -> Result<(), TooLarge> {
        let Some(run) = self.current() else { return Ok(()) };
        if let Some(frame) = run.state_mut().poll_weights()? {
            let peers = self.peers.iter().filter(|(_, peer)| peer.gets_weights());
            let peers: Vec<u32> = peers.map(|(&id, _)| id).collect();
            peers.into_iter().for_each(|id| self.send_weights(id, &frame));
        }
        Ok(())
    }

    /// Sends the group's last commands to workers, and notifies them that the run is over.
    pub fn announce_end(&mut self) {
        while self.send_command() || self.report_event() {}
        self.forget_run();
    }

    /// Notifies workers that the run is over, and lets their connections forget its leases. The group's pending outputs
    /// are lost, as in a run that is rolled back.
    pub fn forget_run(&mut self) {
        let Some(run) = self.state().map(|run| run.number()) else { return };
        for (_, peer) in self.workers() {
            let _ = peer.link.send(&Message::RunEnd(RunEndMessage { run }));
            peer.link.forget_leases();
        }
        self.end_inference();
    }

    /// Expels all principals that are known to have failed an audit, before the run ends.
    pub fn quarantine_all(&mut self) {
        while self.quarantine_principal() {}
    }
}
