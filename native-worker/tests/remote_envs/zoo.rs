//! Environments that misbehave.

use std::{
    any::Any,
    fs::{self, OpenOptions},
    hint::black_box,
    io::Write as _,
    path::PathBuf,
    process,
    time::Duration,
};

use rollmesh::Registry;
use rollmesh_core::{
    column::{DType, RowShape},
    env::{
        Env, EnvContext, EnvError, EnvSpaces, EnvSpec, EnvState, Frame, MultiAgentEnv, MultiAgentSpec, Rng, RowsRef,
        Step, Vectorized,
        multi_agent::{AgentRows, Turn},
    },
    ids::{AgentId, PolicyId},
    space::Space,
};

/// Steps of an episode of the zoo's animals.
pub(crate) const LENGTH: i64 = 12;
/// Step of an episode in which they misbehave.
pub(crate) const STEP: i64 = 5;

/// Returns all names that the tests use.
pub(crate) fn registry() -> Registry {
    register(Registry::builtin())
}

pub(crate) fn register(registry: Registry) -> Registry {
    let one = |env: Result<Animal, EnvError>| env.map(|env| Vectorized::new(vec![env]));
    registry
        .with_env(EnvSpec::fallible("Zoo-v0", move |contexts, _| Ok(Box::new(one(Animal::new(&contexts[0]))?))))
        .with_env(EnvSpec::new("Screen-v0", |contexts, _| {
            Box::new(Vectorized::new(vec![Screen::default(); contexts.len()]))
        }))
        .with_multi_agent_env(MultiAgentSpec::new("Basic-v0", |_| Ok(Box::new(Basic::default()))))
        .with_multi_agent_env(MultiAgentSpec::new("Shy-v0", |_| Ok(Box::new(Shy(0)))))
        .with_policy_mapping_fn("odd_and_even", |agent, _, _, _| {
            PolicyId::new(if matches!(agent, AgentId::Index(index) if index % 2 == 0) { "even" } else { "odd" })
        })
}

/// Counts its steps, unless it misbehaves. `kinds` names the misbehaviour, by index; with `once`, a directory, only its
/// first process misbehaves; to `farewell`, a directory, it adds the number of its steps when its process ends it.
pub(crate) struct Animal {
    kind: String,
    once: Option<PathBuf>,
    farewell: Option<PathBuf>,
    count: i64,
    steps: u32,
}

impl Animal {
    fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let index = context.home.vector_index;
        let kinds: Vec<String> = context.config.get("kinds").map_err(EnvError::Config)?.unwrap_or_default();
        let once: Option<PathBuf> = context.config.get("once").map_err(EnvError::Config)?;
        let farewell: Option<PathBuf> = context.config.get("farewell").map_err(EnvError::Config)?;
        let kind = kinds.get(index as usize).cloned().unwrap_or_default();
        let own = |dir: PathBuf| dir.join(index.to_string());
        let animal = Self { kind, once: once.map(own), farewell: farewell.map(own), count: 0, steps: 0 };
        if animal.kind == "hang_make" && animal.misbehaves() {
            hang();
        }
        Ok(animal)
    }

    /// Returns true, but only once if the settings say so.
    fn misbehaves(&self) -> bool {
        self.once.as_ref().is_none_or(|path| OpenOptions::new().write(true).create_new(true).open(path).is_ok())
    }

    fn act(&mut self) -> Result<(), EnvError> {
        match self.kind.as_str() {
            "hang_step" => hang(),
            "exit0" => process::exit(0),
            "exit3" => process::exit(3),
            "abort" => process::abort(),
            "panic" => panic!("no food"),
            "stack" => _ = black_box(deeper(0)),
            "memory" => _ = black_box(vec![1u8; 5 << 30]),
            "stdout" => loop {
                println!("{:1000}", "stdout");
            },
            "stderr" => loop {
                eprintln!("{:1000}", "stderr");
            },
            "answers" => flood_pipes(),
            "fails" => return Err(EnvError::Failed("not today".into())),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Animal {
    fn drop(&mut self) {
        if let Some(path) = &self.farewell {
            if self.kind == "slow" {
                std::thread::sleep(Duration::from_millis(20));
            }
            fs::write(path, self.steps.to_string()).unwrap();
        }
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX {
        return 0;
    }
    deeper(depth + 1) + frame[(depth % 64) as usize]
}

/// Writes nonsense wherever this process can write.
fn flood_pipes() {
    for entry in fs::read_dir("/dev/fd").into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(|fd: u32| fd > 2)
            && let Ok(mut pipe) = OpenOptions::new().write(true).open(entry.path())
        {
            let _ = pipe.write_all(&[0xAB; 4096]);
        }
    }
}

impl Env for Animal {
    type Obs = i64;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::Discrete { n: 1 + LENGTH as u32 }
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        if self.kind == "hang_reset" && self.misbehaves() {
            hang();
        }
        self.count = 0;
        obs[0] = 0;
        Ok(())
    }

    fn step(&mut self, _action: &[i64], _rng: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
        self.steps += 1;
        match self.kind.as_str() {
            "slow" => std::thread::sleep(Duration::from_millis(20)),
            // Nothing of it may disturb the others.
            "talks" => (0..100).for_each(|_| println!("{:1000}", self.count)),
            "second" if self.steps.is_multiple_of(2) => return Err(EnvError::Failed("every second step".into())),
            _ => {}
        }
        if self.count == STEP && self.misbehaves() {
            self.act()?;
        }
        self.count += 1;
        obs[0] = self.count;
        Ok(Step { reward: self.count as f64, terminated: self.count == LENGTH, truncated: false })
    }

    fn render(&self, frame: &mut Frame) -> bool {
        if self.kind == "paints" {
            process::exit(5);
        }
        frame.fill(4, 2, [self.count as u8, 0, 255]);
        true
    }

    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], _obs: &mut [i64]) -> Result<(), EnvError> {
        Err(EnvError::BadSnapshot(snapshot.len()))
    }
}

/// A coloured screen, as DeepMind's agents see them.
#[derive(Clone, Default)]
struct Screen(u8);

impl Screen {
    fn show(&self, obs: &mut [u8]) {
        obs.iter_mut().zip(0u8..=255).for_each(|(pixel, at)| *pixel = at.wrapping_mul(self.0));
    }
}

impl Env for Screen {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::U8, RowShape::new(&[64, 64, 3]).unwrap(), 0.0, 255.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        self.0 = rng.below(100) as u8;
        self.show(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        self.0 = self.0.saturating_add(action[0] as u8 + 1);
        self.show(obs);
        Ok(Step { reward: 3.0, terminated: self.0 > 120, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.0);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], _obs: &mut [u8]) -> Result<(), EnvError> {
        Err(EnvError::BadSnapshot(snapshot.len()))
    }
}

/// Returns spaces of two values: the observations and actions of the agents below.
fn bit() -> Option<EnvSpaces> {
    let (observation, action) = (Space::Discrete { n: 2 }, Space::Discrete { n: 2 });
    Some(EnvSpaces { observation, observation_type: DType::I64, action, action_type: DType::I64 })
}

/// Five agents that all act in every step, for 25 steps.
#[derive(Default)]
struct Basic(u32);

impl MultiAgentEnv for Basic {
    fn agents(&self) -> Vec<AgentId> {
        (0..5).map(AgentId::Index).collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        if *agent < AgentId::Index(5) { bit() } else { None }
    }

    fn reset(&mut self, _rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 = 0;
        self.agents().iter().for_each(|agent| turn.observe(agent, RowsRef::I64(&[0])));
        Ok(())
    }

    fn step(&mut self, _actions: &AgentRows, _rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 += 1;
        for agent in self.agents() {
            turn.observe(&agent, RowsRef::I64(&[0]));
            turn.reward(&agent, 1.0);
        }
        if self.0 == 25 {
            turn.terminate_all();
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Agents that appear one after the other, and one that acts at the beginning only, and gets a reward at every step.
struct Shy(u32);

impl MultiAgentEnv for Shy {
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::Index(0)]
    }

    fn spaces(&self, _agent: &AgentId) -> Option<EnvSpaces> {
        bit()
    }

    fn reset(&mut self, _rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 = 0;
        turn.observe(&AgentId::Index(0), RowsRef::I64(&[1]));
        Ok(())
    }

    fn step(&mut self, _actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.0 += 1;
        turn.reward(&AgentId::Index(0), f64::from(self.0));
        turn.info(&AgentId::Index(0), self.0.to_string());
        let visitor = AgentId::name(&format!("visitor_{}", rng.below(3)));
        turn.observe(&visitor, RowsRef::I64(&[i64::from(self.0 % 2)]));
        turn.reward(&visitor, 0.5);
        turn.common_info(*b"all");
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
