//! The iterations of a run: the group's commands, its batches, and the weights that follow.

use rollmesh_core::{
    group::{ExpiryCause, GroupCommand, GroupEvent},
    hub::{RunFacts, RunStep},
    ids::WeightsVersion,
    protocol::{
        Frame, Message, TooLarge,
        message::{EvaluationPoint, Revoke},
    },
    weights::Weights,
};
use tokio::sync::oneshot;

use super::{actor::Actor, audit::Record};
use crate::train::{IterationMetrics, Run, RunEnd, Submitted, SyncError, Update};

impl Actor {
    /// Executes the group's commands and reports its events until there are none left.
    pub(super) fn drain_group(&mut self) {
        while let Some(command) = self.run.as_mut().and_then(|run| run.state.group.poll_command()) {
            self.obey(command);
        }
        while let Some(event) = self.run.as_mut().and_then(|run| run.state.group.poll_event()) {
            self.note_health(&event);
            let text = event.to_string();
            self.log_event(&event, &text);
            // Workers can cause these as often as they like.
            let is_cheap = matches!(
                event,
                GroupEvent::FragmentsRejected { .. }
                    | GroupEvent::WorkerUnable { .. }
                    | GroupEvent::FragmentFailed { .. }
                    | GroupEvent::LeaseExpired { cause: ExpiryCause::Refused, .. }
            );
            self.remember(&Record::Group { text: text.clone(), is_cheap });
            if is_cheap {
                self.notice_offence(text);
            } else {
                self.notice(1, text);
            }
            if let GroupEvent::FragmentsRejected { worker, .. } = event {
                self.blame(worker.0);
            }
            // The event may have removed a worker from the run; callers waiting for weights need not wait for it.
            self.note_applied();
        }
        let Some(run) = &mut self.run else { return };
        if let Some(error) = run.state.fatal_failure().filter(|_| !run.is_over()) {
            return self.end_run(RunEnd::Failed(error));
        }
        // The next batch waits in the group until the previous one has been consumed.
        let batch = if self.course.may_take_batch(&run.state) { run.poll_update() } else { None };
        let news = run.write_journal();
        // Weights set meanwhile need not wait until a consumer takes the batch.
        let has_next_weights = run.state.has_next_weights();
        self.note_lines(news);
        match batch {
            None => {}
            Some(Ok(Submitted { update, trace, watched })) => {
                self.update = Some(update);
                self.dashboard.fragment.take(watched);
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
            GroupCommand::Grant { lease, .. } => {
                let Some(run) = &mut self.run else { return };
                let id = lease.id;
                let message = run.state.grant(worker, lease);
                run.state.decoder(id).into_iter().for_each(|decoder| peer.link.note_lease(decoder));
                message
            }
            GroupCommand::Revoke { lease, .. } => Message::Revoke(Revoke { lease: lease.0 }),
            GroupCommand::Dismiss { .. } => return self.dismiss(worker.0),
        };
        if let Err(error) = peer.link.send(&message) {
            // A lease that cannot be sent can never be completed.
            self.end_run(RunEnd::Failed(error.to_string()));
        }
    }

    pub(super) fn handle_update(&mut self, update: Update) {
        self.update = None;
        let now = self.now();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        let (warnings, metrics) = match update {
            Update::Learned(learned, observed) => (Vec::new(), run.handle_update(learned, observed, now)),
            Update::Iterated(iterated) => run.handle_iterated(*iterated, now),
            Update::Taken { is_cut } => (Vec::new(), run.handle_taken(is_cut, now)),
            Update::Unwanted => {
                run.state.forget_batch();
                let asked = if run.state.is_draining() { RunEnd::Drained } else { RunEnd::Stopped };
                let end = run.state.end_reached(now).unwrap_or(asked);
                return self.end_run(end);
            }
            Update::Failed(error) => return self.end_run(RunEnd::Failed(error)),
        };
        let news = run.write_metrics(&metrics);
        // A rollback to this point keeps that metrics line.
        run.keep_for_undoing(now);
        self.dashboard.add_iteration(run.state.number(), &metrics);
        self.note_lines(news);
        warnings.into_iter().for_each(|warning| self.notice(1, warning));
        if let Some(run) = &mut self.run {
            run.evaluate_if_due(now);
        }
        self.hear_evaluation();
        self.publish_status();
        if let Some(turn) = self.turn.take() {
            // The program may no longer wait.
            let _ = turn.send(metrics);
        }
        self.course.handle_counted();
    }

    /// Reschedules the evaluation that had not finished when the resumed run was saved. It begins at once: otherwise one of
    /// the next iterations could take its place in the queue.
    pub(super) fn evaluate_again(&mut self, known: &[EvaluationPoint]) {
        // A run that reads its input is evaluated at its end, too.
        let now = self.now();
        let goes_on = |run: &Run| run.state.end_reached(now).is_none() || run.config().reads_input();
        let is_due =
            |run: &&mut Run| goes_on(run) && known.iter().all(|point| point.iteration != run.state.iteration());
        if let Some(run) = self.run.as_mut().filter(is_due).filter(|_| !self.is_leaving) {
            run.evaluate_if_due(now);
            self.hear_evaluation();
        }
    }

    /// Interrupts the batch of a run's own worker if its time limit is over.
    pub(super) fn interrupt_late_run(&self) {
        self.run.iter().for_each(|run| run.interrupt_if_late(self.now()));
    }

    /// Reports the result of an evaluation, and episodes that could not be recorded. Errors are logged and have no other effect.
    pub(super) fn hear_evaluation(&mut self) {
        while let Some(fault) = self.run.as_mut().and_then(Run::poll_recording) {
            self.notice(1, fault);
        }
        let Some(run) = self.run.as_mut() else { return };
        let number = run.state.number();
        let evaluated = match run.poll_evaluation(&self.program) {
            None => return,
            Some(Err(error)) => return self.notice(1, error.to_string()),
            Some(Ok(evaluated)) => evaluated,
        };
        let news = run.write_evaluation(&evaluated);
        let fault = evaluated.fault.clone();
        let point = evaluated.metrics.point(number);
        self.dashboard.evaluations.push(point, &Message::Evaluation(point));
        self.dashboard.evaluation_trace =
            evaluated.env_trace(number).and_then(|trace| Frame::new(&Message::EvaluationTrace(trace)).ok());
        self.dashboard.is_trace_new = true;
        self.note_lines(news);
        fault.into_iter().for_each(|fault| self.notice(1, fault));
    }

    /// True while the current run is stepwise.
    pub(super) fn has_stepwise_run(&self) -> bool {
        self.course.is_stepwise() && self.run.as_ref().is_some_and(|run| !run.is_over())
    }

    /// Handles the program's request for the next iteration. It gets no answer if its run is over.
    pub(super) fn take_turn(&mut self, turn: oneshot::Sender<IterationMetrics>) {
        if self.has_stepwise_run() {
            self.turn = Some(turn);
            self.course.take_turn();
        }
    }

    /// Returns the next step of the run, if one is due.
    pub(super) fn poll_step(&mut self) -> Option<RunStep> {
        let (now, facts) = (self.now(), self.run_facts()?);
        self.run.as_ref().and_then(|run| self.course.poll(&run.state, &facts, now))
    }

    pub(super) fn take_step(&mut self, step: RunStep) {
        match step {
            RunStep::RollBack(before) => self.roll_back(before),
            RunStep::End(end) => self.end_run(end),
            RunStep::Save => self.save_if_due(),
            RunStep::Begin => self.begin_iteration(),
        }
    }

    /// Returns what decides about the course of the run; `None` without one.
    pub(super) fn run_facts(&mut self) -> Option<RunFacts> {
        let (now, num_unaudited) = (self.now(), self.num_unaudited());
        let run = self.run.as_mut()?;
        let may_be_undone = self.course.roll_back_before().is_some_and(|before| run.may_be_undone(before.0));
        Some(RunFacts { num_unaudited, may_be_undone, ..run.facts(now) })
    }

    fn begin_iteration(&mut self) {
        let now = self.now();
        let published = self.publish_weights();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return };
        let failed = match published {
            Ok(()) => run.state.begin_iteration(now).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failed) = failed {
            self.end_run(RunEnd::Failed(failed));
        }
    }

    /// Sends new weights to all workers; they are encoded once.
    fn publish_weights(&mut self) -> Result<(), TooLarge> {
        let Some(run) = self.run.as_mut().filter(|run| !run.is_over()) else { return Ok(()) };
        if let Some(frame) = run.state.poll_weights()? {
            for peer in self.peers.values().filter(|peer| peer.is_worker()) {
                peer.link.send_frame(frame.clone());
            }
        }
        Ok(())
    }

    /// Sets weights of a run without a learner. They are sent at once while no fragment is being made, else before the next
    /// iteration that has not begun.
    pub(super) fn sync_weights(
        &mut self,
        weights: &Weights,
        applied: oneshot::Sender<Result<WeightsVersion, SyncError>>,
    ) {
        let set = self.run.as_mut().ok_or(SyncError::NoRun).and_then(|run| {
            let version = run.state.set_weights(weights)?;
            Ok((version, run.state.is_between_iterations()))
        });
        let sent = set.and_then(|(version, at_once)| {
            if at_once {
                self.publish_weights()?;
            }
            Ok(version)
        });
        match sent {
            Ok(version) => self.syncing.push((version, applied)),
            // The caller may have dropped the receiver.
            Err(error) => _ = applied.send(Err(error)),
        }
        self.note_applied();
    }

    /// Answers callers whose weights have been applied by all workers.
    pub(super) fn note_applied(&mut self) {
        let now = self.now();
        let Some(run) = &self.run else { return };
        let (done, open) = std::mem::take(&mut self.syncing)
            .into_iter()
            .partition(|(version, _)| run.state.have_applied(*version, now));
        self.syncing = open;
        let done: Vec<_> = done;
        for (version, applied) in done {
            // The caller may have dropped the receiver.
            let _ = applied.send(Ok(version));
        }
    }
}
