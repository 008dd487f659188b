//! The life of a run: its start, its workers, and its end.

use std::future::pending;

use rollmesh_core::hub::{Record, StartRefusal};
use tokio::sync::oneshot;

use super::{actor::Actor, checkpoints::CheckpointNowError};
use crate::runs::{LastPictures, Run, RunEnd, RunParts, RunPlace, StartError, Summary};

/// A run that is over, while its last pictures are being drawn.
pub(super) struct Finishing {
    pictures: LastPictures,
    summary: Summary,
}

impl Actor {
    /// Starts a run, under the next number if `number` is `None`.
    pub(super) fn start_run(&mut self, number: Option<u32>, parts: RunParts) -> Result<(), StartError> {
        if self.hub.is_leaving { Err(StartRefusal::Leaving.into()) } else { self.begin_run(number, parts) }
    }

    /// Works like [`start_run`](Self::start_run), also for a hub that is about to stop.
    pub(super) fn begin_run(&mut self, number: Option<u32>, parts: RunParts) -> Result<(), StartError> {
        if !self.hub.is_free() || self.update.is_some() {
            return Err(StartRefusal::Busy.into());
        }
        let number = number.unwrap_or_else(|| self.hub.next_run());
        let place = RunPlace { number, maker: &self.maker, first_lease: self.next_lease, clock: &|| self.now() };
        let mut run = Run::new(place, parts)?;
        // The secret seeds the choice of audits: without it, workers could foresee which fragments are recomputed.
        let mut secret = [0; 8];
        let has_secret = getrandom::fill(&mut secret).is_ok();
        if has_secret && run.state.group.set_audits(self.audits, u64::from_le_bytes(secret)).is_err() {
            return Err(StartRefusal::Leaving.into());
        }
        // A run that has reached its end needs no workers.
        let is_at_end = self.hub.is_leaving || run.state.end_reached(self.now()).is_some();
        let workers = if is_at_end { 0 } else { run.worker_terms.num_workers as usize };
        let started = self.add_children_for(&run.worker_terms, workers)?;
        if let Err(error) = run.create_files() {
            self.send_back(started);
            return Err(error);
        }
        let history = std::mem::take(&mut run.history);
        let evaluations = std::mem::take(&mut run.evaluations);
        self.hub.count_run(number);
        self.hub.record(Record::RunStarted { run: number, env: run.config().env().into() });
        run.warnings.iter().for_each(|warning| self.hub.notice(1, warning.clone()));
        self.hub.run = Some(run);
        self.hub.dashboards.begin_run();
        for metrics in &history {
            self.hub.dashboards.add_iteration(metrics.point(number), metrics.named(number));
        }
        self.reschedule_evaluation(&evaluations);
        evaluations.into_iter().for_each(|point| self.hub.dashboards.add_evaluation(point, None));
        self.hub.bring_all_into_run();
        Ok(())
    }

    pub(super) fn end_run(&mut self, end: RunEnd) {
        // Takes the results that are available now; pending ones are not waited for.
        self.hub.quarantine_all();
        self.report_evaluations();
        let now = self.now();
        let unaudited = self.hub.num_unaudited();
        let Some(run) = self.hub.run.as_mut().filter(|run| !run.is_over()) else { return };
        let unevaluated = run.without_evaluation();
        let (summary, faults) = run.end(self.hub.course.end(end), unaudited, now);
        let pictures = run.finish_recording();
        self.next_lease = run.state.group.next_lease_id();
        let run = run.state.number();
        self.report_ledger(run, &summary.end);
        self.hub.record(Record::RunEnded { run });
        self.update = None;
        self.turn = None;
        self.syncing.clear();
        self.hub.announce_end();
        self.end_spare();
        unevaluated.into_iter().for_each(|text| self.hub.notice(1, text));
        faults.into_iter().for_each(|fault| self.hub.notice(2, fault));
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.hub.add_past_run();
        self.refresh_dashboards();
        self.hub.is_finishing = pictures.is_some();
        match pictures {
            Some(pictures) => self.finishing = Some(Finishing { pictures, summary }),
            None => self.ended = Some(summary),
        }
    }

    /// Handles that an episode of the run that is over was not recorded, or `None` once all are.
    pub(super) fn handle_last_pictures(&mut self, fault: Option<String>) {
        match fault {
            Some(fault) => self.hub.notice(2, fault),
            None => {
                self.hub.is_finishing = false;
                self.ended = self.finishing.take().map(|finishing| finishing.summary);
            }
        }
    }

    /// Notifies the waiting callers that the run is over. They may end the program, so its notices and records come first.
    pub(super) fn report_end(&mut self) {
        if let Some(summary) = self.ended.take()
            && let Some(done) = self.done.take()
        {
            // A run that the page started has no waiting caller.
            let _ = done.send(summary);
        }
        if self.hub.current().is_none() && !self.is_rolling_back() {
            // The callers may have dropped their receivers.
            self.drained.drain(..).for_each(|drained| _ = drained.send(()));
        }
    }

    /// Accepts no more workers and runs, and drains the current run before the program exits.
    pub(super) fn drain(&mut self, drained: oneshot::Sender<()>) {
        self.hub.is_leaving = true;
        self.give_up_waiting();
        if self.hub.current().is_some() {
            self.drained.push(drained);
            self.hub.drain_run();
        } else {
            // The caller may have dropped the receiver.
            let _ = drained.send(());
        }
    }

    /// Ends a run whose batch receiver was dropped, without waiting for the next batch.
    pub(super) fn end_unwanted_run(&mut self) {
        // A batch that is being handed over discovers this itself.
        if self.update.is_none() && self.hub.run.as_ref().is_some_and(Run::is_unwanted) {
            self.end_run(RunEnd::Stopped);
        }
    }
}

/// Waits for the next fault of the last pictures, or for `None` once they are drawn.
pub(super) async fn next_fault(finishing: &mut Option<Finishing>) -> Option<String> {
    match finishing {
        Some(finishing) => finishing.pictures.next_fault().await,
        None => pending().await,
    }
}
