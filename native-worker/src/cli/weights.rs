//! `rollmesh weights`: sets the weights of a run from a file.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use super::exit::Failure;
use crate::{Registry, checkpoint::CHECKPOINTS_DIR, train::set_weights};

#[derive(Args)]
#[command(
    after_help = "The file is a safetensors file with all tensors of the run's policies, by the names and shapes of the\n\
                        run's own weights.safetensors; layers are [inputs, outputs]. The run's directory must be free: stop the run first.\n\n\
                        Examples:\n  \
                        rollmesh weights set runs/first edited.safetensors\n  \
                        rollmesh train --resume runs/first --max-env-steps 200000"
)]
pub(super) struct WeightsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set the weights with which a run resumes and is evaluated; the learner's state, such as moments, stays
    Set {
        /// Directory of the run, or of a policy
        run: PathBuf,
        /// The weights, a safetensors file
        file: PathBuf,
    },
}

pub(super) fn run(args: &WeightsArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let Action::Set { run, file } = &args.action;
    let policy = set_weights(run, file, registry).map_err(Failure::usage)?;
    let (hash, iteration) = (policy.weights_hash(), policy.iteration);
    println!("weights hash  {hash}, after iteration {iteration} of {}", run.display());
    if !run.join(CHECKPOINTS_DIR).is_dir() {
        println!(
            "There is no checkpoint to resume from; `rollmesh train --init-weights FILE` begins a run with weights."
        );
    }
    Ok(ExitCode::SUCCESS)
}
