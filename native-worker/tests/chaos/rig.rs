//! Runs in directories of their own, and their results, which must not depend on faults.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rollmesh::control::{Control, ControlConfig, USUAL_PATIENCE};
use rollmesh_core::{
    group::Ledger,
    protocol::{Role, Token},
};
use serde_json::Value;
use tokio::time::timeout;

use crate::support::{Process, json, process::Invitation, soon};

/// A random number generator whose seed is printed; `ROLLMESH_SEED` sets it.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new() -> Self {
        let seed = std::env::var("ROLLMESH_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
        println!("ROLLMESH_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below `end`, by SplitMix64.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// A run's directory, and the arguments of its start.
pub(crate) struct Rig {
    directory: tempfile::TempDir,
    args: Vec<String>,
    slots: u64,
    length: u64,
}

impl Rig {
    /// Returns a run of the given number of local workers, or of those alone that join, with twelve environments in
    /// all, that ends after the given number of env steps.
    pub(crate) fn new(workers: u64, max_env_steps: u64, length: u64, more: &[&str]) -> Self {
        Self::with_slots(12, workers, max_env_steps, length, more)
    }

    /// Returns the same with the given number of environments.
    pub(crate) fn with_slots(slots: u64, workers: u64, max_env_steps: u64, length: u64, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let numbers = [
            ("--workers", workers),
            ("--num-envs-per-worker", slots / workers.max(1)),
            ("--rollout-fragment-length", length),
            ("--max-env-steps", max_env_steps),
        ];
        let numbers = numbers.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]);
        let run_dir = directory.path().join("run").display().to_string();
        let fixed = ["train", "--seed", "1", "--hidden", "16,16", "--run-dir", &run_dir].map(String::from);
        let waits = (workers == 0).then(|| "--remote-only".to_owned());
        let args =
            fixed.into_iter().chain(numbers).chain(waits).chain(more.iter().map(|&arg| arg.to_owned())).collect();
        Self { directory, args, slots, length }
    }

    /// Starts the program with the hub, the learner and the local workers.
    pub(crate) fn start(&self) -> Process {
        let program = std::env::current_exe().unwrap();
        Process::start_program(program, &self.args, |command| {
            command.env("ROLLMESH_CHAOS_DIR", self.directory.path());
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("run").join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns a file next to the run's directory.
    pub(crate) fn sibling(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn iterations(&self) -> u64 {
        self.text("metrics.jsonl").matches('\n').count() as u64
    }

    /// Returns the lines of the audit log so far.
    pub(crate) fn audit(&self) -> Vec<Value> {
        [self.text("audit.jsonl.1"), self.text("audit.jsonl")].iter().flat_map(|text| text.lines()).map(json).collect()
    }

    /// Returns the result of the run. Its ledger must balance: every granted env step is in one bucket, and each
    /// committed step was learned from once.
    pub(crate) fn outcome(&self) -> Outcome {
        let summary = json(&self.text("summary.json"));
        let ledger: Ledger = serde_json::from_str(&self.text("ledger.json")).unwrap();
        let env_steps = summary["env_steps"].as_u64().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!((ledger.outstanding, ledger.dropped_stale), (0, 0), "{ledger:?}");
        assert_eq!((ledger.committed, ledger.consumed), (env_steps, env_steps), "{ledger:?}");
        let round = self.slots * self.length;
        let text = self.text("metrics.jsonl");
        let metrics: Vec<Value> = text.lines().map(json).collect();
        for (done, line) in metrics.iter().enumerate() {
            let iteration = done as u64 + 1;
            assert_eq!((&line["iteration"], &line["env_steps"]), (&iteration.into(), &(iteration * round).into()));
        }
        assert_eq!(metrics.len() as u64 * round, env_steps);
        let metrics = metrics.into_iter().map(|mut line| {
            (line["wall_s"], line["steps_per_s"]) = (Value::Null, Value::Null);
            line
        });
        Outcome {
            weights_hash: summary["weights_hash"].as_str().unwrap().into(),
            wall: Duration::from_secs_f64(summary["wall_s"].as_f64().unwrap()),
            env_steps,
            ledger,
            metrics: metrics.collect(),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) weights_hash: String,
    pub(crate) wall: Duration,
    pub(crate) env_steps: u64,
    pub(crate) ledger: Ledger,
    metrics: Vec<Value>,
}

impl Outcome {
    /// Asserts that both runs have learned the same, iteration for iteration.
    pub(crate) fn must_equal(&self, calm: &Self) {
        assert_eq!(self.env_steps, calm.env_steps);
        assert_eq!(self.metrics, calm.metrics);
        assert_eq!(self.weights_hash, calm.weights_hash);
    }

    /// Returns the env steps per second of the run's time.
    pub(crate) fn speed(&self) -> f64 {
        self.env_steps as f64 / self.wall.as_secs_f64()
    }
}

/// Executes an undisturbed run with these settings, which is asked to end after this time; returns its result.
pub(crate) async fn calm_for(time: Duration, workers: u64, length: u64, more: &[&str]) -> Outcome {
    let rig = Rig::new(workers, u64::MAX, length, more);
    let run = rig.start();
    crate::support::until("an iteration", || rig.iterations() > 0).await;
    tokio::time::sleep(time).await;
    run.signal(crate::support::process::Signal::TERM);
    run.finish_with(0).await;
    rig.outcome()
}

/// Executes an undisturbed run of this number of env steps; returns its result.
pub(crate) async fn calm(env_steps: u64, workers: u64, length: u64, more: &[&str]) -> Outcome {
    calm_with_slots(12, env_steps, workers, length, more).await
}

/// Returns the same with the given number of environments.
pub(crate) async fn calm_with_slots(slots: u64, env_steps: u64, workers: u64, length: u64, more: &[&str]) -> Outcome {
    let rig = Rig::with_slots(slots, workers, env_steps, length, more);
    rig.start().finish_with(0).await;
    rig.outcome()
}

/// Connects to a hub as a viewer.
pub(crate) async fn watch(hub: &Invitation) -> Control {
    let config = ControlConfig {
        hub: format!("ws://{}", hub.address).parse().unwrap(),
        token: Token::from_hex(&hub.operator_token).unwrap(),
        role: Role::Operator,
        trust: Default::default(),
        patience: 6 * USUAL_PATIENCE,
    };
    Control::connect(&config).await.unwrap()
}

/// Waits for something to happen and listens to the hub meanwhile, which disconnects silent peers.
pub(crate) async fn listen_until(hub: &mut Control, what: &str, is_so: impl Fn() -> bool) {
    soon(what, async {
        while !is_so() {
            if let Ok(heard) = timeout(Duration::from_millis(10), hub.next()).await {
                _ = heard.unwrap();
            }
        }
    })
    .await;
}

/// Returns the milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Returns a number of one line of the audit log.
pub(crate) fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}"))
}

/// Returns the times of these records of the audit log, the first one of each worker of this name.
pub(crate) fn times_by_name(audit: &[Value], event: &str) -> BTreeMap<String, u64> {
    let admitted = audit.iter().filter(|line| line["event"] == "admitted" && line["role"] == "Worker");
    let names: BTreeMap<u64, String> =
        admitted.map(|line| (number(line, "peer"), line["name"].as_str().unwrap().to_owned())).collect();
    let found = audit.iter().filter(|line| line["event"] == event);
    found
        .filter_map(|line| {
            let worker = line["worker"].as_u64().or_else(|| line["peer"].as_u64())?;
            Some((names.get(&worker)?.clone(), number(line, "at_ms")))
        })
        .collect()
}

/// Returns the value below which the given percentage lies.
pub(crate) fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied().unwrap_or_default()
}
