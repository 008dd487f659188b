//! A group as the source of a run's rows: its local worker learns from the rows that the remote workers sample or read.

use std::{
    collections::BTreeMap,
    error::Error,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rollmesh_core::{
    batch::AnyBatch,
    episode::GlobalVars,
    filter::FilterKind,
    run::RunConfig,
    worker::{Registry, RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerMetrics},
};

use super::{FailureSettings, ForEachWorker, GroupError, Placement, SyncFilters, SyncWeights, WorkerGroup};
use crate::{learner::LearnError, runs::RowSource};

/// Returns the [`StartReaders`](crate::runs::StartReaders) of a hub's runs.
pub(super) fn start_readers(
    config: &RunConfig,
    registry: Registry,
    program: &Path,
) -> Result<Box<dyn RowSource>, Box<dyn Error + Send + Sync>> {
    let patience = config.hung_worker_timeout_s;
    let failures = FailureSettings {
        recreate_failed_workers: true,
        progress_timeout: (patience > 0.0).then(|| Duration::from_secs_f64(patience)),
        ..FailureSettings::default()
    };
    let group = WorkerGroup::builder(config.worker_config())
        .registry(registry)
        .num_workers(config.num_workers)
        .placement(Placement::processes_of(program))
        .worker_spec(config.host.worker.clone().unwrap_or_default())
        .failures(failures);
    Ok(Box::new(group.build()?))
}

impl RowSource for WorkerGroup {
    fn learner(&mut self) -> Result<&mut RolloutWorker, LearnError> {
        self.need_local("learning").map_err(failed)
    }

    fn sampler_config(&mut self) -> Result<RolloutConfig, LearnError> {
        // The local worker of a group whose remote workers read has no input.
        let input = self.config().input.clone();
        Ok(RolloutConfig { input, ..self.learner()?.creation_args().clone() })
    }

    fn next_batches(
        &mut self,
        wanted: usize,
        is_interrupted: &AtomicBool,
    ) -> Result<Option<Vec<AnyBatch>>, LearnError> {
        self.sample_unless(wanted, || is_interrupted.load(Ordering::Relaxed)).map_err(failed)
    }

    fn metrics(&mut self) -> Result<Vec<WorkerMetrics>, LearnError> {
        let answers = self.foreach_worker(WorkerCommand::Metrics).map_err(failed)?.into_iter();
        Ok(answers
            .filter_map(|answer| match answer {
                WorkerAnswer::Metrics(metrics) => Some(*metrics),
                _ => None,
            })
            .collect())
    }

    /// Returns the number of remote workers; without any, the local worker samples or reads.
    fn num_samplers(&self) -> usize {
        self.num_remote_workers().max(1)
    }

    fn sampler_states(&mut self) -> Result<Vec<Option<Vec<u8>>>, LearnError> {
        if self.num_remote_workers() == 0 {
            return Ok(vec![Some(self.learner()?.sampler_state()?)]);
        }
        let mut found = BTreeMap::new();
        let asked = self.foreach_worker_with_id(&ForEachWorker::remote(), |_| WorkerCommand::SamplerState);
        for (worker, answer) in asked.map_err(failed)? {
            if let WorkerAnswer::State(state) = answer {
                found.insert(worker, state);
            }
        }
        Ok(self.remote_workers().iter().map(|worker| found.remove(worker)).collect())
    }

    fn set_sampler_states(&mut self, states: Vec<Option<Vec<u8>>>) -> Result<(), LearnError> {
        let workers = self.remote_workers();
        if workers.is_empty() {
            let learner = self.learner()?;
            return Ok(states.into_iter().flatten().try_for_each(|state| learner.set_sampler_state(&state))?);
        }
        let known = workers.iter().zip(states).filter_map(|(worker, state)| Some((*worker, state?)));
        let (workers, tasks): (Vec<_>, Vec<_>) =
            known.map(|(worker, state)| (worker, WorkerCommand::SetSamplerState(state))).unzip();
        let (wanted, options) = (workers.len(), ForEachWorker::remote().remote_workers(workers));
        let done = self.foreach_worker_each(&options, tasks).map_err(failed)?.len();
        if done < wanted {
            let text = format!("only {done} of {wanted} workers are there to be given their states");
            return Err(LearnError::Rows(text));
        }
        Ok(())
    }

    fn sync(&mut self, vars: &GlobalVars) -> Result<(), LearnError> {
        let learner = self.learner()?;
        learner.set_global_vars(vars, None)?;
        if learner.creation_args().observation_filter != FilterKind::NoFilter {
            self.sync_filters(&SyncFilters::default()).map_err(failed)?;
        }
        self.sync_weights(SyncWeights { global_vars: Some(vars), ..SyncWeights::default() }).map_err(failed)
    }

    fn disturbances(&self) -> u64 {
        let lost = self.num_remote_workers().saturating_sub(self.healthy_worker_ids().len());
        self.num_remote_worker_restarts() + lost as u64
    }

    fn tend(&mut self) -> Result<Vec<String>, LearnError> {
        self.probe_unhealthy_workers().map_err(failed)?;
        Ok(std::iter::from_fn(|| self.next_notice()).collect())
    }

    fn end(&mut self) {
        self.stop();
    }
}

fn failed(error: GroupError) -> LearnError {
    LearnError::Rows(error.to_string())
}
