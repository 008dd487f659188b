//! Rows of single agents as their environments give them.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hash::{Hash128, RolloutHasher},
    worker::{RolloutConfig, RolloutError, RolloutWorker, config::FragmentLength},
};
use serde::Serialize;

use super::{SampleArgs, exit_code};
use crate::{
    Registry,
    cli::{exit::Failure, log::Log, signals::Interruption},
    progress::Progress,
};

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

pub(super) fn run(args: &SampleArgs, config: RolloutConfig, registry: &Registry) -> Result<ExitCode, Failure> {
    let FragmentLength::Steps(length) = config.rollout_fragment_length else {
        return Err(Failure::usage("a plain rollout has fragments of a fixed length"));
    };
    let log = Log::new(&config).map_err(Failure::usage)?;
    let worker = args.worker(config, registry)?;
    let summary = sample(worker, args, length, log).map_err(Failure::other)?;
    if args.json {
        println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
    } else {
        let mean = summary.episode_return_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"));
        println!("env steps     {}", summary.env_steps);
        println!("episodes      {} (mean return {mean})", summary.episodes);
        println!("steps/s       {:.0}", summary.steps_per_s);
        println!("rollout hash  {}", summary.rollout_hash);
    }
    Ok(exit_code(summary.env_steps, args))
}

fn sample(mut worker: RolloutWorker, args: &SampleArgs, length: u32, log: Log) -> Result<Summary, RolloutError> {
    let num_envs = worker.num_envs() as u64;
    let steps_per_env = args.env_steps.div_ceil(num_envs.max(1));
    let total = steps_per_env.saturating_mul(num_envs);
    let progress = Progress::new(total, "env steps", !args.json);
    let mut log = log.above(&progress);
    let interruption = Interruption::watch_and_end();
    let mut hasher = RolloutHasher::new();
    let (mut done, mut env_steps, mut episodes, mut returns) = (0, 0, 0u64, 0.0);
    let mut sampling = Duration::ZERO;
    while done < steps_per_env && !interruption.is_noticed() {
        let steps = (steps_per_env - done).min(u64::from(length)) as u32;
        let start = Instant::now();
        let fragments = worker.sample_fragments(steps)?;
        sampling += start.elapsed();
        done += u64::from(steps);
        for fragment in &fragments {
            hasher.add(fragment)?;
            env_steps += fragment.env_steps();
            episodes += fragment.episodes.len() as u64;
            log.fragment(fragment);
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
