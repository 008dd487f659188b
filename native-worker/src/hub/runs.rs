//! The life of a run: its start, its workers, and its end.

use std::future::pending;

use rollmesh_core::{
    group::WorkerProfile,
    ids::WorkerId,
    protocol::{Message, message::RunEnd as RunEndMessage},
};

use super::{actor::Actor, audit::Record, checkpoints::CheckpointNowError};
use crate::train::{LastPictures, Run, RunEnd, RunPlace, StartError, Summary, Task, Work};

/// A run that is over, while its last pictures are being drawn.
pub(super) struct Finishing {
    pictures: LastPictures,
    summary: Summary,
}

impl Actor {
    /// Starts a run, under the next number if `number` is `None`.
    pub(super) fn start_run(&mut self, number: Option<u32>, task: Task, work: Work) -> Result<(), StartError> {
        if self.is_leaving { Err(StartError::HubGone) } else { self.begin_run(number, task, work) }
    }

    /// Like [`start_run`](Self::start_run), also for a hub that is about to stop.
    pub(super) fn begin_run(&mut self, number: Option<u32>, task: Task, work: Work) -> Result<(), StartError> {
        if !self.is_free() || self.update.is_some() {
            return Err(StartError::Busy);
        }
        let number = number.unwrap_or(self.next_run);
        let place = RunPlace {
            number,
            registry: &self.registry,
            kernels: self.kernels,
            program: &self.program,
            first_lease: self.next_lease,
            clock: &|| self.now(),
        };
        let mut run = Run::new(place, task, work)?;
        // The secret seeds the choice of audits: without it, workers could foresee which fragments are recomputed.
        let mut secret = [0; 8];
        let has_secret = getrandom::fill(&mut secret).is_ok();
        if has_secret && run.state.group.set_audits(self.distrust.audits, u64::from_le_bytes(secret)).is_err() {
            return Err(StartError::HubGone);
        }
        // A run with nothing left to do needs no workers.
        let is_at_end = self.is_leaving || run.state.end_reached(self.now()).is_some();
        let workers = if is_at_end { 0 } else { run.worker_terms.num_workers as usize };
        let started = self.add_children_for(&run.worker_terms, workers)?;
        if let Err(error) = run.create_files() {
            self.send_back(started);
            return Err(error);
        }
        let history = std::mem::take(&mut run.history);
        let evaluations = std::mem::take(&mut run.evaluations);
        self.next_run = self.next_run.max(number + 1);
        self.remember(&Record::RunStarted { run: number, env: run.config().env().into() });
        run.warnings.iter().for_each(|warning| self.notice(1, warning.clone()));
        self.run = Some(run);
        self.dashboard.begin_run();
        self.hung.clear();
        history.iter().for_each(|metrics| self.dashboard.add_iteration(number, metrics));
        self.evaluate_again(&evaluations);
        evaluations.into_iter().for_each(|point| self.dashboard.evaluations.push(point, &Message::Evaluation(point)));
        let workers: Vec<u32> = self.peers.iter().filter(|(_, peer)| peer.is_worker()).map(|(&id, _)| id).collect();
        for id in workers {
            self.bring_into_run(id);
        }
        Ok(())
    }

    /// Announces the run and its current weights to a worker. The worker gets leases once it has answered that it is able.
    pub(super) fn bring_into_run(&mut self, id: u32) {
        let now = self.now();
        let party = self.peers.get(&id).and_then(|peer| self.party_of(id, peer));
        let (Some(run), Some(peer)) = (&mut self.run, self.peers.get(&id)) else { return };
        if run.is_over() || run.is_local() {
            return;
        }
        // Both have been sent to other workers before, so they are not too large.
        let _ = peer.link.send(&run.state.announcement());
        if let Ok(weights) = run.state.weights_frame() {
            peer.link.send_frame(weights);
        }
        let profile = if peer.is_throttled() { WorkerProfile::BROWSER } else { WorkerProfile::NATIVE };
        if let Some(party) = party {
            run.state.group.distrust(WorkerId(id), party);
            run.keep_for_undoing(now);
        }
        run.state.group.handle_joined(WorkerId(id), profile, now);
    }

    pub(super) fn end_run(&mut self, end: RunEnd) {
        // Takes the results that are available now; pending ones are not waited for.
        self.convict_liars();
        self.hear_evaluation();
        let now = self.now();
        let unaudited = self.num_unaudited();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        let (summary, faults) = run.end(self.course.end(end), unaudited, now);
        let pictures = run.finish_recording();
        self.next_lease = run.state.group.next_lease_id();
        let run = run.state.number();
        self.report_books(run, &summary.end);
        let over = Message::RunEnd(RunEndMessage { run });
        self.remember(&Record::RunEnded { run });
        self.update = None;
        self.turn = None;
        self.syncing.clear();
        self.drain_group();
        for peer in self.peers.values().filter(|peer| peer.is_worker()) {
            let _ = peer.link.send(&over);
            peer.link.forget_leases();
        }
        self.end_spare();
        faults.into_iter().for_each(|fault| self.notice(2, fault));
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.remember_run();
        self.refresh_dashboards();
        match pictures {
            Some(pictures) => self.finishing = Some(Finishing { pictures, summary }),
            None => self.report_end(summary),
        }
        // The callers may have dropped their receivers.
        self.drained.drain(..).for_each(|drained| _ = drained.send(()));
    }

    /// Handles that an episode of the run that is over was not recorded, or `None` once all are.
    pub(super) fn handle_last_pictures(&mut self, fault: Option<String>) {
        match fault {
            Some(fault) => self.notice(2, fault),
            None => self.finishing.take().into_iter().for_each(|Finishing { summary, .. }| self.report_end(summary)),
        }
    }

    fn report_end(&mut self, summary: Summary) {
        if let Some(done) = self.done.take() {
            // A run that the page started has no waiting caller.
            let _ = done.send(summary);
        }
    }

    /// Drains the run: waits for its leases, then ends it. Their fragments are committed, and learned from if they complete
    /// the iteration.
    pub(super) fn drain_run(&mut self) {
        let now = self.now();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over() && !run.state.is_draining()) else { return };
        run.drain();
        self.course.drain(&run.state, now);
        let told = match run.is_local() {
            true => "the run is draining: the batch that is being made is not learned from",
            false => "the run is draining: it ends when the leases that are out have",
        };
        self.notice(0, told.into());
    }

    /// Returns the number of pending audits of the run.
    pub(super) fn num_unaudited(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| self.auditor.pending_of(run.state.number()))
    }

    /// Ends a run whose batch receiver was dropped, without waiting for the next batch.
    pub(super) fn end_unwanted_run(&mut self) {
        // A batch that is being handed over discovers this itself.
        if self.update.is_none() && self.run.as_ref().is_some_and(Run::is_unwanted) {
            self.end_run(RunEnd::Stopped);
        }
    }

    /// Stops the run on request, at once or after the batch that is being consumed.
    pub(super) fn stop_run(&mut self) {
        self.run.iter().for_each(Run::interrupt);
        let (now, Some(facts)) = (self.now(), self.run_facts()) else { return };
        let step = self.run.as_ref().and_then(|run| self.course.stop(&run.state, &facts, now));
        step.into_iter().for_each(|step| self.take_step(step));
    }
}

/// Waits for the next fault of the last pictures, or for `None` once they are drawn.
pub(super) async fn next_fault(finishing: &mut Option<Finishing>) -> Option<String> {
    match finishing {
        Some(finishing) => finishing.pictures.next_fault().await,
        None => pending().await,
    }
}
