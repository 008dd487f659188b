//! Combines several inputs into one.

use serde::{Deserialize, Serialize};

use super::{Choice, Draws};
use crate::{
    batch::AnyBatch,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    prelude::*,
    sampler::{Budget, InputReader, Position, SampleError, SamplerHost},
};

/// Reads each batch from one of several inputs, chosen at random.
pub struct MixedInput {
    sources: Vec<(f64, Box<dyn InputReader>)>,
    draws: Draws,
    /// The chosen source, until its batch arrives.
    choice: Option<usize>,
}

/// The position of the reader.
#[derive(Serialize, Deserialize)]
struct MixedPosition {
    drawn: u64,
    choice: Option<u32>,
    sources: Vec<Position>,
}

impl MixedInput {
    /// Tolerance for the sum of probabilities: the size of rounding errors.
    const TOLERANCE: f64 = 1e-9;

    /// Creates an input from several inputs with their probabilities.
    ///
    /// # Errors
    /// [`SampleError::Input`] without inputs, or if the probabilities are invalid or do not sum to 1.
    pub fn new(sources: Vec<(f64, Box<dyn InputReader>)>, seed: u64, worker_index: u32) -> Result<Self, SampleError> {
        check_probabilities(sources.iter().map(|(probability, _)| *probability))?;
        Ok(Self { sources, draws: Draws::new(seed, worker_index, Choice::Source), choice: None })
    }
}

/// Checks that these are probabilities that sum to 1.
///
/// # Errors
/// The errors of [`MixedInput::new`].
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

impl MixedInput {
    /// Returns the source of the next batch: the same one until it has returned the batch.
    fn chosen(&mut self) -> Result<&mut dyn InputReader, SampleError> {
        let choice = match self.choice {
            Some(choice) => choice,
            None => self.choose(),
        };
        self.choice = Some(choice);
        match self.sources.get_mut(choice) {
            Some((_, source)) => Ok(source.as_mut()),
            None => Err(SampleError::Input("there is no input to choose".into())),
        }
    }

    fn choose(&mut self) -> usize {
        let mut left = self.draws.next_rng().uniform_f64();
        let mut chosen = 0;
        for (index, (probability, _)) in self.sources.iter().enumerate().filter(|(_, (p, _))| *p > 0.0) {
            // The last possible source is chosen if rounding leaves a remainder.
            chosen = index;
            if left < *probability {
                break;
            }
            left -= *probability;
        }
        chosen
    }
}

impl InputReader for MixedInput {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.next_within(host, &mut Budget::endless())?.ok_or_else(SampleError::no_update)
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        let batch = self.chosen()?.next_within(host, budget)?;
        if batch.is_some() {
            self.choice = None;
        }
        Ok(batch)
    }

    fn losses(&mut self) -> Losses {
        let mut all = Losses::default();
        for losses in self.sources.iter_mut().map(|(_, source)| source.losses()) {
            // Each source has its own environments.
            let mut quarantined = core::mem::take(&mut all.quarantined);
            quarantined.extend_from_slice(&losses.quarantined);
            all.add(Losses { quarantined, ..losses });
        }
        all
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.sources.iter_mut().flat_map(|(_, source)| source.metrics()).collect()
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.sources.iter_mut().for_each(|(_, source)| source.for_each_env(f));
    }

    fn position(&self) -> Option<Position> {
        let sources = self.sources.iter().map(|(_, source)| source.position()).collect::<Option<_>>()?;
        let choice = self.choice.and_then(|choice| u32::try_from(choice).ok());
        Some(Position::new(&MixedPosition { drawn: self.draws.drawn(), choice, sources }))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let MixedPosition { drawn, choice, sources } = position.read()?;
        if sources.len() != self.sources.len() {
            return Err(SampleError::Input(format!("there are {} inputs, not {}", self.sources.len(), sources.len())));
        }
        self.draws.skip_to(drawn);
        self.choice = choice.map(|choice| choice as usize);
        self.sources.iter_mut().zip(&sources).try_for_each(|((_, source), position)| source.set_position(position))
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        // Stops all sources, even if one of them fails.
        let stopped: Vec<_> = self.sources.iter_mut().map(|(_, source)| source.stop()).collect();
        stopped.into_iter().collect()
    }
}
