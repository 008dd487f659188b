//! A policy that acts at random.

use super::{ActionInput, ActionOutput, Policy, PolicyError};
use crate::{
    column::{Element, by_type},
    env::{RowsMut, RowsRef},
    ids::WeightsVersion,
    math,
    prelude::*,
    rng::{Purpose, Streams},
    space::Space,
    weights::Weights,
};

/// Chooses every action of a bounded space with equal probability.
#[derive(Clone, Debug)]
pub struct RandomPolicy {
    space: Space,
    /// The log-probability of every action: the same for all.
    logp: f32,
    streams: Streams,
    weights: Weights,
}

impl RandomPolicy {
    /// Creates a policy for the actions `0..num_actions`; `seed` is the run's. Without actions it is an error to act.
    #[must_use]
    pub fn new(num_actions: u32, seed: u64) -> Self {
        Self::uniform(Space::Discrete { n: num_actions }, -math::log(num_actions as f32), seed)
    }

    /// Creates a policy for any bounded space.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] where there is no equal probability: there are no actions, a bound is infinite or so
    /// far away that the density is 0 in 32 bits.
    pub fn for_space(space: &Space, seed: u64) -> Result<Self, PolicyError> {
        let unsupported = |wanted: &str| PolicyError::Unsupported { wanted: wanted.into(), found: space.to_string() };
        let logp = logp(space).ok_or_else(|| unsupported("bounded actions"))?;
        if !logp.is_finite() {
            return Err(unsupported("at least one action, of finite density"));
        }
        Ok(Self::uniform(space.clone(), logp, seed))
    }

    fn uniform(space: Space, logp: f32, seed: u64) -> Self {
        let weights = Weights::sorted(WeightsVersion(0), Vec::new());
        Self { space, logp, streams: Streams::new(seed, Purpose::Action), weights }
    }

    fn fill<T: Element>(&self, input: ActionInput<'_>, actions: &mut [T]) -> Result<(), PolicyError> {
        // Rows without elements are all there already.
        let width = self.space.shape().elements().max(1);
        for (action, m) in actions.chunks_exact_mut(width).zip(input.moments) {
            let mut rng = self.streams.at(m.slot, m.episode, m.t, m.agent);
            self.space.sample_row(&mut rng, action).map_err(|error| PolicyError::Unsupported {
                wanted: self.space.to_string(),
                found: error.to_string(),
            })?;
        }
        Ok(())
    }
}

/// Returns the log-probability of each action of a space, or its density; `None` for unbounded ones.
fn logp(space: &Space) -> Option<f32> {
    let log = |x: f64| math::log(x as f32);
    Some(match space {
        Space::Discrete { n } => -log(f64::from(*n)),
        Space::MultiDiscrete { nvec } => -nvec.iter().map(|&n| log(f64::from(n))).sum::<f32>(),
        Space::MultiBinary { n } => -log(2.0) * *n as f32,
        Space::Box(space) if space.is_bounded() => {
            // Integers include both ends.
            let more = if space.dtype().is_float() { 0.0 } else { 1.0 };
            // A component without width has one value, which is no choice.
            let widths = space.bounds().map(|(low, high)| high - low + more).filter(|width| *width > 0.0);
            -widths.map(log).sum::<f32>()
        }
        Space::Box(_) => return None,
        Space::Tuple(parts) => parts.iter().map(logp).sum::<Option<f32>>()?,
        Space::Dict(parts) => parts.values().map(logp).sum::<Option<f32>>()?,
    })
}

impl Policy for RandomPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        if !self.logp.is_finite() {
            return Err(PolicyError::Unsupported { wanted: "actions".into(), found: self.space.to_string() });
        }
        out.check(input.moments.len(), self.space.shape().elements())?;
        out.check_optional(input.moments.len(), 0, 0)?;
        by_type!(RowsMut, out.actions, actions => self.fill(input, actions))?;
        out.logp.fill(self.logp);
        out.vf_preds.fill(0.0);
        Ok(())
    }

    fn compute_values(&mut self, _obs: RowsRef<'_>, _state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
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
        let moments: Vec<Moment> = (0..500).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
        let (mut actions, mut logp, mut vf_preds) = (vec![0f32; 1000], vec![0f32; 500], vec![1f32; 500]);
        policy
            .compute_actions(
                ActionInput::new(RowsRef::F32(&[]), &moments),
                ActionOutput::new(RowsMut::F32(&mut actions), &mut logp, &mut vf_preds),
            )
            .unwrap();
        assert!(actions.chunks_exact(2).all(|row| space.contains_row(row) == Ok(true)));
        assert!((actions.iter().step_by(2).sum::<f32>() / 500.0).abs() < 0.2);
        assert!(logp.iter().all(|logp| (logp + 4f32.ln()).abs() < 1e-6));
    }

    #[test]
    fn density_omits_elements_with_one_value() {
        let space = Space::vector(&[3.0, 1.0], &[3.0, 5.0]);
        let mut policy = RandomPolicy::for_space(&space, 3).unwrap();
        let (mut actions, mut logp) = ([0f32; 2], [0f32]);
        policy
            .compute_actions(
                ActionInput::new(RowsRef::F32(&[]), &[Moment::default()]),
                ActionOutput::new(RowsMut::F32(&mut actions), &mut logp, &mut [0.0]),
            )
            .unwrap();
        assert!(actions[0] == 3.0 && (logp[0] + 4f32.ln()).abs() < 1e-6, "{actions:?} {logp:?}");
    }

    #[test]
    fn without_actions_there_is_nothing_to_choose() {
        for space in [Space::Discrete { n: 0 }, Space::MultiDiscrete { nvec: vec![2, 0] }] {
            let error = RandomPolicy::for_space(&space, 0).unwrap_err().to_string();
            assert!(error.starts_with("the policy takes at least one action"), "{error}");
        }
        assert!(matches!(act(&mut RandomPolicy::new(0, 0), &mut [0]), Err(PolicyError::Unsupported { .. })));
    }

    #[test]
    fn buffers_have_a_row_per_moment() {
        let length = |found| Err(PolicyError::BufferLength { buffer: "actions", wanted: 1, found });
        assert_eq!(act(&mut RandomPolicy::new(2, 0), &mut []), length(0));
        assert_eq!(act(&mut RandomPolicy::new(2, 0), &mut [7, 7]), length(2));
        assert_eq!(act(&mut RandomPolicy::new(2, 0), &mut [7]), Ok(()));
    }

    fn act(policy: &mut RandomPolicy, actions: &mut [i64]) -> Result<(), PolicyError> {
        policy.compute_actions(
            ActionInput::new(RowsRef::F32(&[]), &[Moment::default()]),
            ActionOutput::new(RowsMut::I64(actions), &mut [0.0], &mut [0.0]),
        )
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
        assert!(matches!(
            policy.compute_actions(
                ActionInput::new(RowsRef::F32(&[]), &moments),
                ActionOutput::new(RowsMut::F32(&mut [0.0]), &mut [0.0], &mut [0.0])
            ),
            Err(PolicyError::Unsupported { .. })
        ));
    }
}
