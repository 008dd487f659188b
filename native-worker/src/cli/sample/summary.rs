//! The summary of the sampled rows.

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::{
    batch::{AnyBatch, BatchError, EpisodeMetrics, SlotFragment},
    encoding,
    episode::{RolloutMetrics, Spread},
    hash::{BatchHasher, RolloutHasher},
    ids::PolicyId,
    worker::WorkerMetrics,
};
use serde::{Deserialize, Serialize};

use crate::{
    cli::{data::numbers::about_reading, evaluation, log::LogTargets, meter::Measured},
    learner::LearnError,
    runs::{self, EvaluationMetrics, Failures, ReadMetrics, TakenRows},
};

/// The printed summary.
#[derive(Serialize)]
pub(super) struct SampleSummary {
    /// Number of batches; fragments of several environments in lockstep are one.
    samples: u64,
    pub(super) env_steps: u64,
    agent_steps: u64,
    /// Env steps that were taken but are in no sample, because of a failure.
    discarded_env_steps: u64,
    episodes: u64,
    faulty_episodes: u64,
    /// Open episodes that were abandoned, since a failed sample could not restore them.
    #[serde(skip_serializing_if = "is_zero")]
    abandoned_episodes: u64,
    /// True if the same seed gives the same rows.
    reproducible: bool,
    /// The reasons that they are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_reproducible: Vec<String>,
    /// Over finished episodes; `None` without any.
    episode_return_mean: Option<f64>,
    episode_return: Option<Spread>,
    episode_length: Option<Spread>,
    policies: BTreeMap<PolicyId, PolicySummary>,
    custom_metrics: BTreeMap<String, Spread>,
    /// The latest evaluation alongside a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evaluation: Option<EvaluationMetrics>,
    /// Failures that were retried.
    #[serde(skip_serializing_if = "Failures::is_empty")]
    failures: Failures,
    #[serde(flatten)]
    read: ReadMetrics,
    /// In this process without hashing; with workers, of the hub from the first batch to the last, including hashing.
    steps_per_s: f64,
    #[serde(flatten)]
    workers: Option<WorkerCosts>,
    #[serde(flatten)]
    hash: Hash,
}

/// The summary of one policy.
#[derive(Serialize)]
struct PolicySummary {
    agent_steps: u64,
    /// Sum of the rewards in an episode: of one agent, or with workers the mean over the policy's agents.
    reward: Option<Spread>,
}

/// The cost of sampling with workers.
#[derive(Serialize)]
pub(super) struct WorkerCosts {
    pub(super) num_workers: u32,
    /// Bytes that workers sent on their sockets; `None` without steps.
    pub(super) bytes_per_step: Option<f64>,
    /// Over the same time as the throughput; `None` if the operating system does not provide it.
    pub(super) hub_cpu_ns_per_step: Option<f64>,
    pub(super) worker_cpu_ns_per_step: Option<f64>,
}

/// Of the rows of each slot, or of whole batches; of neither with `--no-hash`, or if the rows depend on timing.
#[derive(Serialize)]
enum Hash {
    #[serde(rename = "rollout_hash")]
    Rollout(Option<String>),
    #[serde(rename = "batch_hash")]
    Batch(String),
}

/// The hash of the rows, per slot or per batch.
pub(super) enum Hasher {
    Rollout(Box<RolloutHasher>),
    Batch(Box<BatchHasher>),
    None,
}

/// Counts, hashes and logs the sampled rows.
pub(super) struct Tally {
    counts: Counts,
    read: ReadMetrics,
    hasher: Hasher,
    log: LogTargets,
}

/// The totals of a run's rows.
#[derive(Default, Serialize, Deserialize)]
struct Counts {
    samples: u64,
    env_steps: u64,
    agent_steps: u64,
    discarded_env_steps: u64,
    episodes: u64,
    faulty_episodes: u64,
    returns: Extremes,
    lengths: Extremes,
    policies: BTreeMap<PolicyId, PolicyCounts>,
    custom: BTreeMap<String, Extremes>,
}

#[derive(Default, Serialize, Deserialize)]
struct PolicyCounts {
    agent_steps: u64,
    rewards: Extremes,
}

impl Counts {
    fn agent_steps(&mut self, policy: &PolicyId, rows: usize) {
        self.agent_steps += rows as u64;
        self.policies.entry(policy.clone()).or_default().agent_steps += rows as u64;
    }

    fn reward(&mut self, policy: PolicyId, reward: f64) {
        self.policies.entry(policy).or_default().rewards.add(reward);
    }

    fn custom(&mut self, name: &str, value: f64) {
        self.custom.entry(name.to_owned()).or_default().add(value);
    }

    fn episode(&mut self, length: u32, episode_return: f64) {
        self.episodes += 1;
        self.returns.add(episode_return);
        self.lengths.add(length.into());
    }
}

impl Tally {
    pub(super) fn new(hasher: Hasher, log: LogTargets) -> Self {
        Self { counts: Counts::default(), read: ReadMetrics::default(), hasher, log }
    }

    pub(super) fn env_steps(&self) -> u64 {
        self.counts.env_steps
    }

    /// Logs a failure that was retried.
    pub(super) fn failure(&mut self, failure: &impl std::fmt::Display) {
        self.log.failure(failure);
    }

    /// Adds the reports of a worker of this process besides batches, also before an error.
    pub(super) fn metrics(&mut self, metrics: WorkerMetrics) {
        self.read.add(&metrics);
        let WorkerMetrics { episodes, warnings, discarded_env_steps, .. } = metrics;
        self.log.episodes(&episodes);
        self.log.warnings(&warnings);
        let counts = &mut self.counts;
        counts.discarded_env_steps += discarded_env_steps;
        for RolloutMetrics { faulty, length, episode_return, agent_rewards, custom_metrics, .. } in &episodes {
            if faulty.is_some() {
                counts.faulty_episodes += 1;
                continue;
            }
            counts.episode(*length, *episode_return);
            let named = agent_rewards.iter().filter(|(_, policy, _)| *policy != PolicyId::DEFAULT);
            named.for_each(|(_, policy, reward)| counts.reward(policy.clone(), *reward));
            custom_metrics.iter().for_each(|(name, value)| counts.custom(name, *value));
        }
    }

    /// Adds a batch of a worker of this process.
    pub(super) fn batch(&mut self, batch: &AnyBatch) -> Result<(), BatchError> {
        self.log.batch(batch);
        if let Hasher::Batch(hasher) = &mut self.hasher {
            hasher.add(batch)?;
        }
        self.counts.samples += 1;
        self.counts.env_steps += batch.env_steps() as u64;
        let policies = &batch.as_multi_agent().policy_batches;
        policies.iter().for_each(|(id, rows)| self.counts.agent_steps(id, rows.len()));
        Ok(())
    }

    /// Adds fragments of environments that were stepped together.
    pub(super) fn fragments(&mut self, fragments: &[SlotFragment]) -> Result<(), BatchError> {
        let counts = &mut self.counts;
        for fragment in fragments {
            self.log.fragment(fragment);
            if let Hasher::Rollout(hasher) = &mut self.hasher {
                hasher.add(fragment)?;
            }
            counts.env_steps += fragment.env_steps();
            match &fragment.agents {
                Some(agents) => {
                    agents.policy_batches.iter().for_each(|(id, rows)| counts.agent_steps(id, rows.len()));
                }
                None => counts.agent_steps(&PolicyId::DEFAULT, fragment.rows.len()),
            }
            for EpisodeMetrics { len, episode_return, custom_metrics, .. } in &fragment.episodes {
                counts.episode(*len, *episode_return);
                for (name, value) in custom_metrics {
                    match name.strip_prefix(EpisodeMetrics::POLICY_REWARD_MEAN) {
                        Some(policy) => counts.reward(PolicyId::new(policy.to_owned()), *value),
                        None => counts.custom(name, *value),
                    }
                }
            }
        }
        counts.samples += 1;
        Ok(())
    }

    /// Returns what the run's summary says of the rows so far.
    pub(super) fn taken(&self) -> TakenRows {
        let episode_return_mean = self.counts.returns.spread().map(|spread| spread.mean);
        TakenRows { env_steps: self.counts.env_steps, episode_return_mean }
    }

    /// Returns counts and hash of fragments, for a checkpoint.
    pub(super) fn state(&self) -> Result<Vec<u8>, LearnError> {
        let hasher = match &self.hasher {
            Hasher::Rollout(hasher) => Some(hasher),
            Hasher::Batch(_) | Hasher::None => None,
        };
        Ok(encoding::encode(&(&self.counts, hasher)))
    }

    /// Continues from such a state. Without the hash of the rows before, there is none of all rows.
    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), LearnError> {
        let damaged = || LearnError::Rows("the counts of the rows are damaged: take an earlier checkpoint".into());
        let (counts, hasher): (Counts, Option<Box<RolloutHasher>>) = encoding::decode(state).ok_or_else(damaged)?;
        let is_hashed = matches!(self.hasher, Hasher::Rollout(_));
        self.counts = counts;
        self.hasher = hasher.filter(|_| is_hashed).map_or(Hasher::None, Hasher::Rollout);
        Ok(())
    }

    /// Returns the summary of the rows so far.
    pub(super) fn summary(&self, speed: Speed) -> SampleSummary {
        let counts = &self.counts;
        let policy = |(id, policy): (&PolicyId, &PolicyCounts)| {
            let PolicyCounts { agent_steps, rewards } = policy;
            (id.clone(), PolicySummary { agent_steps: *agent_steps, reward: rewards.spread() })
        };
        let episode_return = counts.returns.spread();
        let custom = counts.custom.iter().filter_map(|(name, all)| Some((name.clone(), all.spread()?)));
        SampleSummary {
            samples: counts.samples,
            env_steps: counts.env_steps,
            agent_steps: counts.agent_steps,
            discarded_env_steps: counts.discarded_env_steps,
            episodes: counts.episodes,
            faulty_episodes: counts.faulty_episodes,
            abandoned_episodes: speed.abandoned_episodes,
            reproducible: speed.not_reproducible.is_empty(),
            not_reproducible: speed.not_reproducible,
            episode_return_mean: episode_return.map(|spread| spread.mean),
            episode_return,
            episode_length: counts.lengths.spread(),
            policies: counts.policies.iter().map(policy).collect(),
            custom_metrics: custom.collect(),
            evaluation: None,
            read: self.read.clone(),
            steps_per_s: speed.env_steps as f64 / speed.time.as_secs_f64().max(1e-9),
            workers: speed.workers,
            failures: speed.failures,
            hash: match &self.hasher {
                Hasher::Rollout(hasher) => Hash::Rollout(Some(hasher.finish().to_string())),
                Hasher::Batch(hasher) => Hash::Batch(hasher.finish().to_string()),
                Hasher::None => Hash::Rollout(None),
            },
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The throughput of a source.
pub(super) struct Speed {
    /// During `time`.
    pub(super) env_steps: u64,
    pub(super) time: Duration,
    pub(super) workers: Option<WorkerCosts>,
    pub(super) failures: Failures,
    pub(super) abandoned_episodes: u64,
    pub(super) not_reproducible: Vec<String>,
}

impl Speed {
    /// Returns that of a run with workers.
    pub(super) fn of_run(num_workers: u32, measured: &Measured, run: &runs::Summary) -> Self {
        let Measured { env_steps, time, bytes_per_step, hub_cpu_ns_per_step, worker_cpu_ns_per_step } = *measured;
        let workers = WorkerCosts { num_workers, bytes_per_step, hub_cpu_ns_per_step, worker_cpu_ns_per_step };
        let (failures, not_reproducible) = (run.failures.clone(), run.not_reproducible.clone());
        let abandoned_episodes = run.abandoned_episodes;
        Self { env_steps, time, workers: Some(workers), failures, abandoned_episodes, not_reproducible }
    }
}

/// Running minimum, maximum and sum.
#[derive(Default, Serialize, Deserialize)]
struct Extremes {
    least_and_greatest: Option<(f64, f64)>,
    sum: f64,
    n: u64,
}

impl Extremes {
    /// Adds a value; NaN is ignored.
    fn add(&mut self, value: f64) {
        if !value.is_nan() {
            let (least, greatest) = self.least_and_greatest.unwrap_or((value, value));
            self.least_and_greatest = Some((least.min(value), greatest.max(value)));
            self.sum += value;
            self.n += 1;
        }
    }

    /// Returns the spread; `None` if JSON has no number for it.
    fn spread(&self) -> Option<Spread> {
        let (min, max) = self.least_and_greatest?;
        Spread { min, mean: self.sum / self.n as f64, max }.finite()
    }
}

impl SampleSummary {
    pub(super) fn print(&self) {
        let numbers = |numbers: Option<Spread>| {
            numbers.map_or_else(|| "-".into(), |n| format!("{:.2} (from {:.2} to {:.2})", n.mean, n.min, n.max))
        };
        let and = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
        println!("env steps       {}{}", self.env_steps, and(self.discarded_env_steps, "discarded"));
        if self.agent_steps != self.env_steps {
            println!("agent steps     {}", self.agent_steps);
        }
        println!("episodes        {}{}", self.episodes, and(self.faulty_episodes, "lost"));
        println!("episode return  {}", numbers(self.episode_return));
        println!("episode length  {}", numbers(self.episode_length));
        for (id, policy) in self.policies.iter().filter(|(id, _)| **id != PolicyId::DEFAULT) {
            println!("policy {id}: {} agent steps, reward {}", policy.agent_steps, numbers(policy.reward));
        }
        for (name, value) in &self.custom_metrics {
            println!("metric {name}: {}", numbers(Some(*value)));
        }
        if self.abandoned_episodes > 0 {
            println!("abandoned       {} open episodes", self.abandoned_episodes);
        }
        self.not_reproducible.iter().for_each(|cause| println!("not reproducible: {cause}"));
        if let Some(last) = self.failures.latest.last() {
            println!("failures        {}, the last: {}", self.failures.count, last.message);
        }
        if let Some(found) = &self.evaluation {
            println!("evaluation      {}", evaluation::line_of(found));
        }
        about_reading(&self.read).iter().for_each(|line| println!("{line}"));
        println!("steps/s         {:.0}", self.steps_per_s);
        if let Some(workers) = &self.workers {
            workers.print();
        }
        match &self.hash {
            Hash::Rollout(hash) => println!("rollout hash    {}", hash.as_deref().unwrap_or("-")),
            Hash::Batch(hash) => println!("batch hash      {hash}"),
        }
    }
}

impl WorkerCosts {
    fn print(&self) {
        let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0} ns"));
        let bytes = self.bytes_per_step.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.1}"));
        println!("workers         {}, {bytes} bytes per step", self.num_workers);
        let (hub, workers) = (time(self.hub_cpu_ns_per_step), time(self.worker_cpu_ns_per_step));
        println!("CPU per step    hub {hub}, workers {workers}");
    }
}
