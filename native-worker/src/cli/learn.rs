//! `rollmesh learn`: sampling and learning by turns, all in this process, for any number of policies.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use clap::Args;
use rollmesh_core::{
    batch::AnyBatch,
    callbacks::Callbacks as _,
    episode::{EpisodeSummary, GlobalVars, RolloutMetrics},
    hash::weights_hash,
    ids::PolicyId,
    policy::{LearnInfo, PolicyError},
    worker::{RolloutError, RolloutWorker, WorkerMetrics},
};
use serde_json::{Value, json};

use super::{
    exit::Failure,
    external::ListenFlags,
    log::Log,
    ranks::{self, RankFlags},
    settings::WorkerFlags,
    signals::Interruption,
};
use crate::{Registry, progress::Progress, train::ReadMetrics};

#[derive(Args)]
#[command(
    after_help = "An iteration samples until there are train_batch_size env steps, and then every policy to train learns from\n\
                        its rows of them. The kinds of policies that learn are in `rollmesh policies`. Ctrl-C ends it early:\n\
                        what was learned up to there is saved, and the exit code is 3.\n\n\
                        With --data-parallel several processes learn one set of policies: each samples with environments of its\n\
                        own (with --listen: its own clients, at an address of its own), a share of train_batch_size, and\n\
                        gradients are summed up over all. They are equal to one process with the rows of all. Rank 0 listens, on\n\
                        this machine only since nothing is encrypted, and it alone writes files; all go on from its state.\n\
                        Episodes in what is printed are a rank's own.\n\n\
                        Example:\n  \
                        rollmesh learn --config examples/traffic_grid/traffic_grid.toml --iterations 60 --csv curve.csv\n  \
                        rollmesh learn --env Pendulum-v1 --policy ppo --iterations 100 --save pendulum.state\n  \
                        rollmesh learn --config examples/external/cart_pole.toml --listen 127.0.0.1:7878 --assets examples/external\n\n\
                        Two ranks, in two shells:\n  \
                        export ROLLMESH_TOKEN=$(openssl rand -hex 32); echo $ROLLMESH_TOKEN\n  \
                        rollmesh learn --data-parallel 127.0.0.1:29500 --rank 0 --world-size 2 --save pole.state\n\n  \
                        export ROLLMESH_TOKEN=…\n  \
                        rollmesh learn --data-parallel 127.0.0.1:29500 --rank 1 --world-size 2"
)]
pub(super) struct LearnArgs {
    #[command(flatten)]
    flags: WorkerFlags,
    #[command(flatten)]
    clients: ListenFlags,
    #[command(flatten)]
    ranks: RankFlags,
    /// Iterations of sampling and learning
    #[arg(long, value_name = "N", default_value_t = 100)]
    iterations: u64,
    /// Go on from a state that was saved [default: first weights]
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// Save the worker's state at the end: weights, optimisers, filters, the run's progress [default: nowhere]
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a line of numbers per iteration [default: nowhere]
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print the summary as one JSON object, and no progress
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &LearnArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let mut config = args.flags.settings()?;
    if config.policies.is_empty() {
        config = config.single_policy("ppo");
    }
    let (train_batch_size, log) = (config.train_batch_size.max(1), Log::new(&config).map_err(Failure::usage)?);
    let ranks = args.ranks.config()?;
    let (registry, clients) = args.clients.open(&config, registry)?;
    let mut worker = args.flags.worker_at(args.ranks.place(), config, &registry)?;
    let info = worker.info().clone();
    worker.callbacks_mut().on_algorithm_init(&info).map_err(Failure::other)?;
    if let Some(path) = &args.restore {
        let bytes = fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        worker.restore(&bytes).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        worker.callbacks_mut().on_checkpoint_loaded(&info).map_err(Failure::other)?;
    }
    // Before anything is learned that could not be kept.
    let writes = args.ranks.is_first();
    let save = args.save.as_ref().filter(|_| writes);
    let save = save.map(|path| StateFile::create(path)).transpose().map_err(Failure::usage)?;
    let curve = args.csv.as_ref().filter(|_| writes);
    let curve = curve.map(|path| Curve::create(path, &worker)).transpose().map_err(Failure::usage)?;
    if let Some(ranks) = &ranks {
        args.ranks.notice().filter(|_| !args.json).into_iter().for_each(|notice| eprintln!("{notice}"));
        worker.setup_data_parallel(ranks).map_err(failure)?;
    }
    let train_batch_size = args.ranks.share_of(train_batch_size) as usize;
    let interruption = match &clients {
        Some(clients) => Interruption::watch_and(clients.stopper()),
        None => Interruption::watch(),
    };
    let progress = Progress::new(args.iterations, "iterations", !args.json);
    clients.iter().for_each(|clients| clients.print_above(&progress));
    let log = log.above(&progress);
    let mut training = Training { curve, ..Training::new(worker, log, train_batch_size, interruption) };
    let ran = training.run(args.iterations, &progress);
    progress.finish();
    let summary = training.summary(&args.ranks)?;
    // Also what was learned before other ranks were lost.
    let is_kept = ran.is_ok() || ranks.is_some() && training.done > 0;
    if let Some(file) = save.filter(|_| is_kept) {
        file.write(&training.worker.save().map_err(Failure::other)?).map_err(Failure::other)?;
    }
    let read = training.read.clone();
    training.worker.stop().map_err(Failure::other)?;
    if let Some(clients) = clients {
        clients.close();
    }
    ran?;
    if args.json {
        println!("{summary}")
    } else {
        print(&summary);
        super::data::numbers::about_reading(&read).iter().for_each(|line| println!("{line}"));
    }
    Ok(if training.done < args.iterations { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

/// What one iteration brought.
pub(super) struct Iteration {
    pub(super) env_steps: u64,
    episodes: EpisodeSummary,
    read: ReadMetrics,
    pub(super) infos: BTreeMap<PolicyId, LearnInfo>,
    wall_s: f64,
}

/// Sampling and learning by turns.
pub(super) struct Training {
    worker: RolloutWorker,
    log: Log,
    curve: Option<Curve>,
    train_batch_size: usize,
    interruption: Interruption,
    done: u64,
    latest: Option<Iteration>,
    read: ReadMetrics,
}

impl Training {
    /// Nothing was learned yet.
    pub(super) fn new(worker: RolloutWorker, log: Log, train_batch_size: usize, interruption: Interruption) -> Self {
        let (curve, done, latest, read) = (None, 0, None, ReadMetrics::default());
        Self { worker, log, curve, train_batch_size, interruption, done, latest, read }
    }

    pub(super) fn worker(&mut self) -> &mut RolloutWorker {
        &mut self.worker
    }

    /// Iterations.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Goes on after so many iterations, with a worker that was restored.
    pub(super) fn go_on(self, done: u64, read: ReadMetrics) -> Self {
        Self { done, read, ..self }
    }

    /// Env steps learned from.
    pub(super) fn env_steps(&self) -> u64 {
        self.worker.global_vars().timestep
    }

    /// An iteration is complete.
    pub(super) fn add(&mut self, number: u64, iteration: Iteration) {
        self.read.follow(iteration.read.clone());
        (self.latest, self.done) = (Some(iteration), number);
    }

    /// What reading said beside its batches.
    pub(super) fn read(&self) -> &ReadMetrics {
        &self.read
    }

    pub(super) fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    pub(super) fn stop(mut self) -> Result<(), RolloutError> {
        self.worker.stop()
    }

    /// Goes on until all iterations are done or somebody interrupts.
    fn run(&mut self, iterations: u64, progress: &Progress) -> Result<(), Failure> {
        let start = Instant::now();
        for number in 1..=iterations {
            let Some(iteration) = self.iterate(start).map_err(failure)? else { break };
            if let Some(curve) = &mut self.curve {
                curve.add(number, &iteration).map_err(Failure::other)?;
            }
            progress.say(number, &say(&iteration));
            self.add(number, iteration);
        }
        Ok(())
    }

    /// Samples a train batch, lets the policies learn from it, and tells everybody how far the run is. None once
    /// somebody has interrupted, also another rank: then nothing is learned.
    pub(super) fn iterate(&mut self, start: Instant) -> Result<Option<Iteration>, RolloutError> {
        let (mut batches, mut steps, mut ended) = (Vec::new(), 0, Vec::<RolloutMetrics>::new());
        let mut read = ReadMetrics::default();
        while steps < self.train_batch_size {
            let batch = match self.worker.sample() {
                // The other ranks are told below.
                Err(_) if self.interruption.is_noticed() => break,
                batch => batch?,
            };
            let metrics = self.worker.metrics();
            read.add(&metrics);
            let WorkerMetrics { episodes, warnings, .. } = metrics;
            self.log.episodes(&episodes);
            self.log.batch(&batch);
            self.log.warnings(&warnings);
            steps += batch.env_steps();
            ended.extend(episodes);
            batches.push(batch);
            if self.interruption.is_noticed() {
                break;
            }
        }
        let Some(steps) = ranks::agree(&mut self.worker, steps, self.interruption.is_noticed())? else {
            return Ok(None);
        };
        let batch = AnyBatch::concat(&batches)?;
        let infos = self.worker.learn_on_batch(&batch)?;
        let mut vars: GlobalVars = self.worker.global_vars();
        vars.timestep += steps;
        for id in infos.keys() {
            *vars.num_grad_updates_per_policy.entry(id.clone()).or_default() += 1;
        }
        self.worker.set_global_vars(&vars, None)?;
        let episodes = EpisodeSummary::of(&ended);
        let mut results = BTreeMap::from([
            ("episode_return_mean".to_owned(), episodes.episode_return.mean),
            ("episode_len_mean".to_owned(), episodes.length.mean),
        ]);
        self.worker.callbacks_mut().on_train_result(&mut results)?;
        let wall_s = start.elapsed().as_secs_f64();
        Ok(Some(Iteration { env_steps: vars.timestep, episodes, read, infos, wall_s }))
    }

    fn summary(&mut self, ranks: &RankFlags) -> Result<Value, Failure> {
        let weights = self.worker.weights(None).map_err(Failure::other)?.into_iter();
        let hashes = weights.map(|(id, weights)| (id.to_string(), weights_hash(&weights).to_string()));
        let mut summary = self.results();
        let read = json!(self.read);
        read.as_object().into_iter().flatten().for_each(|(name, value)| summary[name] = value.clone());
        summary["weights_hash"] = json!(hashes.collect::<BTreeMap<_, _>>());
        if let Some((rank, world_size)) = ranks.numbers() {
            summary["rank"] = json!(rank);
            summary["world_size"] = json!(world_size);
        }
        Ok(summary)
    }

    fn results(&self) -> Value {
        let Some(latest) = &self.latest else { return json!({ "iterations": 0 }) };
        let means = latest.episodes.policy_reward.iter().map(|(id, spread)| (id.to_string(), spread.mean));
        json!({
            "iterations": self.done,
            "env_steps": latest.env_steps,
            "wall_s": latest.wall_s,
            "episode_return_mean": latest.episodes.episode_return.mean,
            "episode_len_mean": latest.episodes.length.mean,
            "policy_reward_mean": means.collect::<BTreeMap<String, f64>>(),
            "learner": latest.infos.iter().map(|(id, info)| (id.to_string(), info)).collect::<BTreeMap<_, _>>(),
        })
    }
}

/// A policy that does not learn is a wrong setting, and so is what keeps ranks from coming together.
pub(super) fn failure(error: RolloutError) -> Failure {
    match error {
        RolloutError::Policy { source: PolicyError::NoLearner | PolicyError::NoDataParallel, .. }
        | RolloutError::Setup(_)
        | RolloutError::DataParallel(_) => Failure::usage(error),
        other => Failure::other(other),
    }
}

fn say(iteration: &Iteration) -> String {
    let mean = |mean: f64| if mean.is_nan() { "-".to_owned() } else { format!("{mean:.2}") };
    let by_policy =
        iteration.episodes.policy_reward.iter().map(|(id, spread)| format!(" · {id} {}", mean(spread.mean)));
    format!(
        "return {}{} · {} env steps",
        mean(iteration.episodes.episode_return.mean),
        by_policy.collect::<String>(),
        iteration.env_steps
    )
}

fn print(summary: &Value) {
    let number = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.3}"));
    println!("iterations      {}", summary["iterations"]);
    println!("env steps       {}", summary["env_steps"].as_u64().unwrap_or(0));
    println!("episode return  {} (mean of the last iteration)", number(&summary["episode_return_mean"]));
    for (id, mean) in summary["policy_reward_mean"].as_object().into_iter().flatten() {
        println!("policy {id}: reward {} (mean of its agents)", number(mean));
    }
}

/// Where a state goes: to its place once it is complete, so that the one that was there is lost only for a better one.
struct StateFile {
    path: PathBuf,
    unfinished: PathBuf,
}

impl StateFile {
    fn create(path: &Path) -> Result<Self, String> {
        if path.is_dir() {
            return Err(format!("cannot write {}: it is a directory", path.display()));
        }
        let unfinished = path.with_added_extension("tmp");
        // Tried, and nothing is left if the program is killed before there is a state.
        let tried = File::create(&unfinished).and_then(|_| fs::remove_file(&unfinished));
        tried.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self { path: path.to_owned(), unfinished })
    }

    fn write(self, state: &[u8]) -> Result<(), String> {
        let write = || {
            let mut file = File::create(&self.unfinished)?;
            file.write_all(state)?;
            file.sync_all()?;
            fs::rename(&self.unfinished, &self.path)
        };
        write().map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        // It is there unless the state has come to its place.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// The numbers of all iterations as comma-separated values.
struct Curve {
    file: File,
    path: PathBuf,
    policies: Vec<PolicyId>,
}

impl Curve {
    fn create(path: &PathBuf, worker: &RolloutWorker) -> Result<Self, String> {
        let policies: Vec<PolicyId> = worker.policies_to_train(None).into_iter().collect();
        let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
        let mut file = File::create(path).map_err(failed)?;
        let rewards: String = policies.iter().map(|id| format!(",reward_mean/{}", quoted(id))).collect();
        writeln!(file, "iteration,env_steps,wall_s,episodes,episode_return_mean,episode_len_mean{rewards}")
            .map_err(failed)?;
        Ok(Self { file, path: path.clone(), policies })
    }

    /// A number that there is not is left out.
    fn add(&mut self, number: u64, iteration: &Iteration) -> Result<(), String> {
        let cell = |value: f64| if value.is_nan() { String::new() } else { value.to_string() };
        let episodes = &iteration.episodes;
        let mut line = format!("{number},{},{:.3},{}", iteration.env_steps, iteration.wall_s, episodes.episodes);
        let rewards =
            self.policies.iter().map(|id| episodes.policy_reward.get(id).map_or(f64::NAN, |spread| spread.mean));
        for value in [episodes.episode_return.mean, episodes.length.mean].into_iter().chain(rewards) {
            line.push(',');
            line.push_str(&cell(value));
        }
        writeln!(self.file, "{line}").map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }
}

/// A name without what ends a cell.
fn quoted(id: &PolicyId) -> String {
    id.as_str().replace([',', '"', '\n', '\r'], "_")
}
