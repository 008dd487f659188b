//! The consumers of a run's batches.

use std::{
    future::ready,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use rollmesh_core::{
    batch::SlotFragment,
    hub::{BatchWork, Observed},
};
use tokio::sync::mpsc;

use super::{
    local::{Iterated, LocalWorker},
    output::RunOutput,
};
use crate::learner::{LearnError, Learned, LearnerThread, Results};

/// The time for which the end of a run waits for the end of its own worker.
const PATIENCE: Duration = Duration::from_secs(1);

/// Consumes the batches of a run, one after the other.
pub(crate) enum Consumer {
    /// A learner, which updates the weights with each.
    Learner { thread: LearnerThread, output: Option<RunOutput> },
    /// The run's own worker, which makes the batches itself, and the flag that interrupts it.
    Local { thread: LearnerThread<LocalWorker>, is_interrupted: Arc<AtomicBool>, output: Option<RunOutput> },
    /// Rows are taken, and written to the output, on a thread of their own. The weights stay.
    Rows { thread: LearnerThread<Box<dyn TakeRows>>, output: Option<RunOutput> },
    /// A caller that takes the rows. The weights stay until others are set.
    Caller(mpsc::Sender<Vec<SlotFragment>>),
}

/// Takes the rows of a run without a learner.
pub(crate) trait TakeRows: Send {
    /// Takes an iteration, and returns the number of the first rows of each fragment that the run wants; `None` for all
    /// rows.
    fn take(&mut self, fragments: &[SlotFragment]) -> Result<Option<Vec<u64>>, LearnError>;

    /// Returns what it has taken so far.
    fn taken(&self) -> TakenRows;

    /// Returns the state after the rows so far, for a checkpoint.
    fn state(&mut self) -> Result<Vec<u8>, LearnError>;

    /// Continues from the [state](Self::state) in a checkpoint, which is untrusted.
    fn restore(&mut self, state: &[u8]) -> Result<(), LearnError>;
}

/// The rows that a run without a learner has handed out: of its last fragments perhaps only the first ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenRows {
    pub(crate) env_steps: u64,
    /// Of all episodes that have ended in these rows; `None` before the first.
    pub(crate) episode_return_mean: Option<f64>,
}

/// The result of consuming a batch.
pub(crate) enum Update {
    /// New weights, and the observations of the run's filter.
    Learned(Learned, Observed),
    /// New weights, from a batch that the run's own worker made.
    Iterated(Box<Iterated>),
    /// It was taken, as a whole or only the first rows of its fragments; with all rows so far, unless a caller has them.
    Taken { is_cut: bool, rows: Option<TakenRows> },
    /// The caller has dropped its receiver.
    Unwanted,
    /// The learner failed, or the rows could not be written to the run's output.
    Failed(String),
}

/// A batch that is being consumed.
pub(crate) type Consuming = Pin<Box<dyn Future<Output = Update> + Send>>;

impl Consumer {
    /// Ends the consumer. If rows are taken, this waits until the submitted batch was taken and written as a whole; if the
    /// run's own worker samples, until it has recorded the end of its open episodes, unless it hangs.
    pub(super) fn finish(self) {
        match self {
            Self::Rows { thread, .. } => thread.finish(),
            Self::Local { thread, .. } => thread.finish_within(PATIENCE),
            Self::Learner { .. } | Self::Caller(_) => {}
        }
    }

    /// Passes a batch to the run's consumer; a learner's callbacks get the `recreated` workers before.
    pub(super) fn submit(&self, work: BatchWork, results: Results, recreated: Vec<u32>) -> Consuming {
        match (self, work) {
            (Self::Learner { thread, output }, BatchWork::Learn(rows)) => {
                // Written while the learner learns, on a thread that may block.
                let writing = output.clone().map(|output| {
                    let fragments = rows.fragments().to_vec();
                    tokio::task::spawn_blocking(move || output.write(&fragments, None))
                });
                let update = thread.ask(move |learners| {
                    learners.notify_recreated(&recreated)?;
                    let (batch, observed) = rows.join().map_err(|error| LearnError::Rows(error.to_string()))?;
                    Ok(Update::Learned(learners.learn(batch, results)?, observed))
                });
                Box::pin(async move {
                    let update = update.await;
                    if let Some(writing) = writing {
                        match writing.await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => return Update::Failed(error.to_string()),
                            Err(error) => return Update::Failed(error.to_string()),
                        }
                    }
                    update.unwrap_or(Err(LearnError::Gone)).unwrap_or_else(|error| Update::Failed(error.to_string()))
                })
            }
            (Self::Local { thread, .. }, BatchWork::Iterate) => {
                let iterated = thread.ask(|worker| worker.iterate(results));
                Box::pin(async {
                    match iterated.await.unwrap_or(Err(LearnError::Gone)) {
                        Ok(Some(iterated)) => Update::Iterated(Box::new(iterated)),
                        Ok(None) => Update::Unwanted,
                        Err(error) => Update::Failed(error.to_string()),
                    }
                })
            }
            (Self::Rows { thread, output }, BatchWork::HandOver(fragments)) => {
                let output = output.clone();
                let taken = thread.ask(move |rows| {
                    let wanted = rows.take(&fragments)?;
                    let written = output.map_or(Ok(()), |output| output.write(&fragments, wanted.as_deref()));
                    written.map_err(|error| LearnError::Rows(error.to_string()))?;
                    Ok(Update::Taken { is_cut: wanted.is_some(), rows: Some(rows.taken()) })
                });
                Box::pin(async {
                    let taken = taken.await.unwrap_or(Err(LearnError::Gone));
                    taken.unwrap_or_else(|error| Update::Failed(error.to_string()))
                })
            }
            (Self::Caller(batches), BatchWork::HandOver(fragments)) => {
                let batches = batches.clone();
                Box::pin(async move {
                    match batches.send(fragments).await {
                        Ok(()) => Update::Taken { is_cut: false, rows: None },
                        Err(_) => Update::Unwanted,
                    }
                })
            }
            // Consumer and batch are always of the same run.
            (_, work) => Box::pin(ready(Update::Failed(format!("the run's consumer does not take {work:?}")))),
        }
    }
}
