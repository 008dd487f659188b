//! What became of the episodes.

use super::{RolloutWorker, Source};
use crate::{
    episode::{EpisodeSummary, RolloutMetrics},
    estimate::Sample,
    ids::PolicyId,
    prelude::*,
    sampler::InputReader as _,
    worker::config::InputEvaluation,
};

/// What has happened since the last time somebody asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// Episodes that have ended.
    pub episodes: Vec<RolloutMetrics>,
    /// How good policies would have been in the episodes that were read.
    pub estimates: Vec<OffPolicyEstimate>,
}

impl WorkerMetrics {
    /// The episodes in a few numbers.
    #[must_use]
    pub fn summary(&self) -> EpisodeSummary {
        EpisodeSummary::of(&self.episodes)
    }
}

/// How good a policy would have been in one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct OffPolicyEstimate {
    /// The policy.
    pub policy: PolicyId,
    /// How it was estimated.
    pub by: InputEvaluation,
    /// Returns of who acted, and of the policy.
    pub sample: Sample,
}

impl RolloutWorker {
    /// Episodes that have ended since the last call, in the order of their ends, and estimates of policies.
    #[doc(alias("get_metrics", "collect_metrics"))]
    pub fn metrics(&mut self) -> WorkerMetrics {
        let opened = &mut self.parts.opened;
        let mut episodes = match &mut opened.source {
            Source::None => Vec::new(),
            Source::Lockstep(sampler) => sampler.metrics(),
            Source::Reader(sampler) => crate::sampler::SamplerInput::metrics(sampler.as_mut()),
            Source::Input(reader) => reader.metrics(),
        };
        if let Some(simulation) = &mut opened.simulation {
            episodes.extend(crate::sampler::SamplerInput::metrics(simulation.as_mut()));
        }
        WorkerMetrics { episodes, estimates: core::mem::take(&mut self.estimates) }
    }
}
