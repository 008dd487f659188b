//! `rollmesh train --input`: learning from files, with the worker that samples elsewhere, and the policy's own episodes
//! now and then.

mod evaluator;
mod learning;
mod saved;

use std::{num::NonZeroU32, path::Path, process::ExitCode};

use clap::Args;
use rollmesh_core::{
    callbacks::Callbacks as _,
    config::Config,
    worker::{InputSource, RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};

use self::{
    evaluator::Evaluator,
    learning::{FromFiles, Summary},
    saved::{Saved, SavedRun},
};
use super::{exit::Failure, given, learn::Training, log::Log, signals::Interruption, train::TrainArgs};
use crate::{
    NativeWorker as _, Registry,
    offline::{DATASET, DATASET_SETTINGS, INPUT_SETTINGS},
    progress::Progress,
    train::{EvaluationMetrics, RunConfig, RunDir, RunRequest, resumed},
};

/// Flags of learning from files.
#[derive(Args, Clone, Debug)]
pub(super) struct FileFlags {
    /// Learn from logged experience instead of sampling: files, folders, patterns, data sets by their ids, or a mixture as a
    /// JSON object, {"NAME": PROBABILITY}; may be given several times
    #[arg(long, value_name = "DATA", num_args = 1.., conflicts_with_all = OF_HUBS)]
    pub(super) input: Vec<String>,
    /// Settings of the input, as a JSON object: shuffle_buffer_size, buffer_size, read_all_files,
    /// actions_in_input_normalized, …
    #[arg(long, value_name = "JSON", requires = "input")]
    pub(super) input_config: Option<Config>,
    /// Settings of the algorithm over the usual ones, as a JSON object: lr, gamma, clip_param, num_epochs, minibatch_size, … of
    /// ppo, lr, beta, minibatch_size, … of bc and marwil
    #[arg(long, value_name = "JSON")]
    pub(super) policy_config: Option<Config>,
    /// Registered callbacks of the program; may be given several times
    #[arg(long, value_name = "NAME", requires = "input")]
    pub(super) callbacks: Vec<String>,
    /// Rows of the input per update [default: 2000]
    #[arg(long, value_name = "N", requires = "input")]
    pub(super) train_batch_size: Option<u32>,
    /// Play the policy's own episodes after every N updates, with its most likely actions, beside the run, in a process of
    /// its own; with --input also at the end, which waits for that, and before a stop return, for which every update waits
    /// that is evaluated [default: never; with --input and a stop return 10]
    #[arg(long, value_name = "N")]
    pub(super) evaluation_interval: Option<u64>,
    /// Episodes to play then; 0 for none [default: 20]
    #[arg(long, value_name = "M")]
    pub(super) evaluation_episodes: Option<u32>,
    /// Give an evaluation up if nothing moves in it for so many seconds [default: 600]
    #[arg(long, value_name = "S")]
    pub(super) evaluation_timeout: Option<NonZeroU32>,
    /// Truncate an evaluation episode after so many env steps, if the environment does not end it before [default: never;
    /// with --input 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) evaluation_horizon: Option<u32>,
}

impl FileFlags {
    /// Where rows come from; none for a run that samples.
    pub(super) fn source(&self) -> Result<Option<InputSource>, Failure> {
        Ok(match self.input.as_slice() {
            [] => None,
            [mixture] if mixture.trim_start().starts_with('{') => {
                let mixture = serde_json::from_str(mixture);
                let mixture = mixture.map_err(|error| Failure::usage(format!("--input is no mixture: {error}")))?;
                Some(InputSource::Mixture(mixture))
            }
            [name] => Some(InputSource::Name(name.clone())),
            several => Some(InputSource::Files(several.to_vec())),
        })
    }
}

/// Flags of hubs and workers, which mean nothing here: better refused than passed over.
const OF_HUBS: [&str; 27] = [
    "workers",
    "num_envs_per_worker",
    "rollout_fragment_length",
    "listen",
    "assets",
    "device",
    "extra_environ",
    "mode",
    "max_staleness",
    "batch_env_steps",
    "deadline_ms",
    "tls_cert",
    "tls_key",
    "tls_self_signed",
    "i_know_this_is_not_encrypted",
    "public_host",
    "tokens",
    "audit_log",
    "audit_share",
    "distrust_workers",
    "on_liar",
    "state_dir",
    "worker_cpus",
    "worker_gpus",
    "worker_memory",
    "worker_resource",
    "resources",
];

/// Flags that are refused beside `--input` one by one.
const OF_SAMPLING: [&str; 3] = ["hung_worker_timeout", "output", "observation_filter"];

/// Begins a run of this configuration, in a directory of its own.
pub(super) fn run(args: &TrainArgs, config: RunConfig, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(flag) = given(&[&OF_HUBS[..], &OF_SAMPLING].concat()) {
        return Err(Failure::usage(format!("{flag} means nothing to a run that learns from files: leave it out")));
    }
    let algorithm = config.algorithm.as_deref().unwrap_or_default();
    if !is_offline(algorithm) {
        return Err(Failure::usage(format!(
            "{algorithm} learns from what it samples itself: learn from files with --algo bc or marwil"
        )));
    }
    check_input_settings(&config.rollout, registry)?;
    let RunRequest { config, .. } = RunRequest::from(config).written_out().map_err(Failure::usage)?;
    let (worker, evaluator) = workers(&config, registry)?;
    if worker.input_position().is_none() {
        eprintln!(
            "this input can only be read from its beginning: the policy is saved, and the run cannot be gone on with"
        );
    }
    let path = args.directory(&config);
    let dir = RunDir::create(&path, &config, None).map_err(Failure::usage)?;
    finish(&config, worker, args.json, &path, |training| FromFiles::new(config.clone(), training, evaluator, dir))
}

/// True if a policy learns by this from logged experience alone.
pub(super) fn is_offline(algorithm: &str) -> bool {
    matches!(algorithm, "bc" | "marwil")
}

/// A setting that means nothing to files is a mistake; those of registered inputs are their own.
fn check_input_settings(config: &RolloutConfig, registry: &Registry) -> Result<(), Failure> {
    let is_file = |name: &String| registry.input(name).is_err();
    let only_files = match &config.input {
        InputSource::Name(name) => is_file(name),
        InputSource::Files(_) => true,
        InputSource::Mixture(mixture) => mixture.keys().all(is_file),
    };
    let has_paths = config.input == InputSource::Name(DATASET.into());
    let of_paths = DATASET_SETTINGS.iter().filter(|_| has_paths);
    let known: Vec<&str> = INPUT_SETTINGS.iter().chain(of_paths).copied().collect();
    match config.io_config.check_known(&known) {
        Err(unknown) if only_files => Err(Failure::usage(format!("--input-config: {unknown}"))),
        _ => Ok(()),
    }
}

/// Goes on with a run.
pub(super) fn resume(args: &TrainArgs, dir: &Path, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(flag) = given(&[&OF_HUBS[..], &OF_SAMPLING].concat()) {
        return Err(Failure::usage(format!(
            "{flag} means nothing to the run in {}, which learns from files",
            dir.display()
        )));
    }
    let SavedRun { config: stored, saved, notices, lock } = SavedRun::load(dir).map_err(Failure::usage)?;
    let config = stored.merged(&args.settings()?).map_err(Failure::usage)?;
    let config = resumed(dir, &stored, config).map_err(Failure::usage)?;
    let (mut worker, evaluator) = workers(&config, registry)?;
    notices.iter().for_each(|notice| eprintln!("{notice}"));
    if let Some(Saved { policy, worker: state, input, .. }) = &saved {
        worker.restore(state).map_err(Failure::usage)?;
        let info = worker.info().clone();
        worker.callbacks_mut().on_checkpoint_loaded(&info).map_err(Failure::other)?;
        worker.set_input_position(input).map_err(Failure::usage)?;
        if !args.json {
            eprintln!("going on after iteration {}, {} rows", policy.iteration, policy.env_steps);
        }
    }
    let kept = saved.as_ref().map_or(0, |saved| saved.progress.metrics_bytes);
    let (files, _) = RunDir::reopen(dir, &config, (kept, 0), lock).map_err(Failure::usage)?;
    finish(&config, worker, args.json, dir, |training| match saved {
        None => FromFiles::new(config.clone(), training, evaluator, files),
        Some(Saved { policy, progress, unfinished, .. }) => {
            let training = training.go_on(policy.iteration, progress.read());
            FromFiles::new(config.clone(), training, evaluator, files).go_on(progress, unfinished)
        }
    })
}

/// The worker that reads, and the one that plays the policy's own episodes.
fn workers(config: &RunConfig, registry: &Registry) -> Result<(RolloutWorker, Evaluator), Failure> {
    let worker = RolloutWorkerBuilder::new(registry.clone()).native().config(config.worker_config()).build();
    let mut worker = worker.map_err(Failure::usage)?;
    let info = worker.info().clone();
    worker.callbacks_mut().on_algorithm_init(&info).map_err(Failure::other)?;
    Ok((worker, Evaluator::new(config, registry)?))
}

/// Lets a run learn, and says what it has come to.
fn finish(
    config: &RunConfig,
    worker: RolloutWorker,
    json: bool,
    path: &Path,
    make: impl FnOnce(Training) -> FromFiles,
) -> Result<ExitCode, Failure> {
    let log = Log::new(&config.rollout).map_err(Failure::usage)?;
    let progress = Progress::new(config.stop.env_steps, "rows", !json);
    let batch_size = config.rollout.train_batch_size as usize;
    let mut run = make(Training::new(worker, log.above(&progress), batch_size, Interruption::watch()));
    let ran = run.learn(&progress);
    progress.finish();
    let (read, is_cut) = (run.training.read().clone(), run.training.interruption().is_noticed());
    let is_short = !run.is_used_up();
    let summary = match ran {
        Ok(()) => run.finish(None)?,
        // Nothing is lost of what was learned up to there.
        Err(failure) if run.training.done() > 0 => {
            let (done, env_steps) = (run.training.done(), run.training.env_steps());
            match run.finish(Some(failure.to_string())) {
                Ok(_) => eprintln!(
                    "what was learned in {done} updates from {env_steps} rows before the error is in {}",
                    path.display()
                ),
                Err(unsaved) => eprintln!("error: {unsaved}; what was learned is lost"),
            }
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    if json {
        let mut object = serde_json::to_value(&summary).map_err(Failure::other)?;
        read.add_to(&mut object);
        println!("{object}");
    } else {
        print(&summary, path);
        read.print();
    }
    let missed = (is_short || config.stop.episode_return_mean.is_some()) && !summary.solved;
    Ok(if missed || is_cut { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn print(summary: &Summary, directory: &Path) {
    println!("{} with {}, seed {}", summary.env, summary.algo, summary.seed);
    println!("rows          {} in {} updates, {:.1} s", summary.env_steps, summary.iterations, summary.wall_s);
    if let Some(own) = &summary.evaluation {
        let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
        let EvaluationMetrics { episodes, iteration, .. } = own;
        println!(
            "mean return   {} (from {} to {}, {episodes} episodes after update {iteration}, most likely actions)",
            number(own.episode_return_mean),
            number(own.episode_return_min),
            number(own.episode_return_max),
        );
    }
    println!("weights hash  {}", summary.weights_hash);
    println!("files         {}", directory.display());
}
