//! Where the rows of a run without leases come from, and the worker that learns from them.

use std::sync::atomic::{AtomicBool, Ordering};

use rollmesh_core::{
    batch::AnyBatch,
    episode::GlobalVars,
    filter::FilterKind,
    time::Micros,
    worker::{RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerMetrics},
};

use crate::{
    learner::LearnError,
    worker_group::{ForEachWorker, GroupError, SyncFilters, SyncWeights, WorkerGroup},
};

/// How long a worker samples before it looks for an interruption.
const SPAN: Micros = Micros(50_000);

/// What samples or reads, and learns.
pub(super) enum Rows {
    /// One worker does both.
    Alone(Box<RolloutWorker>),
    /// The local worker of a group learns from what the others sample or read; alone, it does both.
    Group(Box<WorkerGroup>),
}

impl Rows {
    /// Returns the worker whose policies learn.
    pub(super) fn learner(&mut self) -> Result<&mut RolloutWorker, LearnError> {
        match self {
            Self::Alone(worker) => Ok(worker),
            Self::Group(group) => group.local_worker().ok_or_else(|| failed(GroupError::NoLocalWorker("learning"))),
        }
    }

    /// Returns the settings of all workers.
    pub(super) fn config(&mut self) -> Result<RolloutConfig, LearnError> {
        Ok(self.learner()?.creation_args().clone())
    }

    /// Returns the next batches, at least one: of one worker, or of all workers until there are as many env steps as wanted.
    /// `None` once it is interrupted.
    pub(super) fn sample(
        &mut self,
        wanted: usize,
        is_interrupted: &AtomicBool,
    ) -> Result<Option<Vec<AnyBatch>>, LearnError> {
        let is_interrupted = || is_interrupted.load(Ordering::Relaxed);
        match self {
            Self::Alone(worker) => {
                while !is_interrupted() {
                    if let Some(batch) = worker.sample_within(SPAN)? {
                        return Ok(Some(vec![batch]));
                    }
                }
                Ok(None)
            }
            Self::Group(group) => group.sample_unless(wanted, is_interrupted).map_err(failed),
        }
    }

    /// Returns what all workers have reported since the last call.
    pub(super) fn metrics(&mut self) -> Result<Vec<WorkerMetrics>, LearnError> {
        match self {
            Self::Alone(worker) => Ok(vec![worker.metrics()]),
            Self::Group(group) => {
                let answers = group.foreach_worker(WorkerCommand::Metrics).map_err(failed)?.into_iter();
                Ok(answers
                    .filter_map(|answer| match answer {
                        WorkerAnswer::Metrics(metrics) => Some(*metrics),
                        _ => None,
                    })
                    .collect())
            }
        }
    }

    /// Returns where the samplers and inputs are, by worker: of those that sample for the learner, or of itself.
    pub(super) fn sampler_states(&mut self) -> Result<Vec<Vec<u8>>, LearnError> {
        match self {
            Self::Group(group) if group.num_remote_workers() > 0 => {
                let asked = group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::SamplerState);
                let states = asked.map_err(failed)?.into_iter().filter_map(|answer| match answer {
                    WorkerAnswer::State(state) => Some(state),
                    _ => None,
                });
                Ok(states.collect())
            }
            alone => Ok(vec![alone.learner()?.sampler_state()?]),
        }
    }

    /// Lets all workers continue at [states](Self::sampler_states).
    pub(super) fn set_sampler_states(&mut self, states: Vec<Vec<u8>>) -> Result<(), LearnError> {
        let workers = match self {
            Self::Alone(_) => 0,
            Self::Group(group) => group.num_remote_workers(),
        };
        if states.len() != workers.max(1) {
            let text = format!("the run was saved with {} workers and is resumed with {workers}", states.len());
            return Err(LearnError::Rows(text));
        }
        match self {
            Self::Group(group) if workers > 0 => {
                let tasks = states.into_iter().map(WorkerCommand::SetSamplerState).collect();
                group.foreach_worker_each(&ForEachWorker::remote(), tasks).map_err(failed)?;
            }
            alone => {
                for state in states {
                    alone.learner()?.set_sampler_state(&state)?;
                }
            }
        }
        Ok(())
    }

    /// Lets all workers act with the learner's weights, and share statistics of observations.
    pub(super) fn sync(&mut self, vars: &GlobalVars) -> Result<(), LearnError> {
        let learner = self.learner()?;
        learner.set_global_vars(vars, None)?;
        let has_filter = learner.creation_args().observation_filter != FilterKind::NoFilter;
        let Self::Group(group) = self else { return Ok(()) };
        if has_filter {
            group.sync_filters(&SyncFilters::default()).map_err(failed)?;
        }
        group.sync_weights(SyncWeights { global_vars: Some(vars), ..SyncWeights::default() }).map_err(failed)
    }

    /// Brings back workers that were lost, and returns what users should know of the workers.
    pub(super) fn tend(&mut self) -> Result<Vec<String>, LearnError> {
        let Self::Group(group) = self else { return Ok(Vec::new()) };
        group.probe_unhealthy_workers().map_err(failed)?;
        Ok(std::iter::from_fn(|| group.next_notice()).collect())
    }

    /// Returns how often a worker was replaced, which then began other episodes.
    pub(super) fn restarts(&self) -> u64 {
        match self {
            Self::Alone(_) => 0,
            Self::Group(group) => group.num_remote_worker_restarts(),
        }
    }

    /// Ends all workers.
    pub(super) fn stop(&mut self) {
        match self {
            // The run is over: no caller is left to report a failure to.
            Self::Alone(worker) => _ = worker.stop(),
            Self::Group(group) => group.stop(),
        }
    }
}

fn failed(error: GroupError) -> LearnError {
    LearnError::Rows(error.to_string())
}
