//! `rollmesh sample`: rollouts in this process, or by workers of their own.

mod batches;
mod group;
mod kept;
mod plain;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use rollmesh_core::{
    config::Config,
    filter::FilterKind,
    group::SamplingMode,
    ids::{PolicyId, WeightsVersion},
    weights::{Weights, WeightsError},
    worker::{RegisteredEnv, RolloutConfig, RolloutWorker, config::FragmentLength},
};

use super::{
    exit::Failure,
    external::{Clients, ListenFlags},
    mode::ModeFlags,
    settings::WorkerFlags,
};
use crate::{
    Registry,
    checkpoint::{PolicyCheckpoint, weights_file},
    kernels::KernelChoice,
    train::RunConfig,
};

#[derive(Args)]
#[command(
    after_help = "Without a file of settings, a single agent's rows are sampled as its environment gives them, and the hash\n\
                        depends on neither fragments nor kernels. With one, or with several agents, a worker samples as the\n\
                        settings say, and the hash is of its whole batches. Ctrl-C ends it early: the summary is of what was\n\
                        sampled up to there, and the exit code is 3.\n\n\
                        Examples:\n  \
                        rollmesh sample --num-envs 64 --env-steps 1000000 --seed 1 --json\n  \
                        rollmesh sample --num-workers 2 --env-steps 10000000 --rollout-fragment-length 1000 --no-hash\n  \
                        rollmesh sample --num-workers 2 --env-steps 100000 --output samples\n  \
                        rollmesh sample --env MultiAgentCartPole-v1 --num-envs 4 --env-steps 10000\n  \
                        rollmesh sample --config remote.toml\n  \
                        rollmesh sample --checkpoint runs/first --deterministic --env-steps 25000 --output expert\n\n\
                        A remote.toml that runs every environment in a process of its own, kills one that hangs for 5 seconds\n\
                        or takes more than 1 GiB, and makes it again:\n  \
                        env = \"PixelBreakout-v0\"\n  \
                        num_envs = 4\n  \
                        remote_worker_envs = true\n  \
                        remote_env_batch_wait_ms = 100\n  \
                        remote_env_timeout_ms = 5000\n  \
                        remote_env_memory_mb = 1024\n  \
                        restart_failed_sub_environments = true"
)]
pub(super) struct SampleArgs {
    #[command(flatten)]
    flags: WorkerFlags,
    #[command(flatten)]
    clients: ListenFlags,
    /// Act with the policy of a run or of a checkpoint, in its environment unless another is named [default: first weights]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "policy", "hidden", "num_workers"])]
    checkpoint: Option<PathBuf>,
    /// Act with these weights instead of random ones: a safetensors file with the names and shapes of the policies' tensors,
    /// such as the weights.safetensors of a run
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    init_weights: Option<PathBuf>,
    /// Take the most likely actions instead of drawn ones
    #[arg(long, conflicts_with = "num_workers")]
    deterministic: bool,
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
    /// Worker processes that a hub in this one leases the environments to; 0 to sample here. Plain rollouts alone: neither
    /// workers nor their end has any influence on the rows
    #[arg(long, value_name = "N", default_value_t = 0)]
    num_workers: u32,
    #[command(flatten)]
    mode: ModeFlags,
    /// Do not hash the rows of workers, which takes longer than getting them
    #[arg(long, requires = "num_workers")]
    no_hash: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl SampleArgs {
    /// The worker of these settings, with the weights of the checkpoint if there is one.
    fn worker(&self, config: RolloutConfig, registry: &Registry) -> Result<RolloutWorker, Failure> {
        let mut worker = self.flags.worker(config, registry)?;
        if let Some(path) = &self.checkpoint {
            let weights = PolicyCheckpoint::load(path).map_err(Failure::usage)?.weights;
            let weights = [(PolicyId::DEFAULT, weights)].into();
            worker.set_weights(&weights, None, None).map_err(Failure::usage)?;
        } else if let (Some(path), Some(weights)) = (&self.init_weights, self.weights()?) {
            let misfit = |error: WeightsError| Failure::usage(format!("{}: {error}", path.display()));
            let wanted = worker.weights(None).map_err(Failure::usage)?;
            weights.check_like(&Weights::of_run(WeightsVersion(0), &wanted).map_err(misfit)?).map_err(misfit)?;
            let ids: Vec<PolicyId> = wanted.into_keys().collect();
            worker.set_weights(&weights.of_policies(&ids).map_err(misfit)?, None, None).map_err(Failure::usage)?;
        }
        Ok(worker)
    }

    /// Those of `--init-weights`.
    fn weights(&self) -> Result<Option<Weights>, Failure> {
        self.init_weights.as_deref().map(weights_file::read).transpose().map_err(Failure::usage)
    }
}

pub(super) fn run(args: &SampleArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let config = settings(args)?;
    let (registry, clients) = args.clients.open(&config, registry)?;
    let env = config.env.as_deref().unwrap_or_default();
    let env = registry.env(env).map_err(Failure::usage)?;
    let is_plain = args.flags.config.is_none()
        && args.checkpoint.is_none()
        && !args.deterministic
        && config.monitor_path.is_none()
        && config.observation_filter == FilterKind::NoFilter
        && matches!(env, RegisteredEnv::SingleAgent(_));
    if args.num_workers > 0 {
        let config = for_workers(args, config, is_plain)?;
        return group::run(args, config, &registry);
    }
    if args.mode.mode()?.is_some_and(|mode| !mode.is_synchronous()) {
        return Err(Failure::usage("--mode is for workers, of whom one may be faster than another: add --num-workers"));
    }
    if is_plain && config.output.is_none() {
        return plain::run(args, config.raw(), &registry);
    }
    let code = batches::run(args, config, &registry, clients.as_ref());
    clients.into_iter().for_each(Clients::close);
    code
}

/// The settings of a plain rollout that workers know of.
fn for_workers(args: &SampleArgs, config: RolloutConfig, is_plain: bool) -> Result<RunConfig, Failure> {
    let is_net = config.policies.values().all(|policy| policy.policy == "net");
    if !is_plain || !is_net || args.flags.kernels != KernelChoice::Auto || config.log_dir.is_some() {
        return Err(Failure::usage(
            "workers sample plain rollouts of a net policy, of one agent each: leave --num-workers out, or --config, \
             --policy, --kernels, --observation-filter, --monitor-path and --log-dir",
        ));
    }
    let config = config.raw();
    if config.rollout_fragment_length == FragmentLength::Auto {
        return Err(Failure::usage("a plain rollout has fragments of a fixed length"));
    }
    let slots = config.num_envs;
    Ok(RunConfig {
        mode: args.mode.mode()?.unwrap_or(SamplingMode::Synchronous),
        num_workers: args.num_workers,
        rollout: RolloutConfig { output: None, ..config },
        ..RunConfig::sampling("", slots).stop_after(args.env_steps)
    })
}

/// Somebody may have ended it early.
fn exit_code(env_steps: u64, args: &SampleArgs) -> ExitCode {
    if env_steps < args.env_steps { ExitCode::from(3) } else { ExitCode::SUCCESS }
}

/// Those of the flags, with the environment and the networks of a checkpoint.
fn of_checkpoint(args: &SampleArgs, path: &Path) -> Result<RolloutConfig, Failure> {
    let checkpoint = PolicyCheckpoint::load(path).map_err(Failure::usage)?;
    checkpoint.notice_of_unused(path).iter().for_each(|notice| eprintln!("{notice}"));
    let mut config = args.flags.settings()?;
    if args.flags.env.is_none() {
        config.env.clone_from(&checkpoint.run.rollout.env);
        config.env_config = checkpoint.run.rollout.env_config.merged(&config.env_config);
    }
    config.model_config = Config::of(&checkpoint.model).map_err(Failure::usage)?;
    Ok(config.single_policy("net"))
}

fn settings(args: &SampleArgs) -> Result<RolloutConfig, Failure> {
    let mut config = match &args.checkpoint {
        Some(path) => of_checkpoint(args, path)?,
        None => args.flags.settings()?,
    };
    config.explore &= !args.deterministic;
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
