//! Experience in files.
//!
//! - [`files`]: which files a path, a directory or a pattern means.
//! - [`json`]: RLlib's sample files.
//! - [`hdf5`]: the format under D4RL and Minari.
//! - [`d4rl`], [`minari`]: data sets of logged episodes.
//! - [`parquet`]: batches in columns that pandas and everybody else reads.
//! - [`dataset`]: what these have in common.
//!
//! [`native`](crate::native) gives a registry [`open_input`] and [`open_output`], so that
//! [`RolloutConfig::input`](rollmesh_core::worker::RolloutConfig::input) and `output` may name files.

#[cfg(feature = "offline-parquet")]
pub mod arrow;
pub mod d4rl;
pub mod dataset;
mod error;
pub mod files;
pub mod hdf5;
pub mod json;
pub mod minari;
#[cfg(feature = "offline-parquet")]
pub mod parquet;

pub use error::OfflineError;

use rollmesh_core::{
    offline::{Preparation, PreparedInput},
    sampler::{InputReader, IoContext, OutputWriter, SampleError},
};

use self::json::{JsonReader, JsonReaderOptions, JsonWriter, JsonWriterOptions};

/// Opens files as an input: those that the paths, directories and patterns mean.
///
/// # Errors
/// [`SampleError::Input`] for settings of another form, and if there are no such files.
pub fn open_input(inputs: &[String], context: &mut IoContext) -> Result<Box<dyn InputReader>, SampleError> {
    let preparation = Preparation::from_context(context)?;
    let files = files::find(inputs, &json::ENDINGS).map_err(input)?;
    let reader = JsonReader::new(files, JsonReaderOptions::from_context(context)?).map_err(input)?;
    let reader = reader.on_corrupt(|path, error| eprintln!("warning: {}: {error}; passed over", path.display()));
    Ok(Box::new(PreparedInput::new(reader, preparation)))
}

/// Opens a directory as an output: RLlib's JSON. `logdir` is the directory for logs.
///
/// # Errors
/// [`SampleError::Output`] for settings of another form, and if there can be no such directory.
pub fn open_output(directory: &str, context: &mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> {
    let directory = match (directory, &context.log_dir) {
        ("logdir", Some(log_dir)) => log_dir.clone(),
        ("logdir", None) => ".".into(),
        (directory, _) => directory.into(),
    };
    let writer = JsonWriter::new(directory, JsonWriterOptions::from_context(context)?);
    Ok(Box::new(writer.map_err(|error| SampleError::Output(error.to_string()))?))
}

fn input(error: OfflineError) -> SampleError {
    SampleError::Input(error.to_string())
}
