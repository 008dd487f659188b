//! The run of a hub in a page: its loop and its learner.

use rollmesh_core::{
    hub::{HubRun, RunEnd, RunFacts, RunLoop, RunLoopConfig, TrainRows},
    ids::{FragmentNo, LeaseId},
    kernels::Kernels,
    protocol::message::{Iteration, NamedMetrics},
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder, SetupError},
};

use super::InlineRunError;
use crate::{
    algorithm::algorithm,
    learners::Learners,
    learning_start::{LearningStart, results_before, written_out},
    policy::register_learning_policies,
    policy_file::{PolicyFile, gamma_of},
    stats::UpdateStats,
};

pub(super) struct Training {
    state: RunLoop,
    learners: Learners,
    gamma: f64,
    /// Workers of the hub itself that take part.
    pub(super) num_workers: u32,
}

impl Training {
    /// Makes a run whose leases begin with the number `first_lease`.
    pub(super) fn new(
        (number, first_lease): (u32, LeaseId),
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        // There is one process, which may be a browser's, and nothing is written.
        config.refuse_host_settings().map_err(SetupError::from)?;
        let config = written_out(config)?;
        let policies = config.worker_config().policies;
        let mut known = policies.values().filter_map(|policy| algorithm(&policy.policy));
        if let Some(spec) = known.find(|spec| spec.is_offline) {
            return Err(InlineRunError::Offline(spec.name));
        }
        let mut registry = registry.clone();
        register_learning_policies(&mut registry.policies);
        let parts = RolloutWorkerBuilder::new(registry).kernels(kernels).learning_parts(&config)?;
        let LearningStart { learners, config: start, postprocessing } = LearningStart::new(&config, parts, None)?;
        let state = RunLoop::new(RunLoopConfig { number, first_lease, ..start }, now)?;
        Ok(Self { state, learners, gamma: gamma_of(postprocessing), num_workers: 0 })
    }

    /// Describes the policy as it is now.
    pub(super) fn policy_file(&self) -> PolicyFile {
        PolicyFile::of_run(&self.state, self.gamma)
    }

    /// Learns from a batch. Returns the metrics of the iteration.
    pub(super) fn learn(&mut self, rows: TrainRows, now: Micros) -> Result<(Iteration, NamedMetrics), InlineRunError> {
        let (batch, observed) = rows.join()?;
        let learned = self.learners.learn(batch, results_before(&self.state))?;
        self.state.handle_learned(learned.weights, observed, now);
        let point = self.point(&UpdateStats::mean_of(learned.infos.values()), now);
        let episodes = self.state.episodes();
        let quantiles = [("episode_return_p10", 0.1), ("episode_return_p90", 0.9)];
        let named =
            quantiles.into_iter().filter_map(|(name, part)| Some((name.into(), episodes.return_quantile(part)?)));
        Ok((point, NamedMetrics::new(point.run, point.iteration, named)))
    }

    fn point(&self, stats: &UpdateStats, now: Micros) -> Iteration {
        let mean = |mean: Option<f64>| mean.map_or(f32::NAN, |mean| mean as f32);
        Iteration {
            run: self.state.number(),
            iteration: self.state.iteration(),
            env_steps: self.state.env_steps(),
            wall_ms: self.state.elapsed(now).0 / 1_000,
            episode_return_mean: mean(self.state.episodes().return_mean()),
            episode_len_mean: mean(self.state.episodes().len_mean()),
            steps_per_s: self.state.steps_per_s() as f32,
            policy_loss: stats.policy_loss as f32,
            vf_loss: stats.vf_loss as f32,
            entropy: stats.entropy as f32,
            kl: stats.kl as f32,
        }
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
