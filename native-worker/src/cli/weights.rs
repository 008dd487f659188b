//! `rollmesh weights`: sets the weights of a run from a file, and exports them.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use rollmesh_core::ids::PolicyId;

use super::exit::Failure;
use crate::{
    Registry,
    checkpoint::{CHECKPOINTS_DIR, PolicyCheckpoint, replace},
    runs::set_weights,
};

#[derive(Args)]
#[command(
    after_help = "The file is a safetensors file with all tensors of the run's policies, by the names and shapes of the \
                        run's own weights.safetensors; layers are [inputs, outputs]. The run's directory must be free: stop the run first.\n\n\
                        Examples:\n  \
                        rollmesh weights set runs/first edited.safetensors\n  \
                        rollmesh train --resume runs/first --max-env-steps 200000\n  \
                        rollmesh weights export runs/first policy.onnx\n  \
                        rollmesh weights export runs/traffic cars.onnx --policy car"
)]
pub(super) struct WeightsArgs {
    #[command(subcommand)]
    action: WeightsAction,
}

#[derive(Subcommand)]
enum WeightsAction {
    /// Set the weights with which a run resumes and is evaluated; the learner's state, such as moments, stays
    Set {
        /// Directory of the run, or of a policy
        run: PathBuf,
        /// The weights, a safetensors file
        file: PathBuf,
    },
    /// Write the newest weights of a run to a file: all of them as safetensors, or the networks of a policy as ONNX
    Export {
        /// Directory of the run, or of a policy
        run: PathBuf,
        /// The file to write: its name ends with .safetensors or .onnx
        file: PathBuf,
        /// Which policy of the run to write, with the names of its own tensors [default: all, or the only one as ONNX]
        #[arg(long, value_name = "ID")]
        policy: Option<String>,
    },
}

pub(super) fn run(args: &WeightsArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    match &args.action {
        WeightsAction::Set { run, file } => set(run, file, registry),
        WeightsAction::Export { run, file, policy } => {
            export(run, file, policy.clone().map(PolicyId::new).as_ref(), registry)
        }
    }
}

fn export(run: &Path, file: &Path, id: Option<&PolicyId>, registry: &Registry) -> Result<ExitCode, Failure> {
    let policy = PolicyCheckpoint::load(run).map_err(Failure::usage)?;
    let contents = match file.extension().and_then(|suffix| suffix.to_str()) {
        Some("onnx") => policy.to_onnx(registry, id).map_err(Failure::usage)?,
        Some("safetensors") => {
            let weights = id.map_or_else(|| Ok(policy.weights.clone()), |id| policy.weights_of(id));
            weights.map_err(Failure::usage)?.to_safetensors().map_err(Failure::usage)?
        }
        _ => {
            let reason = format!("{}: the name of the file must end with .onnx or .safetensors", file.display());
            return Err(Failure::usage(reason));
        }
    };
    replace(file, &contents).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let (bytes, hash) = (contents.len(), policy.weights_hash());
    println!("{bytes} bytes in {}, weights hash {hash}, after iteration {}", file.display(), policy.iteration);
    Ok(ExitCode::SUCCESS)
}

fn set(run: &Path, file: &Path, registry: &Registry) -> Result<ExitCode, Failure> {
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
