//! The run of a hub in a page: its loop and its learner.

use rollmesh_core::{
    hub::{ClipJob, HubRun, RunEnd, RunFacts, RunLoop, TrainRows},
    ids::{FragmentNo, LeaseId},
    kernels::Kernels,
    protocol::message::{EnvClip, Iteration, NamedMetrics},
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder, SlotRunner},
};

use crate::{
    inline_run::{InlineRunError, Learning},
    policy_file::PolicyFile,
};

pub(super) struct Training {
    learning: Learning,
    /// The worker that draws, or its builder.
    painter: Painter,
    /// Workers of the hub itself that take part.
    pub(super) num_workers: u32,
}

type Painter = Result<Box<SlotRunner>, Option<Box<RolloutWorkerBuilder>>>;

impl Training {
    /// Creates a run whose leases begin with the number `first_lease`.
    pub(super) fn new(
        numbers: (u32, LeaseId),
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        let (learning, builder) = Learning::new(numbers, config, registry, kernels, now)?;
        Ok(Self { learning, painter: Err(Some(Box::new(builder))), num_workers: 0 })
    }

    /// Describes the policy as it is now.
    pub(super) fn policy_file(&self) -> PolicyFile {
        self.learning.policy_file()
    }

    /// Draws a fragment, which a separate worker recomputes.
    pub(super) fn draw(&mut self, job: &ClipJob) -> EnvClip {
        if let Err(builder) = &mut self.painter
            && let Some(builder) = builder.take()
            && let Ok(runner) = SlotRunner::new(self.learning.state.config(), *builder)
        {
            self.painter = Ok(Box::new(runner));
        }
        match &mut self.painter {
            Ok(runner) => job.draw(runner),
            // A worker that cannot be made could not have made the run.
            Err(_) => job.without_pictures("the worker that draws cannot be made"),
        }
    }

    /// Learns from a batch. Returns the metrics of the iteration.
    pub(super) fn learn(&mut self, rows: TrainRows, now: Micros) -> Result<(Iteration, NamedMetrics), InlineRunError> {
        self.learning.learn(rows, now)
    }

    /// Ends the run; with a ledger that does not balance it has failed.
    pub(super) fn end(&mut self, end: RunEnd, now: Micros) {
        self.learning.end(end, now);
    }
}

impl HubRun for Training {
    fn state(&self) -> &RunLoop {
        &self.learning.state
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.learning.state
    }

    fn facts(&mut self, _: Option<FragmentNo>, _: Micros) -> RunFacts {
        RunFacts { num_workers: self.num_workers, ..RunFacts::default() }
    }

    /// Does nothing: all workers are the page's own, so no iteration is undone.
    fn keep_for_undoing(&mut self, _: Micros) {}
}
