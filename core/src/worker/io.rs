//! Inputs and outputs by what settings name: registered names, else files.

use super::{Registry, SetupError, config::InputSource};
use crate::{
    prelude::*,
    readers::{MixedInput, ShuffledInput, check_probabilities},
    sampler::{InputReader, IoContext, OutputWriter, SampleError},
};

impl Registry {
    /// Opens an input. With the setting `shuffle_buffer_size`, shuffles that many batches of it, of at most `buffer_size`
    /// bytes (default 1 GiB), unless it is the worker's own environments.
    ///
    /// # Errors
    /// [`SetupError`]: the name is unknown, probabilities do not sum to 1, or it cannot be opened.
    pub fn open_input(
        &self,
        source: &InputSource,
        context: &mut IoContext,
    ) -> Result<Box<dyn InputReader>, SetupError> {
        let (seed, worker_index) = (context.seed, context.worker.worker_index);
        let input = match source {
            InputSource::Name(name) => self.open_named(name, context)?,
            InputSource::Files(files) => match &self.file_input {
                Some(open) => open(files, context)?,
                None => return Err(no_files(&files.join(", "))),
            },
            InputSource::Mixture(mixture) => {
                check_probabilities(mixture.values().copied())?;
                let mut sources = Vec::with_capacity(mixture.len());
                for (name, probability) in mixture {
                    sources.push((*probability, self.open_named(name, context)?));
                }
                Box::new(MixedInput::new(sources, seed, worker_index)?)
            }
        };
        let size = context.config.get::<usize>("shuffle_buffer_size")?.unwrap_or(0);
        if size <= 1 || source.is_sampler() {
            return Ok(input);
        }
        let buffer = context.config.get("buffer_size")?.unwrap_or(ShuffledInput::DEFAULT_BUFFER);
        Ok(Box::new(ShuffledInput::new(input, size, seed, worker_index).with_buffer(buffer)))
    }

    fn open_named(&self, name: &str, context: &mut IoContext) -> Result<Box<dyn InputReader>, SetupError> {
        match (self.input(name), &self.file_input) {
            (Ok(open), _) => Ok(open(context)?),
            (Err(_), Some(open)) => Ok(open(&[name.to_string()], context)?),
            (Err(unknown), None) => Err(unknown.into()),
        }
    }

    /// Opens an output.
    ///
    /// # Errors
    /// [`SetupError`]: the name is unknown, or it cannot be opened.
    pub fn open_output(&self, name: &str, context: &mut IoContext) -> Result<Box<dyn OutputWriter>, SetupError> {
        match (self.output(name), &self.file_output) {
            (Ok(open), _) => Ok(open(context)?),
            (Err(_), Some(open)) => Ok(open(name, context)?),
            (Err(unknown), None) => Err(unknown.into()),
        }
    }

    /// Checks an input as far as possible without opening it.
    pub(super) fn check_input(&self, source: &InputSource) -> Result<(), SetupError> {
        let check = |name: &String| match (self.input(name), &self.file_input) {
            (Err(unknown), None) => Err(SetupError::from(unknown)),
            _ => Ok(()),
        };
        match source {
            InputSource::Name(name) => check(name),
            InputSource::Files(files) if self.file_input.is_none() => Err(no_files(&files.join(", "))),
            InputSource::Files(_) => Ok(()),
            InputSource::Mixture(mixture) => {
                check_probabilities(mixture.values().copied())?;
                mixture.keys().try_for_each(check)
            }
        }
    }

    /// Checks an output as far as possible without opening it.
    pub(super) fn check_output(&self, name: &str) -> Result<(), SetupError> {
        match (self.output(name), &self.file_output) {
            (Err(unknown), None) => Err(unknown.into()),
            _ => Ok(()),
        }
    }
}

fn no_files(what: &str) -> SetupError {
    SampleError::Input(format!("there are no files in this program: register an input instead of '{what}'")).into()
}
