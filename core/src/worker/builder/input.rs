//! The worker's input and output.

use super::{AsyncSampling, MovedSampler, Recipe, RolloutWorkerBuilder};
use crate::{
    callbacks::WorkerInfo,
    ids::PolicyId,
    prelude::*,
    sampler::{InputReader, IoContext, NoopOutput, OutputWriter},
    worker::{SetupError, config::InputEvaluation, rollout::Source},
};

/// A worker's input and output.
pub(in crate::worker) struct Opened {
    pub(in crate::worker) source: Option<Source>,
    /// Whether batches come from an input instead of the worker's own environments.
    pub(in crate::worker) offline: bool,
    /// A sampler alongside an input, for metrics only.
    pub(in crate::worker) simulation: Option<Box<dyn InputReader>>,
    pub(in crate::worker) output: Box<dyn OutputWriter>,
}

impl RolloutWorkerBuilder {
    /// Opens input and output around the worker's own sampler.
    pub(super) fn open(
        &mut self,
        own: Option<Source>,
        info: &WorkerInfo,
        recipes: &BTreeMap<PolicyId, Recipe>,
    ) -> Result<Opened, SetupError> {
        let offline = self.input.is_some() || !self.config.input.is_sampler();
        let (own, simulation) = match own {
            Some(Source::Reader(sampler)) if self.simulates() => (None, Some(sampler)),
            own => (own, None),
        };
        let mut context = IoContext::new(info.clone(), self.config.io_config.clone(), None);
        let source = if offline {
            context = IoContext::new(info.clone(), self.config.io_config.clone(), own.map(Source::into_reader));
            self.prepare(&mut context, recipes);
            let reader = match self.input.take() {
                Some(open) => open(&mut context)?,
                None => self.registry.open_input(&self.config.input, &mut context)?,
            };
            Some(Source::Reader(reader))
        } else {
            self.prepare(&mut context, recipes);
            own
        };
        let output = match (self.output.take(), &self.config.output) {
            (Some(open), _) => open(&mut context)?,
            (None, Some(name)) => self.registry.open_output(name, &mut context)?,
            (None, None) => Box::new(NoopOutput),
        };
        Ok(Opened { source, offline, simulation, output })
    }

    /// Returns the setting that needs a thread for the sampler, if any does.
    pub(super) fn needs_thread(&self) -> Option<&'static str> {
        match (self.simulates(), self.config.sample_async) {
            (true, _) => Some("input_evaluation"),
            (false, true) => Some("sample_async"),
            (false, false) => None,
        }
    }

    /// Returns whether the worker's own sampler only provides metrics.
    pub(super) fn simulates(&self) -> bool {
        self.config.input_evaluation.contains(&InputEvaluation::Simulation)
    }

    /// Moves the sampler to a thread.
    pub(super) fn on_a_thread(
        &mut self,
        setting: &'static str,
        sampling: AsyncSampling,
    ) -> Result<MovedSampler, SetupError> {
        let moved = self.shell.as_mut().map_or(Ok(None), |shell| shell.sample_async(sampling))?;
        let unsupported = SetupError::Unsupported { setting, needs: "a thread of its own", fix: SetupError::LEAVE_OUT };
        moved.ok_or(unsupported)
    }

    fn prepare(&self, context: &mut IoContext, recipes: &BTreeMap<PolicyId, Recipe>) {
        context.log_dir = self.config.log_dir.clone();
        context.seed = self.seed();
        context.train_batch_size = self.config.train_batch_size;
        (context.clip_actions, context.normalize_actions) = (self.config.clip_actions, self.config.normalize_actions);
        for (id, Recipe { spaces, .. }) in recipes {
            context.action_spaces.insert(id.clone(), spaces.action.clone());
            context.observation_spaces.insert(id.clone(), spaces.observation.clone());
        }
        // The remote workers read all rows, so a local worker alongside them reads none.
        let (index, workers) = (self.place.worker_index, self.place.num_workers);
        let shards = self.config.dataset_shards.unwrap_or_else(|| workers.max(1));
        context.shard = match (index, workers) {
            (0, 0) => Some((0, shards)),
            (0, _) => None,
            (index, _) => Some(((index - 1) % shards.max(1), shards)),
        };
    }
}
