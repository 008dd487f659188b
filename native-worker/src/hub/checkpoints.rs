//! Checkpoints of the run: periodic ones and those on request.

use std::future::pending;

use rollmesh_core::protocol::Kind;
use tokio::sync::oneshot;

use super::actor::Actor;
use crate::runs::{Run, SaveReport};

/// A checkpoint that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCheckpoint {
    /// The checkpoint's number in the run directory.
    pub number: u64,
    /// The iteration after which it was saved.
    pub iteration: u64,
}

/// The reason that no checkpoint was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointNowError {
    /// There is no run.
    #[error("there is no run to write a checkpoint of")]
    NoRun,
    /// The run has no directory.
    #[error("this run has no run directory, and so no checkpoints")]
    NoDirectory,
    /// The operating system reported an error.
    #[error("{0}")]
    Failed(String),
    /// The run ended first; its final checkpoint was saved then.
    #[error("the run has ended meanwhile")]
    Ended,
}

type CheckpointResult = Result<SavedCheckpoint, CheckpointNowError>;

/// The requester of a checkpoint.
#[derive(Debug)]
pub(super) enum Asker {
    /// The program.
    Program(oneshot::Sender<CheckpointResult>),
    /// An operator.
    Peer { peer: u32, request: u32 },
}

/// Requesters waiting for a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Askers {
    /// For the next checkpoint.
    waiting: Vec<Asker>,
    /// For the checkpoint that is being saved.
    being_served: Vec<Asker>,
}

impl Askers {
    /// Requeues requests for a checkpoint that was being saved when the run was rolled back.
    pub(super) fn requeue(&mut self) {
        self.waiting.append(&mut self.being_served);
    }
}

impl Actor {
    /// Saves the run as soon as its learner is idle and the previous checkpoint is on disk.
    pub(super) fn checkpoint_now(&mut self, asker: Asker) {
        let error = match self.hub.run.as_ref().filter(|run| !run.is_over()) {
            None => CheckpointNowError::NoRun,
            Some(run) if !run.has_files() => CheckpointNowError::NoDirectory,
            Some(_) => {
                self.askers.waiting.push(asker);
                return self.save_if_due();
            }
        };
        self.answer_asker(asker, Err(error));
    }

    fn answer_asker(&mut self, asker: Asker, answer: CheckpointResult) {
        match asker {
            // The caller may have dropped the receiver.
            Asker::Program(sender) => _ = sender.send(answer),
            Asker::Peer { peer, request } => {
                let done = answer.map(|_| 0).map_err(|error| error.to_string());
                self.hub.reply(peer, Kind::Checkpoint, request, done);
            }
        }
    }

    /// Saves the run if a checkpoint is due or was requested.
    pub(super) fn save_if_due(&mut self) {
        let now = self.now();
        let Some(run) = &mut self.hub.run else { return };
        if self.askers.waiting.is_empty() {
            run.save_if_due(now);
        } else if run.save_now(now) {
            self.askers.being_served = std::mem::take(&mut self.askers.waiting);
        }
    }

    pub(super) fn handle_save(&mut self, report: SaveReport) {
        let Some(run) = &mut self.hub.run else { return };
        if let Some(text) = run.record_save(&report) {
            self.hub.notice(if report.saved.is_ok() { 0 } else { 2 }, text);
        }
        let iteration = report.iteration;
        let saved = report.saved.map(|number| SavedCheckpoint { number, iteration });
        let answer = saved.map_err(CheckpointNowError::Failed);
        for asker in std::mem::take(&mut self.askers.being_served) {
            self.answer_asker(asker, answer.clone());
        }
        self.save_if_due();
    }

    /// Answers all waiting requests with an error.
    pub(super) fn refuse_checkpoints(&mut self, error: CheckpointNowError) {
        let Askers { waiting, being_served } = std::mem::take(&mut self.askers);
        for asker in waiting.into_iter().chain(being_served) {
            self.answer_asker(asker, Err(error.clone()));
        }
    }
}

/// Waits for the next report about the run's checkpoints.
pub(super) async fn next_save(run: &mut Option<Run>) -> SaveReport {
    let report = match run {
        Some(run) => run.next_save().await,
        None => None,
    };
    match report {
        Some(report) => report,
        None => pending().await,
    }
}
