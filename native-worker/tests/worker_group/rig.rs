//! The registered names of the tests, and groups of each kind.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::Read as _,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rollmesh::{
    Registry, WorkerGroup,
    launch::{LaunchError, LaunchOrder, LaunchedWorker, Launcher, LocalLauncher},
    worker_group::{ForEachWorker, Placement, WorkerGroupBuilder},
};
use rollmesh_core::{
    callbacks::CallbackError,
    config::Config,
    env::{Env, EnvContext, EnvError, EnvSpec, EnvState, Rng, Step, Vectorized},
    ids::PolicyId,
    space::Space,
    weights::Weights,
    worker::{NamedFn, RolloutConfig, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerPlace},
};

thread_local! {
    /// The number of this worker's calls of the counting function.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Returns all names that the tests use.
pub(crate) fn registry() -> Registry {
    register(Registry::builtin())
}

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with_env(EnvSpec::fallible("Moody-v0", |contexts, _| {
            let envs = contexts.iter().map(Moody::new).collect::<Result<Vec<_>, EnvError>>()?;
            Ok(Box::new(Vectorized::new(envs)))
        }))
        .with_worker_fn("count", |_worker, _arguments| {
            COUNT.set(COUNT.get() + 1);
            Ok(Config::new().with("count", COUNT.get())?)
        })
        .with_worker_fn("place", |worker, _arguments| {
            let place = worker.place();
            Ok(Config::new()
                .with("index", place.worker_index)?
                .with("num_workers", place.num_workers)?
                .with("recreated", place.recreated_worker)?
                .with("in_evaluation", place.in_evaluation)?)
        })
        .with_worker_fn("fail", |_, _| Err(CallbackError::new("the function 'fail'", "as it should")))
        .with_worker_fn("panic", |_, _| panic!("as it should"))
        .with_worker_fn("hang", |_, _| hang())
        // Waits until the other end closes.
        .with_worker_fn("gate", |_, arguments| {
            let failed = |error: std::io::Error| CallbackError::new("the gate", error.to_string());
            let port: u16 = arguments.get("port")?.unwrap_or_default();
            let mut gate = TcpStream::connect(("127.0.0.1", port)).map_err(failed)?;
            gate.read_to_end(&mut Vec::new()).map_err(failed)?;
            Ok(Config::new())
        })
        .with_env_fn("place", |_env, context, _arguments| {
            let home = context.home;
            Ok(Config::new().with("at", [home.worker_index, home.vector_index])?)
        })
        .with_policy_fn("id", |id, _policy, _arguments| Ok(Config::new().with("id", id)?))
}

/// In workers that the settings name, unless they were recreated, it fails at its first step (`bad`), hangs at the 13th
/// (`hangs`), after it has created a file (`hang_marker`), or takes its time from the 11th on (`slow`). It cannot be made
/// (`refuses`), or is never done with that, always (`stalls`) or where it replaces one (`stalls_anew`).
pub(crate) struct Moody {
    fails: bool,
    hangs: bool,
    hang_marker: Option<PathBuf>,
    is_slow: bool,
    steps: u32,
    count: i64,
}

impl Moody {
    pub(crate) fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let is_named = |name: &str| -> Result<bool, EnvError> {
            let workers: Vec<u32> = context.config.get(name).map_err(EnvError::Config)?.unwrap_or_default();
            Ok(workers.contains(&context.home.worker_index))
        };
        if is_named("refuses")? {
            return Err(EnvError::Failed("not here".into()));
        }
        let is_first = !context.recreated_worker;
        if is_named("stalls")? || !is_first && is_named("stalls_anew")? {
            hang();
        }
        let (fails, hangs, is_slow) = (is_named("bad")?, is_named("hangs")?, is_named("slow")?);
        let hang_marker = context.config.get("hang_marker").map_err(EnvError::Config)?;
        Ok(Self { fails: fails && is_first, hangs: hangs && is_first, hang_marker, is_slow, steps: 0, count: 0 })
    }
}

impl Env for Moody {
    type Obs = i64;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::Discrete { n: 6 }
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        self.count = 0;
        obs[0] = 0;
        Ok(())
    }

    fn step(&mut self, _action: &[i64], _rng: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
        if self.fails {
            return Err(EnvError::Failed("a bad mood".into()));
        }
        self.steps += 1;
        if self.hangs && self.steps > 12 {
            if let Some(marker) = &self.hang_marker {
                std::fs::write(marker, "").unwrap();
            }
            hang();
        }
        if self.is_slow && self.steps > 10 {
            std::thread::sleep(SLOW_STEP);
        }
        self.count += 1;
        obs[0] = self.count;
        Ok(Step { reward: 1.0, terminated: self.count == 5, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend(self.count.to_le_bytes());
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        let count = snapshot.try_into().map_err(|_| EnvError::BadSnapshot(snapshot.len()))?;
        self.count = i64::from_le_bytes(count);
        obs[0] = self.count;
        Ok(())
    }
}

/// Returns the placement in worker processes of this program.
pub(crate) fn processes() -> Placement {
    Placement::Processes(Some(Arc::new(launcher())))
}

/// Starts this program.
pub(crate) fn launcher() -> LocalLauncher {
    LocalLauncher::new(std::env::current_exe().unwrap())
}

/// Starts this program, and counts the starts.
#[derive(Debug)]
pub(crate) struct Counting {
    inner: LocalLauncher,
    launched: AtomicU32,
}

impl Counting {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { inner: launcher(), launched: AtomicU32::new(0) })
    }

    pub(crate) fn launched(&self) -> u32 {
        self.launched.load(Ordering::Relaxed)
    }
}

impl Launcher for Counting {
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        self.launched.fetch_add(1, Ordering::Relaxed);
        self.inner.launch(order)
    }
}

/// Returns the placements in which a group starts workers itself.
pub(crate) fn placements() -> [Placement; 2] {
    [Placement::Threads, processes()]
}

/// Returns all placements.
pub(crate) fn everywhere() -> [Placement; 3] {
    [Placement::Threads, processes(), Placement::Remote]
}

/// Starts processes that connect by themselves, if the group expects such, until it has this many workers.
pub(crate) fn connect(group: &mut WorkerGroup, workers: usize) {
    assert!(group.worker_url().is_none() || connect_with(group, workers, &[]));
}

/// Connects workers with further arguments; returns false if they do not become workers.
pub(crate) fn connect_with(group: &mut WorkerGroup, workers: usize, more: &[&str]) -> bool {
    let url = group.worker_url().expect("an address for those that connect");
    let token = group.worker_token().expect("a token for those that connect").to_hex();
    for _ in group.num_healthy_remote_workers()..workers {
        let worker = Command::new(std::env::current_exe().unwrap())
            .args(["worker", "--hub", &url, "--until-stdin-closes"])
            .args(more)
            .env("ROLLMESH_TOKEN", &token)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        // Open until this process ends, in whatever way; by then the group has ended the worker.
        std::mem::forget(worker.unwrap().stdin.take());
    }
    group.wait_for_workers(workers, Duration::from_secs(60)).unwrap()
}

/// Returns settings for small samples of an easy environment.
pub(crate) fn cart_pole() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(10).fcnet_hiddens(&[8]).seed(5)
}

/// The duration of a slow step.
const SLOW_STEP: Duration = Duration::from_millis(400);

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// Returns an environment that fails in these workers.
pub(crate) fn moody(bad: &[u32]) -> RolloutConfig {
    moody_in("bad", bad)
}

/// Returns an environment with this [mood](Moody) in these workers.
pub(crate) fn moody_in(mood: &str, workers: &[u32]) -> RolloutConfig {
    let settings = Config::new().with(mood, workers).unwrap();
    RolloutConfig::new("Moody-v0").env_config(settings).rollout_fragment_length(10).fcnet_hiddens(&[8])
}

pub(crate) fn builder(config: RolloutConfig, placement: &Placement, workers: u32) -> WorkerGroupBuilder {
    WorkerGroup::builder(config).registry(registry()).placement(placement.clone()).num_workers(workers)
}

pub(crate) fn group(config: RolloutConfig, placement: &Placement, workers: u32) -> WorkerGroup {
    connected(builder(config, placement, workers), placement, workers)
}

/// Returns the group with all of its workers, which may have to connect.
pub(crate) fn connected(builder: WorkerGroupBuilder, placement: &Placement, workers: u32) -> WorkerGroup {
    let mut group = builder.build().unwrap();
    if matches!(placement, Placement::Remote) {
        connect(&mut group, workers as usize);
    }
    group
}

pub(crate) fn named(name: &str) -> NamedFn {
    NamedFn::new(name)
}

/// Returns a function that waits at a gate.
pub(crate) fn waiting_at(gate: &TcpListener) -> NamedFn {
    named("gate").with(Config::new().with("port", gate.local_addr().unwrap().port()).unwrap())
}

/// Returns a number in a function's answer.
pub(crate) fn number(answer: &Config, name: &str) -> u64 {
    answer.get(name).unwrap().unwrap()
}

/// Kills a process as a crash would.
pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Loses all remote workers: processes are killed, threads are given up.
pub(crate) fn lose_all(group: &mut WorkerGroup) {
    let pids = group.worker_pids();
    if pids.is_empty() {
        group.remote_workers().into_iter().for_each(|id| group.set_worker_state(id, false).unwrap());
    }
    pids.into_iter().for_each(kill);
    while group.num_healthy_remote_workers() > 0 {
        group.foreach_worker_with(&ForEachWorker::remote(), WorkerCommand::Ping).unwrap();
    }
}

/// Returns the weights of another seed.
pub(crate) fn other_weights(seed: u64) -> BTreeMap<PolicyId, Weights> {
    let config = cart_pole().seed(seed);
    RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL).unwrap().weights(None).unwrap()
}

/// Returns the weights with which each worker acts, the local worker first.
pub(crate) fn weights_of_all(group: &mut WorkerGroup) -> Vec<BTreeMap<PolicyId, Weights>> {
    let answers = group.foreach_worker(WorkerCommand::Weights { policies: None }).unwrap();
    let weights = |answer| match answer {
        WorkerAnswer::Weights(weights) => weights,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(weights).collect()
}

/// Returns the group's notices for users.
pub(crate) fn notices(group: &mut WorkerGroup) -> Vec<String> {
    std::iter::from_fn(|| group.next_notice()).collect()
}
