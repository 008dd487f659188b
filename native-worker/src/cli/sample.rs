//! `rollmesh sample`: rollouts in this process.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use rollmesh_core::{
    hash::{Hash128, RolloutHasher},
    worker::{RolloutConfig, RolloutError, RolloutWorker},
};
use serde::Serialize;

use super::exit::Failure;
use crate::{Registry, kernels::KernelChoice, progress::Progress};

#[derive(Args)]
#[command(after_help = "Example:\n  rollmesh sample --num-envs 64 --env-steps 1000000 --seed 1 --json")]
pub(super) struct SampleArgs {
    /// Environment, see `rollmesh envs`
    #[arg(long, default_value = "CartPole-v1")]
    env: String,
    /// What acts: uniformly random, or two networks with first weights from the seed
    #[arg(long, value_enum, default_value_t = PolicyChoice::Mlp)]
    policy: PolicyChoice,
    /// Widths of the networks' hidden layers
    #[arg(long, value_delimiter = ',', default_value = "64,64")]
    hidden: Vec<u32>,
    /// Environments stepped together
    #[arg(long, default_value_t = 64)]
    num_envs: u32,
    /// Steps of each environment per fragment; has no influence on the rows
    #[arg(long, default_value_t = 200)]
    rollout_fragment_length: u32,
    /// Env steps in all, rounded up to the same number for every environment
    #[arg(long, default_value_t = 1_000_000)]
    env_steps: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Instantiation of the hot loops; has no influence on the rows
    #[arg(long, value_enum, default_value_t)]
    kernels: KernelChoice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PolicyChoice {
    Random,
    Mlp,
}

/// What is printed.
#[derive(Serialize)]
struct Summary {
    env_steps: u64,
    episodes: u64,
    /// Of the episodes that ended; none ended, no mean.
    episode_return_mean: Option<f64>,
    /// Without hashing.
    steps_per_s: f64,
    rollout_hash: String,
}

pub(super) fn run(args: &SampleArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let policy = match args.policy {
        PolicyChoice::Random => "random",
        PolicyChoice::Mlp => "net",
    };
    let config = RolloutConfig::new(args.env.as_str())
        .num_envs(args.num_envs)
        .rollout_fragment_length(args.rollout_fragment_length)
        .seed(args.seed)
        .single_policy(policy)
        .fcnet_hiddens(&args.hidden)
        .raw();
    let mut names = rollmesh_core::worker::Registry::builtin();
    names.envs = registry.envs.clone();
    let worker = RolloutWorker::new(config, &names, args.kernels.table()).map_err(Failure::usage)?;
    let summary = sample(worker, args).map_err(Failure::other)?;
    if args.json {
        println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
    } else {
        let mean = summary.episode_return_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"));
        println!("env steps     {}", summary.env_steps);
        println!("episodes      {} (mean return {mean})", summary.episodes);
        println!("steps/s       {:.0}", summary.steps_per_s);
        println!("rollout hash  {}", summary.rollout_hash);
    }
    Ok(ExitCode::SUCCESS)
}

fn sample(mut worker: RolloutWorker, args: &SampleArgs) -> Result<Summary, RolloutError> {
    let num_envs = u64::from(args.num_envs);
    let steps_per_env = args.env_steps.div_ceil(num_envs);
    let progress = Progress::new(steps_per_env * num_envs, "env steps", !args.json);
    let mut hasher = RolloutHasher::new();
    let (mut env_steps, mut episodes, mut returns) = (0, 0u64, 0.0);
    let mut sampling = Duration::ZERO;
    while env_steps < steps_per_env * num_envs {
        let left = steps_per_env - env_steps / num_envs;
        let steps = left.min(u64::from(args.rollout_fragment_length)) as u32;
        let start = Instant::now();
        let fragments = worker.sample_fragments(steps)?;
        sampling += start.elapsed();
        for fragment in &fragments {
            hasher.add(fragment)?;
            env_steps += fragment.env_steps();
            episodes += fragment.episodes.len() as u64;
            returns += fragment.episodes.iter().map(|episode| episode.episode_return).sum::<f64>();
        }
        progress.at(env_steps);
    }
    progress.finish();
    let hash: Hash128 = hasher.finish();
    Ok(Summary {
        env_steps,
        episodes,
        episode_return_mean: (episodes > 0).then(|| returns / episodes as f64),
        steps_per_s: env_steps as f64 / sampling.as_secs_f64().max(1e-9),
        rollout_hash: hash.to_string(),
    })
}
