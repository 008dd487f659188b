//! Environments without snapshots, whose open episodes move to other workers or are given up.

use std::{
    fs::{File, OpenOptions},
    path::PathBuf,
    process,
};

use rollmesh_core::{
    column::{DType, RowShape},
    env::{Env, EnvContext, EnvError, EnvState, Rng, Step},
    space::Space,
};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use super::{
    faulty::SLOT,
    runs::{AT_ONCE, Rig, assert_failed, run},
};
use crate::support::{self, Process};

/// Steps of an episode: two and a half fragments.
const EPISODE: u32 = 40;
/// The step of each episode of [`SLOT`] in which workers are killed, in its second fragment.
const KILLED: u32 = 20;
/// Workers that are killed.
const KILLS: u32 = 3;
/// The steps at which the slot fails, once each: in the second fragment, then twice while the steps before it are replayed.
const FAILS: [u32; 3] = [20, 7, 3];

/// Walks at random, backwards or forwards by its action. With `kills`, a directory, the first processes in which it
/// comes to a certain step of one slot kill themselves there; with `fails`, a directory, that slot fails at [`FAILS`],
/// with `panics` by a panic.
pub(crate) struct Walk {
    state: EnvState,
    kills: Option<PathBuf>,
    fails: Option<PathBuf>,
    panics: bool,
    /// Differs in each process, although the environment claims to be deterministic.
    step_length: f32,
    place: f32,
    t: u32,
}

impl Walk {
    pub(crate) const SETTINGS: &[&str] = &["state", "kills", "fails", "panics"];

    pub(crate) fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let setting = |name| context.config.get::<String>(name).map_err(EnvError::Config);
        let is_it = context.home.worker_index <= 1 && context.home.vector_index == SLOT;
        let state = setting("state")?.unwrap_or_default();
        Ok(Self {
            state: if state == "opaque" { EnvState::Opaque } else { EnvState::Replay },
            kills: setting("kills")?.filter(|_| is_it).map(PathBuf::from),
            fails: setting("fails")?.filter(|_| is_it).map(PathBuf::from),
            panics: context.config.get("panics").map_err(EnvError::Config)?.unwrap_or(false),
            step_length: if state == "other" { 0.01 + process::id() as f32 * 1e-9 } else { 0.01 },
            place: 0.0,
            t: 0,
        })
    }

    fn kill_process(&self) {
        let Some(directory) = self.kills.as_ref().filter(|_| self.t == KILLED) else { return };
        let is_new =
            |n: u32| OpenOptions::new().write(true).create_new(true).open(directory.join(n.to_string())).is_ok();
        if (0..KILLS).any(is_new) {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }

    /// Returns whether it fails in this step; a file records each failure.
    fn fails(&self) -> bool {
        let Some(directory) = &self.fails else { return false };
        let next = FAILS.iter().position(|at| !directory.join(at.to_string()).exists());
        next.is_some_and(|next| FAILS[next] == self.t && File::create_new(directory.join(self.t.to_string())).is_ok())
    }
}

impl Env for Walk {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, RowShape::new(&[1]).unwrap(), -1.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.place, self.t) = (rng.uniform_f32() / 4.0, 0);
        obs[0] = self.place;
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.kill_process();
        if self.fails() {
            assert!(!self.panics, "no brakes");
            return Err(EnvError::Failed("no fuel".into()));
        }
        self.t += 1;
        self.place += self.step_length * (2.0 * action[0] as f32 - 1.0 + rng.uniform_f32());
        obs[0] = self.place;
        Ok(Step { reward: f64::from(self.place), terminated: self.t == EPISODE, truncated: false })
    }

    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        self.state
    }
}

/// Trains with workers that are killed.
async fn killed(state: &str, workers: u32, more: &[&str]) -> (Rig, (support::process::Finished, std::time::Duration)) {
    let rig = Rig::new();
    std::fs::create_dir(rig.path("kills")).unwrap();
    let config = json!({ "state": state, "kills": rig.path("kills") });
    let ended = rig.train(workers, &config, &[&["--env", "Walk-v0"], more].concat()).await;
    (rig, ended)
}

async fn calm(state: &str) -> Value {
    let rig = Rig::new();
    let (finished, _) = rig.train(0, &json!({ "state": state }), &["--env", "Walk-v0"]).await;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    rig.summary()
}

pub(crate) async fn replayed_environment_trains_with_one_hash_for_any_worker_deaths() {
    let expected = calm("replay").await;
    assert_eq!(expected["reproducible"], true, "{expected}");
    for workers in [1, 2, 3] {
        let (rig, (finished, _)) = killed("replay", workers, &[]).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        rig.check_ledger();
        let summary = rig.summary();
        assert_eq!(summary["weights_hash"], expected["weights_hash"], "{workers} workers: {summary}");
        assert_eq!(std::fs::read_dir(rig.path("kills")).unwrap().count(), KILLS as usize);
        assert!(summary["moved_slots"].as_u64() > Some(0), "{summary}");
    }
}

/// Lets one fragment fail three times in the same way, each time at another step: also while its open episode is
/// replayed.
pub(crate) async fn failures_at_different_replayed_steps_are_distinguished() {
    let expected = calm("replay").await;
    let sample = ["sample", "--json", "--env", "Walk-v0", "--num-envs", "4", "--rollout-fragment-length", "16"];
    let sampled = async |config: &Value| {
        let config = config.to_string();
        let (finished, _) = run(&[&sample[..], &["--env-steps", "640", "--env-config", &config]].concat()).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        support::json(&finished.stdout)
    };
    let failing = |panics: bool| {
        let rig = Rig::new();
        std::fs::create_dir(rig.path("fails")).unwrap();
        let config = json!({ "fails": rig.path("fails"), "panics": panics });
        (rig, config)
    };
    let places = |failures: &Value| -> Vec<Value> {
        let latest = failures["latest"].as_array().cloned().unwrap_or_default();
        latest.iter().map(|at| json!([at["slot"], at["episode"], at["t"], at["kind"]])).collect()
    };
    for (panics, kind) in [(false, "error"), (true, "panic")] {
        let replayed = [json!([SLOT, 0, 7, kind]), json!([SLOT, 0, 3, kind])];
        for workers in [0, 2] {
            let (rig, config) = failing(panics);
            let (finished, _) = rig.train(workers, &config, &["--env", "Walk-v0"]).await;
            assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
            rig.check_ledger();
            let summary = rig.summary();
            assert_eq!(summary["weights_hash"], expected["weights_hash"], "{summary}");
            let found = places(&summary["failures"]);
            if panics && workers == 2 {
                // A panic ends all slots that are stepped together, so the other worker may be given the fragment, too, and fail
                // in its place, or finish it: then the slots have failed together, and none of them alone.
                let latest = summary["failures"]["latest"].as_array().unwrap();
                let is_alone = |at: &&Value| !at["message"].as_str().unwrap().ends_with("none of them alone");
                let alone = places(&json!({ "latest": latest.iter().filter(is_alone).collect::<Vec<_>>() }));
                assert!(!found.is_empty() && alone.iter().all(|place| replayed.contains(place)), "{summary}");
                assert!(found.iter().all(|place| place[0] == SLOT), "{summary}");
            } else {
                assert_eq!(found, replayed, "{summary}");
            }
        }
        // Without leases.
        let (rig, config) = failing(panics);
        let summary = sampled(&config).await;
        assert_eq!(summary["rollout_hash"], sampled(&json!({})).await["rollout_hash"], "{summary}");
        assert_eq!(places(&summary["failures"])[1..], replayed, "{summary}");
        drop(rig);
    }
}

/// Kills the hub, and with it its workers, in the middle of episodes.
pub(crate) async fn replayed_environment_resumes_bit_identically() {
    let steps = ["--env", "Walk-v0", "--max-env-steps", "32000"];
    let calm = Rig::new();
    calm.train(0, &json!({}), &steps).await;
    let rig = Rig::new();
    let run_dir = rig.path("run").display().to_string();
    let begin = rig.args(2, &json!({}), &[&steps[..], &["--set", "checkpoint_interval=1", "--no-dashboard"]].concat());
    let resume = ["train", "--no-dashboard", "--resume", &run_dir].map(String::from).to_vec();
    let start = |args: &[String]| Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    let iterations = || std::fs::read_to_string(rig.path("run/metrics.jsonl")).map_or(0, |text| text.lines().count());
    for (args, least) in [(&begin, 3), (&resume, 6)] {
        let process = start(args);
        support::until("some iterations", || iterations() >= least).await;
        process.signal(Signal::KILL);
        process.finish().await;
    }
    start(&resume).finish_with(0).await;
    assert_eq!(rig.summary()["weights_hash"], calm.summary()["weights_hash"]);
}

pub(crate) async fn opaque_environment_loses_open_episodes_of_dead_workers() {
    let undisturbed = calm("opaque").await;
    assert_eq!(undisturbed["reproducible"], false, "{undisturbed}");
    for workers in [1, 2] {
        let (rig, (finished, _)) = killed("opaque", workers, &[]).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        rig.check_ledger();
        let (summary, abandoned) = (rig.summary(), rig.ledger().abandoned_episodes);
        assert!((1..=u64::from(10 * KILLS)).contains(&abandoned), "{abandoned} episodes were given up");
        let causes = summary["not_reproducible"].to_string();
        assert_eq!(summary["abandoned_episodes"], abandoned, "{summary}");
        assert!(causes.contains("opaque") && causes.contains(&format!("{abandoned} open episodes")), "{summary}");
        assert_eq!(summary["env_steps"], undisturbed["env_steps"], "{summary}");
    }
}

/// Replays an environment that claims to be deterministic, and is not.
pub(crate) async fn replay_that_ends_elsewhere_ends_run_or_episode() {
    for workers in [1, 2] {
        let (rig, ended) = killed("other", workers, &[]).await;
        let texts = [
            "Walk-v0, slot ",
            ", episode 0, step 16: ",
            "replaying the open episode's 16 steps ended in another state",
        ];
        assert_failed(&ended, &texts, AT_ONCE);
        rig.check_ledger();
        let (rig, (finished, _)) = killed("other", workers, &["--set", "replay_mismatch=abandon"]).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        rig.check_ledger();
        assert!(rig.ledger().abandoned_episodes > 0);
        assert_eq!(rig.summary()["reproducible"], false, "{}", rig.summary());
    }
}
