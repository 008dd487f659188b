//! What becomes of a run's batches.

use std::{
    future::ready,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

use rollmesh_core::{batch::SlotFragment, hub::BatchWork};
use tokio::sync::mpsc;

use super::{
    local::{Iterated, LocalWorker},
    output::RunOutput,
};
use crate::learner::{LearnError, Learned, LearnerThread, Results};

/// What consumes the batches of a run, one after the other.
pub(crate) enum Consumer {
    /// A learner, which makes new weights of each.
    Learner { thread: LearnerThread, output: Option<RunOutput> },
    /// The run's own worker, which makes the batches itself, and what interrupts it.
    Local(LearnerThread<LocalWorker>, Arc<AtomicBool>),
    /// A caller that takes the rows as they are. The weights stay until others are set.
    Taker(mpsc::Sender<Vec<SlotFragment>>),
}

/// What has become of a batch.
pub(crate) enum Update {
    /// New weights.
    Learned(Learned),
    /// New weights, of a batch that the run's own worker has made.
    Iterated(Box<Iterated>),
    /// It was taken.
    Taken,
    /// Nobody takes batches any more.
    Unwanted,
    /// The learner cannot go on, or what it learned from is not in the run's files.
    Failed(String),
}

/// A batch that is being consumed.
pub(crate) type Consuming = Pin<Box<dyn Future<Output = Update> + Send>>;

impl Consumer {
    /// Passes a batch to whatever consumes the batches of this run.
    pub(super) fn submit(&self, work: BatchWork, results: Results) -> Consuming {
        match (self, work) {
            (Self::Learner { thread, output }, BatchWork::Learn { batch, fragments }) => {
                let update = thread.submit(batch, results);
                // While the learner learns, away from the tasks that must not block.
                let writing =
                    output.clone().map(|output| tokio::task::spawn_blocking(move || output.write(&fragments)));
                Box::pin(async move {
                    let update = update.await;
                    if let Some(writing) = writing {
                        match writing.await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => return Update::Failed(error.to_string()),
                            Err(error) => return Update::Failed(error.to_string()),
                        }
                    }
                    update.map_or_else(|error| Update::Failed(error.to_string()), Update::Learned)
                })
            }
            (Self::Local(worker, _), BatchWork::Iterate) => {
                let iterated = worker.ask(|worker| worker.iterate(results));
                Box::pin(async {
                    match iterated.await.unwrap_or(Err(LearnError::Gone)) {
                        Ok(Some(iterated)) => Update::Iterated(Box::new(iterated)),
                        Ok(None) => Update::Unwanted,
                        Err(error) => Update::Failed(error.to_string()),
                    }
                })
            }
            (Self::Taker(batches), BatchWork::HandOver(fragments)) => {
                let batches = batches.clone();
                Box::pin(async move {
                    match batches.send(fragments).await {
                        Ok(()) => Update::Taken,
                        Err(_) => Update::Unwanted,
                    }
                })
            }
            // Both were made for the same run.
            (_, work) => Box::pin(ready(Update::Failed(format!("the run's consumer does not take {work:?}")))),
        }
    }
}
