//! Computes discounted sums.

use crate::prelude::*;

/// Replaces each value by the discounted sum of itself and all following values: `y_t = x_t + gamma y_(t+1)`.
pub fn discount_cumsum(values: &mut [f64], gamma: f64) {
    let mut sum = 0.0;
    for value in values.iter_mut().rev() {
        sum = *value + gamma * sum;
        *value = sum;
    }
}

/// Returns the Monte-Carlo returns of one piece of a trajectory: discounted sums of its rewards and of `last_r`, the value
/// of the state after its last row. One per row; sums in double precision.
#[must_use]
pub fn discounted_returns<R: Copy + Into<f64>>(rewards: &[R], last_r: f32, gamma: f64) -> Vec<f64> {
    let mut returns: Vec<f64> = rewards.iter().copied().map(Into::into).collect();
    if let Some(last) = returns.last_mut() {
        *last += gamma * f64::from(last_r);
    }
    discount_cumsum(&mut returns, gamma);
    returns
}

/// Returns the value estimate of the next state for each row of one piece of a trajectory: the values of the next rows, then
/// `last_r`.
#[must_use]
pub fn values_bootstrapped(values: &[f32], last_r: f32) -> Vec<f32> {
    let mut next = Vec::with_capacity(values.len());
    if let Some((_, rest)) = values.split_first() {
        next.extend_from_slice(rest);
        next.push(last_r);
    }
    next
}

/// Returns the value of the state after the last row: 0 if the trajectory terminates there, otherwise `bootstrap_value`,
/// also where it is truncated or only cut. A row that is both terminated and truncated counts as terminated.
#[must_use]
#[doc(alias = "compute_bootstrap_value")]
pub fn last_r(terminateds: &[bool], bootstrap_value: f32) -> f32 {
    if terminateds.last() == Some(&true) { 0.0 } else { bootstrap_value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_sums() {
        let mut values = [0.0, 1.0, 2.0, 3.0];
        discount_cumsum(&mut values, 0.99);
        for (value, expected) in values.iter().zip([5.861_097, 5.9203, 4.97, 3.0]) {
            assert!((value - expected).abs() < 1e-12, "{values:?}");
        }
        discount_cumsum(&mut [], 0.99);
    }

    #[test]
    fn returns_end_with_the_bootstrap_value() {
        assert_eq!(discounted_returns(&[1.0, 2.0], 4.0, 0.5), [1.0 + 1.0 + 1.0, 2.0 + 2.0]);
        assert_eq!(discounted_returns::<f32>(&[], 4.0, 0.5), [0f64; 0]);
    }

    #[test]
    fn only_termination_leaves_nothing_to_come() {
        assert_eq!(last_r(&[false, true], 4.0), 0.0);
        assert_eq!(last_r(&[true, false], 4.0), 4.0);
        assert_eq!(last_r(&[], 4.0), 4.0);
        assert_eq!(values_bootstrapped(&[0.5, 0.6, 0.7], 4.0), [0.6, 0.7, 4.0]);
        assert_eq!(values_bootstrapped(&[], 4.0), [0f32; 0]);
    }
}
