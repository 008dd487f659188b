//! Sampling over leases: a run without a learner.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollmesh_core::{
    batch::{CutReason, SlotFragment},
    config::Config,
    filter::FilterKind,
    group::SamplingMode,
    sampler::BatchMode,
    worker::{RegisteredEnv, RolloutConfig, WorkerSpec},
};

use super::{
    SampleArgs, report,
    summary::{Hasher, Speed, Tally},
};
use crate::{
    Registry,
    cli::progress::Progress,
    cli::{
        exit::Failure, external, host, log::LogTargets, runtime, signals::Endings, spare_memory, train::check,
        worker_spec::SpecFlags,
    },
    hub::{HubConfig, SecurityConfig},
    learner::{DeviceSpec, LearnError},
    runs::{RunConfig, RunDir, RunRequest, RunTask, RunWork, SavedRun, TakeRows, TakenRows, Taker},
};

/// Returns the run for these rows; the program logs them itself.
pub(super) fn run_of(config: RolloutConfig) -> RunConfig {
    let slots = config.num_envs.max(1);
    RunConfig { rollout: RolloutConfig { log_dir: None, ..config }, ..RunConfig::sampling("", slots) }
}

/// Returns a new run.
pub(super) fn new_run(args: &SampleArgs, config: RolloutConfig, registry: &Registry) -> Result<RunTask, Failure> {
    if external::is_external(&config, registry) {
        let message = "clients drive the environments of this process: leave --num-workers and --run-dir out";
        return Err(Failure::usage(message));
    }
    let mode = args.mode.mode()?.unwrap_or(SamplingMode::Synchronous);
    if !mode.is_synchronous() && config.observation_filter != FilterKind::NoFilter {
        let message = "the statistics of an observation filter change with every iteration, for which workers wait: leave \
                       --mode or the filter out";
        return Err(Failure::usage(message));
    }
    let mut run = RunConfig { mode, num_workers: args.num_workers.unwrap_or(0), ..run_of(config) };
    run.stop.env_steps = Wanted::of(&run, registry)?.rounded(args.env_steps.unwrap_or(SampleArgs::ENV_STEPS));
    args.set_intervals(&mut run);
    let mut run = evaluated(args, &run)?;
    if args.device != DeviceSpec::Cpu {
        run.device_rows = true;
        run.host.worker = Some(WorkerSpec { device: Some(args.device.to_string()), ..WorkerSpec::default() });
    }
    let (init_weights, run_dir) = (args.weights()?, args.run_dir.clone());
    let request = RunRequest { init_weights, remote_only: args.remote_only, run_dir, ..run.into() };
    Ok(RunTask::Begin(Box::new(request)))
}

/// Returns the run in a directory, with the changes of the flags.
pub(super) fn saved_run(args: &SampleArgs, dir: &Path, registry: &Registry) -> Result<RunTask, Failure> {
    let saved = SavedRun::load_sampling(dir).map_err(Failure::usage)?;
    let mut run = saved.config().clone();
    let stored = if args.remote_only { 0 } else { run.num_workers };
    run.num_workers = args.num_workers.unwrap_or(stored);
    args.set_intervals(&mut run);
    let mut run = evaluated(args, &run)?;
    if let Some(env_steps) = args.env_steps {
        run.stop.env_steps = Wanted::of(&run, registry)?.rounded(env_steps);
    }
    let output = args.flags.output.as_ref().map(Into::into);
    let request = RunRequest { output, remote_only: args.remote_only, ..run.into() };
    let saved = saved.with_request(request).map_err(Failure::usage)?;
    saved.notices().iter().for_each(|notice| eprintln!("{notice}"));
    if !args.json {
        eprintln!("resuming after iteration {}, {} env steps", saved.iteration(), saved.env_steps());
    }
    Ok(RunTask::Resume(Box::new(saved)))
}

/// Returns the run with the flags for evaluations.
fn evaluated(args: &SampleArgs, run: &RunConfig) -> Result<RunConfig, Failure> {
    let run = run.merged(&args.evaluation.added_to(Config::new())).map_err(Failure::usage)?;
    args.evaluation.check(&run)?;
    Ok(run)
}

/// Executes the run that `task` makes from the flags.
pub(super) fn run(
    args: &SampleArgs,
    registry: &Registry,
    log: LogTargets,
    task: impl FnOnce(&SampleArgs) -> Result<RunTask, Failure>,
) -> Result<ExitCode, Failure> {
    spare_memory();
    runtime(2)?.block_on(async {
        let mut endings = Endings::listen();
        let task = task(args)?;
        let request = task.request().clone();
        let run = &request.config;
        check_output(&request, registry)?;
        check(&request, registry, RunRequest::check_leased, &mut endings).await?;
        if let (RunTask::Begin(_), Some(directory)) = (&task, &request.run_dir) {
            RunDir::check_writable(directory).map_err(Failure::usage)?;
        }
        let progress = Progress::new(run.stop.env_steps, "env steps", !args.json);
        // In other modes timing determines the rows, and only rows from the kernels are reproducible in every bit.
        let is_hashed = !args.no_hash && run.mode.is_synchronous() && !run.device_rows;
        let hasher = if is_hashed { Hasher::Rollout(Box::default()) } else { Hasher::None };
        let tally = Arc::new(Mutex::new(Tally::new(hasher, log.above(&progress))));
        let rows = RowCounter { tally: tally.clone(), wanted: Wanted::of(run, registry)? };
        let mut hub = host::start(hub_config(args, &request)?, &SpecFlags::default(), registry).await?;
        match (args.no_dashboard, args.remote_only) {
            (false, _) if !args.json => host::print_invitations(&hub, &args.clients.security, true),
            (_, true) => host::print_worker_command(&hub, &args.clients.security),
            _ => {}
        }
        let work = RunWork::Take(Taker::Rows(Box::new(rows)));
        let ran = host::run(&mut hub, task, work, &progress, args.json, &mut endings).await;
        hub.shutdown().await;
        let (summary, measured) = ran?;
        if let Some(error) = summary.end.error() {
            return Err(Failure::Other(error));
        }
        let speed = Speed::of_run(run.num_workers, &measured, &summary);
        let mut sampled = lock(&tally).summary(speed);
        sampled.evaluation = summary.evaluation;
        report(args, &sampled, run.stop.env_steps, request.run_dir.as_deref())
    })
}

/// Refuses outputs that only a worker of this process has, since they cannot be cut back to a checkpoint.
fn check_output(request: &RunRequest, registry: &Registry) -> Result<(), Failure> {
    let output = request.output.as_deref().and_then(Path::to_str);
    match output.filter(|output| registry.output(output).is_ok()) {
        Some(output) => Err(Failure::usage(format!(
            "the output {output} belongs to a worker of this process: leave --num-workers and --run-dir out, or name a \
             directory"
        ))),
        None => Ok(()),
    }
}

/// Returns the hub's configuration: any free port of the loopback interface, unless `--listen` is set.
fn hub_config(args: &SampleArgs, request: &RunRequest) -> Result<HubConfig, Failure> {
    let listen = args.clients.listen;
    let security = match listen.is_some() || request.run_dir.is_some() {
        true => args.clients.security.config(request.run_dir.as_ref())?,
        false => SecurityConfig::default(),
    };
    let listen = listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let kernels = args.flags.kernels.table().map_err(Failure::usage)?;
    Ok(HubConfig {
        assets: args.clients.assets.clone(),
        kernels,
        ..host::config(listen, !args.no_dashboard, security)?
    })
}

/// Counts the rows of a run, up to the last one that is wanted.
struct RowCounter {
    tally: Arc<Mutex<Tally>>,
    wanted: Wanted,
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    // After a panic the run has failed, and nothing more is counted.
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TakeRows for RowCounter {
    fn take(&mut self, fragments: &[SlotFragment]) -> Result<Option<Vec<u64>>, LearnError> {
        let mut tally = lock(&self.tally);
        let wanted = self.wanted.of_each(fragments, tally.env_steps());
        if fragments.iter().zip(&wanted).all(|(fragment, rows)| fragment.env_steps() == *rows) {
            tally.fragments(fragments)?;
            return Ok(None);
        }
        if wanted.iter().any(|rows| *rows > 0) {
            let cut = fragments.iter().zip(&wanted).map(|(fragment, rows)| first_rows(fragment.clone(), *rows));
            tally.fragments(&cut.collect::<Vec<SlotFragment>>())?;
        }
        Ok(Some(wanted))
    }

    fn taken(&self) -> TakenRows {
        lock(&self.tally).taken()
    }

    fn state(&mut self) -> Result<Vec<u8>, LearnError> {
        lock(&self.tally).state()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), LearnError> {
        lock(&self.tally).restore(state)
    }
}

/// The rows of its last fragments that a run wants.
struct Wanted {
    env_steps: u64,
    num_slots: u64,
    cut: LeasedCut,
}

enum LeasedCut {
    /// The same number of each slot.
    EachSlot,
    /// Those that come first, since some slots have more than others.
    InAll,
    /// All of them.
    Never,
}

impl Wanted {
    fn of(run: &RunConfig, registry: &Registry) -> Result<Self, Failure> {
        let is_single = matches!(registry.env(run.env()).map_err(Failure::usage)?, RegisteredEnv::SingleAgent(_));
        let cut = match is_single && run.rollout.batch_mode == BatchMode::TruncateEpisodes {
            false => LeasedCut::Never,
            true if run.mode.is_synchronous() => LeasedCut::EachSlot,
            true => LeasedCut::InAll,
        };
        Ok(Self { env_steps: run.stop.env_steps, num_slots: run.num_slots().into(), cut })
    }

    /// Returns the env steps at the end of a run that is asked for this many.
    fn rounded(&self, env_steps: u64) -> u64 {
        match self.cut {
            LeasedCut::Never => env_steps,
            LeasedCut::EachSlot | LeasedCut::InAll => env_steps.div_ceil(self.num_slots).saturating_mul(self.num_slots),
        }
    }

    /// Returns the number of each fragment's first rows that are wanted after the `taken` ones.
    fn of_each(&self, fragments: &[SlotFragment], taken: u64) -> Vec<u64> {
        let mut left = self.env_steps.saturating_sub(taken);
        let rows = |fragment: &SlotFragment| match self.cut {
            LeasedCut::Never => fragment.env_steps(),
            // All fragments of a batch have the same length.
            LeasedCut::EachSlot => fragment.env_steps().min(left / self.num_slots),
            LeasedCut::InAll => {
                let rows = fragment.env_steps().min(left);
                left -= rows;
                rows
            }
        };
        fragments.iter().map(rows).collect()
    }
}

/// Returns the first `rows` rows of a single-agent fragment, and the episodes that end within them. Only the last fragment
/// of a slot has more.
fn first_rows(mut fragment: SlotFragment, rows: u64) -> SlotFragment {
    if fragment.env_steps() > rows {
        let first = fragment.rows.slice(0, rows as usize);
        fragment.rows = first.expect("rows of fragments are not time-major");
        let ends = fragment.cuts.iter().filter(|cut| cut.reason != CutReason::FragmentEnd);
        let ended = ends.take_while(|cut| u64::from(cut.end) <= rows).count();
        fragment.episodes.truncate(ended);
    }
    fragment
}
