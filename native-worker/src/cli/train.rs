//! `rollmesh train`: a hub, local workers and a learner, for one run.

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroU32, path::PathBuf, process::ExitCode};

use clap::Args;
use rollmesh_core::{config::Config, filter::FilterKind};
use serde::{Deserialize, Serialize};

use super::{
    exit::Failure,
    from_files::{self, FileFlags},
    host::{self, Plan},
    mode::ModeFlags,
    runtime,
    security::SecurityFlags,
    settings, signals,
    worker_spec::SpecFlags,
};
use crate::{
    Registry,
    learner::{DeviceSpec, PpoConfig},
    train::{EvaluationConfig, RunEnd, SavedRun, Summary, TrainConfig, new_run_dir},
};

/// Where runs without a directory of their own have one.
const RUNS: &str = "runs";

#[derive(Args)]
#[command(after_help = "Examples:\n  \
                        rollmesh train --env CartPole-v1 --workers 2 --num-envs-per-worker 8 --stop-return 475\n  \
                        rollmesh train --resume runs/first\n  \
                        rollmesh train --config runs/first/config.toml --policy-config '{\"lr\": 0.0005}' --seed 2\n  \
                        rollmesh train --env CartPole-v1 --input samples --stop-return 475 --run-dir runs/clone\n  \
                        rollmesh train --resume runs/clone --stop-return 490\n  \
                        rollmesh train --env CartPole-v1 --input 'samples/*.json' --algo marwil --max-env-steps 200000\n\n\
                        With --input there are neither workers nor a dashboard: every update takes --train-batch-size rows, and\n\
                        the return is that of the policy's own episodes, played with its most likely actions.")]
pub(super) struct TrainArgs {
    /// Go on with the run in this directory, from its newest checkpoint, with the same bits as if it had never ended; one that
    /// learns from files reads on where it was. Of the run's settings --max-env-steps, --stop-return, --checkpoint-interval,
    /// --hung-worker-timeout and when it is evaluated may be others
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run_dir", "input"])]
    resume: Option<PathBuf>,
    /// Settings of the run, in a file like the `config.toml` of a run's directory, as TOML or JSON. What it leaves out is as
    /// usual; flags override it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["resume", "input"])]
    config: Option<PathBuf>,
    /// Environment, see `rollmesh envs` [default: CartPole-v1]
    #[arg(long)]
    pub(super) env: Option<String>,
    /// Settings of the environment, as a JSON object [default: {}]
    #[arg(long, value_name = "JSON")]
    pub(super) env_config: Option<Config>,
    /// Learning algorithm [default: ppo, and bc with --input]
    #[arg(long, value_enum)]
    pub(super) algo: Option<TrainAlgo>,
    /// Local worker processes [default: 2]
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Environments whose home is one worker; their number in all is fixed for the run [default: 8]
    #[arg(long, value_name = "M")]
    num_envs_per_worker: Option<u32>,
    /// Seed of everything random [default: 0]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Stop when the mean return of the last 100 finished episodes reaches this
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(super) stop_return: Option<f64>,
    /// Stop after this many env steps, or rows of the input [default: 1000000]
    #[arg(long, value_name = "T")]
    pub(super) max_env_steps: Option<u64>,
    /// Widths of the networks' hidden layers [default: 64,64]
    #[arg(long, value_delimiter = ',')]
    pub(super) hidden: Option<Vec<u32>>,
    /// Steps of each environment per update [default: 64]
    #[arg(long)]
    rollout_fragment_length: Option<u32>,
    /// Where the run writes its files; by default a new directory in runs/
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Save a checkpoint every so many iterations, and every ten seconds in any case [default: 100]
    #[arg(long, value_name = "N")]
    pub(super) checkpoint_interval: Option<u64>,
    /// End a local worker, and start another one, once it has hung for so long after its lease expired; 0 for never
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", conflicts_with = "input")]
    hung_worker_timeout: Option<f64>,
    /// Write what is sampled into this directory, as RLlib's JSON [default: nowhere]. With --resume and the same directory
    /// every row is there once
    #[arg(long, value_name = "DIR", conflicts_with = "input")]
    output: Option<PathBuf>,
    /// Where to listen; by default any free port of this machine
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", conflicts_with = "no_dashboard")]
    listen: SocketAddr,
    /// Directory of the dashboard's files
    #[arg(long, value_name = "DIR", conflicts_with = "no_dashboard")]
    assets: Option<PathBuf>,
    /// Serve no dashboard
    #[arg(long)]
    no_dashboard: bool,
    /// Where the learner computes: cpu, cuda:N or metal [default: cpu]
    #[arg(long)]
    device: Option<DeviceSpec>,
    #[command(flatten)]
    security: SecurityFlags,
    /// Environment variable of the local workers; may be given several times [default: those of this process alone]
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    extra_environ: Vec<(String, String)>,
    #[command(flatten)]
    worker_spec: SpecFlags,
    /// Print the summary as one JSON object, and no progress
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    mode: ModeFlags,
    /// What observations go through before the policy sees them: NoFilter, or MeanStdFilter, which normalises them with the
    /// mean and standard deviation of all before [default: NoFilter]
    #[arg(long, value_name = "FILTER", conflicts_with = "input")]
    observation_filter: Option<FilterKind>,
    #[command(flatten)]
    pub(super) files: FileFlags,
}

/// What can be learned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TrainAlgo {
    /// Proximal policy optimisation
    Ppo,
    /// Behaviour cloning, from files
    Bc,
    /// Imitation weighted by what came of actions, from files
    Marwil,
}

impl TrainAlgo {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ppo => "ppo",
            Self::Bc => "bc",
            Self::Marwil => "marwil",
        }
    }
}

impl TrainArgs {
    pub(super) fn algo(&self) -> TrainAlgo {
        self.algo.unwrap_or(if self.files.input.is_empty() { TrainAlgo::Ppo } else { TrainAlgo::Bc })
    }

    /// A new run, by the file and these flags.
    pub(super) fn config(&self) -> Result<TrainConfig, Failure> {
        let usual = self.config.as_deref().map(settings::read).transpose()?;
        let mut config = config(self, usual.unwrap_or_default())?;
        config.run_dir =
            Some(self.run_dir.clone().unwrap_or_else(|| new_run_dir(RUNS.as_ref(), &config.env, config.seed)));
        Ok(config)
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

pub(super) fn run(args: &TrainArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if !args.files.input.is_empty() {
        return from_files::run(args, registry);
    }
    if let Some(dir) = args.resume.as_ref().filter(|dir| from_files::is_in(dir)) {
        return from_files::resume(args, dir, registry);
    }
    if args.algo() != TrainAlgo::Ppo {
        let algo = args.algo().name();
        return Err(Failure::usage(format!("{algo} learns from logged experience: name it with --input")));
    }
    runtime(2)?.block_on(async {
        // Before anything is said: whoever reads that the run goes on may ask it to end.
        let mut endings = signals::Endings::listen();
        let plan = plan(args)?;
        let config = plan.config().clone();
        config.check(&registry.envs).map_err(Failure::usage)?;
        // Before anything is announced; the run opens it for itself.
        config.device.open().map_err(Failure::usage)?;
        let security = args.security.config(config.run_dir.as_ref())?;
        let (page, assets) = (!args.no_dashboard, args.assets.clone());
        let mut hub =
            host::start_with(args.listen, page, (assets, None), security, &args.worker_spec, registry).await?;
        if !args.no_dashboard && !args.json {
            host::print_invitations(&hub);
        }
        let summary = host::train(&mut hub, plan, args.json, &mut endings).await;
        hub.shutdown().await;
        let summary = summary?;
        if args.json {
            println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
        } else {
            print_summary(&summary, config.stop_return);
            if let Some(directory) = &config.run_dir {
                println!("files         {}", directory.display());
            }
        }
        exit_code(&summary, config.stop_return)
    })
}

/// A new run, or one that goes on.
fn plan(args: &TrainArgs) -> Result<Plan, Failure> {
    let Some(dir) = &args.resume else {
        return Ok(Plan::Begin(Box::new(args.config()?)));
    };
    let saved = SavedRun::load(dir).map_err(Failure::usage)?;
    let config = config(args, saved.config().clone())?;
    let saved = saved.with_config(config).map_err(Failure::usage)?;
    saved.notices().iter().for_each(|notice| eprintln!("{notice}"));
    if !args.json {
        eprintln!("going on after iteration {}, {} env steps", saved.iteration(), saved.env_steps());
    }
    Ok(Plan::GoOn(Box::new(saved)))
}

/// What the flags say, and what `usual` says where they say nothing.
fn config(args: &TrainArgs, usual: TrainConfig) -> Result<TrainConfig, Failure> {
    let ppo = match args.algo() {
        TrainAlgo::Ppo => usual.ppo.with(&args.files.policy_config),
        TrainAlgo::Bc | TrainAlgo::Marwil => Ok(usual.ppo.clone()),
    };
    let ppo = ppo.map_err(|error| Failure::usage(format!("--policy-config: {error}")))?;
    let length = args.rollout_fragment_length.unwrap_or(ppo.rollout_fragment_length);
    let ppo = PpoConfig { rollout_fragment_length: length, ..ppo };
    let environs: BTreeMap<String, String> = args.extra_environ.iter().cloned().collect();
    let config = TrainConfig {
        env: args.env.clone().unwrap_or(usual.env),
        env_config: args.env_config.clone().unwrap_or(usual.env_config),
        seed: args.seed.unwrap_or(usual.seed),
        num_workers: args.workers.unwrap_or(usual.num_workers),
        num_envs_per_worker: args.num_envs_per_worker.unwrap_or(usual.num_envs_per_worker),
        hidden: args.hidden.clone().unwrap_or(usual.hidden),
        stop_return: args.stop_return.or(usual.stop_return),
        max_env_steps: args.max_env_steps.unwrap_or(usual.max_env_steps),
        checkpoint_interval: args.checkpoint_interval.unwrap_or(usual.checkpoint_interval),
        hung_worker_timeout_s: args.hung_worker_timeout.unwrap_or(usual.hung_worker_timeout_s),
        device: args.device.unwrap_or(usual.device),
        output: args.output.clone().or(usual.output),
        evaluation: EvaluationConfig {
            interval: match args.files.evaluation_episodes {
                Some(0) => 0,
                _ => args.files.evaluation_interval.unwrap_or(usual.evaluation.interval),
            },
            episodes: args.files.evaluation_episodes.and_then(NonZeroU32::new).unwrap_or(usual.evaluation.episodes),
            timeout_s: args.files.evaluation_timeout.unwrap_or(usual.evaluation.timeout_s),
        },
        observation_filter: args.observation_filter.unwrap_or(usual.observation_filter),
        extra_environs: if environs.is_empty() { usual.extra_environs } else { environs },
        worker: Some(args.worker_spec.spec()).filter(|spec| !spec.is_default()).or(usual.worker),
        ppo,
        ..usual
    };
    let speaks_of_it = args.files.evaluation_episodes.is_some_and(|n| n > 0) || args.files.evaluation_timeout.is_some();
    if speaks_of_it && config.evaluation.interval == 0 && args.files.input.is_empty() {
        let flags = "--evaluation-episodes and --evaluation-timeout";
        return Err(Failure::usage(format!("{flags} are of no use without --evaluation-interval: say how often")));
    }
    let spec = config.spec();
    let round = u64::from(spec.num_slots) * u64::from(spec.rollout_fragment_length);
    let mode = args.mode.mode(round)?.unwrap_or(config.mode);
    Ok(TrainConfig { mode, ..config })
}

pub(super) fn print_summary(summary: &Summary, stop_return: Option<f64>) {
    let mean = summary.episode_return_mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}"));
    let end = match &summary.end {
        RunEnd::Solved => "solved".to_owned(),
        RunEnd::Finished => match stop_return {
            Some(target) => format!("finished without reaching a mean return of {target}"),
            None => "finished".to_owned(),
        },
        RunEnd::Stopped => "stopped".to_owned(),
        RunEnd::Drained => "drained".to_owned(),
        end @ (RunEnd::Failed(_) | RunEnd::Unbalanced(_)) => format!("failed: {}", end.error().unwrap_or_default()),
    };
    println!("{} with {}, seed {}: {end}", summary.env, summary.algo, summary.seed);
    println!("mean return   {mean} (last 100 episodes)");
    println!("env steps     {} in {:.1} s", summary.env_steps, summary.wall_s);
    println!("weights hash  {}", summary.weights_hash);
    if summary.unaudited > 0 {
        println!("unaudited     {} fragments were to be made again, and were not in time", summary.unaudited);
    }
    if summary.tainted {
        println!("tainted       rows were learned from that a worker made up");
    }
}

/// A run without a stop return has reached its goal when its steps are used up.
pub(super) fn exit_code(summary: &Summary, stop_return: Option<f64>) -> Result<ExitCode, Failure> {
    match &summary.end {
        RunEnd::Solved | RunEnd::Drained => Ok(ExitCode::SUCCESS),
        RunEnd::Finished if stop_return.is_none() => Ok(ExitCode::SUCCESS),
        RunEnd::Finished | RunEnd::Stopped => Ok(ExitCode::from(3)),
        end @ (RunEnd::Failed(_) | RunEnd::Unbalanced(_)) => Err(Failure::Other(end.error().unwrap_or_default())),
    }
}
