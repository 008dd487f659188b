//! `rollmesh sample`: rollouts in this process, or by worker processes.

mod alone;
mod leased;
mod summary;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use rollmesh_core::{
    config::Config,
    filter::{FilterKind, RunFilter},
    hash::BatchHasher,
    ids::{PolicyId, WeightsVersion},
    weights::{Weights, WeightsError},
    worker::{PolicyConfig, RegisteredEnv, RolloutConfig, RolloutWorker},
};

use self::{
    alone::Alone,
    summary::{Hasher, SampleSummary, Tally},
};
use super::{
    evaluation::EvaluationFlags,
    exit::Failure,
    external::{ClientHub, ListenFlags},
    log::LogTargets,
    mode::ModeFlags,
    python::PythonFlags,
    settings::WorkerFlags,
    signals::{Interruption, exit_after_grace},
};
use crate::{
    Registry,
    checkpoint::{PolicyCheckpoint, weights_file},
    cli::progress::Progress,
    learner::{DeviceSpec, algorithm},
    registry::acting_on,
    runs::{RunConfig, RunRequest},
};

#[derive(Args)]
#[command(
    after_help = "Examples (more with --help-all):\n  \
                        rollmesh sample --num-envs 64 --env-steps 1000000 --seed 1 --json\n  \
                        rollmesh sample --num-workers 2 --env-steps 100000 --output samples\n  \
                        rollmesh sample --checkpoint runs/first --deterministic --output expert",
    after_long_help = "Without a file of settings, a single agent's rows are sampled as its environment gives them, and the hash \
                        depends on neither fragments nor kernels. With one, or with several agents, a worker samples as the \
                        settings say, and the hash is of its whole batches. Ctrl-C ends it early: the summary is of what was \
                        sampled up to there, and the exit code is 3.\n\n\
                        Examples:\n  \
                        rollmesh sample --num-envs 64 --env-steps 1000000 --seed 1 --json\n  \
                        rollmesh sample --num-workers 2 --env-steps 10000000 --rollout-fragment-length 1000 --no-hash\n  \
                        rollmesh sample --num-workers 2 --env-steps 100000 --output samples\n  \
                        rollmesh sample --env MultiAgentCartPole-v1 --num-envs 4 --env-steps 10000\n  \
                        rollmesh sample --config remote.toml\n  \
                        rollmesh sample --checkpoint runs/first --deterministic --env-steps 25000 --output expert\n\n\
                        A remote.toml that runs every environment in a process of its own, kills one that hangs for 5 seconds \
                        or takes more than 1 GiB, and restarts it:\n  \
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
    /// Act with the policy of a run or of a checkpoint
    ///
    /// In its environment unless another is named
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "policy", "hidden"])]
    checkpoint: Option<PathBuf>,
    /// Act with the weights of a safetensors file
    ///
    /// It has the names and shapes of the policies' tensors, like the weights.safetensors of a run [default: random
    /// weights]
    #[arg(long, hide_short_help = true, value_name = "FILE", conflicts_with = "checkpoint")]
    init_weights: Option<PathBuf>,
    /// Take the most likely actions instead of drawn ones
    #[arg(long)]
    deterministic: bool,
    /// Widths of the hidden layers [default: 64,64]
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS")]
    hidden: Option<Vec<u32>>,
    /// Environments stepped together [default: 64]
    #[arg(long, value_name = "N")]
    num_envs: Option<u32>,
    /// Steps of an environment per fragment [default: 200]
    ///
    /// Has no influence on the rows of a plain rollout
    #[arg(long, hide_short_help = true, value_name = "T")]
    rollout_fragment_length: Option<u32>,
    /// Env steps in all [default: 1000000]
    ///
    /// For a plain rollout rounded up to the same number for every environment, else to whole samples
    #[arg(long, value_name = "T")]
    env_steps: Option<u64>,
    /// Worker processes; 0 to sample here [default: 0]
    ///
    /// A hub in this process leases the environments to them. Others may join with the printed command. Neither workers
    /// nor their end has any influence on the rows
    #[arg(long, value_name = "N")]
    num_workers: Option<u32>,
    /// Where policies act
    ///
    /// cpu, cuda:N or metal. Rows from a GPU have other bits and get no hash
    #[arg(long, hide_short_help = true, default_value = "cpu", conflicts_with = "remote_only")]
    device: DeviceSpec,
    /// Only wait for workers from elsewhere
    ///
    /// Start no workers and do not sample in this process: wait for workers that connect with the printed command
    #[arg(long, hide_short_help = true, conflicts_with = "num_workers")]
    remote_only: bool,
    /// Write the files of a run into this directory
    ///
    /// Its settings, checkpoints, a line of metrics per iteration, its policy and a summary. Samples over leases also
    /// without workers. The directory must not hold a run
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Resume the run in this directory
    ///
    /// From its newest checkpoint: rows, hash and summary are those of a run that was never interrupted. With the run's
    /// --output every row is there once. Settings of the rows cannot be changed
    #[arg(long, value_name = "DIR", conflicts_with_all = SampleArgs::OF_ROWS)]
    resume: Option<PathBuf>,
    /// Save a checkpoint every N iterations [default: 100]
    ///
    /// One is saved every ten seconds as well
    #[arg(long, hide_short_help = true, value_name = "N")]
    checkpoint_interval: Option<u64>,
    /// Replace a worker that has hung for so long [default: 60]
    ///
    /// Without workers the command ends with an error. 0 for never
    #[arg(long, hide_short_help = true, value_name = "SECONDS", value_parser = seconds)]
    hung_worker_timeout: Option<f64>,
    /// With workers, serve no dashboard
    #[arg(long, hide_short_help = true)]
    no_dashboard: bool,
    /// Do not hash the rows
    ///
    /// Hashing may take longer than sampling
    #[arg(long, hide_short_help = true)]
    no_hash: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Evaluation")]
    evaluation: EvaluationFlags,
    #[command(flatten, next_help_heading = "Sampling mode")]
    mode: ModeFlags,
    #[command(flatten, next_help_heading = "Python environments")]
    python: PythonFlags,
    #[command(flatten, next_help_heading = "Hub")]
    clients: ListenFlags,
}

impl SampleArgs {
    const ENV_STEPS: u64 = 1_000_000;

    /// The flags that a resumed run does not have: it keeps the settings of its rows.
    const OF_ROWS: [&str; 20] = [
        "run_dir",
        "config",
        "env",
        "env_config",
        "set",
        "seed",
        "policy",
        "observation_filter",
        "monitor_path",
        "checkpoint",
        "init_weights",
        "deterministic",
        "hidden",
        "num_envs",
        "rollout_fragment_length",
        "device",
        "mode",
        "max_staleness",
        "batch_env_steps",
        "deadline_ms",
    ];

    /// Returns the worker of these settings, with the weights of `--checkpoint` or `--init-weights` if there are any.
    fn worker(&self, config: RolloutConfig, registry: &Registry) -> Result<RolloutWorker, Failure> {
        let registry = acting_on(registry, self.device).map_err(Failure::usage)?;
        let mut worker = self.flags.worker(config, &registry)?;
        if let (Some(path), Some(weights)) = (self.checkpoint.as_ref().or(self.init_weights.as_ref()), self.weights()?)
        {
            let misfit = |error: WeightsError| Failure::usage(format!("{}: {error}", path.display()));
            let wanted = worker.weights(None).map_err(Failure::usage)?;
            let ids: Vec<PolicyId> = wanted.keys().cloned().collect();
            // Policies normalise with a filter's statistics among their weights.
            let (plain, _) = RunFilter::split_from(&weights, &ids).map_err(Failure::usage)?;
            plain.check_like(&Weights::of_run(WeightsVersion(0), &wanted).map_err(misfit)?).map_err(misfit)?;
            worker.set_weights(&weights.of_policies(&ids).map_err(misfit)?, None, None).map_err(Failure::usage)?;
        }
        Ok(worker)
    }

    /// Changes the settings of a run over leases that a resumed run may change, too.
    fn set_intervals(&self, run: &mut RunConfig) {
        run.checkpoint_interval = self.checkpoint_interval.unwrap_or(run.checkpoint_interval);
        run.hung_worker_timeout_s = self.hung_worker_timeout.unwrap_or(run.hung_worker_timeout_s);
    }

    /// Returns whether the rows get a hash: only rows from the kernels are reproducible in every bit.
    fn is_hashed(&self) -> bool {
        !self.no_hash && self.device == DeviceSpec::Cpu
    }

    /// Returns whether the rows have a filter and can be made over leases: their observations are normalised with the
    /// statistics of the iterations before, whatever the number of workers. Otherwise a worker normalises with the
    /// statistics of all its own observations.
    fn has_leasable_filter(&self, config: &RolloutConfig, registry: &Registry) -> bool {
        config.observation_filter != FilterKind::NoFilter
            && RunRequest::from(leased::run_of(config.clone())).check_leased(registry).is_ok()
    }

    /// Returns the weights of `--checkpoint` or `--init-weights`, including the statistics of a filter if they have any.
    fn weights(&self) -> Result<Option<Weights>, Failure> {
        if let Some(path) = &self.checkpoint {
            return PolicyCheckpoint::load(path).map(|found| Some(found.weights)).map_err(Failure::usage);
        }
        self.init_weights.as_deref().map(weights_file::read).transpose().map_err(Failure::usage)
    }
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if seconds.is_finite() && seconds >= 0.0 { Ok(seconds) } else { Err("it must be finite and at least 0".into()) }
}

pub(super) fn run(args: &SampleArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if args.checkpoint_interval.is_some() && args.run_dir.is_none() && args.resume.is_none() {
        return Err(Failure::usage("--checkpoint-interval needs a directory for the checkpoints: add --run-dir"));
    }
    args.python.install(args.flags.env.as_deref());
    if let Some(dir) = &args.resume {
        let log = LogTargets::new(&args.flags.settings()?).map_err(Failure::usage)?;
        return leased::run(args, registry, log, |args| leased::saved_run(args, dir, registry));
    }
    let config = settings(args)?;
    let env = config.env.as_deref().unwrap_or_default();
    let is_single = matches!(registry.env(env), Ok(RegisteredEnv::SingleAgent(_)));
    let is_plain = is_single
        && args.flags.config.is_none()
        && args.flags.set.is_empty()
        && args.checkpoint.is_none()
        && !args.deterministic
        && config.observation_filter == FilterKind::NoFilter;
    let has_workers = args.num_workers.is_some_and(|workers| workers > 0) || args.remote_only;
    if has_workers || args.run_dir.is_some() || args.has_leasable_filter(&config, registry) {
        let log = LogTargets::new(&config).map_err(Failure::usage)?;
        let config = if is_plain { config.raw() } else { config };
        return leased::run(args, registry, log, |args| leased::new_run(args, config, registry));
    }
    let (registry, clients) = args.clients.open(&config, registry)?;
    let code = alone(args, config, is_plain, &registry, clients.as_ref());
    clients.into_iter().for_each(ClientHub::close);
    code
}

/// Samples in this process.
fn alone(
    args: &SampleArgs,
    config: RolloutConfig,
    is_plain: bool,
    registry: &Registry,
    clients: Option<&ClientHub>,
) -> Result<ExitCode, Failure> {
    if args.mode.mode()?.is_some_and(|mode| !mode.is_synchronous()) {
        return Err(Failure::usage(
            "--mode is for workers, one of which may be faster than another: add --num-workers",
        ));
    }
    if args.evaluation.are_given() {
        return Err(Failure::usage("evaluations are of runs, and this is none: add --run-dir or --num-workers"));
    }
    // Outputs contain batches, not raw rows, and recorded episodes are sampled one by one.
    let is_plain = is_plain && config.output.is_none() && config.monitor_path.is_none();
    let config = if is_plain { config.raw() } else { config };
    let log = LogTargets::new(&config).map_err(Failure::usage)?;
    let env_steps = args.env_steps.unwrap_or(SampleArgs::ENV_STEPS);
    let each = env_steps.div_ceil(u64::from(config.num_envs.max(1)));
    let goal = if is_plain { each.saturating_mul(config.num_envs.into()) } else { env_steps };
    let worker = args.worker(config, registry)?;
    let interruption = match clients.map(ClientHub::stopper) {
        Some(stop) => Interruption::watch_and(move || {
            stop();
            exit_after_grace();
        }),
        None => Interruption::watch_and_end(),
    };
    let progress = Progress::new(goal, "env steps", !args.json);
    clients.iter().for_each(|clients| clients.print_above(&progress));
    let mut source = if is_plain { Alone::plain(worker, each)? } else { Alone::new(worker) };
    source.watch(args.hung_worker_timeout.unwrap_or_else(|| RunConfig::default().hung_worker_timeout_s));
    let hasher = match is_plain {
        _ if !args.is_hashed() => Hasher::None,
        true => Hasher::Rollout(Box::default()),
        false => Hasher::Batch(Box::new(BatchHasher::new())),
    };
    let mut tally = Tally::new(hasher, log.above(&progress));
    while tally.env_steps() < goal && !interruption.is_noticed() && source.next(&mut tally, &interruption)? {
        progress.at(tally.env_steps());
    }
    let mut speed = source.finish(tally.env_steps())?;
    if args.device != DeviceSpec::Cpu {
        speed.not_reproducible.push(format!("policies act on {}: another device gives other bits", args.device));
    }
    if clients.is_some() {
        speed.not_reproducible.push("clients drive the episodes".into());
    }
    progress.finish();
    report(args, &tally.summary(speed), goal, None)
}

/// Prints the summary, also after a signal ended it early.
fn report(args: &SampleArgs, summary: &SampleSummary, goal: u64, run_dir: Option<&Path>) -> Result<ExitCode, Failure> {
    match args.json {
        true => println!("{}", serde_json::to_string(summary).map_err(Failure::other)?),
        false => {
            summary.print();
            run_dir.iter().for_each(|directory| println!("files           {}", directory.display()));
        }
    }
    Ok(if summary.env_steps < goal { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

/// Returns the flags' settings, with the environment and the networks of a checkpoint.
fn of_checkpoint(args: &SampleArgs, mut config: RolloutConfig, path: &Path) -> Result<RolloutConfig, Failure> {
    let checkpoint = PolicyCheckpoint::load(path).map_err(Failure::usage)?;
    checkpoint.notice_of_unused(path).iter().for_each(|notice| eprintln!("{notice}"));
    if args.flags.env.is_none() {
        config.env.clone_from(&checkpoint.run.rollout.env);
        config.env_config = checkpoint.run.rollout.env_config.merged(&config.env_config);
    }
    if checkpoint.policies == [PolicyId::DEFAULT] {
        config.model_config = Config::of(&checkpoint.model).map_err(Failure::usage)?;
        return Ok(config.single_policy("net"));
    }
    let model: Option<Config> = checkpoint.run.rollout.shared_policy_config().get("model").map_err(Failure::usage)?;
    let RolloutConfig { policies, policy_mapping_fn, observation_fn, .. } = checkpoint.run.rollout;
    // A policy that has learned acts as its network.
    let acting = |policy: PolicyConfig| match algorithm(&policy.policy) {
        Some(_) => PolicyConfig { policy: "net".into(), ..policy },
        None => policy,
    };
    let policies = policies.into_iter().map(|(id, policy)| (id, acting(policy))).collect();
    let model_config = model.unwrap_or_default();
    Ok(RolloutConfig { policies, policy_mapping_fn, observation_fn, model_config, ..config })
}

fn settings(args: &SampleArgs) -> Result<RolloutConfig, Failure> {
    let mut config = args.flags.settings()?;
    // The command has no algorithm, so a network's settings are checked with the default one.
    let rollout = args.flags.with_set(config.clone())?;
    RunRequest::from(RunConfig { rollout, ..RunConfig::default() }).written_out().map_err(Failure::usage)?;
    if let Some(path) = &args.checkpoint {
        config = of_checkpoint(args, config, path)?;
    }
    config.explore &= !args.deterministic;
    let has_file = args.flags.config.is_some() || args.flags.set.iter().any(|(path, _)| path == "num_envs");
    if let Some(num_envs) = args.num_envs.or(if has_file { None } else { Some(64) }) {
        config = config.num_envs(num_envs);
    }
    if let Some(steps) = args.rollout_fragment_length {
        config = config.rollout_fragment_length(steps);
    }
    if let Some(hidden) = &args.hidden {
        config = config.fcnet_hiddens(hidden);
    }
    args.flags.with_set(config)
}
