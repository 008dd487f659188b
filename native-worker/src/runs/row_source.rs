//! The source of a run's rows without leases, and the worker that learns from them.

use std::{error::Error, path::Path, sync::atomic::AtomicBool};

use rollmesh_core::{
    batch::AnyBatch,
    episode::GlobalVars,
    run::RunConfig,
    worker::{Registry, RolloutConfig, RolloutWorker, WorkerMetrics},
};

use super::own_sampler::SampleWatch;
use crate::learner::LearnError;

/// Starts the workers that read for a run from files, as processes of a program. The registry knows the policies that learn.
pub(crate) type StartReaders =
    fn(&RunConfig, Registry, program: &Path) -> Result<Box<dyn RowSource>, Box<dyn Error + Send + Sync>>;

/// The workers that sample or read a run's rows, and the one whose policies learn from them: the local worker of a group, or
/// a worker that does both. The provided methods are those of the latter.
pub(crate) trait RowSource: Send {
    /// Returns the worker whose policies learn.
    fn learner(&mut self) -> Result<&mut RolloutWorker, LearnError>;

    /// Returns the next batches, at least one: of the only worker, or of all workers until there are as many env steps as
    /// wanted. `None` once it is interrupted.
    fn next_batches(&mut self, wanted: usize, is_interrupted: &AtomicBool)
    -> Result<Option<Vec<AnyBatch>>, LearnError>;

    /// Ends all workers. The run is over: there is no caller to report a failure to.
    fn end(&mut self);

    /// Returns the settings of the workers that sample or read.
    fn sampler_config(&mut self) -> Result<RolloutConfig, LearnError> {
        Ok(self.learner()?.creation_args().clone())
    }

    /// Returns the reports of all workers since the last call.
    fn metrics(&mut self) -> Result<Vec<WorkerMetrics>, LearnError> {
        Ok(vec![self.learner()?.metrics()])
    }

    /// Returns the number of workers that sample or read.
    fn num_samplers(&self) -> usize {
        1
    }

    /// Returns the states of the samplers and inputs, by worker; `None` for a lost worker.
    fn sampler_states(&mut self) -> Result<Vec<Option<Vec<u8>>>, LearnError> {
        Ok(vec![Some(self.learner()?.sampler_state()?)])
    }

    /// Restores the [states](Self::sampler_states) of all workers. One that was lost at that time starts from the beginning.
    fn set_sampler_states(&mut self, states: Vec<Option<Vec<u8>>>) -> Result<(), LearnError> {
        let learner = self.learner()?;
        Ok(states.into_iter().flatten().try_for_each(|state| learner.set_sampler_state(&state))?)
    }

    /// Returns true if sampling or reading can be resumed at the current position.
    fn can_be_resumed(&self) -> bool {
        true
    }

    /// Sends the learner's weights, these variables and the merged filter statistics to all workers.
    fn sync(&mut self, vars: &GlobalVars) -> Result<(), LearnError> {
        Ok(self.learner()?.set_global_vars(vars, None)?)
    }

    /// Returns the view of the learner's own sampling for other threads; `None` if it does not sample.
    fn own_watch(&self) -> Option<SampleWatch> {
        None
    }

    /// Returns the number of episodes that retries have abandoned since the last call. A group does not retry: it replaces
    /// the worker, see [`disturbances`](Self::disturbances).
    fn take_abandoned(&mut self) -> u64 {
        0
    }

    /// Returns the number of workers that were replaced so far, or are lost now: their successors begin other episodes.
    fn disturbances(&self) -> u64 {
        0
    }

    /// Restores lost workers, and returns notices for the user.
    fn tend(&mut self) -> Result<Vec<String>, LearnError> {
        Ok(Vec::new())
    }
}
