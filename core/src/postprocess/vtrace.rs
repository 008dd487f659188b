//! Computes off-policy targets.

use super::PostprocessError;
use crate::math;

/// Discounts and clipping of [`vtrace`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VTraceConfig {
    /// Discount per step.
    pub gamma: f64,
    /// Decay of the traces; 1 in the paper's main text.
    pub lambda: f64,
    /// Maximum weight of a temporal difference; infinity for none. It determines the policy whose values `vs` converges to.
    pub rho_clip: f64,
    /// Maximum factor of a trace; infinity for none. It determines the speed of convergence.
    pub c_clip: f64,
    /// Maximum weight of an advantage; infinity for none.
    pub pg_rho_clip: f64,
}

/// No discount, and all weights clipped at 1, as the paper recommends.
impl Default for VTraceConfig {
    fn default() -> Self {
        Self { gamma: 1.0, lambda: 1.0, rho_clip: 1.0, c_clip: 1.0, pg_rho_clip: 1.0 }
    }
}

/// One piece of a trajectory, a row per step.
#[derive(Clone, Copy, Debug)]
pub struct VTraceInput<'a> {
    /// Log-probabilities of the actions under the policy that took them.
    pub behavior_logp: &'a [f32],
    /// Log-probabilities of the actions under the learner's policy.
    pub target_logp: &'a [f32],
    /// Rewards.
    pub rewards: &'a [f32],
    /// Value estimates of the observations.
    pub values: &'a [f32],
    /// Value of the state after the last row, 0 after a terminal state.
    pub bootstrap_value: f32,
}

/// Computes value targets and advantages corrected for the difference between two policies (Espeholt et al.: "IMPALA",
/// 2018).
///
/// With `rho_t = min(rho_clip, pi_t / mu_t)` and `c_t = lambda min(c_clip, pi_t / mu_t)`, from the last row to the
/// first: `vs_t = V_t + rho_t (r_t + gamma V_(t+1) - V_t) + gamma c_t (vs_(t+1) - V_(t+1))`, and `pg_advantages_t` is
/// `min(pg_rho_clip, pi_t / mu_t) (r_t + gamma vs_(t+1) - V_t)`, where both `V` and `vs` after the last row are the
/// bootstrap value. Sums are in double precision.
///
/// # Errors
/// [`PostprocessError::LengthMismatch`] if a slice and `rewards` differ in length; [`PostprocessError::NotFinite`] for an
/// input that is NaN or infinite, except that an action may have probability 0 under the learner's policy, and for an
/// unclipped weight that is too large; [`PostprocessError::Config`]. After an error, the contents of the outputs are
/// unspecified.
#[doc(alias = "from_importance_weights")]
pub fn vtrace(
    input: &VTraceInput<'_>,
    config: &VTraceConfig,
    vs: &mut [f32],
    pg_advantages: &mut [f32],
) -> Result<(), PostprocessError> {
    let expected = input.rewards.len();
    let lengths = [
        ("behavior_logp", input.behavior_logp.len()),
        ("target_logp", input.target_logp.len()),
        ("values", input.values.len()),
        ("vs", vs.len()),
        ("pg_advantages", pg_advantages.len()),
    ];
    if let Some(&(name, found)) = lengths.iter().find(|(_, found)| *found != expected) {
        return Err(PostprocessError::LengthMismatch { name, expected, found });
    }
    check_numbers(input, config)?;
    let mut next_value = f64::from(input.bootstrap_value);
    let mut next_vs = next_value;
    let steps = input.rewards.iter().zip(input.values).zip(input.target_logp.iter().zip(input.behavior_logp));
    for (row, (((&reward, &value), (&target, &behavior)), (vs, pg_advantage))) in
        steps.zip(vs.iter_mut().zip(pg_advantages)).enumerate().rev()
    {
        let (reward, value) = (f64::from(reward), f64::from(value));
        let ratio = f64::from(math::exp(target - behavior));
        let (rho, c, pg_rho) = (ratio.min(config.rho_clip), ratio.min(config.c_clip), ratio.min(config.pg_rho_clip));
        let largest = rho.max(c).max(pg_rho);
        if largest.is_infinite() {
            return Err(PostprocessError::NotFinite { name: "weight", row, value: largest });
        }
        let delta = rho * (reward + config.gamma * next_value - value);
        let trace = config.lambda * c;
        let advantage = pg_rho * (reward + config.gamma * next_vs - value);
        next_vs = value + delta + config.gamma * trace * (next_vs - next_value);
        next_value = value;
        *vs = next_vs as f32;
        *pg_advantage = advantage as f32;
    }
    Ok(())
}

fn check_numbers(input: &VTraceInput<'_>, config: &VTraceConfig) -> Result<(), PostprocessError> {
    let VTraceConfig { gamma, lambda, rho_clip, c_clip, pg_rho_clip } = *config;
    let fields = [
        ("gamma", gamma, gamma.is_finite()),
        ("lambda", lambda, lambda.is_finite()),
        ("rho_clip", rho_clip, rho_clip >= 0.0),
        ("c_clip", c_clip, c_clip >= 0.0),
        ("pg_rho_clip", pg_rho_clip, pg_rho_clip >= 0.0),
    ];
    if let Some(&(name, value, _)) = fields.iter().find(|(.., ok)| !ok) {
        return Err(PostprocessError::Config { name, value });
    }
    let slices = [
        ("behavior_logp", input.behavior_logp),
        ("target_logp", input.target_logp),
        ("rewards", input.rewards),
        ("values", input.values),
    ];
    for (name, slice) in slices {
        let possible = |value: f32| value.is_finite() || (name == "target_logp" && value == f32::NEG_INFINITY);
        if let Some((row, &value)) = slice.iter().enumerate().find(|(_, value)| !possible(**value)) {
            return Err(PostprocessError::NotFinite { name, row, value: value.into() });
        }
    }
    if input.bootstrap_value.is_finite() {
        return Ok(());
    }
    let (row, value) = (input.rewards.len(), input.bootstrap_value.into());
    Err(PostprocessError::NotFinite { name: "bootstrap_value", row, value })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{postprocess::discounted_returns, prelude::*};

    #[test]
    fn by_hand() {
        // Ratios 2 and 1/2, clipped to 1 and 1/2.
        let logp = |ratio: f32| math::log(ratio);
        let input = VTraceInput {
            behavior_logp: &[0.0, 0.0],
            target_logp: &[logp(2.0), logp(0.5)],
            rewards: &[1.0, 2.0],
            values: &[0.5, 1.0],
            bootstrap_value: 4.0,
        };
        let config = VTraceConfig { gamma: 0.5, ..VTraceConfig::default() };
        let (mut vs, mut advantages) = ([0.0; 2], [0.0; 2]);
        vtrace(&input, &config, &mut vs, &mut advantages).unwrap();
        // vs_1 = 1 + 1/2 (2 + 2 - 1) = 2.5; vs_0 = 0.5 + (1 + 0.5 - 0.5) + 0.5 (2.5 - 1) = 2.25
        // pg_1 = 1/2 (2 + 2 - 1) = 1.5; pg_0 = 1 + 1.25 - 0.5 = 1.75
        for (found, expected) in vs.iter().chain(&advantages).zip([2.25, 2.5, 1.75, 1.5]) {
            assert!((found - expected).abs() < 1e-5, "{vs:?} {advantages:?}");
        }
        // Without clipping: vs_0 = 0.5 + 2 (1) + 0.5 * 2 (1.5) = 4, pg_0 = 2 (1.75)
        let open = f64::INFINITY;
        let config = VTraceConfig { rho_clip: open, c_clip: open, pg_rho_clip: open, ..config };
        vtrace(&input, &config, &mut vs, &mut advantages).unwrap();
        for (found, expected) in vs.iter().chain(&advantages).zip([4.0, 2.5, 3.5, 1.5]) {
            assert!((found - expected).abs() < 1e-5, "{vs:?} {advantages:?}");
        }
    }

    #[test]
    fn lengths_must_agree() {
        let input = VTraceInput {
            behavior_logp: &[0.0],
            target_logp: &[],
            rewards: &[1.0],
            values: &[0.5],
            bootstrap_value: 0.0,
        };
        let error = vtrace(&input, &VTraceConfig::default(), &mut [0.0], &mut [0.0]).unwrap_err();
        assert_eq!(error.to_string(), "'target_logp' has 0 rows, the rewards have 1");
    }

    #[test]
    fn vtrace_names_the_input_that_is_not_finite() {
        let fine = VTraceInput {
            behavior_logp: &[-1.0, -2.0],
            target_logp: &[f32::NEG_INFINITY, -1.0],
            rewards: &[1.0, 1.0],
            values: &[0.5, 0.5],
            bootstrap_value: 0.0,
        };
        let run = |input: &VTraceInput<'_>, config: &VTraceConfig| {
            let (mut vs, mut advantages) = ([0.0; 2], [0.0; 2]);
            vtrace(input, config, &mut vs, &mut advantages).map(|()| (vs, advantages))
        };
        let config = VTraceConfig::default();
        assert_eq!(run(&fine, &config).unwrap(), ([0.5, 1.0], [0.0, 0.5]));
        let (nan, infinite) = (&[0.0, f32::NAN][..], &[0.0, f32::NEG_INFINITY][..]);
        for (name, input) in [
            ("behavior_logp", VTraceInput { behavior_logp: infinite, ..fine }),
            ("target_logp", VTraceInput { target_logp: nan, ..fine }),
            ("rewards", VTraceInput { rewards: infinite, ..fine }),
            ("values", VTraceInput { values: nan, ..fine }),
        ] {
            let error = run(&input, &config).unwrap_err();
            assert!(matches!(error, PostprocessError::NotFinite { name: n, row: 1, .. } if n == name), "{error}");
        }
        let error = run(&VTraceInput { bootstrap_value: f32::INFINITY, ..fine }, &config).unwrap_err();
        assert!(matches!(error, PostprocessError::NotFinite { name: "bootstrap_value", row: 2, .. }), "{error}");
        let error = run(&fine, &VTraceConfig { c_clip: f64::NAN, ..config }).unwrap_err();
        assert!(matches!(error, PostprocessError::Config { name: "c_clip", .. }), "{error}");
        // A ratio of e^99 exceeds the range of floats; with clipping it is harmless.
        let far = VTraceInput { behavior_logp: &[-100.0, -1.0], target_logp: &[-1.0, -1.0], ..fine };
        assert!(run(&far, &config).is_ok());
        let error = run(&far, &VTraceConfig { rho_clip: f64::INFINITY, ..config }).unwrap_err();
        assert_eq!(error, PostprocessError::NotFinite { name: "weight", row: 0, value: f64::INFINITY });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Checks that the targets are the bootstrapped returns when both policies are equal, whatever the value estimates
        /// are.
        #[test]
        fn without_a_difference_of_policies_targets_are_returns(
            rows in vec((-3.0f32..3.0, -9.0f32..9.0, -5.0f32..0.0), 1..30),
            bootstrap_value in -9.0f32..9.0,
        ) {
            let rewards: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let values: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let logp: Vec<f32> = rows.iter().map(|row| row.2).collect();
            let input = VTraceInput {
                behavior_logp: &logp, target_logp: &logp, rewards: &rewards, values: &values, bootstrap_value,
            };
            let (mut vs, mut advantages) = (vec![0.0; rows.len()], vec![0.0; rows.len()]);
            let config = VTraceConfig { gamma: 0.9, ..VTraceConfig::default() };
            vtrace(&input, &config, &mut vs, &mut advantages).unwrap();
            for ((vs, expected), (advantage, value)) in
                vs.iter().zip(discounted_returns(&rewards, bootstrap_value, 0.9)).zip(advantages.iter().zip(&values))
            {
                prop_assert!((f64::from(*vs) - expected).abs() < 1e-4, "{vs} {expected}");
                prop_assert!((vs - value - advantage).abs() < 1e-4);
            }
        }
    }
}
