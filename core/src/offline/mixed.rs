//! Several inputs as one.

use super::{Choice, Draws};
use crate::{
    batch::AnyBatch,
    env::SubEnv,
    episode::RolloutMetrics,
    prelude::*,
    sampler::{InputReader, SampleError, SamplerHost},
};

/// Takes each batch from one of several inputs, chosen by chance.
pub struct MixedInput {
    sources: Vec<(f64, Box<dyn InputReader>)>,
    draws: Draws,
}

impl MixedInput {
    /// How far the sum of probabilities may be from 1: as far as rounding takes it.
    const TOLERANCE: f64 = 1e-9;

    /// Inputs with their probabilities.
    ///
    /// # Errors
    /// [`SampleError::Input`] without inputs, and if the probabilities are no probabilities or do not sum to 1.
    pub fn new(sources: Vec<(f64, Box<dyn InputReader>)>, seed: u64, worker_index: u32) -> Result<Self, SampleError> {
        check_probabilities(sources.iter().map(|(probability, _)| *probability))?;
        Ok(Self { sources, draws: Draws::new(seed, worker_index, Choice::Source) })
    }
}

/// Whether these are the probabilities of something.
///
/// # Errors
/// As [`MixedInput::new`].
pub(crate) fn check_probabilities(probabilities: impl Iterator<Item = f64> + Clone) -> Result<(), SampleError> {
    if let Some(wrong) = probabilities.clone().find(|p| !(0.0..=1.0).contains(p)) {
        return Err(SampleError::Input(format!("the probability of an input is {wrong}; it must be from 0 to 1")));
    }
    let sum: f64 = probabilities.sum();
    if (sum - 1.0).abs() > MixedInput::TOLERANCE {
        return Err(SampleError::Input(format!("the probabilities of the inputs sum to {sum}; they must sum to 1")));
    }
    Ok(())
}

impl InputReader for MixedInput {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let mut left = self.draws.next_rng().uniform_f64();
        let mut chosen = None;
        for (probability, source) in &mut self.sources {
            // The last one that can be chosen is, where rounding leaves something over.
            if *probability > 0.0 {
                let is_it = left < *probability;
                left -= *probability;
                chosen = Some(source);
                if is_it {
                    break;
                }
            }
        }
        chosen.ok_or_else(|| SampleError::Input("there is no input to choose".into()))?.next(host)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.sources.iter_mut().flat_map(|(_, source)| source.metrics()).collect()
    }

    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        self.sources.iter_mut().flat_map(|(_, source)| source.sub_environments()).collect()
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.sources.iter_mut().for_each(|(_, source)| source.for_each_env(f));
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        // All are stopped, whatever one of them says.
        let stopped: Vec<_> = self.sources.iter_mut().map(|(_, source)| source.stop()).collect();
        stopped.into_iter().collect()
    }
}
