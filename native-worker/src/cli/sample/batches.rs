//! Batches of a worker with any settings.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use rollmesh_core::{
    episode::{EpisodeSummary, RolloutMetrics, Spread},
    hash::BatchHasher,
    ids::PolicyId,
    worker::{RolloutConfig, RolloutError, RolloutWorker, WorkerMetrics},
};
use serde::Serialize;

use super::{SampleArgs, exit_code};
use crate::{
    Registry,
    cli::{
        data::numbers::about_reading,
        exit::Failure,
        external::Clients,
        log::Log,
        signals::{Interruption, exit_after_grace},
    },
    progress::Progress,
    train::ReadMetrics,
};

/// What is printed.
#[derive(Serialize)]
struct Summary {
    samples: u64,
    env_steps: u64,
    agent_steps: u64,
    /// Taken and in no sample, since something failed.
    discarded_env_steps: u64,
    episodes: usize,
    faulty_episodes: usize,
    /// Of the episodes that ended; none ended, no numbers.
    episode_return: Option<Spread>,
    episode_length: Option<Spread>,
    policies: BTreeMap<PolicyId, PolicySummary>,
    custom_metrics: BTreeMap<String, Spread>,
    #[serde(flatten)]
    read: ReadMetrics,
    /// Without hashing.
    steps_per_s: f64,
    batch_hash: String,
}

/// What concerns one policy.
#[derive(Default, Serialize)]
struct PolicySummary {
    agent_steps: u64,
    /// Sum of the rewards of one of its agents in an episode.
    reward: Option<Spread>,
}

/// An interruption ends sampling that waits for clients.
pub(super) fn run(
    args: &SampleArgs,
    config: RolloutConfig,
    registry: &Registry,
    clients: Option<&Clients>,
) -> Result<ExitCode, Failure> {
    let log = Log::new(&config).map_err(Failure::usage)?;
    let mut worker = args.worker(config, registry)?;
    let interruption = match clients {
        Some(clients) => {
            let stop = clients.stopper();
            Interruption::watch_and(move || {
                stop();
                exit_after_grace();
            })
        }
        None => Interruption::watch_and_end(),
    };
    let progress = Progress::new(args.env_steps, "env steps", !args.json);
    clients.iter().for_each(|clients| clients.print_above(&progress));
    let summary = sample(&mut worker, args, log.above(&progress), &interruption, &progress);
    progress.finish();
    let summary = summary.map_err(Failure::other)?;
    worker.stop().map_err(Failure::other)?;
    if args.json {
        println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
    } else {
        print(&summary);
    }
    Ok(exit_code(summary.env_steps, args))
}

fn sample(
    worker: &mut RolloutWorker,
    args: &SampleArgs,
    mut log: Log,
    interruption: &Interruption,
    progress: &Progress,
) -> Result<Summary, RolloutError> {
    let mut hasher = BatchHasher::new();
    let mut ended: Vec<RolloutMetrics> = Vec::new();
    let mut policies: BTreeMap<PolicyId, PolicySummary> = BTreeMap::new();
    let (mut samples, mut env_steps, mut agent_steps, mut discarded) = (0, 0, 0, 0);
    let (mut sampling, mut read) = (Duration::ZERO, ReadMetrics::default());
    while env_steps < args.env_steps && !interruption.is_noticed() {
        let start = Instant::now();
        let sampled = worker.sample();
        sampling += start.elapsed();
        let metrics = worker.metrics();
        read.add(&metrics);
        let WorkerMetrics { episodes, warnings, discarded_env_steps, .. } = metrics;
        // Also what led to an error.
        log.episodes(&episodes);
        log.warnings(&warnings);
        ended.extend(episodes);
        discarded += discarded_env_steps;
        let batch = match sampled {
            Err(_) if interruption.is_noticed() => break,
            sampled => sampled?,
        };
        log.batch(&batch);
        hasher.add(&batch)?;
        samples += 1;
        env_steps += batch.env_steps() as u64;
        agent_steps += batch.agent_steps() as u64;
        for (id, rows) in &batch.as_multi_agent().policy_batches {
            policies.entry(id.clone()).or_default().agent_steps += rows.len() as u64;
        }
        progress.at(env_steps);
    }
    let summary = EpisodeSummary::of(&ended);
    for (id, spread) in &summary.policy_reward {
        policies.entry(id.clone()).or_default().reward = spread.finite();
    }
    let finite = |(name, spread): (String, Spread)| Some((name, spread.finite()?));
    Ok(Summary {
        samples,
        env_steps,
        agent_steps,
        discarded_env_steps: discarded,
        episodes: summary.episodes,
        faulty_episodes: summary.faulty_episodes,
        episode_return: summary.episode_return.finite(),
        episode_length: summary.length.finite(),
        policies,
        custom_metrics: summary.custom_metrics.into_iter().filter_map(finite).collect(),
        read,
        steps_per_s: env_steps as f64 / sampling.as_secs_f64().max(1e-9),
        batch_hash: hasher.finish().to_string(),
    })
}

fn print(summary: &Summary) {
    let numbers = |numbers: Option<Spread>| {
        numbers.map_or_else(|| "-".into(), |n| format!("{:.2} (from {:.2} to {:.2})", n.mean, n.min, n.max))
    };
    println!("samples         {}", summary.samples);
    let and = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
    println!("env steps       {}{}", summary.env_steps, and(summary.discarded_env_steps, "discarded"));
    println!("agent steps     {}", summary.agent_steps);
    println!("episodes        {}{}", summary.episodes, and(summary.faulty_episodes as u64, "lost"));
    println!("episode return  {}", numbers(summary.episode_return));
    println!("episode length  {}", numbers(summary.episode_length));
    for (id, policy) in &summary.policies {
        println!("policy {id}: {} agent steps, reward {}", policy.agent_steps, numbers(policy.reward));
    }
    for (name, value) in &summary.custom_metrics {
        println!("metric {name}: {}", numbers(Some(*value)));
    }
    about_reading(&summary.read).iter().for_each(|line| println!("{line}"));
    println!("steps/s         {:.0}", summary.steps_per_s);
    println!("batch hash      {}", summary.batch_hash);
}
