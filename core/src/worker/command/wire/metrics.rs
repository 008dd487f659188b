//! Encodes and decodes metrics of episodes.

use serde::{Deserialize, Serialize};

use super::{
    command::size,
    parts::{AtMost, Bytes},
};
use crate::{
    column::{LittleEndian as _, append_le},
    episode::{Quarantined, RolloutMetrics, SamplerPerf},
    estimate::Sample,
    ids::{AgentId, PolicyId},
    prelude::*,
    worker::{CommandError, OffPolicyEstimate, WorkerMetrics, WorkerWarning, config::InputEvaluation},
};

/// Twice as many as a worker keeps, the most that it ever has.
const MAX_EPISODES: usize = 2 * WorkerMetrics::MOST;
/// Most names of custom metrics in an episode.
const MAX_NAMES: usize = 4_096;

#[derive(Serialize, Deserialize)]
pub(super) struct MetricsForm<'a> {
    #[serde(borrow)]
    episodes: AtMost<EpisodeForm<'a>, MAX_EPISODES>,
    discarded_env_steps: u64,
    discarded_agent_steps: u64,
    blackholed_env_steps: u64,
    blackholed_agent_steps: u64,
    corrupt_lines: u64,
    quarantined: AtMost<(u64, String), MAX_EPISODES>,
    estimates: AtMost<EstimateForm, MAX_EPISODES>,
    forgotten: u64,
    warnings: AtMost<WarningForm, MAX_EPISODES>,
}

/// Policy, estimator, values of the behaviour policy and of the policy, and whether it is a legacy estimate.
type EstimateForm = (PolicyId, InputEvaluation, f64, f64, bool);

#[derive(Serialize, Deserialize)]
struct EpisodeForm<'a> {
    episode_id: i64,
    env: u64,
    length: u32,
    episode_return: f64,
    agent_rewards: AtMost<(AgentId, PolicyId, f64), 65_536>,
    custom_metrics: AtMost<(String, f64), MAX_NAMES>,
    #[serde(borrow)]
    hist_data: AtMost<(String, Bytes<'a>), MAX_NAMES>,
    #[serde(borrow)]
    media: AtMost<(String, Bytes<'a>), MAX_NAMES>,
    faulty: Option<String>,
    iterations: u64,
    /// Milliseconds spent on environments, observations, policies, actions and rendering.
    perf: [f64; 5],
}

#[derive(Serialize, Deserialize)]
enum WarningForm {
    LargeBatch { rows: u64, threshold: u64 },
    Quarantined { env: u64, reason: String },
}

/// Returns the first items, as many as a hub accepts, and counts the others as forgotten.
fn cut<T, const N: usize>(items: impl ExactSizeIterator<Item = T>, forgotten: &mut u64) -> AtMost<T, N> {
    *forgotten += items.len().saturating_sub(N) as u64;
    items.take(N).collect()
}

impl<'a> EpisodeForm<'a> {
    /// Converts an episode and counts what is cut off.
    fn of(episode: &'a RolloutMetrics, forgotten: &mut u64) -> Self {
        let SamplerPerf {
            iterations,
            env_wait_ms,
            obs_processing_ms,
            inference_ms,
            action_processing_ms,
            env_render_ms,
        } = episode.perf;
        let numbers = |(name, numbers): (&String, &Vec<f64>)| {
            let mut bytes = Vec::with_capacity(8 * numbers.len());
            append_le(&mut bytes, numbers);
            (name.clone(), Bytes(bytes.into()))
        };
        Self {
            episode_id: episode.episode_id,
            env: episode.env as u64,
            length: episode.length,
            episode_return: episode.episode_return,
            agent_rewards: cut(episode.agent_rewards.iter().cloned(), forgotten),
            custom_metrics: cut(episode.custom_metrics.iter().map(|(name, number)| (name.clone(), *number)), forgotten),
            hist_data: cut(episode.hist_data.iter().map(numbers), forgotten),
            media: cut(episode.media.iter().map(|(name, media)| (name.clone(), Bytes(media.into()))), forgotten),
            faulty: episode.faulty.clone(),
            iterations,
            perf: [env_wait_ms, obs_processing_ms, inference_ms, action_processing_ms, env_render_ms],
        }
    }

    fn read(self) -> Result<RolloutMetrics, CommandError> {
        let [env_wait_ms, obs_processing_ms, inference_ms, action_processing_ms, env_render_ms] = self.perf;
        Ok(RolloutMetrics {
            episode_id: self.episode_id,
            env: size(self.env)?,
            length: self.length,
            episode_return: self.episode_return,
            agent_rewards: self.agent_rewards.0,
            custom_metrics: self.custom_metrics.0.into_iter().collect(),
            hist_data: self.hist_data.0.into_iter().map(|(name, bytes)| (name, f64::read_le(&bytes.0))).collect(),
            media: self.media.0.into_iter().map(|(name, bytes)| (name, bytes.0.into_owned())).collect(),
            faulty: self.faulty,
            perf: SamplerPerf {
                iterations: self.iterations,
                env_wait_ms,
                obs_processing_ms,
                inference_ms,
                action_processing_ms,
                env_render_ms,
            },
        })
    }
}

impl<'a> MetricsForm<'a> {
    pub(super) fn of(metrics: &'a WorkerMetrics) -> Self {
        let warning = |warning: &WorkerWarning| match warning {
            WorkerWarning::LargeBatch { rows, threshold } => {
                WarningForm::LargeBatch { rows: *rows as u64, threshold: *threshold as u64 }
            }
            WorkerWarning::Quarantined { env, reason } => {
                WarningForm::Quarantined { env: *env as u64, reason: reason.clone() }
            }
        };
        let estimate =
            |of: &OffPolicyEstimate| (of.policy.clone(), of.by, of.sample.v_behavior, of.sample.v_target, of.legacy);
        let mut forgotten = metrics.forgotten;
        Self {
            episodes: metrics.episodes.iter().map(|episode| EpisodeForm::of(episode, &mut forgotten)).collect(),
            discarded_env_steps: metrics.discarded_env_steps,
            discarded_agent_steps: metrics.discarded_agent_steps,
            blackholed_env_steps: metrics.blackholed_env_steps,
            blackholed_agent_steps: metrics.blackholed_agent_steps,
            corrupt_lines: metrics.corrupt_lines,
            quarantined: metrics.quarantined.iter().map(|out| (out.env as u64, out.reason.clone())).collect(),
            estimates: metrics.estimates.iter().map(estimate).collect(),
            forgotten,
            warnings: metrics.warnings.iter().map(warning).collect(),
        }
    }

    pub(super) fn read(self) -> Result<WorkerMetrics, CommandError> {
        let warning = |warning| {
            Ok(match warning {
                WarningForm::LargeBatch { rows, threshold } => {
                    WorkerWarning::LargeBatch { rows: size(rows)?, threshold: size(threshold)? }
                }
                WarningForm::Quarantined { env, reason } => WorkerWarning::Quarantined { env: size(env)?, reason },
            })
        };
        let out = |(env, reason)| Ok(Quarantined { env: size(env)?, reason });
        let estimate = |(policy, by, v_behavior, v_target, legacy): EstimateForm| OffPolicyEstimate {
            policy,
            by,
            sample: Sample { v_behavior, v_target },
            legacy,
        };
        Ok(WorkerMetrics {
            episodes: self.episodes.0.into_iter().map(EpisodeForm::read).collect::<Result<_, CommandError>>()?,
            discarded_env_steps: self.discarded_env_steps,
            discarded_agent_steps: self.discarded_agent_steps,
            blackholed_env_steps: self.blackholed_env_steps,
            blackholed_agent_steps: self.blackholed_agent_steps,
            corrupt_lines: self.corrupt_lines,
            quarantined: self.quarantined.0.into_iter().map(out).collect::<Result<_, CommandError>>()?,
            estimates: self.estimates.0.into_iter().map(estimate).collect(),
            forgotten: self.forgotten,
            warnings: self.warnings.0.into_iter().map(warning).collect::<Result<_, CommandError>>()?,
        })
    }
}
