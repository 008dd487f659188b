//! What a program asks of its hub.

use std::time::Duration;

use rollmesh_core::{batch::SlotFragment, hub::RunLoopError, ids::WeightsVersion, weights::Weights};
use tokio::sync::{mpsc, oneshot};

use super::{CheckpointNowError, Hub, HubNotice, SavedCheckpoint, SyncError, actor::Event, checkpoints};
use crate::{
    checkpoint::PolicyCheckpoint,
    learner::LearnError,
    train::{IterationMetrics, RunRequest, SavedRun, StartError, Summary, Task},
    worker_group::WorkerGroup,
};

impl Hub {
    /// Begins a run and starts its local workers. The receiver gets the summary when the run is over.
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is going on.
    pub async fn train(&self, request: impl Into<RunRequest>) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Train(Box::new(request.into())), false).await
    }

    /// Goes on with a run that was begun before, with the same bits as if it had never ended; otherwise as
    /// [`train`](Self::train).
    ///
    /// # Errors
    /// [`StartRunError`] when the run cannot go on or another run is going on.
    #[doc(alias = "restore")]
    pub async fn resume(&self, saved: SavedRun) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Resume(Box::new(saved)), false).await
    }

    /// As [`train`](Self::train), but each iteration begins when [`step`](Self::step) asks for it.
    pub(crate) async fn train_stepwise(
        &self,
        request: RunRequest,
    ) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Train(Box::new(request)), true).await
    }

    /// As [`resume`](Self::resume), but each iteration begins when [`step`](Self::step) asks for it.
    pub(crate) async fn resume_stepwise(&self, saved: SavedRun) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        self.start_run(Task::Resume(Box::new(saved)), true).await
    }

    /// As [`train_stepwise`](Self::train_stepwise) or [`resume_stepwise`](Self::resume_stepwise), from what the workers of a
    /// group sample or read.
    pub(crate) async fn train_over(
        &self,
        request: RunRequest,
        saved: Option<SavedRun>,
        workers: WorkerGroup,
    ) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        let task = Task::Over(Box::new(request), saved.map(Box::new), Box::new(workers));
        self.start_run(task, true).await
    }

    /// Executes an iteration of a run that begins them when it is asked to; none if the run is over.
    pub(crate) async fn step(&self) -> Option<IterationMetrics> {
        let (asker, answer) = oneshot::channel();
        // Without a hub there is no answer.
        let _ = self.events.send(Event::Step { asker }).await;
        answer.await.ok()
    }

    /// The policies of the run that goes on.
    pub(crate) async fn policy(&self) -> Option<PolicyCheckpoint> {
        let (asker, answer) = oneshot::channel();
        // Without a hub there is no answer.
        let _ = self.events.send(Event::Policy { asker }).await;
        answer.await.ok()
    }

    /// Saves the run in its directory, as it is after its latest update, and waits until that is on the disk. It is saved
    /// now and then in any case.
    ///
    /// # Errors
    /// [`CheckpointNowError`]. What was saved before is still there.
    #[doc(alias = "save_checkpoint")]
    pub async fn checkpoint(&self) -> Result<SavedCheckpoint, CheckpointNowError> {
        let (asker, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::Checkpoint { asker: checkpoints::Asker::Program(asker) }).await;
        answer.await.unwrap_or(Err(CheckpointNowError::NoRun))
    }

    /// Begins a run without a learner and starts its local workers: rows under fixed weights, handed over batch by batch.
    ///
    /// ```no_run
    /// # async fn example(hub: &rollmesh::hub::Hub) -> Result<(), rollmesh::hub::StartRunError> {
    /// let mut sampling = hub.sample(rollmesh::train::RunConfig::sampling("CartPole-v1", 64)).await?;
    /// while let Some(fragments) = sampling.batches.recv().await {
    ///     // One fragment per slot, in slot order.
    ///     assert_eq!(fragments.len(), 64);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StartRunError`] when the configuration cannot be run or another run is going on.
    #[doc(alias = "synchronous_parallel_sample")]
    pub async fn sample(&self, request: impl Into<RunRequest>) -> Result<Sampling, StartRunError> {
        let (sender, batches) = mpsc::channel(1);
        let summary = self.start_run(Task::Sample(Box::new(request.into()), sender), false).await?;
        Ok(Sampling { batches, summary })
    }

    /// Sets weights in a run that [`sample`](Self::sample) began, and waits until all its workers act with them, for one
    /// that is slow to say so until it leaves or is quarantined. An iteration that is going on ends with the weights that
    /// it began with. The version is one above the latest.
    ///
    /// # Errors
    /// [`SyncError`] when there is no such run, or its policy has other tensors.
    #[doc(alias = "set_weights")]
    pub async fn sync_weights(&self, weights: Weights) -> Result<WeightsVersion, SyncError> {
        let (applied, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::SyncWeights { weights, applied }).await;
        answer.await.unwrap_or(Err(SyncError::Ended))
    }

    /// What workers have sent so far, and which processes the local ones are.
    pub async fn traffic(&self) -> Traffic {
        let (reply, answer) = oneshot::channel();
        // Without a hub nobody answers.
        let _ = self.events.send(Event::CountTraffic { reply }).await;
        answer.await.unwrap_or_default()
    }

    async fn start_run(&self, task: Task, stepwise: bool) -> Result<oneshot::Receiver<Summary>, StartRunError> {
        let (started, answer) = oneshot::channel();
        let (done, summary) = oneshot::channel();
        let request = Event::Start { task, stepwise, started, done };
        let sent = self.events.send(request).await.is_ok();
        let answer = if sent { answer.await.unwrap_or(Err(StartError::HubGone)) } else { Err(StartError::HubGone) };
        answer.map(|()| summary).map_err(StartRunError)
    }

    /// Prepares the end of the program: takes no more workers and begins no more runs, and drains the run that goes on. Its
    /// leases have ten seconds to end; what they bring is committed, and learned from if the iteration becomes complete
    /// by it. Returns when the run is over; its summary comes as always.
    pub async fn drain(&self) {
        // Without a hub there is no run.
        let _ = self.begin_drain().await.await;
    }

    /// As [`drain`](Self::drain); the receiver tells when the run is over.
    pub(crate) async fn begin_drain(&self) -> oneshot::Receiver<()> {
        let (drained, over) = oneshot::channel();
        let _ = self.events.send(Event::Drain { drained }).await;
        over
    }

    /// Ends the run, if one is going on, after the update that is being computed if the run has a directory to go on from;
    /// its summary comes as always.
    pub async fn stop_run(&self) {
        // A hub that is gone has no run.
        let _ = self.events.send(Event::StopRun).await;
    }

    /// Says goodbye to everybody, ends the local workers and stops. What there was still to tell is returned, such as which runs
    /// will not begin.
    pub async fn shutdown(mut self) -> Vec<HubNotice> {
        let _ = self.events.send(Event::Shutdown).await;
        // The actor ends its children first; whatever hangs is killed when it is dropped.
        let _ = tokio::time::timeout(Duration::from_secs(5), &mut self.actor).await;
        std::iter::from_fn(|| self.take_notice()).collect()
    }
}

/// A run without a learner.
#[derive(Debug)]
pub struct Sampling {
    /// The fragments of all slots, in slot order, iteration after iteration. The run waits for whoever takes them, and
    /// ends when nobody does.
    pub batches: mpsc::Receiver<Vec<SlotFragment>>,
    /// What the run has come to, when it is over.
    pub summary: oneshot::Receiver<Summary>,
}

/// What workers cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the hub got from workers: whole frames on the socket, whatever they say.
    pub received_bytes: u64,
    /// The system's numbers of the local workers' processes.
    pub worker_pids: Vec<u32>,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartRunError(StartError);

impl StartRunError {
    /// True if another configuration would help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        let Self(error) = self;
        matches!(
            error,
            StartError::Config(_)
                | StartError::RunDir(_)
                | StartError::Output(_)
                | StartError::Launch(_)
                | StartError::Loop(RunLoopError::Restore(_))
                | StartError::Learner(LearnError::Worker(_))
        )
    }
}
