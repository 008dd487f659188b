//! The iterations of a run: its updates, its evaluations, and weights that callers set.

use rollmesh_core::{
    hub::{HubRun as _, RunStep},
    ids::WeightsVersion,
    protocol::message::{EnvClip, EvaluationPoint},
    weights::Weights,
};
use tokio::sync::oneshot;

use super::actor::Actor;
use crate::runs::{IterationMetrics, Run, RunEnd, SyncError, Update};

impl Actor {
    pub(super) fn handle_update(&mut self, update: Update) {
        self.update = None;
        let now = self.now();
        let Some(run) = self.hub.run.as_mut().filter(|run| !run.is_over()) else { return };
        let (warnings, metrics) = match update {
            Update::Learned(learned, observed) => (Vec::new(), run.handle_update(learned, observed, now)),
            Update::Iterated(iterated) => run.handle_iterated(*iterated, now),
            Update::Taken { is_cut, rows } => (Vec::new(), run.handle_taken(is_cut, rows, now)),
            Update::Unwanted => {
                run.state.forget_batch();
                let asked = if run.state.is_draining() { RunEnd::Drained } else { RunEnd::Stopped };
                let end = run.state.end_reached(now).unwrap_or(asked);
                return self.end_run(end);
            }
            Update::Failed(error) => return self.end_run(RunEnd::Failed(error)),
        };
        let (number, notices) = (run.state.number(), run.write_metrics(&metrics));
        // A rollback to this point keeps that metrics line.
        run.keep_for_undoing(now);
        self.hub.dashboards.add_iteration(metrics.point(number), metrics.named(number));
        self.report_lines(notices);
        warnings.into_iter().for_each(|warning| self.hub.notice(1, warning));
        if let Some(run) = &mut self.hub.run {
            run.evaluate_if_due(now);
        }
        self.report_evaluations();
        self.publish_status();
        if let Some(turn) = self.turn.take() {
            // The program may no longer wait.
            let _ = turn.send(metrics);
        }
        self.hub.course.handle_counted();
    }

    /// Reschedules the evaluation that had not finished when the resumed run was saved. It begins immediately: otherwise one of
    /// the next iterations could take its place in the queue.
    pub(super) fn reschedule_evaluation(&mut self, known: &[EvaluationPoint]) {
        // A run that reads its input is evaluated at its end, too.
        let now = self.now();
        let goes_on = |run: &Run| run.state.end_reached(now).is_none() || run.config().reads_input();
        let is_due =
            |run: &&mut Run| goes_on(run) && known.iter().all(|point| point.iteration != run.state.iteration());
        if let Some(run) = self.hub.run.as_mut().filter(is_due).filter(|_| !self.hub.is_leaving) {
            run.evaluate_if_due(now);
            self.report_evaluations();
        }
    }

    /// Interrupts the batch of a run's own worker if its time limit is over.
    pub(super) fn interrupt_late_run(&self) {
        self.hub.run.iter().for_each(|run| run.interrupt_if_late(self.now()));
    }

    /// Reports the result of an evaluation, and episodes that could not be recorded. Errors are logged and have no other effect.
    pub(super) fn report_evaluations(&mut self) {
        while let Some(fault) = self.hub.run.as_mut().and_then(Run::poll_recording) {
            self.hub.notice(1, fault);
        }
        let is_watched = self.hub.has_dashboards();
        let Some(run) = self.hub.run.as_mut() else { return };
        let number = run.state.number();
        let evaluated = match run.poll_evaluation(&self.maker.program, is_watched) {
            None => return,
            Some(Err(error)) => return self.hub.notice(1, error.to_string()),
            Some(Ok(evaluated)) => evaluated,
        };
        let notices = run.write_evaluation(&evaluated);
        let fault = evaluated.fault.clone();
        let point = evaluated.metrics.point(number);
        let clip = evaluated.clip.map(|clip| EnvClip { run: number, ..clip });
        self.hub.dashboards.add_evaluation(point, clip);
        self.report_lines(notices);
        fault.into_iter().for_each(|fault| self.hub.notice(1, fault));
    }

    /// Returns true while the current run is stepwise.
    pub(super) fn has_stepwise_run(&self) -> bool {
        self.hub.course.is_stepwise() && self.hub.run.as_ref().is_some_and(|run| !run.is_over())
    }

    /// Handles the program's request for the next iteration. It gets no answer if its run is over.
    pub(super) fn take_turn(&mut self, turn: oneshot::Sender<IterationMetrics>) {
        if self.has_stepwise_run() {
            self.turn = Some(turn);
            self.hub.course.take_turn();
        }
    }

    pub(super) fn take_step(&mut self, step: RunStep) {
        match step {
            RunStep::RollBack(before) => self.roll_back(before),
            RunStep::End(end) => self.end_run(end),
            RunStep::Save => self.save_if_due(),
            RunStep::Begin => self.hub.begin_iteration(),
        }
    }

    /// Sets weights of a run without a learner. They are sent immediately while no fragment is being made, else before the next
    /// iteration that has not begun.
    pub(super) fn sync_weights(
        &mut self,
        weights: &Weights,
        applied: oneshot::Sender<Result<WeightsVersion, SyncError>>,
    ) {
        let set = self.hub.run.as_mut().ok_or(SyncError::NoRun).and_then(|run| {
            let version = run.state.set_weights(weights)?;
            Ok((version, run.state.is_between_iterations()))
        });
        let sent = set.and_then(|(version, at_once)| {
            if at_once {
                self.hub.publish_weights()?;
            }
            Ok(version)
        });
        match sent {
            Ok(version) => self.syncing.push((version, applied)),
            // The caller may have dropped the receiver.
            Err(error) => _ = applied.send(Err(error)),
        }
        self.record_applied();
    }

    /// Answers callers whose weights have been applied by all workers.
    pub(super) fn record_applied(&mut self) {
        let now = self.now();
        let Some(run) = &self.hub.run else { return };
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
