//! Workers that hang: stopped by a signal, or by an environment that never returns.

use std::{
    collections::BTreeSet,
    fs::OpenOptions,
    path::PathBuf,
    time::{Duration, Instant},
};

use rollmesh::{Registry, control::Control};
use rollmesh_core::{
    column::{DType, RowShape},
    env::{Env, EnvError, EnvSpec, EnvState, Rng, Step, Vectorized},
    protocol::WorkerState,
    space::Space,
};

use super::rig::{Outcome, Rig, calm, listen_until, watch};
use crate::support::{
    Process, is_long,
    process::{Finished, Signal, children_of},
    until,
};

/// A worker's patience without progress, as the group has it, …
const LEASE: Duration = Duration::from_secs(3);
/// … and the delay until a viewer is notified of its end: the lease may be one that begins only after the worker
/// has stopped, with the next iteration, and the machine may be busy.
const LATER: Duration = Duration::from_millis(if cfg!(debug_assertions) { 8_000 } else { 1_000 });

/// Steps of an episode of [`Stuck`], and the one in which it may hang.
const EPISODE: u32 = 20;
const FATAL: u32 = 7;

/// Adds an environment that hangs, one that is slow, and one that cannot be made.
pub(crate) fn register(registry: Registry) -> Registry {
    let env = |name, pause| {
        EnvSpec::fallible(name, move |contexts, _| {
            let chaos_dir = std::env::var_os("ROLLMESH_CHAOS_DIR").map(PathBuf::from);
            Ok(Box::new(Vectorized::new(vec![Stuck { t: 0, sum: 0, chaos_dir, pause }; contexts.len()])))
        })
    };
    let never = EnvSpec::fallible("Never-v0", |_, _| {
        loop {
            std::thread::park();
        }
    });
    registry
        .with_env(never)
        .with_env(env("Stuck-v0", Duration::ZERO))
        .with_env(env("Slow-v0", Duration::from_millis(1)))
}

/// Counts its actions. The first worker that finds a file `trap` removes it, and does not return before there is a file `way`.
#[derive(Clone)]
struct Stuck {
    t: u32,
    sum: u32,
    /// The directory of these files.
    chaos_dir: Option<PathBuf>,
    /// The minimum duration of a step.
    pause: Duration,
}

impl Stuck {
    fn show(&self, obs: &mut [f32]) {
        obs[0] = self.t as f32 / EPISODE as f32;
        obs[1] = self.sum as f32 / EPISODE as f32;
    }
}

impl Env for Stuck {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, RowShape::new(&[2]).unwrap(), 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.t, self.sum) = (0, 0);
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        // The hub recomputes fragments for its page, too, on a thread of its own.
        let is_drawn = || std::thread::current().name() == Some("pictures");
        if let Some(chaos_dir) = self.chaos_dir.as_ref().filter(|_| self.t == FATAL && !is_drawn())
            && std::fs::remove_file(chaos_dir.join("trap")).is_ok()
        {
            while !chaos_dir.join("way").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
        self.t += 1;
        self.sum += u32::from(action[0] == 1);
        self.show(obs);
        Ok(Step { reward: action[0] as f64, terminated: self.t == EPISODE, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend([self.t as u8, self.sum as u8]);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let &[t, sum] = snapshot else { return Err(EnvError::BadSnapshot(snapshot.len())) };
        (self.t, self.sum) = (t.into(), sum.into());
        self.show(obs);
        Ok(())
    }
}

/// Returns the workers that count as hung.
fn hung(hub: &Control) -> BTreeSet<u32> {
    let rows = hub.workers().values();
    rows.filter(|row| row.state == WorkerState::Hung.to_wire()).map(|row| row.worker).collect()
}

/// Waits until the given number of workers count as hung, and returns the time that it took.
async fn until_hung(hub: &mut Control, count: usize) -> Duration {
    let began = Instant::now();
    let is_known = |hub: &Control| hung(hub).len() == count && hub.unhealthy_workers().count() == count;
    hub.until("hung workers", is_known).await.unwrap();
    began.elapsed()
}

/// Lets the run end.
async fn end(rig: &Rig, run: Process) -> Outcome {
    run.signal(Signal::TERM);
    run.finish_with(0).await;
    rig.outcome()
}

/// Stops workers, which resume after their leases have expired, and upload stale fragments.
pub(crate) async fn suspended_workers_are_detected_by_their_leases() {
    let rounds = if is_long() { 20 } else { 1 };
    let rig = Rig::new(4, u64::MAX, 64, &[]);
    let mut run = rig.start();
    let mut hub = watch(&run.invitation().await).await;
    until("some iterations", || children_of(run.pid()).len() == 4 && rig.iterations() > 3).await;
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let stopped: Vec<u32> = children_of(run.pid()).into_iter().take(2).collect();
        stopped.iter().for_each(|&pid| crate::support::process::send(pid, Signal::STOP));
        let found = until_hung(&mut hub, 2).await;
        assert!(found <= LEASE + LATER, "{found:?}");
        longest = longest.max(found);
        // The others continue, and do not wait for them in each iteration.
        let (then, since) = (rig.iterations(), Instant::now());
        listen_until(&mut hub, "iterations", || rig.iterations() >= then + 10).await;
        assert!(since.elapsed() < Duration::from_secs(10), "{:?} for ten iterations", since.elapsed());
        assert_eq!(hung(&hub).len(), 2);
        stopped.iter().for_each(|&pid| crate::support::process::send(pid, Signal::CONT));
        until_hung(&mut hub, 0).await;
        let then = rig.iterations();
        listen_until(&mut hub, "iterations", || rig.iterations() >= then + 5).await;
    }
    let found = end(&rig, run).await;
    found.must_equal(&calm(found.env_steps, 1, 64, &[]).await);
    let late = found.ledger.uninvited;
    // A worker uploads something in one of twenty rounds; `late_upload_of_a_stopped_worker_is_refused` ensures it in
    // one.
    assert!(!is_long() || late.rejected.late > 0, "{late:?}");
    println!("{rounds} rounds of two stopped workers: found after {longest:?} at most; what came late: {late:?}");
}

/// Lets an environment hang, whose worker still answers pings.
pub(crate) async fn hanging_environment_is_detected_by_its_lease() {
    let rig = Rig::new(3, u64::MAX, 64, &["--env", "Stuck-v0"]);
    let mut run = rig.start();
    let mut hub = watch(&run.invitation().await).await;
    until("some iterations", || children_of(run.pid()).len() == 3 && rig.iterations() > 3).await;
    OpenOptions::new().write(true).create_new(true).open(rig.sibling("trap")).unwrap();
    until("a worker in the trap", || !rig.sibling("trap").exists()).await;
    let found = until_hung(&mut hub, 1).await;
    assert!(found <= LEASE + LATER, "{found:?}");
    let stuck = hung(&hub);
    // Longer than its socket could be silent without being closed: it answers pings all the time.
    let then = rig.iterations();
    let watched = Instant::now() + Duration::from_secs(if is_long() { 20 } else { 4 });
    while Instant::now() < watched || rig.iterations() < then + 10 {
        _ = hub.next().await.unwrap();
        assert_eq!(hung(&hub), stuck, "it is never counted healthy");
        assert!(hub.unhealthy_workers().map(|row| row.worker).eq(stuck.iter().copied()));
    }
    // It still runs, and an operator can replace it.
    assert_eq!(children_of(run.pid()).len(), 3);
    let removed = stuck.first().copied().unwrap();
    hub.remove_worker(removed).await.unwrap();
    until("the end of the stuck worker", || children_of(run.pid()).len() == 2).await;
    let outcome = end(&rig, run).await;
    outcome.must_equal(&calm(outcome.env_steps, 1, 64, &["--env", "Stuck-v0"]).await);
    println!("a worker whose environment hangs was found after {found:?}");
}

/// Lets a thread in the hub's process hang, which ends without it.
pub(crate) async fn hanging_environment_in_process_does_not_block_signals() {
    for signal in [Signal::INT, Signal::TERM] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("trap"), "").unwrap();
        let args = "train --env Stuck-v0 --workers 0 --num-slots 4 --hidden 16,16 --no-dashboard --run-dir";
        let args = args.split(' ').map(Into::into).chain([directory.path().join("run").into_os_string()]);
        let mut run = Process::start_program(std::env::current_exe().unwrap(), args, |command| {
            command.env("ROLLMESH_CHAOS_DIR", directory.path());
        });
        run.line("worker 1 hangs").await;
        run.signal(signal);
        run.finish_with(3).await;
    }
}

/// Starts this program with these arguments; its environments find their trap in a directory.
fn start(args: &[&str], chaos_dir: &std::path::Path) -> Process {
    Process::start_program(std::env::current_exe().unwrap(), args, |command| {
        _ = command.env("ROLLMESH_CHAOS_DIR", chaos_dir);
    })
}

/// Ends a command at the first signal, at the latest when a worker that hangs has had its time to exit.
async fn ends_at(process: Process, signal: Signal) -> Finished {
    let began = Instant::now();
    process.signal(signal);
    let end = process.finish_with(3).await;
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    end
}

pub(crate) async fn commands_whose_step_hangs_end_at_the_first_signal() {
    let directory = tempfile::tempdir().unwrap();
    let (trap, run) = (directory.path().join("trap"), directory.path().join("run"));
    let train = ["train", "--env", "Stuck-v0", "--workers", "0", "--max-env-steps", "64", "--num-envs-per-worker", "1"];
    let run_dir = ["--run-dir", run.to_str().unwrap()];
    start(&[&train[..], &run_dir].concat(), directory.path()).finish_with(0).await;
    let sample = ["sample", "--env", "Stuck-v0", "--num-envs", "2", "--policy", "random"];
    let gif = directory.path().join("film.gif");
    let evaluate = ["evaluate", "--checkpoint", run_dir[1], "--render", gif.to_str().unwrap()];
    let output = [&sample[..], &["--output", directory.path().to_str().unwrap()]].concat();
    let leased = ["sample", "--env", "Stuck-v0", "--num-envs", "2", "--num-workers", "1", "--json"];
    let commands: [(&[&str], Signal); 4] =
        [(&sample, Signal::TERM), (&output, Signal::INT), (&leased, Signal::TERM), (&evaluate, Signal::TERM)];
    for (command, signal) in commands {
        std::fs::write(&trap, b"").unwrap();
        let process = start(command, directory.path());
        until("the trap", || !trap.exists()).await;
        let Finished { stdout, stderr, .. } = ends_at(process, signal).await;
        if command == leased {
            // A hub does not wait for a worker that hangs: the summary covers the fragments that were uploaded before.
            let summary = crate::support::json(&stdout);
            assert!(summary["env_steps"].is_u64() && summary["rollout_hash"].is_string(), "{summary}");
        } else {
            assert!(stderr.contains("interrupted: "), "{command:?}: {stderr}");
        }
    }
    assert!(!gif.exists());
}

pub(crate) async fn a_run_whose_environment_cannot_be_made_says_so_and_ends_at_the_first_signal() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    for signal in [Signal::INT, Signal::TERM] {
        let args = ["train", "--env", "Never-v0", "--run-dir", run.to_str().unwrap()];
        let mut process = start(&args, directory.path());
        process.line("waiting for environment Never-v0 to be made").await;
        let stderr = ends_at(process, signal).await.stderr;
        assert!(stderr.contains("interrupted: environment Never-v0 was not made yet"), "{stderr}");
        assert!(!run.join("config.toml").exists());
    }
}
