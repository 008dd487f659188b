//! The run of a hub in a page: its loop and its learner.

use rollmesh_core::{
    hub::{ClipJob, HubRun, RunEnd, RunFacts, RunLoop, RunLoopConfig, TrainRows},
    ids::{FragmentNo, LeaseId},
    kernels::Kernels,
    protocol::message::{EnvClip, Iteration, NamedMetrics},
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder, SlotRunner},
};

use crate::{
    inline_run::{InlineRunError, learning_start, point},
    learners::Learners,
    learning_start::{LearningStart, results_before},
    policy_file::{PolicyFile, gamma_of},
    stats::UpdateStats,
};

pub(super) struct Training {
    state: RunLoop,
    learners: Learners,
    gamma: f64,
    /// The worker that draws, or what makes it.
    painter: Painter,
    /// Workers of the hub itself that take part.
    pub(super) num_workers: u32,
}

type Painter = Result<Box<SlotRunner>, Option<Box<RolloutWorkerBuilder>>>;

impl Training {
    /// Makes a run whose leases begin with the number `first_lease`.
    pub(super) fn new(
        (number, first_lease): (u32, LeaseId),
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        let (builder, _, start) = learning_start(config, registry, kernels)?;
        let LearningStart { learners, config: start, postprocessing } = start;
        let state = RunLoop::new(RunLoopConfig { number, first_lease, ..start }, now)?;
        Ok(Self {
            state,
            learners,
            gamma: gamma_of(postprocessing),
            painter: Err(Some(Box::new(builder))),
            num_workers: 0,
        })
    }

    /// Describes the policy as it is now.
    pub(super) fn policy_file(&self) -> PolicyFile {
        PolicyFile::of_run(&self.state, self.gamma)
    }

    /// Draws a fragment, recomputed by a worker that does nothing else.
    pub(super) fn draw(&mut self, job: &ClipJob) -> EnvClip {
        if let Err(builder) = &mut self.painter
            && let Some(builder) = builder.take()
            && let Ok(runner) = SlotRunner::new(self.state.config(), *builder)
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
        let (batch, observed) = rows.join()?;
        let learned = self.learners.learn(batch, results_before(&self.state))?;
        self.state.handle_learned(learned.weights, observed, now);
        let point = point(&self.state, &UpdateStats::mean_of(learned.infos.values()), now);
        let episodes = self.state.episodes();
        let quantiles = [("episode_return_p10", 0.1), ("episode_return_p90", 0.9)];
        let named =
            quantiles.into_iter().filter_map(|(name, part)| Some((name.into(), episodes.return_quantile(part)?)));
        Ok((point, NamedMetrics::new(point.run, point.iteration, named)))
    }

    /// Ends the run; with a ledger that does not balance it has failed.
    pub(super) fn end(&mut self, end: RunEnd, now: Micros) {
        let end = self.state.check_ledger().map_or_else(RunEnd::Unbalanced, |()| end);
        self.state.end(&end, now);
    }
}

impl HubRun for Training {
    fn state(&self) -> &RunLoop {
        &self.state
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.state
    }

    fn facts(&mut self, _: Option<FragmentNo>, _: Micros) -> RunFacts {
        RunFacts { num_workers: self.num_workers, ..RunFacts::default() }
    }

    /// Its workers are the page's own: there is nothing to undo.
    fn keep_for_undoing(&mut self, _: Micros) {}
}
