//! Implements the estimators of RLlib before version 2, for comparisons with old runs.

use super::{
    EstimateError, Sample,
    episodes::{episodes, ratios, rewards},
    scaled::Scaled,
};
use crate::{batch::SampleBatch, prelude::*};

/// Stepwise importance sampling of RLlib up to version 1.9, plain and weighted, under its names `V_prev`
/// ([`Sample::v_behavior`]), `V_step_IS` or `V_step_WIS` ([`Sample::v_target`]) and `V_gain_est` ([`Sample::v_gain`]).
///
/// It differs from [`Estimator`](super::Estimator) in two ways: it omits the last step of every episode, and the means of
/// the weighted one accumulate from call to call, so that its estimates depend on the order of episodes. It does not
/// reproduce RLlib's use of logarithms of probabilities as probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
#[doc(alias("V_prev", "V_step_IS", "V_step_WIS", "V_gain_est"))]
pub struct LegacyStepEstimator {
    /// Sum and count of `rho_t` so far, by step; none for the plain estimator.
    seen: Option<Vec<(Scaled, f64)>>,
}

impl LegacyStepEstimator {
    /// Creates the plain estimator.
    #[must_use]
    pub fn is() -> Self {
        Self { seen: None }
    }

    /// Creates the weighted estimator, without data.
    #[must_use]
    pub fn wis() -> Self {
        Self { seen: Some(Vec::new()) }
    }

    /// Returns the sample of each episode, in order.
    ///
    /// # Errors
    /// The errors of [`Estimator::per_episode`](super::Estimator::per_episode). On an error, the means stay as they are.
    pub fn per_episode(&mut self, batch: &SampleBatch, gamma: f64) -> Result<Vec<Sample>, EstimateError> {
        if !gamma.is_finite() {
            return Err(EstimateError::Gamma(gamma));
        }
        let (rewards, ratios, gamma) = (rewards(batch)?, ratios(batch)?, Scaled::new(gamma));
        let mut seen = self.seen.clone();
        let mut samples = Vec::new();
        for rows in episodes(batch)? {
            let (mut rho, mut discount) = (Scaled::ONE, Scaled::ONE);
            let mut sample = Sample { v_behavior: 0.0, v_target: 0.0 };
            for (t, row) in (rows.start..rows.end.saturating_sub(1)).enumerate() {
                rho = rho * ratios[row];
                let mut weight = rho;
                if let Some(seen) = &mut seen {
                    if t == seen.len() {
                        seen.push((Scaled::ZERO, 0.0));
                    }
                    let (sum, count) = &mut seen[t];
                    (*sum, *count) = (*sum + rho, *count + 1.0);
                    weight = if rho.is_zero() { rho } else { rho * Scaled::new(*count) / *sum };
                }
                let reward = discount * Scaled::new(rewards[row]);
                sample.v_behavior += reward.at_scale(0);
                sample.v_target += (weight * reward).at_scale(0);
                if !(sample.v_behavior.is_finite() && sample.v_target.is_finite()) {
                    return Err(EstimateError::Overflow { row });
                }
                discount = discount * gamma;
            }
            samples.push(sample);
        }
        self.seen = seen;
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::EPS_ID, column::ColumnData};

    /// Returns two episodes with rewards 1, 2, 3 and 4, 5, and the ratios 0.5, 1.5, 2 and 0.5, 1.
    fn log() -> SampleBatch {
        let mut batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(vec![1, 1, 1, 2, 2])).unwrap();
        for (name, values) in [
            ("rewards", vec![1.0, 2.0, 3.0, 4.0, 5.0]),
            ("action_prob", vec![0.5, 0.5, 0.25, 0.8, 0.5]),
            ("new_action_prob", vec![0.25, 0.75, 0.5, 0.4, 0.5]),
        ] {
            batch.insert(name, ColumnData::scalars(values)).unwrap();
        }
        batch
    }

    fn pairs(samples: &[Sample]) -> Vec<(f64, f64)> {
        samples.iter().map(|sample| (sample.v_behavior, sample.v_target)).collect()
    }

    #[test]
    fn last_steps_are_excluded() {
        // 1 + 0.5 * 2 and 0.5 + 0.75 * 0.5 * 2; 4 and 0.5 * 4.
        let samples = LegacyStepEstimator::is().per_episode(&log(), 0.5).unwrap();
        assert_eq!(pairs(&samples), [(2.0, 1.25), (4.0, 2.0)]);
        assert_eq!(samples[0].v_gain(), 0.625);
    }

    #[test]
    fn means_run_on() {
        let mut wis = LegacyStepEstimator::wis();
        // The first episode is its own mean; the mean at the second's only step is 0.5 too.
        assert_eq!(pairs(&wis.per_episode(&log(), 0.5).unwrap()), [(2.0, 2.0), (4.0, 4.0)]);
        let mut likelier = log();
        likelier.insert("new_action_prob", ColumnData::scalars(vec![0.5, 0.5, 0.5, 0.8, 0.5])).unwrap();
        // Now 1 over (0.5 + 0.5 + 1) / 3, then 1 over (0.75 + 1) / 2; and 1 over (2 + 1) / 4.
        let found = pairs(&wis.per_episode(&likelier, 1.0).unwrap());
        let expected = [(3.0, 1.5 + 2.0 * 2.0 / 1.75), (4.0, 4.0 / 0.75)];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.0 - expected.0).abs() < 1e-12 && (found.1 - expected.1).abs() < 1e-12, "{found:?}");
        }
    }
}
