//! The life of a run: from its workers' first lease to its summary.

use std::time::Duration;

use rollmesh_core::{
    group::{GroupCommand, GroupEvent, WorkerProfile},
    ids::{WeightsVersion, WorkerId},
    protocol::{
        Frame, Message, Role, TooLarge,
        message::{EvaluationPoint, Revoke, RunEnd as RunEndMessage},
    },
    weights::Weights,
};
use tokio::{sync::oneshot, time::Instant};

use super::{actor::Actor, audit::Record, checkpoints::CheckpointNowError};
use crate::train::{Run, RunEnd, StartError, Submitted, SyncError, Task, Update};

/// The leases of a run that drains have this long to end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// What is being made again at the end of a run has this long to be done.
const AUDIT_PATIENCE: Duration = Duration::from_secs(10);
/// A run begins without the local workers that have not joined after this time.
const JOIN_PATIENCE: Duration = Duration::from_secs(3);

impl Actor {
    pub(super) fn start_run(&mut self, task: Task) -> Result<(), StartError> {
        if self.is_leaving { Err(StartError::HubGone) } else { self.begin_run(task) }
    }

    /// As [`start_run`](Self::start_run), also for a hub that is about to end.
    pub(super) fn begin_run(&mut self, task: Task) -> Result<(), StartError> {
        if self.run.as_ref().is_some_and(|run| !run.is_over()) || self.update.is_some() {
            return Err(StartError::Busy);
        }
        let mut run = Run::new(self.next_run, task, &self.envs, self.next_lease)?;
        // Without randomness, which hubs do not start without, workers could foresee what is made again.
        let mut secret = [0; 8];
        let has_secret = getrandom::fill(&mut secret).is_ok();
        if has_secret && run.group.set_audits(self.distrust.audits, u64::from_le_bytes(secret)).is_err() {
            return Err(StartError::HubGone);
        }
        // Nobody is needed where nothing is left to do.
        let is_at_end = self.is_leaving || run.end_reached().is_some();
        let workers = if is_at_end { 0 } else { run.terms.num_workers as usize };
        let started = self.add_children_for(&run.terms, workers)?;
        if let Err(error) = run.create_files() {
            self.send_back(started);
            return Err(error);
        }
        let history = std::mem::take(&mut run.history);
        let evaluations = std::mem::take(&mut run.evaluations);
        self.next_run += 1;
        self.remember(&Record::RunStarted { run: run.number, env: run.spec.env.clone() });
        run.warnings.iter().for_each(|warning| self.notice(1, warning.clone()));
        self.run = Some(run);
        self.roll_back_before = None;
        self.dashboard.begin_run();
        self.hung.clear();
        history.into_iter().for_each(|point| self.dashboard.points.push(&Message::Iteration(point)));
        self.evaluate_again(&evaluations);
        evaluations.into_iter().for_each(|point| self.dashboard.evaluations.push(&Message::Evaluation(point)));
        let workers: Vec<u32> =
            self.peers.iter().filter(|(_, peer)| peer.role == Role::Worker).map(|(&id, _)| id).collect();
        for id in workers {
            self.bring_into_run(id);
        }
        Ok(())
    }

    /// The first iteration waits for the local workers, so that they share its slots. Rows do not depend on it. A run that
    /// goes on may have nothing left to do.
    pub(super) fn begin_first_iteration(&mut self) {
        let now = self.now();
        let is_new = |run: &&Run| !run.is_over() && !run.has_begun();
        if let Some(end) = self.run.as_ref().filter(is_new).and_then(Run::end_reached) {
            return self.finish_run(end);
        }
        let workers = self.peers.values().filter(|peer| peer.role == Role::Worker).count();
        let may_begin = |run: &&mut Run| !run.is_over() && !run.has_begun() && !run.is_draining();
        let Some(run) = self.run.as_mut().filter(may_begin) else { return };
        let is_late = workers > 0 && run.elapsed() > JOIN_PATIENCE;
        if (is_late || workers >= run.terms.num_workers as usize)
            && let Err(error) = run.begin_iteration(now)
        {
            self.end_run(RunEnd::Failed(error.to_string()));
        }
    }

    /// Tells a worker what the run is and with which weights it goes on; from now on it gets leases.
    pub(super) fn bring_into_run(&mut self, id: u32) {
        let now = self.now();
        let party = self.peers.get(&id).and_then(|peer| self.party_of(id, peer));
        let (Some(run), Some(peer)) = (&mut self.run, self.peers.get(&id)) else { return };
        if run.is_over() {
            return;
        }
        // Both were made for others before, so they are not too large.
        let _ = peer.link.send(&run.announcement());
        if let Ok(weights) = run.weights_frame() {
            peer.link.send_frame(weights);
        }
        let profile = if peer.kind == "browser" { WorkerProfile::BROWSER } else { WorkerProfile::NATIVE };
        if let Some(party) = party {
            run.group.distrust(WorkerId(id), party);
            run.keep_for_undoing();
        }
        run.group.handle_joined(WorkerId(id), profile, now);
    }

    pub(super) fn end_run(&mut self, end: RunEnd) {
        // What has been found by now is kept; what has not is not waited for.
        self.poll_evaluation();
        let now = self.now();
        let unaudited = self.num_unaudited();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        // Whoever is in a hurry does not change what the run has come to.
        let end = match (self.finishing.take(), end) {
            (Some((reached, _)), RunEnd::Stopped) => reached,
            (_, end) => end,
        };
        let (summary, faults) = run.end(end, unaudited, now);
        self.next_lease = run.group.next_lease_id();
        let run = run.number;
        self.report_books(run, &summary.end);
        let over = Message::RunEnd(RunEndMessage { run });
        self.remember(&Record::RunEnded { run });
        self.update = None;
        self.resting_until = None;
        self.draining_until = None;
        self.roll_back_before = None;
        self.syncing.clear();
        self.drain_group();
        for peer in self.peers.values().filter(|peer| peer.role == Role::Worker) {
            let _ = peer.link.send(&over);
        }
        faults.into_iter().for_each(|fault| self.notice(2, fault));
        self.is_stopping = false;
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.refresh_dashboards();
        if let Some(done) = self.done.take() {
            // Nobody waits for a run that the page started.
            let _ = done.send(summary);
        }
        // Whoever waited may have gone.
        self.drained.drain(..).for_each(|drained| _ = drained.send(()));
    }

    /// Lets the leases of the run end, and then the run. What they bring is committed, and learned from if the iteration
    /// becomes complete by it.
    pub(super) fn drain_run(&mut self) {
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over() && !run.is_draining()) else { return };
        run.drain();
        self.resting_until = None;
        self.draining_until = Some(Instant::now() + DRAIN_PATIENCE);
        self.notice(0, "the run is draining: it ends when the leases that are out have".into());
    }

    /// Ends a run that has drained.
    pub(super) fn end_drained_run(&mut self) {
        // A batch on its way is still learned from.
        if self.update.is_none() && self.finishing.is_none() && self.run.as_ref().is_some_and(Run::is_drained) {
            self.end_drain();
        }
    }

    /// Ends a run that drains, whatever is still out.
    pub(super) fn end_drain(&mut self) {
        self.draining_until = None;
        let end = self.run.as_ref().and_then(Run::end_reached);
        self.finish_run(end.unwrap_or(RunEnd::Drained));
    }

    /// Ends a run that has come to its end, as soon as it is known whether it is an honest one.
    fn finish_run(&mut self, end: RunEnd) {
        if self.finishing.is_none() {
            self.finishing = Some((end, Instant::now() + AUDIT_PATIENCE));
        }
    }

    /// Ends a run that has come to its end, if nothing of it is being made again any more, or that takes too long.
    pub(super) fn end_finished_run(&mut self) {
        let Some((_, until)) = &self.finishing else { return };
        let in_doubt = self.num_unaudited() > 0 || self.roll_back_before.is_some();
        if (!in_doubt || *until <= Instant::now())
            && let Some((end, _)) = self.finishing.take()
        {
            self.end_run(end);
        }
    }

    /// Fragments of the run that are being made again.
    fn num_unaudited(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| self.auditor.pending_of(run.number))
    }

    /// Ends a run whose batches nobody takes any more, also before the next one is there.
    pub(super) fn end_unwanted_run(&mut self) {
        // A batch on its way to somebody finds out itself.
        if self.update.is_none() && self.run.as_ref().is_some_and(Run::is_unwanted) {
            self.end_run(RunEnd::Stopped);
        }
    }

    /// Does what the group wants, until it wants nothing more.
    pub(super) fn drain_group(&mut self) {
        while let Some(command) = self.run.as_mut().and_then(|run| run.group.poll_command()) {
            self.obey(command);
        }
        while let Some(event) = self.run.as_mut().and_then(|run| run.group.poll_event()) {
            self.note_health(&event);
            let text = event.to_string();
            if let GroupEvent::FragmentsRejected { worker, .. } = event {
                self.remember(&Record::Group { text: text.clone(), is_cheap: true });
                self.notice_offence(text);
                self.blame(worker.0);
            } else {
                self.remember(&Record::Group { text: text.clone(), is_cheap: false });
                self.notice(1, text);
            }
            // A worker may be out of the run by it, for whom nobody has to wait.
            self.note_applied();
        }
        let Some(run) = &mut self.run else { return };
        // A batch waits in the group as long as the one before it is being consumed.
        let batch = if self.update.is_none() && self.finishing.is_none() { run.poll_update() } else { None };
        let news = run.write_journal();
        // Weights that were set meanwhile need not wait until somebody takes the batch.
        let has_next_weights = run.has_next_weights();
        self.note_lines(news);
        match batch {
            None => {}
            Some(Ok(Submitted { update, trace })) => {
                self.update = Some(update);
                self.dashboard.trace = Some(trace);
            }
            Some(Err(error)) => return self.end_run(RunEnd::Failed(error.to_string())),
        }
        if has_next_weights && let Err(error) = self.publish_weights() {
            self.end_run(RunEnd::Failed(error.to_string()));
        }
    }

    pub(super) fn obey(&mut self, command: GroupCommand) {
        let worker = command.worker();
        let record = match &command {
            GroupCommand::Grant { lease, .. } => {
                Some(Record::LeaseGranted { worker: worker.0, lease: lease.id.0, slots: lease.slots.len() })
            }
            GroupCommand::Revoke { lease, .. } => Some(Record::LeaseRevoked { worker: worker.0, lease: lease.0 }),
            GroupCommand::Dismiss { .. } => None,
        };
        record.iter().for_each(|record| self.remember(record));
        let Some(peer) = self.peers.get(&worker.0) else { return };
        let message = match command {
            GroupCommand::Grant { lease, .. } => match &mut self.run {
                Some(run) => run.grant(worker, lease),
                None => return,
            },
            GroupCommand::Revoke { lease, .. } => Message::Revoke(Revoke { lease: lease.0 }),
            GroupCommand::Dismiss { .. } => return self.dismiss(worker.0),
        };
        if let Err(error) = peer.link.send(&message) {
            // A lease that cannot be sent can never be done.
            self.end_run(RunEnd::Failed(error.to_string()));
        }
    }

    pub(super) fn handle_update(&mut self, update: Update) {
        self.update = None;
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        let (weights, stats) = match update {
            Update::Learned(weights, stats) => (weights, stats),
            Update::Taken => {
                run.count_batch();
                return self.go_on();
            }
            Update::Unwanted => return self.end_run(RunEnd::Stopped),
            Update::Failed(error) => return self.end_run(RunEnd::Failed(error.to_string())),
            Update::NotWritten(error) => return self.end_run(RunEnd::Failed(error)),
        };
        let metrics = run.handle_update(weights, &stats);
        let point = run.point(&metrics);
        let news = run.write_metrics(&metrics);
        // Whoever goes back to here keeps that line.
        run.keep_for_undoing();
        self.dashboard.points.push(&Message::Iteration(point));
        self.note_lines(news);
        let evaluated = self.run.as_mut().map_or(Ok(()), |run| run.evaluate_if_due(&self.program));
        if let Err(error) = evaluated {
            self.notice(1, error.to_string());
        }
        self.publish_status();
        self.go_on();
    }

    /// Where a run goes on, its evaluation was still being done when it was saved.
    fn evaluate_again(&mut self, known: &[EvaluationPoint]) {
        let is_due = |run: &&mut Run| {
            run.end_reached().is_none() && known.iter().all(|point| point.iteration != run.iteration())
        };
        if self.is_leaving {
            return;
        }
        let evaluated = self.run.as_mut().filter(is_due).map_or(Ok(()), |run| run.evaluate_if_due(&self.program));
        if let Err(error) = evaluated {
            self.notice(1, error.to_string());
        }
    }

    /// Tells what evaluations beside the run have found. What went wrong there is told, and nothing else comes of it.
    pub(super) fn poll_evaluation(&mut self) {
        let Some(run) = self.run.as_mut() else { return };
        let number = run.number;
        let evaluated = match run.poll_evaluation(&self.program) {
            None => return,
            Some(Err(error)) => return self.notice(1, error.to_string()),
            Some(Ok(evaluated)) => evaluated,
        };
        let news = run.write_evaluation(&evaluated);
        self.dashboard.evaluations.push(&Message::Evaluation(evaluated.metrics.point(number)));
        self.dashboard.evaluation_trace =
            evaluated.env_trace(number).and_then(|trace| Frame::new(&Message::EvaluationTrace(trace)).ok());
        self.dashboard.is_trace_new = true;
        self.note_lines(news);
    }

    /// After a batch: the end, or the next one.
    fn go_on(&mut self) {
        match self.run.as_ref().and_then(Run::end_reached) {
            Some(end) => self.finish_run(end),
            // It ends when all its leases have.
            None if self.run.as_ref().is_some_and(Run::is_draining) => {}
            None if self.is_stopping => self.end_run(RunEnd::Stopped),
            None => {
                self.save_if_due();
                self.rest();
            }
        }
    }

    /// Ends the run as somebody wishes: after the update that is being computed if the run can go on from there, but for
    /// those who wish it twice.
    pub(super) fn stop_run(&mut self) {
        let may_wait = !self.is_stopping && self.update.is_some();
        if may_wait && self.run.as_ref().is_some_and(Run::has_files) {
            self.is_stopping = true;
        } else {
            self.end_run(RunEnd::Stopped);
        }
    }

    pub(super) fn rest(&mut self) {
        match self.run.as_ref().map(Run::rest) {
            Some(rest) if !rest.is_zero() => self.resting_until = Some(Instant::now() + rest),
            _ => self.next_iteration(),
        }
    }

    pub(super) fn next_iteration(&mut self) {
        self.resting_until = None;
        let now = self.now();
        let published = self.publish_weights();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        let failed = match published {
            Ok(()) => run.begin_iteration(now).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failed) = failed {
            self.end_run(RunEnd::Failed(failed));
        }
    }

    /// Sends new weights to all workers, encoded once.
    fn publish_weights(&mut self) -> Result<(), TooLarge> {
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return Ok(()) };
        if let Some(frame) = run.news()? {
            for peer in self.peers.values().filter(|peer| peer.role == Role::Worker) {
                peer.link.send_frame(frame.clone());
            }
        }
        Ok(())
    }

    /// Sets weights of a run without a learner. While nothing is being made they go out at once, else before the next
    /// iteration that has not begun.
    pub(super) fn sync_weights(
        &mut self,
        weights: &Weights,
        applied: oneshot::Sender<Result<WeightsVersion, SyncError>>,
    ) {
        let set = self.run.as_mut().ok_or(SyncError::NoRun).and_then(|run| {
            let version = run.set_weights(weights)?;
            Ok((version, run.is_between_iterations()))
        });
        let sent = set.and_then(|(version, at_once)| {
            if at_once {
                self.publish_weights()?;
            }
            Ok(version)
        });
        match sent {
            Ok(version) => self.syncing.push((version, applied)),
            // Whoever asked may have gone.
            Err(error) => _ = applied.send(Err(error)),
        }
        self.note_applied();
    }

    /// Tells whoever waits for weights to act everywhere that they do.
    pub(super) fn note_applied(&mut self) {
        let now = self.now();
        let Some(run) = &self.run else { return };
        let (done, open) =
            std::mem::take(&mut self.syncing).into_iter().partition(|(version, _)| run.have_applied(*version, now));
        self.syncing = open;
        let done: Vec<_> = done;
        for (version, applied) in done {
            // Whoever asked may have gone.
            let _ = applied.send(Ok(version));
        }
    }
}
