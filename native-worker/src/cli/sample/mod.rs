//! `rollmesh sample`: rollouts in this process.

mod batches;
mod plain;

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::{
    filter::FilterKind,
    worker::{RegisteredEnv, RolloutConfig},
};

use super::{
    exit::Failure,
    external::{Clients, ListenFlags},
    settings::WorkerFlags,
};
use crate::Registry;

#[derive(Args)]
#[command(
    after_help = "Without a file of settings, a single agent's rows are sampled as its environment gives them, and the hash\n\
                        depends on neither fragments nor kernels. With one, or with several agents, a worker samples as the\n\
                        settings say, and the hash is of its whole batches. Ctrl-C ends it early: the summary is of what was\n\
                        sampled up to there, and the exit code is 3.\n\n\
                        Examples:\n  \
                        rollmesh sample --num-envs 64 --env-steps 1000000 --seed 1 --json\n  \
                        rollmesh sample --env MultiAgentCartPole-v1 --num-envs 4 --env-steps 10000"
)]
pub(super) struct SampleArgs {
    #[command(flatten)]
    flags: WorkerFlags,
    #[command(flatten)]
    clients: ListenFlags,
    /// Widths of the networks' hidden layers [default: the file's, else 64,64]
    #[arg(long, value_delimiter = ',')]
    hidden: Option<Vec<u32>>,
    /// Environments stepped together [default: the file's, else 64]
    #[arg(long)]
    num_envs: Option<u32>,
    /// Steps of each environment per fragment; of a plain rollout it has no influence on the rows [default: the file's,
    /// else 200]
    #[arg(long)]
    rollout_fragment_length: Option<u32>,
    /// Env steps in all; of a plain rollout rounded up to the same number for every environment, else to whole samples
    #[arg(long, default_value_t = 1_000_000)]
    env_steps: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SampleArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let config = settings(args)?;
    let (registry, clients) = args.clients.open(&config, registry)?;
    let env = config.env.as_deref().unwrap_or_default();
    let env = registry.env(env).map_err(Failure::usage)?;
    let is_plain = args.flags.config.is_none()
        && config.monitor_path.is_none()
        && config.observation_filter == FilterKind::NoFilter
        && matches!(env, RegisteredEnv::SingleAgent(_));
    if is_plain {
        return plain::run(args, config.raw(), &registry);
    }
    let stopper = clients.as_ref().map(Clients::stopper);
    let code = batches::run(args, config, &registry, stopper)?;
    if let Some(clients) = clients {
        clients.close();
    }
    Ok(code)
}

/// Somebody may have ended it early.
fn exit_code(env_steps: u64, args: &SampleArgs) -> ExitCode {
    if env_steps < args.env_steps { ExitCode::from(3) } else { ExitCode::SUCCESS }
}

fn settings(args: &SampleArgs) -> Result<RolloutConfig, Failure> {
    let mut config = args.flags.settings()?;
    let has_file = args.flags.config.is_some();
    if let Some(num_envs) = args.num_envs.or(if has_file { None } else { Some(64) }) {
        config = config.num_envs(num_envs);
    }
    if let Some(steps) = args.rollout_fragment_length {
        config = config.rollout_fragment_length(steps);
    }
    if let Some(hidden) = &args.hidden {
        config = config.fcnet_hiddens(hidden);
    }
    Ok(config)
}
