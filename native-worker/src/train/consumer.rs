//! What becomes of a run's batches.

use std::pin::Pin;

use rollmesh_core::{
    batch::SlotFragment,
    filter::{FilterError, RunFilter},
    postprocess::{PostprocessError, train_batch},
    weights::Weights,
};
use tokio::sync::mpsc;

use super::output::RunOutput;
use crate::learner::{LearnError, LearnerThread, UpdateStats};

/// Who takes the batches of a run, one after the other.
pub(crate) enum Consumer {
    /// A learner, which makes new weights of each.
    Learner { thread: LearnerThread, gamma: f64, lambda: f64, output: Option<RunOutput> },
    /// Somebody who takes the rows as they are. The weights stay until others are set.
    Taker(mpsc::Sender<Vec<SlotFragment>>),
}

/// What has become of a batch.
pub(crate) enum Update {
    /// New weights.
    Learned(Weights, UpdateStats),
    /// It was taken.
    Taken,
    /// Nobody takes batches any more.
    Unwanted,
    /// The learner cannot go on.
    Failed(LearnError),
    /// It was learned from, but is not in the run's files.
    NotWritten(String),
}

/// A batch that nobody can learn from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error(transparent)]
    Postprocess(#[from] PostprocessError),
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// A batch that is being consumed.
pub(crate) type Consuming = Pin<Box<dyn Future<Output = Update> + Send>>;

impl Consumer {
    /// Hands over the fragments of an iteration, in slot order. With a filter, a learner sees what the policy saw, and files
    /// hold what the environment showed.
    pub(super) fn submit(
        &self,
        fragments: Vec<SlotFragment>,
        filter: Option<&mut RunFilter>,
    ) -> Result<Consuming, SubmitError> {
        match self {
            Self::Learner { thread, gamma, lambda, output } => {
                let batch = match filter {
                    None => train_batch(&fragments, *gamma, *lambda)?,
                    Some(filter) => {
                        filter.observe(&fragments)?;
                        train_batch(&filter.normalized(&fragments)?, *gamma, *lambda)?
                    }
                };
                let update = thread.submit(batch);
                // While the learner learns, away from the tasks that must not wait.
                let writing =
                    output.clone().map(|output| tokio::task::spawn_blocking(move || output.write(&fragments)));
                Ok(Box::pin(async move {
                    let update = update.await;
                    if let Some(writing) = writing {
                        match writing.await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => return Update::NotWritten(error.to_string()),
                            Err(error) => return Update::NotWritten(error.to_string()),
                        }
                    }
                    match update {
                        Ok((weights, stats)) => Update::Learned(weights, stats),
                        Err(error) => Update::Failed(error),
                    }
                }))
            }
            Self::Taker(batches) => {
                let batches = batches.clone();
                Ok(Box::pin(async move {
                    match batches.send(fragments).await {
                        Ok(()) => Update::Taken,
                        Err(_) => Update::Unwanted,
                    }
                }))
            }
        }
    }
}
