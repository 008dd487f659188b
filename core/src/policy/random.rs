//! The policy that knows nothing.

use super::{ActionInput, ActionOutput, Policy, PolicyError};
use crate::{
    env::{RowsMut, RowsRef},
    ids::WeightsVersion,
    math,
    prelude::*,
    rng::{Purpose, Streams},
    weights::Weights,
};

/// Chooses among discrete actions with equal probability.
#[derive(Clone, Debug)]
pub struct RandomPolicy {
    num_actions: u32,
    logp: f32,
    streams: Streams,
    weights: Weights,
}

impl RandomPolicy {
    /// A policy for that many actions; `seed` is the run's.
    #[must_use]
    pub fn new(num_actions: u32, seed: u64) -> Self {
        Self {
            num_actions,
            logp: -math::log(num_actions as f32),
            streams: Streams::new(seed, Purpose::Action),
            weights: Weights::sorted(WeightsVersion(0), Vec::new()),
        }
    }
}

impl Policy for RandomPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let RowsMut::I64(actions) = out.actions else {
            return Err(PolicyError::Unsupported { wanted: "int64 actions".into(), found: "other actions".into() });
        };
        for (action, m) in actions.iter_mut().zip(input.moments) {
            *action = i64::from(self.streams.at(m.slot, m.episode, m.t, 0).below(self.num_actions));
        }
        out.logp.fill(self.logp);
        out.vf_preds.fill(0.0);
        Ok(())
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }
}
