//! The policy's own episodes, now and then.

use std::collections::BTreeMap;

use rollmesh_core::{
    config::Config,
    episode::EpisodeSummary,
    ids::PolicyId,
    sampler::BatchMode,
    time::Micros,
    weights::Weights,
    worker::{InputSource, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder},
};
use serde::{Deserialize, Deserializer, Serialize};

use super::plan::Plan;
use crate::{NativeWorker as _, Registry, cli::signals::Interruption};

/// How long an evaluation goes on before it asks whether somebody has interrupted.
const LOOK_EVERY: Micros = Micros(50_000);

/// What the policy's own episodes were like.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Evaluation {
    pub(super) episodes: usize,
    #[serde(deserialize_with = "number")]
    pub(super) return_mean: f64,
    #[serde(deserialize_with = "number")]
    pub(super) return_min: f64,
    #[serde(deserialize_with = "number")]
    pub(super) return_max: f64,
    len_mean: f64,
}

/// JSON has no form for what is no number.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Plays a policy's own episodes, with the most likely actions.
pub(super) struct Evaluator {
    worker: RolloutWorker,
    /// What the next evaluation begins with: episodes that are open are not in it, so every one begins with what was saved.
    state: Vec<u8>,
    episodes: usize,
}

impl Evaluator {
    pub(super) fn new(config: &RolloutConfig, registry: &Registry, plan: &Plan) -> Result<Self, RolloutError> {
        // A horizon takes the place of the environment's own limit.
        let env = config.env.as_ref().and_then(|env| registry.envs.spec(env).ok());
        let limit = env.and_then(|env| env.max_episode_steps);
        let horizon = Some(plan.evaluation_horizon).filter(|horizon| limit.is_none_or(|limit| *horizon < limit));
        // One environment, since of several the short episodes would come first.
        let config = RolloutConfig {
            input: InputSource::default(),
            io_config: Config::new(),
            explore: false,
            num_envs: 1,
            horizon,
            ..config.clone()
        };
        let config = config.batch_mode(BatchMode::CompleteEpisodes).rollout_fragment_length(1);
        let mut worker = RolloutWorkerBuilder::new(registry.clone()).native().config(config).build()?;
        let state = worker.save()?;
        Ok(Self { worker, state, episodes: plan.evaluation_episodes as usize })
    }

    /// What the next evaluation depends on beside the weights.
    pub(super) fn state(&self) -> &[u8] {
        &self.state
    }

    /// Goes on as one that had this state.
    pub(super) fn restore(&mut self, state: Vec<u8>) -> Result<(), RolloutError> {
        self.worker.restore(&state)?;
        self.state = state;
        Ok(())
    }

    /// None also if somebody interrupts.
    pub(super) fn run(
        &mut self,
        weights: &BTreeMap<PolicyId, Weights>,
        interruption: &Interruption,
    ) -> Result<Option<Evaluation>, RolloutError> {
        self.worker.restore(&self.state)?;
        self.worker.set_weights(weights, None, None)?;
        let mut ended = Vec::new();
        while ended.len() < self.episodes {
            if interruption.is_noticed() {
                return Ok(None);
            }
            self.worker.sample_within(LOOK_EVERY)?;
            ended.extend(self.worker.metrics().episodes);
        }
        self.state = self.worker.save()?;
        let EpisodeSummary { episode_return, length, episodes, .. } = EpisodeSummary::of(&ended);
        Ok((episodes > 0).then_some(Evaluation {
            episodes,
            return_mean: episode_return.mean,
            return_min: episode_return.min,
            return_max: episode_return.max,
            len_mean: length.mean,
        }))
    }
}
