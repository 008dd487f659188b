//! The filter that is among a policy's weights.

use super::PolicyError;
use crate::{
    filter::FrozenStat,
    prelude::*,
    weights::{Weights, WeightsError},
};

/// Normalises rows with the statistics among a policy's weights, before they go into the networks; without statistics,
/// rows do not change.
#[derive(Clone, Debug, Default)]
pub(super) struct Normalizer {
    frozen: Option<FrozenStat>,
    rows: Vec<f32>,
}

impl Normalizer {
    pub(super) fn new(weights: &Weights, obs_len: usize) -> Result<Self, PolicyError> {
        let mut normalizer = Self::default();
        normalizer.set_weights(weights, obs_len)?;
        Ok(normalizer)
    }

    /// Resumes with the statistics of other weights. After an error the old ones stay.
    pub(super) fn set_weights(&mut self, weights: &Weights, obs_len: usize) -> Result<(), PolicyError> {
        let frozen = FrozenStat::of_weights(weights)?;
        if let Some(frozen) = &frozen
            && frozen.running().shape().elements() != obs_len
        {
            let wanted = format!("filter.running.mean with {obs_len} elements");
            return Err(WeightsError::Missing { wanted }.into());
        }
        self.frozen = frozen;
        Ok(())
    }

    /// Returns the normalised rows.
    pub(super) fn apply<'a>(&'a mut self, obs: &'a [f32]) -> Result<&'a [f32], PolicyError> {
        let Some(frozen) = &self.frozen else { return Ok(obs) };
        self.rows.clear();
        self.rows.extend_from_slice(obs);
        frozen.normalize(&mut self.rows)?;
        Ok(&self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, Policy},
        *,
    };
    use crate::{
        column::RowShape,
        env::{EnvRegistry, Moment, RowsMut, RowsRef},
        filter::{FILTER_PREFIX, Filter, MeanStdConfig, MeanStdFilter},
        kernels::Kernels,
    };

    const OBS: [f32; 8] = [0.5, -1.0, 2.0, 0.25, 0.0, 3.0, -0.5, 1.5];

    fn plain() -> Weights {
        ModelSpec::new(&ModelConfig::of_widths(&[6]), &[4], 2).unwrap().init_weights(3).unwrap()
    }

    fn policy(weights: &Weights) -> Result<NetPolicy, PolicyError> {
        let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
        NetPolicy::new(&spaces, &ModelConfig::of_widths(&[6]), weights.clone(), 1, Kernels::PORTABLE)
    }

    fn filter(elements: u32) -> Filter {
        let shape = RowShape::vector(elements);
        let mut filter = MeanStdFilter::new(shape, MeanStdConfig::UNCLIPPED).unwrap();
        let rows: Vec<f32> = (0..elements * 5).map(|i| (i * 7 % 11) as f32).collect();
        filter.filter_rows(&mut rows.clone(), true).unwrap();
        Filter::MeanStdFilter(filter)
    }

    fn act(policy: &mut dyn Policy, obs: &[f32]) -> (Vec<i64>, Vec<f32>, Vec<f32>, Vec<f32>) {
        let (mut actions, mut logp, mut values) = (vec![0; 2], vec![0.0; 2], vec![0.0; 2]);
        let out = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut values);
        policy.compute_actions(ActionInput::new(RowsRef::F32(obs), &[Moment::default(); 2]), out).unwrap();
        let mut again = vec![0.0; 2];
        policy.compute_values(RowsRef::F32(obs), &[], &mut again).unwrap();
        (actions, logp, values, again)
    }

    #[test]
    fn policies_act_on_rows_normalised_with_what_is_among_their_weights() {
        let plain = plain();
        let filtered = plain.with_filter(FILTER_PREFIX, &filter(4));
        let mut rows = OBS;
        let Filter::MeanStdFilter(by_hand) = filter(4) else { unreachable!() };
        by_hand.clone().filter_rows(&mut rows, false).unwrap();

        let wanted = act(&mut policy(&plain).unwrap(), &rows);
        assert_ne!(wanted.2, act(&mut policy(&plain).unwrap(), &OBS).2);
        assert_eq!(act(&mut policy(&filtered).unwrap(), &OBS), wanted);
        let mut changed = policy(&plain).unwrap();
        changed.set_weights(&filtered).unwrap();
        assert_eq!(act(&mut changed, &OBS), wanted);
        changed.set_weights(&plain).unwrap();
        assert_eq!(act(&mut changed, &rows), wanted);
    }

    #[test]
    fn statistics_of_other_rows_are_refused() {
        let plain = plain();
        let other = plain.with_filter(FILTER_PREFIX, &filter(5));
        let error = policy(&other).unwrap_err().to_string();
        assert_eq!(error, "the policy wants tensor 'filter.running.mean with 4 elements'");
        let mut policy = policy(&plain).unwrap();
        assert!(policy.set_weights(&other).is_err());
        assert_eq!(policy.weights(), &plain);
    }
}
