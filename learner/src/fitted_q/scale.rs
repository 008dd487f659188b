//! What a network that is fitted to a whole log sees, and what it says.

use rollmesh_core::estimate::Transitions;

/// How far from 0 an observation is at most, for those that are nearly always the same.
const FARTHEST: f64 = 10.0;
/// What an end costs at least, so that the scale of values is bounded: a horizon of a thousand steps.
const LEAST_END: f64 = 1e-3;

/// Observations around 0, and values around 1, are what initial weights and learning rates are made for.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Of each number of an observation, its mean.
    center: Vec<f32>,
    /// Of each number of an observation, its standard deviation or a little more.
    width: Vec<f32>,
    /// What the network calls 1.
    pub(super) value: f32,
}

impl Scale {
    /// Everything as it is.
    pub(super) fn none(obs_len: usize) -> Self {
        Self { center: vec![0.0; obs_len], width: vec![1.0; obs_len], value: 1.0 }
    }

    /// By the spread of a log's observations, and by what its usual reward is worth until the discount, or an end as often as
    /// in the log, cuts it off.
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

/// What can be divided by.
fn usable(width: f64) -> f32 {
    let width = width as f32;
    if width.is_normal() { width } else { 1.0 }
}
