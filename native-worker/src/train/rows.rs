//! The source of a run's rows without leases, and the worker that learns from them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use rollmesh_core::{
    batch::AnyBatch,
    episode::GlobalVars,
    filter::FilterKind,
    time::Micros,
    worker::{RolloutConfig, RolloutWorker, SampleFault, WorkerAnswer, WorkerCommand, WorkerMetrics},
};

use super::own_sampler::OwnSampler;
use crate::{
    learner::LearnError,
    worker_group::{ForEachWorker, GroupError, SyncFilters, SyncWeights, WorkerGroup},
};

/// How long a worker samples before it checks for an interruption.
const SPAN: Micros = Micros(50_000);

/// The workers that sample or read, and learn.
pub(super) enum RowSource {
    /// One worker does both.
    Alone(Box<OwnSampler>),
    /// The local worker of a group learns from what the remote workers sample or read; without these, it does both.
    Group(Box<WorkerGroup>),
}

impl RowSource {
    /// Returns the worker whose policies learn.
    pub(super) fn learner(&mut self) -> Result<&mut RolloutWorker, LearnError> {
        match self {
            Self::Alone(own) => Ok(&mut own.worker),
            Self::Group(group) => group.local_worker().ok_or_else(|| failed(GroupError::NoLocalWorker("learning"))),
        }
    }

    /// Returns the settings of all workers.
    pub(super) fn config(&mut self) -> Result<RolloutConfig, LearnError> {
        Ok(self.learner()?.creation_args().clone())
    }

    /// Returns the next batches, at least one: of the only worker, or of all workers until there are as many env steps as
    /// wanted. `None` once it is interrupted.
    pub(super) fn sample(
        &mut self,
        wanted: usize,
        is_interrupted: &AtomicBool,
    ) -> Result<Option<Vec<AnyBatch>>, LearnError> {
        let is_interrupted = || is_interrupted.load(Ordering::Relaxed);
        match self {
            Self::Alone(own) => {
                while !is_interrupted() {
                    let sampled = own.sample(|worker| worker.sample_within(SPAN)).map_err(|fault| match fault {
                        SampleFault::Fatal(fatal) => LearnError::Rows(fatal.explain(own.worker.creation_args())),
                        SampleFault::Other(error) => error.into(),
                    })?;
                    if let Some(batch) = sampled {
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
            Self::Alone(own) => Ok(vec![own.worker.metrics()]),
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

    /// Returns the number of episodes that retries have abandoned since the last call. A group does not retry: it replaces
    /// the worker, see [`disturbances`](Self::disturbances).
    pub(super) fn take_abandoned(&mut self) -> u64 {
        match self {
            Self::Alone(own) => own.take_abandoned(),
            Self::Group(_) => 0,
        }
    }

    /// Returns the states of the samplers and inputs, by worker: of the remote workers, or of the learner itself if it
    /// samples. `None` for a lost worker.
    pub(super) fn sampler_states(&mut self) -> Result<Vec<Option<Vec<u8>>>, LearnError> {
        match self {
            Self::Group(group) if group.num_remote_workers() > 0 => {
                let asked = group.foreach_worker_with_id(&ForEachWorker::remote(), |_| WorkerCommand::SamplerState);
                let mut found = BTreeMap::new();
                for (worker, answer) in asked.map_err(failed)? {
                    if let WorkerAnswer::State(state) = answer {
                        found.insert(worker, state);
                    }
                }
                Ok(group.remote_workers().iter().map(|worker| found.remove(worker)).collect())
            }
            alone => Ok(vec![Some(alone.learner()?.sampler_state()?)]),
        }
    }

    /// Restores all workers' [states](Self::sampler_states). A worker that was lost at that time starts from the beginning.
    pub(super) fn set_sampler_states(&mut self, states: Vec<Option<Vec<u8>>>) -> Result<(), LearnError> {
        let workers = match self {
            Self::Alone(_) => Vec::new(),
            Self::Group(group) => group.remote_workers(),
        };
        if states.len() != workers.len().max(1) {
            let (saved, now) = (states.len(), workers.len());
            return Err(LearnError::Rows(format!("the run was saved with {saved} workers and is resumed with {now}")));
        }
        match self {
            Self::Group(group) if !workers.is_empty() => {
                let known = workers.iter().zip(states).filter_map(|(worker, state)| Some((*worker, state?)));
                let (workers, tasks): (Vec<_>, Vec<_>) =
                    known.map(|(worker, state)| (worker, WorkerCommand::SetSamplerState(state))).unzip();
                let (wanted, options) = (workers.len(), ForEachWorker::remote().remote_workers(workers));
                let done = group.foreach_worker_each(&options, tasks).map_err(failed)?.len();
                if done < wanted {
                    let text = format!("only {done} of {wanted} workers are there to be given their states");
                    return Err(LearnError::Rows(text));
                }
            }
            alone => {
                for state in states.into_iter().flatten() {
                    alone.learner()?.set_sampler_state(&state)?;
                }
            }
        }
        Ok(())
    }

    /// Sends the learner's weights and the merged filter statistics to all workers.
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

    /// Restores lost workers, and returns notices for the user.
    pub(super) fn tend(&mut self) -> Result<Vec<String>, LearnError> {
        let Self::Group(group) = self else { return Ok(Vec::new()) };
        group.probe_unhealthy_workers().map_err(failed)?;
        Ok(std::iter::from_fn(|| group.next_notice()).collect())
    }

    /// Returns the number of workers that were replaced so far, or are lost now: their successors begin other episodes.
    pub(super) fn disturbances(&self) -> u64 {
        match self {
            Self::Alone(_) => 0,
            Self::Group(group) => {
                let lost = group.num_remote_workers().saturating_sub(group.healthy_worker_ids().len());
                group.num_remote_worker_restarts() + lost as u64
            }
        }
    }

    /// Ends all workers.
    pub(super) fn stop(&mut self) {
        match self {
            // The run is over: there is no caller to report a failure to.
            Self::Alone(own) => _ = own.worker.stop(),
            Self::Group(group) => group.stop(),
        }
    }
}

fn failed(error: GroupError) -> LearnError {
    LearnError::Rows(error.to_string())
}
