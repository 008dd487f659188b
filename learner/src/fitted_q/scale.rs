//! The scales of the inputs and outputs of a network that is fitted to a whole log.

use rollmesh_core::estimate::Transitions;

/// Maximum distance of a scaled observation from 0; it matters for numbers that are nearly constant.
const FARTHEST: f64 = 10.0;
/// Minimum of 1 minus the discount and the chance to continue, so that the scale of values is bounded: a horizon of a
/// thousand steps.
const LEAST_END: f64 = 1e-3;

/// The scales of observations and values. Initial weights and learning rates suit observations around 0 and values
/// around 1.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// The mean of each number of an observation.
    center: Vec<f32>,
    /// The standard deviation of each number of an observation, or a little more.
    width: Vec<f32>,
    /// The value for which the network outputs 1.
    pub(super) value: f32,
}

impl Scale {
    /// Returns the scale that changes nothing.
    pub(super) fn none(obs_len: usize) -> Self {
        Self { center: vec![0.0; obs_len], width: vec![1.0; obs_len], value: 1.0 }
    }

    /// Returns the scale of a log: the spread of its observations, and the value of a constant reward of the usual
    /// size, with the discount and with as many terminations as in the log.
    pub(super) fn of(transitions: &Transitions, gamma: f64) -> Self {
        let n = transitions.len() as f64;
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n;
        let column = |i: usize| transitions.obs.iter().skip(i).step_by(transitions.obs_len).map(|x| f64::from(*x));
        let (mut center, mut width) = (Vec::new(), Vec::new());
        for i in 0..transitions.obs_len {
            let middle = mean(&mut column(i));
            let deviation = mean(&mut column(i).map(|x| (x - middle).powi(2))).sqrt();
            let farthest = column(i).map(|x| (x - middle).abs()).fold(0.0, f64::max);
            center.push(middle as f32);
            width.push(usable(deviation.max(farthest / FARTHEST)));
        }
        let reward = mean(&mut transitions.rewards.iter().map(|reward| f64::from(*reward).powi(2))).sqrt();
        let goes_on = mean(&mut transitions.terminateds.iter().map(|ends| f64::from(u8::from(!ends))));
        Self { center, width, value: usable(reward / (1.0 - gamma * goes_on).max(LEAST_END)) }
    }

    pub(super) fn obs(&self, obs: &[f32]) -> Vec<f32> {
        let scales = self.center.iter().zip(&self.width).cycle();
        obs.iter().zip(scales).map(|(x, (center, width))| (x - center) / width).collect()
    }
}

/// Returns the width if it is a valid divisor, else 1.
fn usable(width: f64) -> f32 {
    let width = width as f32;
    if width.is_normal() { width } else { 1.0 }
}
