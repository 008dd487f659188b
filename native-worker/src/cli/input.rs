//! The flags of `rollmesh train` for its input and its evaluation.

use std::num::NonZeroU32;

use clap::Args;
use rollmesh_core::{config::Config, worker::InputSource};

use super::exit::Failure;

/// What a run learns from, and how it is evaluated.
#[derive(Args, Clone, Debug)]
pub(super) struct FileFlags {
    /// Learn from logged data instead of sampling
    ///
    /// Files, directories, patterns, data sets by their ids, or a mixture as a JSON object, {"NAME": PROBABILITY}; may
    /// be given several times
    #[arg(long, value_name = "DATA", num_args = 1..)]
    pub(super) input: Vec<String>,
    /// Settings of the input
    ///
    /// shuffle_buffer_size, buffer_size, memory_limit, read_all_files, actions_in_input_normalized, …
    #[arg(long, hide_short_help = true, value_name = "JSON", requires = "input")]
    pub(super) input_config: Option<Config>,
    /// Settings of the algorithm over its defaults
    ///
    /// lr, gamma, clip_param, num_epochs, minibatch_size, … of ppo; lr, beta, minibatch_size, … of bc and marwil
    #[arg(long, value_name = "JSON")]
    pub(super) policy_config: Option<Config>,
    /// Registered callbacks of the program
    ///
    /// May be given several times
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub(super) callbacks: Vec<String>,
    /// Rows of the input per update [default: 2000]
    ///
    /// Or env steps of a run that samples by itself what cannot be leased
    #[arg(long, hide_short_help = true, value_name = "N")]
    pub(super) train_batch_size: Option<u32>,
    /// Evaluate the policy after every N updates
    ///
    /// With its most likely actions, in a separate process. A run with --input waits for that, and is evaluated at its
    /// end, too [default: never; with --input and a stop return 10]
    #[arg(long, value_name = "N")]
    pub(super) evaluation_interval: Option<u64>,
    /// Episodes of an evaluation; 0 for none [default: 20]
    #[arg(long, hide_short_help = true, value_name = "M")]
    pub(super) evaluation_episodes: Option<u32>,
    /// Seconds without progress after which it is given up
    ///
    /// [default: 600]
    #[arg(long, hide_short_help = true, value_name = "S")]
    pub(super) evaluation_timeout: Option<NonZeroU32>,
    /// Env steps after which its episodes are truncated
    ///
    /// [default: never; with --input 100000]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) evaluation_horizon: Option<u32>,
    /// Write its first episode as a GIF
    ///
    /// Into the run's directory, below gifs
    #[arg(long, hide_short_help = true)]
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
