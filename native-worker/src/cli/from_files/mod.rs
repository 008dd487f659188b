//! `rollmesh train --input`: learning from files, with the worker that samples elsewhere, and the policy's own episodes
//! now and then.

mod evaluator;
mod learning;
mod plan;
mod saved;

use std::{num::NonZeroU32, path::Path, process::ExitCode};

use clap::Args;
use rollmesh_core::{
    config::Config,
    worker::{RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};

use self::{
    evaluator::Evaluator,
    learning::{FromFiles, Summary},
    plan::{Plan, check_settings, config},
    saved::{Saved, SavedRun},
};
use super::{exit::Failure, given, learn::Training, log::Log, signals::Interruption, train::TrainArgs};
use crate::{
    NativeWorker as _, Registry,
    progress::Progress,
    train::{EvaluationMetrics, RunDir, RunSettings},
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
    #[arg(long, value_name = "JSON", default_value = "{}", requires = "input")]
    input_config: Config,
    /// Settings of the algorithm over the usual ones, as a JSON object: lr, gamma, clip_param, num_epochs, minibatch_size, … of
    /// ppo, lr, beta, minibatch_size, … of bc and marwil
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(super) policy_config: Config,
    /// Rows of the input per update
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "input")]
    train_batch_size: u32,
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
    /// With --input: most steps of an evaluation episode, if the environment does not do so before
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "input",
        value_parser = clap::value_parser!(u32).range(1..))]
    evaluation_horizon: u32,
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

pub(super) fn run(args: &TrainArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let run = args.config()?;
    let plan = Plan::new(args, &run)?;
    let config = config(args, &run, plan.algo)?;
    check_settings(&config, registry)?;
    let (worker, evaluator) = workers(&config, registry, &plan)?;
    if worker.input_position().is_none() {
        eprintln!(
            "this input can only be read from its beginning: the policy is saved, and the run cannot be gone on with"
        );
    }
    let path = run.run_dir.unwrap_or_default();
    let settings = RunSettings::of_files(&config, &plan).map_err(Failure::usage)?;
    let dir = RunDir::create(&path, settings).map_err(Failure::usage)?;
    let log = Log::new(&config).map_err(Failure::usage)?;
    finish(log, &plan, args.json, &path, |log| {
        let training = Training::new(worker, log, config.train_batch_size as usize, Interruption::watch());
        FromFiles::new((config, plan.clone()), training, evaluator, dir)
    })
}

/// Whether the run in a directory is one from files.
pub(super) fn is_in(dir: &Path) -> bool {
    SavedRun::is_in(dir)
}

/// Goes on with a run.
pub(super) fn resume(args: &TrainArgs, dir: &Path, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(flag) = given(&[&OF_HUBS[..], &OF_SAMPLING].concat()) {
        return Err(Failure::usage(format!(
            "{flag} means nothing to the run in {}, which learns from files",
            dir.display()
        )));
    }
    let run = SavedRun::load(dir).map_err(Failure::usage)?;
    run.check(args).map_err(Failure::usage)?;
    let SavedRun { config, plan, saved, notices, lock, .. } = run;
    let plan = plan.with(args)?;
    let (mut worker, evaluator) = workers(&config, registry, &plan)?;
    notices.iter().for_each(|notice| eprintln!("{notice}"));
    if let Some(Saved { policy, worker: state, input, .. }) = &saved {
        worker.restore(state).map_err(Failure::usage)?;
        worker.set_input_position(input).map_err(Failure::usage)?;
        if !args.json {
            eprintln!("going on after iteration {}, {} rows", policy.iteration, policy.env_steps);
        }
    }
    let settings = RunSettings::of_files(&config, &plan).map_err(Failure::usage)?;
    let kept = saved.as_ref().map_or(0, |saved| saved.progress.metrics_bytes);
    let (files, _) = RunDir::reopen(dir, settings, (kept, 0), lock).map_err(Failure::usage)?;
    let log = Log::new(&config).map_err(Failure::usage)?;
    finish(log, &plan, args.json, dir, |log| {
        let training = Training::new(worker, log, config.train_batch_size as usize, Interruption::watch());
        match saved {
            None => FromFiles::new((config, plan.clone()), training, evaluator, files),
            Some(Saved { policy, progress, unfinished, .. }) => {
                let training = training.go_on(policy.iteration, progress.read());
                FromFiles::new((config, plan.clone()), training, evaluator, files).go_on(progress, unfinished)
            }
        }
    })
}

/// The worker that reads, and the one that plays the policy's own episodes.
fn workers(config: &RolloutConfig, registry: &Registry, plan: &Plan) -> Result<(RolloutWorker, Evaluator), Failure> {
    let worker = RolloutWorkerBuilder::new(registry.clone()).native().config(config.clone()).build();
    let worker = worker.map_err(Failure::usage)?;
    Ok((worker, Evaluator::new(config, registry, plan)?))
}

/// Lets a run learn, and says what it has come to.
fn finish(
    log: Log,
    plan: &Plan,
    json: bool,
    path: &Path,
    make: impl FnOnce(Log) -> FromFiles,
) -> Result<ExitCode, Failure> {
    let progress = Progress::new(plan.max_env_steps, "rows", !json);
    let mut run = make(log.above(&progress));
    let ran = run.learn(&progress);
    progress.finish();
    let (read, is_cut) = (run.training.read().clone(), run.training.interruption().is_noticed());
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
    let is_short = summary.env_steps < plan.max_env_steps && !summary.solved;
    let missed = plan.stop_return.is_some() && !summary.solved;
    Ok(if missed || is_short || is_cut { ExitCode::from(3) } else { ExitCode::SUCCESS })
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
