//! Computes generalised advantage estimation over one piece of a trajectory.

/// The values that the end of a piece needs from the following steps.
///
/// Passing the carry of a piece to its predecessor gives the same bits as processing the whole trajectory, so a trajectory
/// may be cut anywhere and processed from its last piece to its first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Carry {
    /// Value estimate of the observation after the piece; 0 after a terminal state.
    pub next_value: f64,
    /// Advantage of the step after the piece, unrounded; 0 where the trajectory ends or is bootstrapped.
    pub next_advantage: f64,
}

impl Carry {
    /// Returns the carry at the end of the known steps: `value` is the value of the next state, 0 after a terminal state.
    #[must_use]
    pub const fn bootstrap(value: f32) -> Self {
        Self { next_value: value as f64, next_advantage: 0.0 }
    }
}

/// Computes advantages and value targets of one piece of an episode, by generalised advantage estimation (Schulman et al.,
/// 2015).
///
/// `rewards` and `values` have a row per step; `bootstrap` is the value of the state after the last one, 0 after a terminal
/// state. Writes `delta_t + gamma lambda delta_(t+1) + …` with `delta_t = r_t + gamma V_(t+1) - V_t` to `advantages`, and
/// advantage plus value to `targets`. Rewards and values are 32- or 64-bit floats; sums are in double precision. All slices
/// should have equal lengths; excess elements at the end of longer ones are ignored.
#[doc(alias = "compute_advantages")]
pub fn gae<R: Copy + Into<f64>, V: Copy + Into<f64>>(
    rewards: &[R],
    values: &[V],
    bootstrap: f32,
    gamma: f64,
    lambda: f64,
    advantages: &mut [f32],
    targets: &mut [f32],
) {
    gae_before(rewards, values, Carry::bootstrap(bootstrap), gamma, lambda, advantages, targets);
}

/// Applies [`gae`] to a piece that another one continues, whose carry is `after`. Returns the carry for the preceding piece.
pub fn gae_before<R: Copy + Into<f64>, V: Copy + Into<f64>>(
    rewards: &[R],
    values: &[V],
    after: Carry,
    gamma: f64,
    lambda: f64,
    advantages: &mut [f32],
    targets: &mut [f32],
) -> Carry {
    let rows = rewards.len().min(values.len()).min(advantages.len()).min(targets.len());
    let inputs = rewards[..rows].iter().zip(&values[..rows]);
    let outputs = advantages[..rows].iter_mut().zip(&mut targets[..rows]);
    let mut next_value = after.next_value;
    let mut advantage = after.next_advantage;
    // Each row depends on the next one only through a multiplication and an addition; the processor overlaps the rest, and
    // is faster than with separate loops.
    let decay = gamma * lambda;
    for ((&reward, &value), (out, target)) in inputs.zip(outputs).rev() {
        let value = value.into();
        let delta = reward.into() + gamma * next_value - value;
        advantage = delta + decay * advantage;
        *out = advantage as f32;
        *target = (advantage + value) as f32;
        next_value = value;
    }
    Carry { next_value, next_advantage: advantage }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::prelude::*;

    fn run(rewards: &[f32], values: &[f32], bootstrap: f32, gamma: f64, lambda: f64) -> (Vec<f32>, Vec<f32>) {
        let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
        gae(rewards, values, bootstrap, gamma, lambda, &mut advantages, &mut targets);
        (advantages, targets)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Computes the definition, row by row.
    fn plainly(rewards: &[f32], values: &[f32], bootstrap: f32, gamma: f64, lambda: f64) -> (Vec<f32>, Vec<f32>) {
        let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
        let (mut next_value, mut advantage) = (f64::from(bootstrap), 0.0);
        for t in (0..rewards.len()).rev() {
            let value = f64::from(values[t]);
            let delta = f64::from(rewards[t]) + gamma * next_value - value;
            advantage = delta + gamma * lambda * advantage;
            advantages[t] = advantage as f32;
            targets[t] = (advantage + value) as f32;
            next_value = value;
        }
        (advantages, targets)
    }

    #[test]
    fn by_hand() {
        let (advantages, targets) = run(&[1.0, 2.0], &[0.5, 1.0], 3.0, 0.5, 0.5);
        // delta_1 = 2 + 1.5 - 1 = 2.5, delta_0 = 1 + 0.5 - 0.5 = 1
        assert_eq!(advantages, [1.0 + 0.25 * 2.5, 2.5]);
        assert_eq!(targets, [2.125, 3.5]);
    }

    #[test]
    fn lambda_one_gives_discounted_returns() {
        let (_, targets) = run(&[1.0, 1.0, 1.0], &[0.3, -7.0, 2.0], 8.0, 0.5, 1.0);
        assert_eq!(targets, [1.0 + 0.5 + 0.25 + 1.0, 1.0 + 0.5 + 2.0, 1.0 + 4.0]);
    }

    #[test]
    fn nothing_flows_across_a_terminal_state() {
        let (advantages, _) = run(&[1.0], &[0.25], 0.0, 0.99, 0.95);
        assert_eq!(advantages, [0.75]);
    }

    #[test]
    fn excess_elements_stay_unchanged() {
        let (mut advantages, mut targets) = ([9.0; 3], [9.0; 1]);
        let carry = gae_before(&[1.0; 4], &[0.5; 2], Carry::default(), 0.9, 0.9, &mut advantages, &mut targets);
        assert_eq!((advantages, targets), ([0.5, 9.0, 9.0], [1.0]));
        assert_eq!(carry, Carry { next_value: 0.5, next_advantage: 0.5 });
        let nothing = gae_before::<f32, f32>(&[], &[], carry, 0.9, 0.9, &mut advantages, &mut targets);
        assert_eq!(nothing, carry);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn equal_to_the_definition_bit_for_bit(
            rows in vec((-10.0f32..10.0, -100.0f32..100.0), 0..300),
            bootstrap in -100.0f32..100.0,
            gamma in 0.0f64..=1.0,
            lambda in 0.0f64..=1.0,
        ) {
            let (rewards, values): (Vec<f32>, Vec<f32>) = rows.into_iter().unzip();
            let (advantages, targets) = run(&rewards, &values, bootstrap, gamma, lambda);
            let (expected, expected_targets) = plainly(&rewards, &values, bootstrap, gamma, lambda);
            prop_assert_eq!(bits(&advantages), bits(&expected));
            prop_assert_eq!(bits(&targets), bits(&expected_targets));
        }

        #[test]
        fn advantages_of_pieces_joined_by_carries_are_bit_identical(
            rows in vec((-10.0f32..10.0, -100.0f32..100.0), 1..300),
            cuts in vec(any::<prop::sample::Index>(), 0..5),
            bootstrap in -100.0f32..100.0,
            lambda in 0.0f64..=1.0,
        ) {
            let (rewards, values): (Vec<f32>, Vec<f32>) = rows.into_iter().unzip();
            let (whole, whole_targets) = run(&rewards, &values, bootstrap, 0.99, lambda);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(rewards.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut advantages, mut targets) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
            let (mut carry, mut end) = (Carry::bootstrap(bootstrap), rewards.len());
            for start in cuts.into_iter().rev().chain([0]) {
                let piece = start..end;
                carry = gae_before(
                    &rewards[piece.clone()],
                    &values[piece.clone()],
                    carry,
                    0.99,
                    lambda,
                    &mut advantages[piece.clone()],
                    &mut targets[piece],
                );
                end = start;
            }
            prop_assert_eq!(bits(&advantages), bits(&whole));
            prop_assert_eq!(bits(&targets), bits(&whole_targets));
            prop_assert_eq!(carry.next_advantage as f32, whole[0]);
        }
    }
}
