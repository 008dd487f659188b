//! The policy that knows nothing.

use super::{ActionInput, ActionOutput, Policy, PolicyError};
use crate::{
    env::{RowsMut, RowsRef},
    ids::WeightsVersion,
    math,
    prelude::*,
    rng::{Purpose, Streams},
    space::{Scalar, Space},
    weights::Weights,
};

/// Chooses every action of a bounded space with equal probability.
#[derive(Clone, Debug)]
pub struct RandomPolicy {
    space: Space,
    /// Of every action: the same for all.
    logp: f32,
    streams: Streams,
    weights: Weights,
}

impl RandomPolicy {
    /// A policy for the actions `0..num_actions`; `seed` is the run's.
    #[must_use]
    pub fn new(num_actions: u32, seed: u64) -> Self {
        Self::uniform(Space::Discrete { n: num_actions }, -math::log(num_actions as f32), seed)
    }

    /// A policy for any bounded space that is not compound.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] where there is no equal probability: a bound is infinite, or the space has parts.
    pub fn for_space(space: &Space, seed: u64) -> Result<Self, PolicyError> {
        let log = |x: f64| math::log(x as f32);
        let logp = match space {
            Space::Discrete { n } => -log(f64::from(*n)),
            Space::MultiDiscrete { nvec } => -nvec.iter().map(|&n| log(f64::from(n))).sum::<f32>(),
            Space::MultiBinary { n } => -log(2.0) * *n as f32,
            // Integers include both ends.
            Space::Box(space) if space.is_bounded() => {
                let more = if space.dtype().is_float() { 0.0 } else { 1.0 };
                -space.bounds().map(|(low, high)| log(high - low + more)).sum::<f32>()
            }
            other => {
                return Err(PolicyError::Unsupported { wanted: "bounded actions".into(), found: other.to_string() });
            }
        };
        Ok(Self::uniform(space.clone(), logp, seed))
    }

    fn uniform(space: Space, logp: f32, seed: u64) -> Self {
        let weights = Weights::sorted(WeightsVersion(0), Vec::new());
        Self { space, logp, streams: Streams::new(seed, Purpose::Action), weights }
    }

    fn fill<T: Scalar>(&self, input: ActionInput<'_>, actions: &mut [T]) -> Result<(), PolicyError> {
        let width = self.space.shape().elements().max(1);
        for (action, m) in actions.chunks_exact_mut(width).zip(input.moments) {
            let mut rng = self.streams.at(m.slot, m.episode, m.t, 0);
            self.space.sample_row(&mut rng, action).map_err(|error| PolicyError::Unsupported {
                wanted: self.space.to_string(),
                found: error.to_string(),
            })?;
        }
        Ok(())
    }
}

impl Policy for RandomPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        match out.actions {
            RowsMut::F32(actions) => self.fill(input, actions),
            RowsMut::F64(actions) => self.fill(input, actions),
            RowsMut::I32(actions) => self.fill(input, actions),
            RowsMut::I64(actions) => self.fill(input, actions),
            RowsMut::U8(actions) => self.fill(input, actions),
            RowsMut::Bool(actions) => self.fill(input, actions),
        }?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{env::Moment, ids::SlotId};

    #[test]
    fn continuous_actions_are_even_between_the_bounds() {
        let space = Space::vector(&[-2.0, 0.0], &[2.0, 1.0]);
        let mut policy = RandomPolicy::for_space(&space, 3).unwrap();
        let moments: Vec<Moment> = (0..500).map(|t| Moment { slot: SlotId(0), episode: 0, t }).collect();
        let (mut actions, mut logp, mut vf_preds) = (vec![0f32; 1000], vec![0f32; 500], vec![1f32; 500]);
        let input = ActionInput { obs: RowsRef::F32(&[]), moments: &moments };
        let out = ActionOutput { actions: RowsMut::F32(&mut actions), logp: &mut logp, vf_preds: &mut vf_preds };
        policy.compute_actions(input, out).unwrap();
        assert!(actions.chunks_exact(2).all(|row| space.contains_floats(row)));
        assert!((actions.iter().step_by(2).sum::<f32>() / 500.0).abs() < 0.2);
        assert!(logp.iter().all(|logp| (logp + 4f32.ln()).abs() < 1e-6));
    }

    #[test]
    fn there_is_no_even_choice_without_bounds() {
        let error = RandomPolicy::for_space(&Space::vector(&[0.0], &[f32::INFINITY]), 0).unwrap_err();
        assert!(error.to_string().starts_with("the policy takes bounded actions, not Box"), "{error}");
    }

    #[test]
    fn actions_of_another_type_are_refused() {
        let mut policy = RandomPolicy::new(2, 0);
        let moments = [Moment::default()];
        let input = ActionInput { obs: RowsRef::F32(&[]), moments: &moments };
        let out = ActionOutput { actions: RowsMut::F32(&mut [0.0]), logp: &mut [0.0], vf_preds: &mut [0.0] };
        assert!(matches!(policy.compute_actions(input, out), Err(PolicyError::Unsupported { .. })));
    }
}
