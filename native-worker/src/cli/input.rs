//! The flags of `rollmesh train` for its input and its evaluation.

use std::num::NonZeroU32;

use clap::Args;
use rollmesh_core::{config::Config, worker::InputSource};

use super::exit::Failure;

/// What a run learns from, and how it is evaluated.
#[derive(Args, Clone, Debug)]
pub(super) struct FileFlags {
    /// Learn from logged experience instead of sampling: files, folders, patterns, data sets by their ids, or a mixture as a
    /// JSON object, {"NAME": PROBABILITY}; may be given several times
    #[arg(long, value_name = "DATA", num_args = 1..)]
    pub(super) input: Vec<String>,
    /// Settings of the input, as a JSON object: shuffle_buffer_size, buffer_size, memory_limit, read_all_files,
    /// actions_in_input_normalized, …
    #[arg(long, value_name = "JSON", requires = "input")]
    pub(super) input_config: Option<Config>,
    /// Settings of the algorithm over the usual ones, as a JSON object: lr, gamma, clip_param, num_epochs, minibatch_size, … of
    /// ppo, lr, beta, minibatch_size, … of bc and marwil
    #[arg(long, value_name = "JSON")]
    pub(super) policy_config: Option<Config>,
    /// Registered callbacks of the program; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(super) callbacks: Vec<String>,
    /// Rows of the input per update, or env steps of a run that samples by itself what cannot be leased [default: 2000]
    #[arg(long, value_name = "N")]
    pub(super) train_batch_size: Option<u32>,
    /// Play the policy's own episodes after every N updates, with its most likely actions, in a process of their own; a run
    /// with --input waits for that, and is evaluated at its end, too [default: never; with --input and a stop return 10]
    #[arg(long, value_name = "N")]
    pub(super) evaluation_interval: Option<u64>,
    /// Episodes to play then; 0 for none [default: 20]
    #[arg(long, value_name = "M")]
    pub(super) evaluation_episodes: Option<u32>,
    /// Give an evaluation up after this many seconds without progress [default: 600]
    #[arg(long, value_name = "S")]
    pub(super) evaluation_timeout: Option<NonZeroU32>,
    /// Truncate an evaluation episode after N env steps, if the environment does not end it before [default: never;
    /// with --input 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) evaluation_horizon: Option<u32>,
    /// Write the first episode of each evaluation as a GIF into the run's directory, below gifs
    #[arg(long)]
    pub(super) evaluation_render: bool,
}

impl FileFlags {
    /// Returns the source of rows; `None` for a run that samples.
    pub(super) fn source(&self) -> Result<Option<InputSource>, Failure> {
        Ok(match self.input.as_slice() {
            [] => None,
            [mixture] if mixture.trim_start().starts_with('{') => {
                let mixture = serde_json::from_str(mixture);
                let mixture = mixture.map_err(|error| Failure::usage(format!("--input is no mixture: {error}")))?;
                Some(InputSource::Mixture(mixture))
            }
            [name] => Some(InputSource::Name(name.clone())),
            several => Some(InputSource::Files(several.to_vec())),
        })
    }
}
