//! An environment whose faults follow from its settings.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{self, abort},
    thread,
};

use rollmesh::{Registry, train::RunConfig};
use rollmesh_core::{
    callbacks::{CallbackError, Callbacks, WorkerInfo},
    column::{DType, RowShape},
    config::Config,
    env::EnvSpaces,
    env::{
        Env, EnvContext, EnvError, EnvSpec, EnvState, Frame, MultiAgentEnv, MultiAgentSpec, Rng, RowsRef,
        SnapshotReader, Step, Vectorized,
        multi_agent::{AgentRows, Turn},
    },
    episode::RolloutMetrics,
    ids::AgentId,
    policy::{PolicySpec, RandomPolicy},
    space::Space,
};

/// Five steps, each of which pays 1 and says which one it is; or none that ends, or the third of which ends badly.
struct Lab {
    does: String,
    /// It does that only in a process that was started with this command.
    only_in: Option<String>,
    /// It does that only where this file is not.
    once: Option<PathBuf>,
    /// The file for the ids of its process, and of one that it has started, which are written before it hangs.
    pid: Option<PathBuf>,
    t: i64,
}

impl Lab {
    fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let text = |name| context.config.get::<String>(name).map_err(EnvError::Config);
        record(&context.config, "environment");
        let does = text("does")?.unwrap_or_default();
        if does == "refuse" {
            return Err(EnvError::Failed("closed today".into()));
        }
        let [once, pid] = [text("once")?, text("pid")?].map(|file| file.map(PathBuf::from));
        Ok(Self { does, only_in: text("only_in")?, once, pid, t: 0 })
    }

    fn misbehave(&self, does: &str) {
        if self.only_in.is_some() && self.only_in != std::env::args().nth(1) {
            return;
        }
        if let Some(mark) = &self.once
            && fs::OpenOptions::new().write(true).create_new(true).open(mark).is_err()
        {
            return;
        }
        match does {
            "hang" => {
                self.pid.iter().for_each(|file| hang(file));
                loop {
                    thread::park();
                }
            }
            "abort" => {
                eprintln!("the lab burns");
                abort();
            }
            "panic" => panic!("a mouse"),
            _ => {}
        }
    }
}

/// Writes the ids of this process, and of one that it has started, and hangs.
fn hang(file: &Path) {
    let mut child = process::Command::new("sleep").arg("1000").spawn().unwrap();
    append(file, &format!("{} {}", process::id(), child.id()));
    let _ = child.wait();
}

/// Writes the file as a whole.
fn append(file: &Path, text: &str) {
    fs::write(file.with_extension("tmp"), text).unwrap();
    fs::rename(file.with_extension("tmp"), file).unwrap();
}

impl Env for Lab {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[5.0])
    }
    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }
    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.t, obs[0]) = (0, 0.0);
        Ok(())
    }
    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.t += 1;
        if self.t == 3 {
            self.misbehave(&self.does);
        }
        obs[0] = self.t.min(5) as f32;
        Ok(Step { reward: 1.0, terminated: self.t == 5 && self.does != "endless", truncated: false })
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.t as u8);
        EnvState::Snapshot
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.t = reader.u8()?.into();
        obs[0] = self.t.min(5) as f32;
        reader.finish()
    }
    fn render(&self, frame: &mut Frame) -> bool {
        self.does.strip_prefix("render_").into_iter().for_each(|does| self.misbehave(does));
        frame.fill(8, 6, [self.t as u8; 3]);
        true
    }
    fn info(&self, out: &mut Vec<u8>) -> bool {
        write!(out, r#"{{"walk": {{"step": {}}}}}"#, self.t).is_ok()
    }
}

/// A game with a coloured screen, of forty frames, each of which pays 1.
struct Game(u8);

impl Game {
    fn draw(&self, obs: &mut [u8]) {
        obs.fill(self.0);
    }
}

impl Env for Game {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::U8, RowShape::new(&[64, 64, 3]).unwrap(), 0.0, 255.0)
    }
    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }
    fn reset(&mut self, _: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        self.0 = 0;
        self.draw(obs);
        Ok(())
    }
    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        self.0 += 1;
        self.draw(obs);
        Ok(Step { reward: 1.0, terminated: self.0 == 40, truncated: false })
    }
    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.0);
        EnvState::Snapshot
    }
    fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        self.0 = reader.u8()?;
        self.draw(obs);
        reader.finish()
    }
}

/// An environment without rewards, whose infos contain its distance.
struct Walk(u32);

impl MultiAgentEnv for Walk {
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::SINGLE]
    }
    fn spaces(&self, _: &AgentId) -> Option<EnvSpaces> {
        let space = || Space::Discrete { n: 2 };
        Some(EnvSpaces { observation: space(), observation_type: DType::I64, action: space(), action_type: DType::I64 })
    }
    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 = 0;
        turn.observe(&AgentId::SINGLE, RowsRef::I64(&[0]));
        Ok(())
    }
    fn step(&mut self, _: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 += 1;
        turn.observe(&AgentId::SINGLE, RowsRef::I64(&[1]));
        turn.reward(&AgentId::SINGLE, 0.0);
        turn.info(&AgentId::SINGLE, format!(r#"{{"progress": {{"metres": {}}}}}"#, self.0));
        if self.0 == 4 {
            turn.truncate_all();
        }
        Ok(())
    }
    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

pub(crate) fn registry() -> Registry {
    register(Registry::builtin())
}

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with_env(EnvSpec::fallible("Lab-v0", |contexts, _| {
            let labs: Result<Vec<Lab>, EnvError> = contexts.iter().map(Lab::new).collect();
            Ok(Box::new(Vectorized::new(labs?)))
        }))
        .with_env(EnvSpec::new("ALE/Game-v0", |contexts, _| {
            Box::new(Vectorized::new(contexts.iter().map(|_| Game(0)).collect()))
        }))
        .with_multi_agent_env(MultiAgentSpec::new("Stroll-v0", |_| Ok(Box::new(Walk(0)))))
        .with_policy(PolicySpec::new("noted", |context| {
            record(&context.config, "policy");
            Ok(Box::new(RandomPolicy::for_space(&context.spaces.action, context.seed)?))
        }))
        .with_callbacks("record", |config| Ok(Box::new(Noted(config.clone()))))
        .with_init_fn("record", |config| {
            record(config, "init");
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            match status.lines().find(|line| line.starts_with("Threads:")) {
                Some(line) if line.trim_start_matches("Threads:").trim() == "1" => Ok(()),
                line => Err(CallbackError::new("record", format!("not the first: {line:?}"))),
            }
        })
        .with_init_fn("one_cpu", |_| {
            let cpus = rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count());
            if cpus == 1 { Ok(()) } else { Err(CallbackError::new("one_cpu", format!("{cpus} CPUs"))) }
        })
        .with_init_fn("licensed", |_| match std::env::var("LAB_LICENCE").as_deref() {
            Ok("to test") => Ok(()),
            other => Err(CallbackError::new("licensed", format!("{other:?}"))),
        })
        .with_init_fn("hang", |config| {
            // A child process of its own would continue: only a thread that watches kills the group.
            if let Ok(Some(file)) = config.get::<PathBuf>("pid") {
                append(&file, &process::id().to_string());
            }
            loop {
                thread::park();
            }
        })
        .with_init_fn("fail", |_| Err(CallbackError::new("fail", "no device")))
}

/// Adds a line to the file that the settings name when an evaluation begins, and when it ends.
struct Noted(Config);

impl Callbacks for Noted {
    fn on_evaluate_start(&mut self, _: &WorkerInfo) -> Result<(), CallbackError> {
        record(&self.0, "start");
        Ok(())
    }

    fn on_evaluate_end(&mut self, _: &WorkerInfo, episodes: &[RolloutMetrics]) -> Result<(), CallbackError> {
        record(&self.0, &format!("end of {}", episodes.len()));
        Ok(())
    }
}

/// Adds a line to the file that the settings name.
fn record(config: &Config, what: &str) {
    if let Ok(Some(file)) = config.get::<PathBuf>("notes") {
        let file = fs::OpenOptions::new().create(true).append(true).open(file);
        writeln!(file.unwrap(), "{what}").unwrap();
    }
}

/// Returns a run of one lab with a random policy.
pub(crate) fn lab(settings: serde_json::Value) -> RunConfig {
    one("Lab-v0", "random").env_config(settings.to_string().parse().unwrap())
}

/// Returns a run of a single sub-environment with a policy of this kind.
pub(crate) fn one(env: &str, policy: &str) -> RunConfig {
    let mut run = RunConfig::new(env);
    run.rollout = run.rollout.single_policy(policy);
    run.evaluation.num_envs = 1;
    run
}
