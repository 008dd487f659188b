//! Environments and callbacks that fail where their settings say.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
};

use rollmesh::Registry;
use rollmesh_core::{
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    column::{DType, RowShape},
    env::{
        Env, EnvContext, EnvError, EnvSpaces, EnvSpec, EnvState, MultiAgentEnv, MultiAgentSpec, Rng, RowsRef, Step,
        Vectorized,
        multi_agent::{AgentRows, Turn},
    },
    ids::{AgentId, SlotId},
    policy::{ActionInput, ActionOutput, Policy, PolicyContext, PolicyError, PolicySpec, RandomPolicy},
    space::Space,
    weights::Weights,
};

use super::moving::Walk;

/// Steps of an episode.
pub(crate) const EPISODE: u32 = 10;
/// The slot in which it fails, …
pub(crate) const SLOT: u32 = 1;
/// The step, counted over all episodes, at which it fails.
pub(crate) const STEP: u32 = 34;

/// Adds all of these environments, callbacks and policies.
pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with_env(
            EnvSpec::fallible("Faulty-v0", |contexts, _| {
                Ok(Box::new(Vectorized::new(contexts.iter().map(Faulty::new).collect::<Result<_, _>>()?)))
            })
            .with_settings(Faulty::SETTINGS),
        )
        .with_env(
            EnvSpec::fallible("Walk-v0", |contexts, _| {
                Ok(Box::new(Vectorized::new(contexts.iter().map(Walk::new).collect::<Result<_, _>>()?)))
            })
            .with_settings(Walk::SETTINGS),
        )
        .with_multi_agent_env(MultiAgentSpec::new("FaultyPair-v0", |context| {
            Ok(Box::new(FaultyPair(Faulty::new(context)?)))
        }))
        .with_policy(PolicySpec::new("failing", |context| Ok(Box::new(FaultyPolicy::new(context, false)?))))
        .with_policy(PolicySpec::new("panicking", |context| Ok(Box::new(FaultyPolicy::new(context, true)?))))
        .with_callbacks("failing", |_| Ok(Box::new(Failing)))
        .with_callbacks("panicking", |_| Ok(Box::new(Panicking)))
}

/// Counts its steps and its actions. `kind` says how it fails, a process that exits in each episode, and "drawn" in episodes that
/// are drawn; with a file `once`, only
/// the process that creates it does; with a file `host`, the process that creates it does in each episode; with `every`, every slot also fails at random, in one of `every` steps on average. `step` is another one than [`STEP`]; with
/// `all`, all slots fail at it; with a file `armed`, they do while there is that file. With `opaque` it has no snapshot.
#[derive(Clone)]
struct Faulty {
    kind: String,
    once: Option<PathBuf>,
    host: Option<PathBuf>,
    every: Option<u32>,
    armed: Option<PathBuf>,
    step: u32,
    is_opaque: bool,
    is_it: bool,
    t: u32,
    sum: u32,
    /// Of all episodes.
    steps: u32,
    /// Whether the open episode fails.
    is_doomed: bool,
}

impl Faulty {
    const SETTINGS: &[&str] = &["kind", "once", "host", "every", "step", "all", "armed", "opaque"];

    fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let setting = |name| context.config.get::<String>(name).map_err(EnvError::Config);
        let number = |name| context.config.get::<u32>(name).map_err(EnvError::Config);
        // A run's environment is made once before anything begins, on a thread with this name.
        let is_first = || std::thread::current().name() == Some("check");
        while setting("kind")?.is_some_and(|kind| kind == "make" || kind == "make again" && !is_first()) {
            std::thread::park();
        }
        let all = context.config.get("all").map_err(EnvError::Config)?.unwrap_or(false);
        Ok(Self {
            kind: setting("kind")?.unwrap_or_default(),
            once: setting("once")?.map(PathBuf::from),
            host: setting("host")?.map(PathBuf::from),
            every: number("every")?,
            armed: setting("armed")?.map(PathBuf::from),
            step: number("step")?.unwrap_or(STEP),
            is_opaque: context.config.get("opaque").map_err(EnvError::Config)?.unwrap_or(false),
            is_it: all || context.home.worker_index <= 1 && context.home.vector_index == SLOT,
            t: 0,
            sum: 0,
            steps: 0,
            is_doomed: false,
        })
    }

    /// Returns whether it fails in this step.
    fn fails(&self) -> bool {
        let in_each_episode = ["exit", "abort", "length"].contains(&&*self.kind) || self.host.is_some();
        if self.kind == "drawn" {
            return self.is_it && self.is_doomed && self.t == self.step % EPISODE;
        }
        let at = if in_each_episode { self.t == self.step % EPISODE } else { self.steps == self.step };
        let is_due = self.is_it && at && self.armed.as_ref().is_none_or(|path| path.exists());
        let is_first =
            || self.once.as_ref().is_none_or(|path| OpenOptions::new().write(true).create_new(true).open(path).is_ok());
        let has_bad_luck = || self.every.is_some_and(|every| random().is_multiple_of(every));
        is_due && is_first() && self.host.as_deref().is_none_or(is_host) || has_bad_luck()
    }

    fn show(&self, obs: &mut [f32]) {
        obs[0] = self.t as f32 / EPISODE as f32;
        obs[1] = self.sum as f32 / EPISODE as f32;
    }
}

/// Returns true in the process that has created this file.
fn is_host(path: &Path) -> bool {
    let id = std::process::id().to_string();
    // Another process may open it before it has its content.
    if let Ok(mut file) = OpenOptions::new().write(true).create_new(true).open(path) {
        file.write_all(id.as_bytes()).unwrap();
    }
    std::fs::read_to_string(path).is_ok_and(|host| host == id)
}

/// Returns a number that differs from call to call, and from process to process.
fn random() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};

    RandomState::new().hash_one(std::time::Instant::now()) as u32
}

impl Env for Faulty {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::F32, RowShape::new(&[2]).unwrap(), 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        (self.t, self.sum, self.is_doomed) = (0, 0, rng.uniform_f64() < 0.4);
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let fails = self.fails();
        self.t += 1;
        self.steps += 1;
        self.sum += u32::from(action[0] == 1);
        self.show(obs);
        let mut reward = action[0] as f64;
        match (fails, self.kind.as_str()) {
            // Two failures at the same step must not look like the same failure.
            (true, "error") if self.every.is_some() => return Err(EnvError::Failed(format!("bad luck {}", random()))),
            (true, "error" | "drawn") => return Err(EnvError::Failed("no fuel".into())),
            (true, "panic") => panic!("no brakes"),
            (true, "nan") => obs[0] = f32::NAN,
            (true, "outside") => obs[1] = 7.0,
            (true, "infinite") => reward = f64::INFINITY,
            (true, "exit") => std::process::exit(5),
            (true, "abort") => std::process::abort(),
            (true, "hang") => loop {
                std::thread::park();
            },
            _ => {}
        }
        Ok(Step { reward, terminated: self.t == EPISODE, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        if self.is_opaque {
            return EnvState::Opaque;
        }
        assert!(!self.is_it || self.kind != "snapshot" || self.steps < self.step, "no memory");
        out.extend([self.t as u8, self.sum as u8, self.is_doomed.into()]);
        out.extend(self.steps.to_le_bytes());
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let &[t, sum, is_doomed, a, b, c, d] = snapshot else { return Err(EnvError::BadSnapshot(snapshot.len())) };
        if self.is_it && self.kind == "restore" {
            return Err(EnvError::Failed("no way back".into()));
        }
        (self.t, self.sum, self.steps) = (t.into(), sum.into(), u32::from_le_bytes([a, b, c, d]));
        self.is_doomed = is_doomed > 0;
        self.show(obs);
        Ok(())
    }
}

/// Two agents, whose observations have the wrong length at a step of each episode of the slot.
struct FaultyPair(Faulty);

impl FaultyPair {
    fn send_answer(&self, obs: &[f32], turn: &mut Turn) {
        self.agents().iter().for_each(|agent| turn.observe(agent, RowsRef::F32(obs)));
    }
}

impl MultiAgentEnv for FaultyPair {
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::Index(0), AgentId::Index(1)]
    }

    fn spaces(&self, _agent: &AgentId) -> Option<EnvSpaces> {
        Some(EnvSpaces {
            observation: self.0.observation_space(),
            action: self.0.action_space(),
            observation_type: DType::F32,
            action_type: DType::I64,
        })
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        let mut obs = [0.0; 2];
        self.0.reset(rng, &mut obs)?;
        self.send_answer(&obs, turn);
        Ok(())
    }

    fn step(&mut self, _actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        let mut obs = [0.0; 3];
        let is_long = self.0.kind == "length" && self.0.fails();
        let step = self.0.step(&[1], rng, &mut obs[..2])?;
        self.send_answer(&obs[..if is_long { 3 } else { 2 }], turn);
        self.agents().iter().for_each(|agent| turn.reward(agent, step.reward));
        if step.terminated {
            turn.terminate_all();
        }
        Ok(())
    }

    fn render(&self, _frame: &mut rollmesh_core::env::Frame) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Returns true at the step of an episode at which callbacks fail.
fn is_due(hook: &EpisodeHook<'_>) -> bool {
    let episode = &hook.episode;
    (episode.slot(), episode.number(), episode.length()) == (SlotId(SLOT), 2, 5)
}

/// A callback that returns an error.
struct Failing;

impl Callbacks for Failing {
    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        if is_due(hook) {
            return Err(CallbackError { hook: "on_episode_step".into(), message: "no paper".into() });
        }
        Ok(())
    }
}

/// A callback that panics.
struct Panicking;

impl Callbacks for Panicking {
    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        assert!(!is_due(hook), "no ink");
        Ok(())
    }
}

/// A policy that fails at a step of the slot.
struct FaultyPolicy {
    random: RandomPolicy,
    panics: bool,
}

impl FaultyPolicy {
    fn new(context: &PolicyContext, panics: bool) -> Result<Self, PolicyError> {
        Ok(Self { random: RandomPolicy::for_space(&context.spaces.action, context.seed)?, panics })
    }
}

impl Policy for FaultyPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let is_due = input.moments.iter().any(|at| (at.slot, at.episode, at.t) == (SlotId(SLOT), 2, 5));
        assert!(!is_due || !self.panics, "no clue");
        if is_due {
            return Err(PolicyError::Failed("no idea".into()));
        }
        self.random.compute_actions(input, out)
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.random.compute_values(obs, state, values)
    }

    fn weights(&self) -> &Weights {
        self.random.weights()
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.random.set_weights(weights)
    }
}
