//! `rollmesh train`: a hub, local workers and a learner, for one run.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use rollmesh_core::{config::Config, filter::FilterKind, sampler::FragmentLayout};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    choices::kernels,
    data::numbers::about_reading,
    evaluation,
    exit::Failure,
    external, host,
    input::FileFlags,
    mode::ModeFlags,
    python::PythonFlags,
    ranks::RankFlags,
    runtime,
    security::SecurityFlags,
    settings,
    signals::{self, Endings},
    worker_spec::SpecFlags,
};
use crate::{
    Registry,
    checkpoint::weights_file,
    hub::HubConfig,
    kernels::KernelChoice,
    learner::{ALGORITHMS, DeviceSpec},
    runs::{RunConfig, RunDir, RunEnd, RunRequest, RunRequestError, RunTask, SavedRun, Summary, new_run_dir},
};

/// Time after which the user is informed about the environment that a run waits for before it starts.
const NOTIFY_AFTER: Duration = Duration::from_secs(5);
/// Parent of the default run directories.
const RUNS: &str = "runs";

#[derive(Args)]
#[command(
    after_help = "Examples:\n  \
                        rollmesh train --env CartPole-v1 --stop-return 475 --run-dir runs/first\n  \
                        rollmesh train --resume runs/first\n  \
                        rollmesh train --config runs/first/config.toml --seed 2\n  \
                        rollmesh train --env CartPole-v1 --input samples --stop-return 475",
    after_long_help = "Examples:\n  \
                        rollmesh train --env CartPole-v1 --workers 2 --num-envs-per-worker 8 --stop-return 475\n  \
                        rollmesh train --resume runs/first\n  \
                        rollmesh train --config runs/first/config.toml --policy-config '{\"lr\": 0.0005}' --seed 2\n  \
                        rollmesh train --env CartPole-v1 --input samples --stop-return 475 --run-dir runs/clone\n  \
                        rollmesh train --resume runs/clone --stop-return 490\n  \
                        rollmesh train --env CartPole-v1 --input 'samples/*.json' --algo marwil --max-env-steps 200000\n\n\
                        With --input this process reads, or --workers N do; every update takes --train-batch-size rows, and \
                        the return is that of the policy's own episodes, played with its most likely actions."
)]
pub(super) struct TrainArgs {
    /// Resume the run in this directory
    ///
    /// From its newest checkpoint. The bits are those of a run that was never interrupted; one that learns from files continues reading where it
    /// was. Of the run's settings --max-env-steps, --stop-return, --checkpoint-interval, --hung-worker-timeout and the
    /// times of evaluations may be others
    #[arg(long, value_name = "DIR", conflicts_with_all = ["run_dir", "input"])]
    resume: Option<PathBuf>,
    /// Begin with the weights of a safetensors file
    ///
    /// It has the names and shapes of the run's policies, like the weights.safetensors of another run [default: random
    /// weights]
    #[arg(long, hide_short_help = true, value_name = "FILE", conflicts_with = "resume")]
    init_weights: Option<PathBuf>,
    /// Make new tokens for the resumed run's hub
    ///
    /// Workers and dashboards with the earlier ones are refused
    #[arg(long, hide_short_help = true, requires = "resume")]
    new_tokens: bool,
    /// Settings as TOML or JSON; flags override them
    ///
    /// A file like the `config.toml` of a run's directory. What it leaves out has its default
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    config: Option<PathBuf>,
    /// One of `rollmesh envs` [default: CartPole-v1]
    #[arg(long)]
    pub(super) env: Option<String>,
    /// Settings of the environment [default: {}]
    #[arg(long, hide_short_help = true, value_name = "JSON")]
    pub(super) env_config: Option<Config>,
    /// Algorithm [default: ppo, bc with --input]
    #[arg(long, value_parser = algorithms())]
    pub(super) algo: Option<String>,
    /// Local worker processes [default: 2]
    ///
    /// With 0 this process samples while no able worker is connected
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Only wait for workers from elsewhere
    ///
    /// Start no workers and do not sample in this process: wait for workers that connect with the printed command
    #[arg(long, hide_short_help = true, conflicts_with = "input")]
    remote_only: bool,
    /// Environments (slots) for each of --workers [default: 8]
    ///
    /// Their number in all is fixed for the run, whatever workers join
    #[arg(long, hide_short_help = true, value_name = "M")]
    num_envs_per_worker: Option<u32>,
    /// Environments (slots) of the run [default: 8 a worker]
    ///
    /// --workers, at least 1, times --num-envs-per-worker
    #[arg(long, value_name = "N", conflicts_with = "input")]
    num_slots: Option<u32>,
    /// Any setting by its path, see `rollmesh schema`
    ///
    /// The value is JSON or text: --set model_config.use_lstm=true; may be given several times
    #[arg(long, value_name = "PATH=VALUE", value_parser = settings::setting)]
    set: Vec<(String, Value)>,
    /// Seed of everything random [default: 0]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Stop at this mean return of the last 100 episodes
    ///
    /// With --input that of an evaluation
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(super) stop_return: Option<f64>,
    /// Stop after this many env steps [default: 1000000]
    ///
    /// With --input after this many of its rows
    #[arg(long, value_name = "T")]
    pub(super) max_env_steps: Option<u64>,
    /// Widths of the hidden layers [default: 64,64]
    #[arg(long, value_delimiter = ',', value_name = "WIDTHS")]
    pub(super) hidden: Option<Vec<u32>>,
    /// Steps of an environment per update [default: 64]
    #[arg(long, hide_short_help = true, value_name = "T")]
    rollout_fragment_length: Option<u32>,
    /// Directory of its files [default: a new one in runs/]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Save a checkpoint every N iterations [default: 100]
    ///
    /// One is saved every ten seconds as well
    #[arg(long, hide_short_help = true, value_name = "N")]
    pub(super) checkpoint_interval: Option<u64>,
    /// Replace a worker that has hung for so long [default: 60]
    ///
    /// The time counts from the expiry of its lease; 0 for never
    #[arg(long, hide_short_help = true, value_name = "S", conflicts_with = "input")]
    hung_worker_timeout: Option<f64>,
    /// Write the sampled rows here, as RLlib's JSON
    ///
    /// With --resume and the same directory every row is there once [default: nowhere]
    #[arg(long, hide_short_help = true, value_name = "DIR", conflicts_with = "input")]
    output: Option<PathBuf>,
    /// Address of the hub
    ///
    /// By default any free port of this machine
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Directory of the dashboard's files
    ///
    /// With --no-dashboard the directory of other files to serve, a page with a game for example
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    assets: Option<PathBuf>,
    /// Let pages of this origin drive episodes, too
    ///
    /// With External-v0, for example `https://game.example`; may be given several times
    #[arg(long, hide_short_help = true, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Serve no dashboard
    #[arg(long, hide_short_help = true)]
    no_dashboard: bool,
    /// Where the learner computes [default: cpu]
    ///
    /// cpu, cuda:N or metal
    #[arg(long)]
    device: Option<DeviceSpec>,
    /// Instantiation of the hot loops
    ///
    /// Of the learner and the local workers; has no influence on rows or weights
    #[arg(long, hide_short_help = true, default_value_t, value_parser = kernels())]
    kernels: KernelChoice,
    /// Environment variable of the local workers
    ///
    /// May be given several times [default: only those of this process]
    #[arg(long, hide_short_help = true, value_name = "NAME=VALUE", value_parser = variable)]
    extra_environ: Vec<(String, String)>,
    /// Print the summary as JSON, and no progress
    #[arg(long)]
    pub(super) json: bool,
    /// NoFilter or MeanStdFilter [default: NoFilter]
    ///
    /// MeanStdFilter normalises observations with the mean and standard deviation of all before them
    #[arg(long, hide_short_help = true, value_name = "FILTER", conflicts_with = "input")]
    observation_filter: Option<FilterKind>,
    #[command(flatten, next_help_heading = "Logged data and evaluation")]
    pub(super) files: FileFlags,
    #[command(flatten, next_help_heading = "Sampling mode")]
    mode: ModeFlags,
    #[command(flatten, next_help_heading = "Resources of local workers")]
    worker_spec: SpecFlags,
    #[command(flatten, next_help_heading = "Learning together")]
    ranks: RankFlags,
    #[command(flatten, next_help_heading = "Python environments")]
    python: PythonFlags,
    #[command(flatten, next_help_heading = "Security")]
    security: SecurityFlags,
}

/// Returns the algorithms of rollmesh with their descriptions.
fn algorithms() -> PossibleValuesParser {
    ALGORITHMS.iter().map(|algorithm| PossibleValue::new(algorithm.name).help(algorithm.about)).into()
}

impl TrainArgs {
    /// Returns the configuration of a new run, from the file and these flags.
    fn config(&self) -> Result<RunConfig, Failure> {
        let file = self.config.as_deref().map(settings::read).transpose()?.unwrap_or_default();
        let config = RunConfig::of_settings(&file.merged(&self.settings()?))
            .map_err(|error| settings::at_fault(&error, self.config.as_deref(), || RunConfig::of_settings(&file)))?;
        self.with_mode(config)
    }

    /// Returns the flags as settings of a run.
    pub(super) fn settings(&self) -> Result<Config, Failure> {
        let workers = if self.remote_only { self.workers.or(Some(0)) } else { self.workers };
        if self.remote_only && workers != Some(0) {
            return Err(Failure::usage("--remote-only starts no workers: leave --workers out"));
        }
        let environs: BTreeMap<&str, &str> =
            self.extra_environ.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let worker = Some(self.worker_spec.spec()).filter(|spec| !spec.is_default());
        let FileFlags { input_config, callbacks, .. } = &self.files;
        let flags: [(&str, Option<Value>); 22] = [
            ("env", given(&self.env)?),
            ("env_config", given(&self.env_config)?),
            ("algorithm", given(&self.algo)?),
            ("policy_config", given(&self.files.policy_config)?),
            ("seed", given(&self.seed)?),
            ("num_workers", given(&workers)?),
            ("num_slots", given(&self.num_slots)?),
            ("num_envs", given(&self.num_envs_per_worker)?),
            ("rollout_fragment_length", given(&self.rollout_fragment_length)?),
            ("model_config.fcnet_hiddens", given(&self.hidden)?),
            ("stop.episode_return_mean", finite("--stop-return", self.stop_return)?),
            ("stop.env_steps", given(&self.max_env_steps)?),
            ("checkpoint_interval", given(&self.checkpoint_interval)?),
            ("hung_worker_timeout_s", finite("--hung-worker-timeout", self.hung_worker_timeout)?),
            ("host.device", given(&self.device.map(|device| device.to_string()))?),
            ("input", given(&self.files.source()?)?),
            ("io_config", given(input_config)?),
            ("callbacks", given(&Some(callbacks).filter(|names| !names.is_empty()))?),
            ("train_batch_size", given(&self.files.train_batch_size)?),
            ("observation_filter", given(&self.observation_filter)?),
            ("host.worker", given(&worker)?),
            ("extra_environs", given(&Some(environs).filter(|environs| !environs.is_empty()))?),
        ];
        let settings = self.files.evaluation.added_to(settings::with_given(Config::new(), flags));
        Ok(settings::with_set(settings, &self.set))
    }

    /// Adds the flags for the sampling mode.
    fn with_mode(&self, mut config: RunConfig) -> Result<RunConfig, Failure> {
        self.files.evaluation.check(&config)?;
        config.mode = self.mode.mode()?.unwrap_or(config.mode);
        config.check().map_err(Failure::usage)?;
        Ok(config)
    }

    /// Returns the directory of a new run.
    pub(super) fn directory(&self, config: &RunConfig) -> PathBuf {
        let usual = || new_run_dir(RUNS.as_ref(), config.env(), config.rollout.seed);
        self.run_dir.clone().unwrap_or_else(usual)
    }

    /// Returns the request of a new run with its directory.
    fn request(&self, config: RunConfig) -> Result<RunRequest, Failure> {
        let run_dir = Some(self.directory(&config));
        let request = RunRequest::from(config);
        let output = self.output.as_ref().or(request.output.as_ref()).cloned();
        let data_parallel = self.ranks.config()?;
        // Only the first rank writes files.
        let run_dir = run_dir.filter(|_| data_parallel.as_ref().is_none_or(|ranks| ranks.rank == 0));
        let init_weights = self.init_weights.as_deref().map(weights_file::read).transpose().map_err(Failure::usage)?;
        Ok(RunRequest { run_dir, output, init_weights, remote_only: self.remote_only, data_parallel, ..request })
    }
}

/// Returns the value of a flag as a setting, if it was given.
fn given<T: Serialize>(value: &Option<T>) -> Result<Option<Value>, Failure> {
    value.as_ref().map(serde_json::to_value).transpose().map_err(Failure::usage)
}

/// Works like [`given`], for a finite number.
fn finite(flag: &str, value: Option<f64>) -> Result<Option<Value>, Failure> {
    match value.filter(|value| !value.is_finite()) {
        Some(value) => Err(Failure::usage(format!("{flag} is {value}; it must be a finite number"))),
        None => given(&value),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

pub(super) fn run(args: &TrainArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    args.python.install(args.env.as_deref());
    let task = || match &args.resume {
        Some(dir) => resume(args, dir),
        None => Ok(RunTask::Begin(Box::new(args.request(args.config()?)?))),
    };
    runtime(2)?.block_on(async {
        // Before anything is printed: a user who sees that the run is starting may send a signal.
        let mut endings = Endings::listen();
        let task = task()?;
        let request = task.request().clone();
        let external = external::env_of(&request.config.rollout, registry)?;
        let registry = &match &external {
            Some(env) => registry.clone().with_base_env(external::ENV, env.creator()),
            None => registry.clone(),
        };
        // Before anything is announced; the run makes another environment.
        let layout = check(&request, registry, RunRequest::check, &mut endings).await?;
        if let (RunTask::Begin(_), Some(directory)) = (&task, &request.run_dir) {
            // Checked first, since the hub writes there earlier and would report another error.
            RunDir::check_writable(directory).map_err(Failure::usage)?;
        }
        if let (Some(FragmentLayout::Agents(policies)), false) = (&layout, args.json) {
            let agents = |n| if n == 1 { "1 agent".to_owned() } else { format!("{n} agents") };
            let each = policies.iter().map(|(id, layout)| format!("{id} ({})", agents(layout.agents)));
            eprintln!("policies: {}", each.collect::<Vec<_>>().join(", "));
        }
        let stop_return = request.config.stop.episode_return_mean;
        let security = args.security.config(request.run_dir.as_ref())?;
        if let Some(path) = security.run_tokens.as_ref().filter(|path| args.new_tokens && path.exists()) {
            let failed = |error| Failure::usage(format!("cannot remove {}: {error}", path.display()));
            fs::remove_file(path).map_err(failed)?;
        }
        let (assets, allow_origins) = (args.assets.clone(), args.allow_origin.clone());
        let has_clients = external.is_some();
        let config = host::config(args.listen, !args.no_dashboard, security)?;
        let kernels = args.kernels.table().map_err(Failure::usage)?;
        let config = HubConfig { assets, allow_origins, external, kernels, ..config };
        let mut hub = host::start(config, &args.worker_spec, registry).await?;
        if has_clients {
            let assets = args.assets.as_deref().filter(|_| args.no_dashboard);
            external::print_invitations(&hub, &args.security, &request.config.rollout, assets);
        }
        if !args.no_dashboard && !args.json {
            host::print_invitations(&hub, &args.security, layout.is_some());
        } else if args.remote_only {
            host::print_worker_command(&hub, &args.security);
        }
        let summary = host::train(&mut hub, task, args.json, &mut endings).await;
        hub.shutdown().await;
        let summary = summary?;
        if args.json {
            println!("{}", serde_json::to_string(&summary).map_err(Failure::other)?);
        } else {
            print_summary(&summary, stop_return);
            if let Some(directory) = &request.run_dir {
                println!("files         {}", directory.display());
            }
        }
        exit_code(&summary, stop_return)
    })
}

/// Checks a run that is about to begin on a thread of its own, since making an environment may hang.
pub(super) async fn check<T: Send + 'static>(
    request: &RunRequest,
    registry: &Registry,
    by: fn(&RunRequest, &Registry) -> Result<T, RunRequestError>,
    endings: &mut Endings,
) -> Result<T, Failure> {
    let (done, checked) = oneshot::channel();
    let (request, registry) = (request.clone(), registry.clone());
    let env = request.config.env().to_owned();
    let check = move || drop(done.send(by(&request, &registry)));
    // Never joined: a hung thread ends with the process.
    thread::Builder::new().name("check".into()).spawn(check).map_err(Failure::other)?;
    let panicked = |_| Failure::other(format!("making environment {env} or its policies panicked"));
    made(&env, checked, endings).await?.map_err(panicked)?.map_err(Failure::usage)
}

/// Waits until an environment is made, unless a signal ends the program before.
pub(super) async fn made<T>(env: &str, making: impl Future<Output = T>, endings: &mut Endings) -> Result<T, Failure> {
    let mut making = pin!(making);
    loop {
        tokio::select! {
            made = &mut making => return Ok(made),
            _ = endings.first() => {
                let late = |_| Failure::Interrupted(format!("environment {env} was not made yet, and no run has begun"));
                // A run that can start is ended like any run.
                return timeout(signals::GRACE, making).await.map_err(late);
            }
            () = sleep(NOTIFY_AFTER) => eprintln!("waiting for environment {env} to be made"),
        }
    }
}

/// Returns the run in a directory, with the changes of the flags.
fn resume(args: &TrainArgs, dir: &Path) -> Result<RunTask, Failure> {
    let (output, remote_only, data_parallel) = (args.output.clone(), args.remote_only, args.ranks.config()?);
    let is_other_rank = data_parallel.as_ref().is_some_and(|ranks| ranks.rank > 0);
    let saved = if is_other_rank { SavedRun::load_for_other_rank(dir) } else { SavedRun::load(dir) };
    let saved = saved.map_err(Failure::usage)?;
    let config = saved.config().merged(&args.settings()?).map_err(Failure::usage)?;
    let request = RunRequest { output, remote_only, data_parallel, ..args.with_mode(config)?.into() };
    let saved = saved.with_request(request).map_err(Failure::usage)?;
    saved.notices().iter().for_each(|notice| eprintln!("{notice}"));
    if !args.json {
        eprintln!("resuming after iteration {}, {} env steps", saved.iteration(), saved.env_steps());
    }
    Ok(RunTask::Resume(Box::new(saved)))
}

pub(super) fn print_summary(summary: &Summary, stop_return: Option<f64>) {
    let end = match &summary.end {
        RunEnd::Solved => "solved".to_owned(),
        RunEnd::Finished => match stop_return {
            Some(target) => format!("finished without reaching a mean return of {target}"),
            None => "finished".to_owned(),
        },
        RunEnd::Stopped => "stopped".to_owned(),
        RunEnd::Drained => "drained".to_owned(),
        // The program ends with the reason.
        RunEnd::Failed(_) | RunEnd::Unbalanced(_) => "failed".to_owned(),
    };
    println!("{} with {}, seed {}: {end}", summary.env, summary.algo, summary.seed);
    match summary.episode_return_mean {
        Some(mean) => println!("mean return   {mean:.2} (last 100 episodes)"),
        // A run from files samples no episodes.
        None if summary.evaluation.is_some() => (),
        None => println!("mean return   - (no episode has ended)"),
    }
    if let Some(found) = &summary.evaluation {
        println!("evaluation    {}", evaluation::line_of(found));
    }
    println!("env steps     {} in {} updates, {:.1} s", summary.env_steps, summary.iterations, summary.wall_s);
    println!("weights hash  {}", summary.weights_hash);
    about_reading(&summary.read).iter().for_each(|line| println!("{line}"));
    if summary.unaudited > 0 {
        println!(
            "unaudited     {} fragments were selected for an audit but not replayed before the run ended",
            summary.unaudited
        );
    }
    if summary.tainted {
        println!("tainted       rows were learned from that a worker made up");
    }
}

/// Returns the exit code. A run without a stop return has reached its goal when its steps are used up.
pub(super) fn exit_code(summary: &Summary, stop_return: Option<f64>) -> Result<ExitCode, Failure> {
    match &summary.end {
        RunEnd::Solved => Ok(ExitCode::SUCCESS),
        RunEnd::Finished if stop_return.is_none() => Ok(ExitCode::SUCCESS),
        RunEnd::Finished | RunEnd::Stopped | RunEnd::Drained => match &summary.error {
            Some(error) => Err(Failure::Interrupted(error.clone())),
            None if summary.end == RunEnd::Drained => Ok(ExitCode::SUCCESS),
            None => Ok(ExitCode::from(3)),
        },
        end @ (RunEnd::Failed(_) | RunEnd::Unbalanced(_)) => Err(Failure::Other(end.error().unwrap_or_default())),
    }
}
