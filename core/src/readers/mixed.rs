//! Several inputs as one.

use serde::{Deserialize, Serialize};

use super::{Choice, Draws};
use crate::{
    batch::AnyBatch,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    prelude::*,
    sampler::{Budget, InputReader, Position, SampleError, SamplerHost},
};

/// Takes each batch from one of several inputs, chosen by chance.
pub struct MixedInput {
    sources: Vec<(f64, Box<dyn InputReader>)>,
    draws: Draws,
    /// Which source was chosen, as long as its batch is awaited.
    choice: Option<usize>,
}

/// Where it is.
#[derive(Serialize, Deserialize)]
struct MixedPosition {
    drawn: u64,
    choice: Option<u32>,
    sources: Vec<Position>,
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
        Ok(Self { sources, draws: Draws::new(seed, worker_index, Choice::Source), choice: None })
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

impl MixedInput {
    /// The source of the next batch: the same one until it has given it.
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
            // The last one that can be chosen is, where rounding leaves something over.
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
        let batch = self.chosen()?.next(host)?;
        self.choice = None;
        Ok(batch)
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

    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        self.sources.iter_mut().flat_map(|(_, source)| source.sub_environments()).collect()
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
        self.draws.go_on(drawn);
        self.choice = choice.map(|choice| choice as usize);
        self.sources.iter_mut().zip(&sources).try_for_each(|((_, source), position)| source.set_position(position))
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        // All are stopped, whatever one of them says.
        let stopped: Vec<_> = self.sources.iter_mut().map(|(_, source)| source.stop()).collect();
        stopped.into_iter().collect()
    }
}
