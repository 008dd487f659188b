//! The flags of `rollmesh train` for its input and its evaluation.

use clap::Args;
use rollmesh_core::{config::Config, worker::InputSource};

use super::{evaluation::EvaluationFlags, exit::Failure};

/// The input and the evaluation of a run.
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
    #[command(flatten)]
    pub(super) evaluation: EvaluationFlags,
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
