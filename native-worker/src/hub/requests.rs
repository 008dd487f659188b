//! The program's requests to its hub.

use std::time::Duration;

use rollmesh_core::{hub::StartRefusal, ids::WeightsVersion, weights::Weights};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use super::{
    CheckpointNowError, Hub, HubNotice, PendingSummary, RunStopper, Sampling, SavedCheckpoint, SyncError,
    actor::{Actor, Event},
    checkpoints::Asker,
};
use crate::{
    checkpoint::PolicyCheckpoint,
    child::HUB_GRACE,
    learner::LearnError,
    runs::{EvaluationMetrics, IterationMetrics, Run, RunRequest, RunTask, RunWork, SavedRun, StartError, Taker},
};

impl Hub {
    /// Starts a run and its local workers, and returns its summary, which is ready when the run is over.
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is in progress.
    pub async fn train(&self, request: impl Into<RunRequest>) -> Result<PendingSummary, StartRunError> {
        self.start_run(RunTask::Begin(Box::new(request.into())), RunWork::Learn, false).await
    }

    /// Resumes a run bit-identically, as if it had never ended; otherwise like [`train`](Self::train).
    ///
    /// # Errors
    /// [`StartRunError`] when the run cannot be resumed or another run is in progress.
    #[doc(alias = "restore")]
    pub async fn resume(&self, saved: SavedRun) -> Result<PendingSummary, StartRunError> {
        self.start_run(RunTask::Resume(Box::new(saved)), RunWork::Learn, false).await
    }

    /// Lets the actor execute a request, after earlier events, and waits for its answer; `None` if the hub has stopped, or has
    /// no answer.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Actor, oneshot::Sender<T>) + Send + 'static,
    ) -> Option<T> {
        let (asker, answer) = oneshot::channel();
        self.events.send(Event::ask(move |actor| ask(actor, asker))).await.ok()?;
        answer.await.ok()
    }

    /// Runs the next iteration of a stepwise run; `None` if the run is over.
    pub(crate) async fn step(&self) -> Option<IterationMetrics> {
        self.ask(Actor::take_turn).await
    }

    /// Returns the policies of the current run.
    pub(crate) async fn policy(&self) -> Option<PolicyCheckpoint> {
        self.ask(|actor, asker| {
            if let Some(run) = actor.hub.run.as_ref().filter(|_| actor.has_stepwise_run()) {
                // The caller may no longer wait, here and below.
                let _ = asker.send(run.policy());
            }
        })
        .await
    }

    /// Returns the latest evaluation of the current run.
    pub(crate) async fn evaluation(&self) -> Option<EvaluationMetrics> {
        self.ask(|actor, asker| {
            actor.report_evaluations();
            if let Some(evaluated) = actor.hub.run.as_ref().and_then(Run::evaluated) {
                let _ = asker.send(evaluated.clone());
            }
        })
        .await
    }

    /// Saves the run after its latest update in its directory, and waits until the checkpoint is on disk. Periodic
    /// checkpoints are written anyway.
    ///
    /// # Errors
    /// [`CheckpointNowError`]. Earlier checkpoints remain.
    #[doc(alias = "save_checkpoint")]
    pub async fn checkpoint(&self) -> Result<SavedCheckpoint, CheckpointNowError> {
        let saved = self.ask(|actor, asker| actor.checkpoint_now(Asker::Program(asker))).await;
        saved.unwrap_or(Err(CheckpointNowError::NoRun))
    }

    /// Starts a run without a learner and its local workers: it samples with fixed weights and hands over batch by batch.
    ///
    /// ```no_run
    /// # async fn example(hub: &rollmesh::hub::Hub) -> Result<(), rollmesh::hub::StartRunError> {
    /// let mut sampling = hub.sample(rollmesh::train::RunConfig::sampling("CartPole-v1", 64)).await?;
    /// while let Some(fragments) = sampling.next_batch().await {
    ///     // One fragment per slot, in slot order.
    ///     assert_eq!(fragments.len(), 64);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is in progress.
    #[doc(alias = "synchronous_parallel_sample")]
    pub async fn sample(&self, request: impl Into<RunRequest>) -> Result<Sampling, StartRunError> {
        // The caller has the rows.
        let request = RunRequest { output: None, ..request.into() };
        let (sender, batches) = mpsc::channel(1);
        let work = RunWork::Take(Taker::Caller(sender));
        let summary = self.start_run(RunTask::Begin(Box::new(request)), work, false).await?;
        Ok(Sampling { batches, summary })
    }

    /// Sets weights in a run that [`sample`](Self::sample) began, and waits until all its workers have applied them; it
    /// stops waiting for a worker that disconnects or is quarantined. An iteration that is in progress ends with the weights
    /// that it began with. The new version is the latest one plus one.
    ///
    /// # Errors
    /// [`SyncError`] when there is no such run, or its policy has other tensors.
    #[doc(alias = "set_weights")]
    pub async fn sync_weights(&self, weights: Weights) -> Result<WeightsVersion, SyncError> {
        let applied = self.ask(move |actor, applied| actor.sync_weights(&weights, applied)).await;
        applied.unwrap_or(Err(SyncError::Ended))
    }

    /// Returns the number of bytes that workers have sent so far, and the process ids of the local ones.
    pub async fn traffic(&self) -> Traffic {
        self.ask(|actor, reply| _ = reply.send(actor.traffic())).await.unwrap_or_default()
    }

    /// Starts a run; each iteration of a stepwise one begins only when [`step`](Self::step) is called.
    pub(crate) async fn start_run(
        &self,
        task: RunTask,
        work: RunWork,
        stepwise: bool,
    ) -> Result<PendingSummary, StartRunError> {
        let parts = self.maker.clone().make_on_thread(|| Ok(task), work).await.map_err(StartRunError)?;
        let (done, summary) = oneshot::channel();
        let start = move |actor: &mut Actor, started: oneshot::Sender<_>| {
            let result = actor.start_run(None, parts);
            if result.is_ok() {
                actor.done = Some(done);
                actor.hub.course.set_stepwise(stepwise);
            }
            // The run continues without the caller.
            let _ = started.send(result);
        };
        let started = self.ask(start).await;
        started.unwrap_or(Err(StartRefusal::Leaving.into())).map(|()| PendingSummary(summary)).map_err(StartRunError)
    }

    /// Prepares the program's exit: accepts no more workers and runs, and drains the current run. Its leases have ten
    /// seconds to end; their fragments are committed, and learned from if they complete the iteration. Returns when the run
    /// is over; its summary is delivered as usual.
    pub async fn drain(&self) {
        // Without a hub there is no run.
        let _ = self.begin_drain().await.await;
    }

    /// Works like [`drain`](Self::drain); the receiver resolves when the run is over.
    pub(crate) async fn begin_drain(&self) -> oneshot::Receiver<()> {
        let (drained, over) = oneshot::channel();
        let _ = self.events.send(Event::ask(|actor| actor.drain(drained))).await;
        over
    }

    /// Ends the current run, if there is one; a run with a directory ends after the update that is being computed, from
    /// which it can be resumed. The summary is delivered as usual.
    pub async fn stop_run(&self) {
        // A hub that has stopped has no run.
        let _ = self.events.send(Event::ask(|actor| actor.hub.stop_run())).await;
    }

    /// Returns a handle that stops the run from any thread, with the event loop of this hub.
    pub(crate) fn stopper(&self, runtime: Handle) -> RunStopper {
        RunStopper { events: self.events.downgrade(), runtime }
    }

    /// Says goodbye to all peers, ends the local workers and stops the hub. Returns the notices that have not been read, for
    /// example about runs that will not begin.
    pub async fn shutdown(mut self) -> Vec<HubNotice> {
        let (events, actor) = (&self.events, &mut self.actor);
        let end = async {
            let _ = events.send(Event::Shutdown).await;
            let _ = actor.await;
        };
        // The actor ends its children first; children that hang are killed when it is dropped.
        let _ = tokio::time::timeout(HUB_GRACE + Duration::from_secs(1), end).await;
        std::iter::from_fn(|| self.take_notice()).collect()
    }
}

/// The workers' traffic and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the hub received from workers: whole frames on the socket, of any kind.
    pub received_bytes: u64,
    /// Process ids of the local workers.
    pub worker_pids: Vec<u32>,
}

/// An error of starting a run.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartRunError(StartError);

impl StartRunError {
    /// Returns whether another configuration would help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        let Self(error) = self;
        matches!(
            error,
            StartError::Config(_)
                | StartError::RunDir(_)
                | StartError::Output(_)
                | StartError::Monitor(_)
                | StartError::Launch(_)
                | StartError::Fingerprint(_)
                | StartError::Loop(_)
                | StartError::Learner(LearnError::Worker(_))
        )
    }
}
