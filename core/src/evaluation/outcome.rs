//! Requests and results of evaluations.

use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::RewardKey;
use crate::{
    env::{Frame, RowsRef},
    episode::RolloutMetrics,
    ids::{SlotId, WeightsVersion, eps_id},
    prelude::*,
};

/// A request for an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationRequest {
    /// Most env steps of each sub-environment.
    pub max_steps: u32,
    /// Whether to take the most likely actions instead of sampling them.
    pub deterministic: bool,
    /// Whether the first end of an episode ends the evaluation; otherwise the next episode begins.
    pub break_when_any_done: bool,
    /// Number of episodes, divided evenly among the sub-environments beforehand, since the first ones to end would be biased
    /// towards short ones. `None` for as many as fit.
    pub episodes: Option<NonZeroU32>,
    /// Whether to record pictures of the first sub-environment, if it has any.
    pub render: bool,
    /// Whether to record the first sub-environment's observations in its latest episode.
    pub trace: bool,
    /// The signal whose sum is the return; `None` for the evaluator's own.
    #[serde(default)]
    #[doc(alias = "reward_keys")]
    pub reward_key: Option<RewardKey>,
}

impl EvaluationRequest {
    /// Requests an evaluation up to the first end of an episode or `max_steps` steps, with the most likely actions, and with
    /// pictures.
    #[must_use]
    pub const fn new(max_steps: u32) -> Self {
        Self {
            max_steps,
            deterministic: true,
            break_when_any_done: true,
            episodes: None,
            render: true,
            trace: false,
            reward_key: None,
        }
    }

    /// Requests this many whole episodes, of at most `max_steps` steps each and over all of a sub-environment, without
    /// pictures.
    #[must_use]
    pub fn of_episodes(episodes: NonZeroU32, max_steps: u32) -> Self {
        Self { break_when_any_done: false, episodes: Some(episodes), render: false, ..Self::new(max_steps) }
    }
}

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedEpisode {
    /// The sub-environment.
    pub env: u32,
    /// Number of the episode there.
    pub episode: u32,
    /// Sum of the reward signal, undiscounted.
    pub episode_return: f64,
    /// Env steps.
    pub len: u32,
    /// Whether it ended in a terminal state, not by a limit.
    pub terminated: bool,
}

impl EvaluatedEpisode {
    /// Returns the metrics that [`on_evaluate_end`](crate::callbacks::Callbacks::on_evaluate_end) gets.
    #[must_use]
    pub fn metrics(&self) -> RolloutMetrics {
        RolloutMetrics {
            episode_id: eps_id(SlotId(self.env), self.episode),
            env: self.env as usize,
            length: self.len,
            episode_return: self.episode_return,
            ..RolloutMetrics::default()
        }
    }
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Version of the evaluated weights.
    pub weights_version: WeightsVersion,
    /// The episodes that ended, in that order; those that ended in the same step by sub-environment.
    pub episodes: Vec<EvaluatedEpisode>,
    /// Their mean return; `None` if there are none.
    pub episode_return_mean: Option<f64>,
    /// Their mean length.
    pub episode_len_mean: Option<f64>,
    /// Number of episodes that had begun and not ended.
    pub unfinished: u32,
    /// Mean of their returns so far; `None` if there are none.
    pub partial_return_mean: Option<f64>,
    /// Number of episodes that were lost to a failure of their environment, which was then restarted.
    pub faulty: u32,
    /// Env steps of all sub-environments.
    pub env_steps: u64,
    /// Pictures of the first sub-environment, one after every step; `None` if it has none or they were not requested.
    #[serde(skip)]
    pub frames: Option<Frames>,
    /// Observations of the first sub-environment in the latest of its episodes that ended; `None` if there is none or they
    /// were not requested.
    pub trace: Option<EpisodeTrace>,
}

/// The observations of a sub-environment's first agent in an episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeTrace {
    /// Number of the episode.
    pub episode: u32,
    /// Elements of an observation.
    pub obs_len: u32,
    /// The observations that it acted on, one after the other, converted to `f32`.
    pub obs: Vec<f32>,
    /// Whether the end is missing because of the size limit.
    pub is_cut: bool,
}

impl EpisodeTrace {
    /// Most numbers in the observations.
    pub const MAX_NUMBERS: usize = 50_000;

    /// Adds an observation, unless the size limit is reached.
    pub(super) fn add(&mut self, row: RowsRef<'_>) {
        if self.is_cut || self.obs.len().saturating_add(row.len()) > Self::MAX_NUMBERS {
            self.is_cut = true;
            return;
        }
        self.obs_len = u32::try_from(row.len()).unwrap_or(u32::MAX);
        match row {
            RowsRef::F32(row) => self.obs.extend_from_slice(row),
            RowsRef::F64(row) => self.obs.extend(row.iter().map(|&x| x as f32)),
            RowsRef::I32(row) => self.obs.extend(row.iter().map(|&x| x as f32)),
            RowsRef::I64(row) => self.obs.extend(row.iter().map(|&x| x as f32)),
            RowsRef::U8(row) => self.obs.extend(row.iter().map(|&x| f32::from(x))),
            RowsRef::Bool(row) => self.obs.extend(row.iter().map(|&x| f32::from(u8::from(x)))),
        }
    }
}

impl Evaluation {
    /// Returns a single score: the mean return of the episodes that ended; without any, of the unfinished ones so far; 0 if
    /// no step was taken. Never NaN.
    #[must_use]
    pub fn reward(&self) -> f64 {
        self.episode_return_mean.or(self.partial_return_mean).unwrap_or(0.0)
    }

    /// Returns the population standard deviation of the returns of the episodes that ended.
    #[must_use]
    pub fn episode_return_std(&self) -> Option<f64> {
        let mean = self.episode_return_mean?;
        let squares =
            self.episodes.iter().map(|episode| (episode.episode_return - mean) * (episode.episode_return - mean));
        let variance = squares.sum::<f64>() / self.episodes.len() as f64;
        Some(crate::math::sqrt_f64(variance)).filter(|std| std.is_finite())
    }

    /// Computes the means. `unfinished` are the returns so far of the episodes that have not ended.
    pub(super) fn close(&mut self, unfinished: &[f64]) {
        let returns = || self.episodes.iter().map(|episode| episode.episode_return);
        (self.episode_return_mean, self.episode_len_mean) =
            (mean(returns()), mean(self.episodes.iter().map(|episode| f64::from(episode.len))));
        self.unfinished = u32::try_from(unfinished.len()).unwrap_or(u32::MAX);
        self.partial_return_mean = mean(unfinished.iter().copied());
    }
}

/// Returns the mean; `None` without numbers. Unless the sum stays in range, each number is divided before it is added.
fn mean(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> Option<f64> {
    let n = numbers.len() as f64;
    if n == 0.0 {
        return None;
    }
    let sum: f64 = numbers.clone().sum();
    let mean = if sum.is_finite() { sum / n } else { numbers.map(|number| number / n).sum() };
    Some(mean.clamp(f64::MIN, f64::MAX))
}

/// Pictures of one size: height rows of width pixels of red, green and blue, a byte each, picture after picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
    /// Whether pictures were dropped, because of the size limit or their size.
    pub is_cut: bool,
}

impl Frames {
    /// Creates pictures from width, height and bytes. `None` if the bytes are not whole pictures.
    #[must_use]
    pub fn of(width: u32, height: u32, rgb: Vec<u8>, is_cut: bool) -> Option<Self> {
        let frames = Self { width, height, rgb, is_cut };
        let is_whole =
            frames.rgb.len().checked_rem(frames.frame_bytes()).map_or(frames.rgb.is_empty(), |rest| rest == 0);
        is_whole.then_some(frames)
    }

    /// Returns the number of pictures, their height and width, and 3: `(T, H, W, 3)`.
    #[must_use]
    pub fn shape(&self) -> [usize; 4] {
        [self.len(), self.height as usize, self.width as usize, 3]
    }

    /// Returns the number of pictures.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rgb.len().checked_div(self.frame_bytes()).unwrap_or(0)
    }

    /// Returns true without pictures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rgb.is_empty()
    }

    /// Returns all pixels, in the order of the [shape](Self::shape).
    #[must_use]
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Iterates over the pictures.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.rgb.chunks_exact(self.frame_bytes().max(1))
    }

    /// Returns the first pictures that fit into `max_bytes`; `None` if all do.
    #[must_use]
    pub fn first_within(&self, max_bytes: usize) -> Option<Self> {
        let bytes = max_bytes - max_bytes.checked_rem(self.frame_bytes()).unwrap_or(0);
        let rgb = self.rgb.get(..bytes).filter(|rgb| rgb.len() < self.rgb.len())?;
        Some(Self { rgb: rgb.into(), is_cut: true, ..*self })
    }

    fn frame_bytes(&self) -> usize {
        (self.width as usize).saturating_mul(self.height as usize).saturating_mul(3)
    }

    /// Adds a picture, unless `max_bytes` would be exceeded.
    pub(super) fn add(&mut self, frame: &Frame, max_bytes: usize) {
        if self.is_empty() {
            (self.width, self.height) = (frame.width(), frame.height());
        }
        let is_other = (self.width, self.height) != (frame.width(), frame.height());
        if self.is_cut || is_other || self.rgb.len().saturating_add(frame.rgb().len()) > max_bytes {
            self.is_cut = true;
        } else {
            self.rgb.extend_from_slice(frame.rgb());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(episode_return: f64) -> EvaluatedEpisode {
        EvaluatedEpisode { env: 0, episode: 0, episode_return, len: 2, terminated: true }
    }

    #[test]
    fn there_is_always_one_number() {
        let mut none = Evaluation::default();
        none.close(&[]);
        assert_eq!((none.reward(), none.episode_return_mean, none.partial_return_mean), (0.0, None, None));
        none.close(&[1.0, 4.0]);
        assert_eq!((none.reward(), none.unfinished, none.episode_return_std()), (2.5, 2, None));
        let mut some = Evaluation { episodes: [1.0, 3.0].map(episode).into(), ..Evaluation::default() };
        some.close(&[9.0]);
        assert_eq!((some.reward(), some.partial_return_mean, some.episode_len_mean), (2.0, Some(9.0), Some(2.0)));
        assert_eq!(some.episode_return_std(), Some(1.0));
        let mut large = Evaluation { episodes: [f64::MAX; 3].map(episode).into(), ..Evaluation::default() };
        large.close(&[]);
        assert!(large.reward().is_finite());
    }

    #[test]
    fn pictures_have_one_size_and_a_limit() {
        let mut frame = Frame::new();
        frame.fill(2, 3, [7, 8, 9]);
        let mut frames = Frames::default();
        (0..4).for_each(|_| frames.add(&frame, 3 * 18));
        assert_eq!((frames.shape(), frames.is_cut), ([3, 3, 2, 3], true));
        assert!(frames.iter().len() == 3 && frames.iter().all(|rgb| rgb == frame.rgb()));
        assert_eq!(Frames::of(2, 3, frames.rgb().to_vec(), true), Some(frames));
        let mut frames = Frames::default();
        frames.add(&frame, 1000);
        frame.fill(3, 3, [7, 8, 9]);
        frames.add(&frame, 1000);
        assert!(frames.len() == 1 && frames.is_cut);
        assert_eq!(Frames::of(2, 3, vec![0; 19], false), None);
        assert_eq!(Frames::of(0, 3, vec![0], false), None);
        assert_eq!(Frames::default().shape(), [0, 0, 0, 3]);
    }
}
