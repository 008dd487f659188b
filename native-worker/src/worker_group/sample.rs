//! Samples of all workers.

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::{
    batch::AnyBatch,
    calls::{CallError, CallResult, ForEach},
    ids::WorkerId,
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{GroupError, Request, TaskAnswer, WorkerGroup, setup::raised};

/// How much to sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParallelSample {
    /// Rounds until the batches have so many rows of agents.
    pub max_agent_steps: Option<usize>,
    /// Rounds until the batches have so many env steps.
    pub max_env_steps: Option<usize>,
    /// How long a round may take; as long as it takes, if none. What comes later is handed over in a later round.
    #[doc(alias = "sample_timeout_s")]
    pub timeout: Option<Duration>,
}

impl ParallelSample {
    /// Rounds until the batches have so many env steps.
    #[must_use]
    pub fn env_steps(steps: usize) -> Self {
        Self { max_env_steps: Some(steps), ..Self::default() }
    }

    /// Rounds until the batches have so many rows of agents.
    #[must_use]
    pub fn agent_steps(steps: usize) -> Self {
        Self { max_agent_steps: Some(steps), ..Self::default() }
    }

    fn is_enough(&self, batches: &[AnyBatch]) -> bool {
        match (self.max_env_steps, self.max_agent_steps) {
            (Some(most), _) => batches.iter().map(AnyBatch::env_steps).sum::<usize>() >= most,
            (None, Some(most)) => batches.iter().map(AnyBatch::agent_steps).sum::<usize>() >= most,
            (None, None) => true,
        }
    }
}

impl WorkerGroup {
    /// A sample of each healthy remote worker, or of the local one if it is alone; once, or until there is as much as is
    /// wanted. Batches come in the order of ids, round by round, so that they are the same ones however fast workers are,
    /// unless time is limited. [`AnyBatch::concat`] makes one of them.
    ///
    /// A worker that is not done when a round's time is up goes on, and what it makes is handed over in the round in which
    /// it is done; [`SampleCounters`](super::SampleCounters) tell. A failed sample is raised, or, if failures are ignored,
    /// passed over; a worker whose samples fail [as often as that may happen](super::FailureSettings::max_sample_failures)
    /// is unhealthy.
    ///
    /// # Errors
    /// [`GroupError::BothLimits`]; [`GroupError::NoHealthyWorkers`] if all remote workers have failed;
    /// [`GroupError::Worker`].
    pub fn synchronous_parallel_sample(&mut self, sample: ParallelSample) -> Result<Vec<AnyBatch>, GroupError> {
        if sample.max_agent_steps.is_some() && sample.max_env_steps.is_some() {
            return Err(GroupError::BothLimits);
        }
        let mut batches = std::mem::take(&mut self.sampled);
        loop {
            self.take_news();
            if self.members.is_empty() {
                batches.push(self.need_local("sampling")?.sample()?);
            } else if let Err(error) = self.sample_round(&mut batches, sample.timeout) {
                // What others have made is handed over the next time.
                self.sampled = batches;
                return Err(error);
            }
            if sample.is_enough(&batches) {
                return Ok(batches);
            }
        }
    }

    fn sample_round(&mut self, batches: &mut Vec<AnyBatch>, timeout: Option<Duration>) -> Result<(), GroupError> {
        let late: Vec<WorkerId> = self.sampling.keys().copied().collect();
        for worker in self.healthy_worker_ids() {
            if !self.sampling.contains_key(&worker) {
                let set = self
                    .manager
                    .foreach(ForEach::new(Request::from(WorkerCommand::Sample)).workers([worker]), self.now())?;
                self.sampling.insert(worker, set);
            }
        }
        if self.sampling.is_empty() {
            return Err(self.nobody());
        }
        self.pump();
        let mut done: BTreeMap<WorkerId, Vec<CallResult<TaskAnswer>>> = BTreeMap::new();
        self.wait_until(timeout, |group| {
            let sampling = std::mem::take(&mut group.sampling);
            for (worker, set) in sampling {
                match group.manager.poll_results(set) {
                    Some(results) => _ = done.insert(worker, results),
                    None => _ = group.sampling.insert(worker, set),
                }
            }
            group.sampling.is_empty()
        });
        let mut failure = None;
        let mut made = 0;
        for CallResult { worker, result, .. } in done.into_values().flatten() {
            match result.map(TaskAnswer::answer) {
                Ok(Some(WorkerAnswer::Sample(batch))) => {
                    self.counters.carried += u64::from(late.contains(&worker));
                    made += 1;
                    batches.push(batch);
                }
                Ok(_) => failure = failure.or(Some(GroupError::OtherAnswer(worker))),
                Err(error) => {
                    self.counters.lost += 1;
                    let is_raised = matches!(error, CallError::Failed(_)) && !self.plan.failures.ignore_worker_failures;
                    self.last_failure = Some(format!("worker {worker}: {error}"));
                    self.notice(format_args!("a sample of worker {worker} was lost: {error}"));
                    if is_raised && failure.is_none() {
                        failure = Some(raised(worker, error));
                    }
                }
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None if made == 0 && self.manager.num_healthy_workers() == 0 => Err(self.nobody()),
            None => Ok(()),
        }
    }

    /// Nobody is healthy.
    pub(super) fn nobody(&self) -> GroupError {
        let why = self.last_failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        GroupError::NoHealthyWorkers { workers: self.num_remote_workers(), why }
    }
}
