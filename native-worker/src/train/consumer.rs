//! What becomes of a run's batches.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

use rollmesh_core::{
    batch::{MultiAgentBatch, SlotFragment},
    filter::{FilterError, RunFilter},
    ids::PolicyId,
    policy::Postprocessing,
    postprocess::{Finisher, PostprocessError, train_batch, train_batch_by_policy},
};
use tokio::sync::mpsc;

use super::{
    local::{Iterated, LocalWorker},
    output::RunOutput,
};
use crate::learner::{LearnError, Learned, LearnerThread, Results};

/// Who takes the batches of a run, one after the other.
pub(crate) enum Consumer {
    /// A learner, which makes new weights of each.
    Learner { thread: LearnerThread, postprocessing: Postprocessing, output: Option<RunOutput> },
    /// The run's own worker, which makes the batches itself, and what interrupts it.
    Local(LearnerThread<LocalWorker>, Arc<AtomicBool>),
    /// Somebody who takes the rows as they are. The weights stay until others are set.
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

/// A batch that nobody can learn from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error(transparent)]
    Postprocess(#[from] PostprocessError),
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// One batch of the fragments. Workers have postprocessed rows that are by policy; of the others, what a policy postprocesses by
/// itself, or not at all, has every column.
fn to_learn_from(
    fragments: &[SlotFragment],
    postprocessing: &Postprocessing,
) -> Result<MultiAgentBatch, PostprocessError> {
    if fragments.iter().any(|fragment| fragment.agents.is_some()) {
        return train_batch_by_policy(fragments);
    }
    let batch = match postprocessing {
        Postprocessing::Advantages(config) => train_batch(fragments, config)?,
        Postprocessing::None | Postprocessing::Custom => Finisher::default().finish(fragments, None)?,
    };
    let env_steps = batch.len();
    Ok(MultiAgentBatch::new([(PolicyId::DEFAULT, batch)].into(), env_steps))
}

/// A batch that is being consumed.
pub(crate) type Consuming = Pin<Box<dyn Future<Output = Update> + Send>>;

impl Consumer {
    /// Hands over the fragments of an iteration, in slot order; none to the run's own worker, which makes its batches itself.
    /// With a filter, a learner sees what the policy saw, and files hold what the environment showed.
    pub(super) fn submit(
        &self,
        fragments: Vec<SlotFragment>,
        filter: Option<&mut RunFilter>,
        results: Results,
    ) -> Result<Consuming, SubmitError> {
        match self {
            Self::Learner { thread, postprocessing, output } => {
                let batch = match filter {
                    None => to_learn_from(&fragments, postprocessing)?,
                    Some(filter) => {
                        filter.observe(&fragments)?;
                        to_learn_from(&filter.normalized(&fragments)?, postprocessing)?
                    }
                };
                let update = thread.submit(batch, results);
                // While the learner learns, away from the tasks that must not wait.
                let writing =
                    output.clone().map(|output| tokio::task::spawn_blocking(move || output.write(&fragments)));
                Ok(Box::pin(async move {
                    let update = update.await;
                    if let Some(writing) = writing {
                        match writing.await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => return Update::Failed(error.to_string()),
                            Err(error) => return Update::Failed(error.to_string()),
                        }
                    }
                    update.map_or_else(|error| Update::Failed(error.to_string()), Update::Learned)
                }))
            }
            Self::Local(worker, _) => {
                let iterated = worker.ask(|worker| worker.iterate(results));
                Ok(Box::pin(async {
                    match iterated.await.unwrap_or(Err(LearnError::Gone)) {
                        Ok(Some(iterated)) => Update::Iterated(Box::new(iterated)),
                        Ok(None) => Update::Unwanted,
                        Err(error) => Update::Failed(error.to_string()),
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
