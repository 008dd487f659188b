//! Files of experience on this machine: resolving names, and multithreaded reading and writing. The formats are in
//! [`rollmesh_data`].
//!
//! - [`inputs`]: resolves the name of an input; `files`: finds the files of a path, directory or pattern.
//! - [`logged`]: yields every batch of some files once, whatever their formats.
//! - [`json`]: reads and writes files of RLlib's lines on several threads.
//!
//! [`native`](crate::native) adds [`open_input`] and [`open_output`] to a registry, so that
//! [`RolloutConfig::input`](rollmesh_core::worker::RolloutConfig::input) and `output` may name files.

#[cfg(unix)]
mod apart;
mod error;
mod files;
pub mod inputs;
pub mod json;
pub mod logged;
#[cfg(all(test, feature = "offline-parquet"))]
mod tests;

#[cfg(unix)]
pub(crate) use apart::{COMMAND, serve};
pub use error::OfflineError;

use std::path::Path;

use rollmesh_core::{
    batch::AnyBatch,
    config::ConfigError,
    sampler::{InputReader, IoContext, OutputWriter, SampleError, SamplerHost},
};
use rollmesh_data::{Preparation, PreparedInput, dataset::DatasetReader, json::JsonError};
use serde::Deserialize;

use self::{
    inputs::{DatasetFolders, Format, Located, locate, one_format},
    json::{JsonReader, JsonReaderOptions, JsonWriter, JsonWriterOptions},
    logged::Logged,
};
use crate::terminal::printable;

/// Settings in `io_config` for inputs from files.
pub const INPUT_SETTINGS: [&str; 9] = [
    "shuffle_buffer_size",
    "buffer_size",
    "memory_limit",
    "train_batch_size",
    "read_all_files",
    "postprocess_inputs",
    "clip_actions",
    "actions_in_input_normalized",
    "normalize_actions",
];

/// RLlib's name of an input whose files are in `io_config`: `paths`, one or several, all of one `format`, `json` or
/// `parquet`. It is read in epochs. Without `paths` it is the name of a file like any other.
pub const DATASET: &str = "dataset";

/// Settings of that input only.
pub const DATASET_SETTINGS: [&str; 2] = ["format", "paths"];

/// Opens files as an input: the files of the [names](inputs), all of one format.
///
/// Lines of JSON are read as in RLlib: endlessly, files at random. Data sets are read in epochs, each batch once and in
/// order, as are lines with the setting `read_all_files`. Either way no two workers read the same rows. A local worker with
/// remote ones reads nothing: sampling on it is an error. Actions of D4RL and Minari data sets are in the environment's
/// space, and are normalised for the policies unless `actions_in_input_normalized` says otherwise.
///
/// Reading holds at most `buffer_size` bytes, for each input of a mixture; shuffled batches may take as much again. Data sets
/// of other formats than JSON are read by a process of their own, which takes at most `memory_limit` bytes.
///
/// # Errors
/// [`SampleError::Input`] for invalid settings, for unknown or ambiguous names, and for files of several formats.
pub fn open_input(names: &[String], context: &mut IoContext) -> Result<Box<dyn InputReader>, SampleError> {
    let setting = |error: ConfigError| SampleError::Input(error.to_string());
    let dataset = match names {
        [name] if name == DATASET => context.config.get::<Paths>("paths").map_err(setting)?,
        _ => None,
    };
    let is_dataset = dataset.is_some();
    let names = dataset.map_or_else(|| names.to_vec(), Paths::into_names);
    let located = locate(&names, &DatasetFolders::of_this_user()).map_err(|error| match error {
        OfflineError::NoFiles(name) if name == DATASET && !is_dataset => input(OfflineError::NoPaths),
        error => input(error),
    })?;
    let format = one_format(&located).map_err(input)?;
    if is_dataset {
        check_format(context.config.get("format").map_err(setting)?, format)?;
    }
    if context.shard.is_none() {
        return Ok(Box::new(NoShare));
    }
    let preparation = Preparation::from_context_or(context, !format.has_env_actions())?;
    let name = names.join(", ");
    let in_epochs = context.config.get::<bool>("read_all_files").map_err(setting)?;
    let in_epochs = in_epochs.unwrap_or(is_dataset || format != Format::Json);
    let say = |path: &Path, error: &JsonError| {
        // Errors contain text of files, which may have control characters.
        eprintln!("warning: {}: {}; passed over", path.display(), printable(&error.to_string()));
    };
    if in_epochs {
        let buffer = context.config.get("buffer_size").map_err(setting)?;
        let memory = context.config.get("memory_limit").map_err(setting)?;
        let mut stream = Logged::new(located, buffer).with_memory_limit(memory);
        // All workers skip them, one reports them.
        if context.shard.is_some_and(|(shard, _)| shard == 0) {
            stream = stream.on_corrupt(say);
        }
        let reader = DatasetReader::sharded(stream, context.shard);
        return Ok(Box::new(PreparedInput::new(reader, preparation).with_name(name)));
    }
    let files = located.into_iter().map(|Located { path, .. }| path).collect();
    let reader = JsonReader::new(files, JsonReaderOptions::from_context(context)?).map_err(input)?;
    Ok(Box::new(PreparedInput::new(reader.on_corrupt(say), preparation).with_name(name)))
}

/// One path, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "paths are a text or a list of texts")]
enum Paths {
    One(String),
    Several(Vec<String>),
}

impl Paths {
    fn into_names(self) -> Vec<String> {
        match self {
            Self::One(name) => vec![name],
            Self::Several(names) => names,
        }
    }
}

/// Checks that the files of a data set have the configured format.
fn check_format(said: Option<String>, found: Format) -> Result<(), SampleError> {
    let problem = match said.as_deref() {
        Some("json") if found == Format::Json => return Ok(()),
        Some("parquet") if found == Format::Parquet => return Ok(()),
        Some(said @ ("json" | "parquet")) => format!("the paths hold {found}, but format is '{said}'"),
        Some(said) => format!(
            "format is '{said}'; of the input 'dataset' it is json or parquet: name other files as the input itself"
        ),
        None => "the input 'dataset' needs a format, json or parquet, in addition to its paths".into(),
    };
    Err(SampleError::Input(problem))
}

/// Opens everything that these names refer to, once and in order.
///
/// # Errors
/// As [`locate`].
pub fn open_logged(names: &[String], buffer: Option<usize>) -> Result<Logged, OfflineError> {
    Ok(Logged::new(locate(names, &DatasetFolders::of_this_user())?, buffer))
}

/// Opens a directory as an output: RLlib's JSON, or Parquet with the setting `format` = `parquet`. `max_file_size` limits
/// the files' size. `logdir` is the directory for logs.
///
/// # Errors
/// [`SampleError::Output`] for invalid settings, and if the directory cannot be created.
pub fn open_output(directory: &str, context: &mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> {
    let directory = match (directory, &context.log_dir) {
        ("logdir", Some(log_dir)) => log_dir.clone(),
        ("logdir", None) => ".".into(),
        (directory, _) => directory.into(),
    };
    let setting = |error: ConfigError| SampleError::Output(error.to_string());
    match context.config.get::<String>("format").map_err(setting)?.as_deref() {
        None | Some("json") => {}
        #[cfg(feature = "offline-parquet")]
        Some("parquet") => return parquet_output(Path::new(&directory), context),
        Some(format) => {
            return Err(SampleError::Output(format!(
                "there is no output format '{format}': json and parquet are known"
            )));
        }
    }
    let writer = JsonWriter::new(directory, JsonWriterOptions::from_context(context)?);
    Ok(Box::new(writer.map_err(|error| SampleError::Output(error.to_string()))?))
}

#[cfg(feature = "offline-parquet")]
fn parquet_output(directory: &Path, context: &IoContext) -> Result<Box<dyn OutputWriter>, SampleError> {
    use rollmesh_data::parquet::{ParquetOptions, ParquetWriter};
    let setting = |error: ConfigError| SampleError::Output(error.to_string());
    let default = ParquetOptions::default();
    let max_file_size = context.config.get("max_file_size").map_err(setting)?.unwrap_or(default.max_file_size);
    let name = format!("output-worker-{}", context.worker.worker_index);
    let writer = ParquetWriter::new(directory, &name, ParquetOptions { max_file_size, ..default });
    Ok(Box::new(writer.map_err(|error| SampleError::Output(error.to_string()))?))
}

/// The input of a local worker with remote workers: it has no rows.
struct NoShare;

impl InputReader for NoShare {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let problem =
            "all rows of the files are the remote workers': sample with those, or have none (`num_workers` 0)";
        Err(SampleError::Input(problem.to_string()))
    }
}

fn input(error: OfflineError) -> SampleError {
    SampleError::Input(error.to_string())
}
