//! Defines the environments and the policy of the sampler's cases.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rollmesh_core::{
    batch::SampleBatch,
    column::{DType, RowShape},
    env::{
        EnvError, EnvSpaces, MultiAgentEnv, MultiAgentSpec, Rng, RowsMut, RowsRef,
        multi_agent::{AgentRows, Turn},
    },
    episode::{Episode, OtherAgent},
    ids::{AgentId, WeightsVersion},
    policy::{ActionInput, ActionOutput, Policy, PolicyError, Postprocessing},
    postprocess::{AdvantageConfig, compute_advantages},
    space::Space,
    weights::Weights,
};
use serde_json::Value;

use super::{
    Fault,
    values::{bad, float, integer, list, text},
};

/// Reads the description of an environment.
pub(super) fn env(args: &Value) -> Result<MultiAgentSpec, Fault> {
    let length = || integer::<i64>(&args["length"]);
    let agents = || integer::<u32>(&args["num_agents"]);
    Ok(match text(&args["type"])? {
        "mock" => single(Counter::mock(length()?), None),
        "mock2" => {
            let raises = args["raise_on_step"].as_u64();
            single(Counter::mock2(length()?), raises)
        }
        "box_counter" => {
            let end = text(&args["end"])?;
            let counter = Counter {
                length: length()?,
                obs: Obs::Float,
                reward: float(&args["reward"])?,
                terminates: end != "truncated",
                truncates: end != "terminated",
                t: 0,
            };
            single(counter, None)
        }
        "basic" => {
            let counters = vec![Counter::mock(25); agents()? as usize];
            several(move || Crowd { counters: counters.clone(), over: 0 })
        }
        "round_robin" => {
            let counter = if args["increment_obs"] == true { Counter::mock2(5) } else { Counter::mock(5) };
            let counters = vec![counter; agents()? as usize];
            let robin = RoundRobin { last: vec![None; counters.len()], counters, turn: 0, over: 0 };
            several(move || robin.clone())
        }
        "script" => {
            let script =
                Script { steps: list(&args["steps"], script_step)?, terminates: args["end"] == "terminated", t: 0 };
            several(move || script.clone())
        }
        _ => return Err(bad("an environment")),
    })
}

fn single(counter: Counter, raises: Option<u64>) -> MultiAgentSpec {
    let steps = Arc::new(AtomicU64::new(0));
    let make = move || Alone { counter: counter.clone(), raises, steps: steps.clone() };
    several(make)
}

fn several<E: MultiAgentEnv + 'static>(make: impl Fn() -> E + Send + Sync + 'static) -> MultiAgentSpec {
    MultiAgentSpec::new("mock", move |_| Ok(Box::new(make())))
}

#[derive(Clone, Copy)]
enum Obs {
    Zero,
    Count,
    Float,
}

/// A counter of steps, which ends the episode after a number of them.
#[derive(Clone)]
struct Counter {
    length: i64,
    obs: Obs,
    /// The reward per step; a negative one is multiplied by the number of the step.
    reward: f64,
    terminates: bool,
    truncates: bool,
    t: i64,
}

impl Counter {
    fn mock(length: i64) -> Self {
        Self { length, obs: Obs::Zero, reward: 1.0, terminates: true, truncates: true, t: 0 }
    }

    fn mock2(length: i64) -> Self {
        Self { obs: Obs::Count, reward: 100.0, ..Self::mock(length) }
    }

    /// Takes a step; returns the reward, and whether it was the last step.
    fn step(&mut self) -> (f64, bool) {
        self.t += 1;
        let factor = if self.reward < 0.0 { self.t as f64 } else { 1.0 };
        (self.reward * factor, self.t >= self.length)
    }

    fn observe(&self, agent: &AgentId, turn: &mut Turn) {
        match self.obs {
            Obs::Zero => turn.observe(agent, RowsRef::I64(&[0])),
            Obs::Count => turn.observe(agent, RowsRef::I64(&[self.t])),
            Obs::Float => turn.observe(agent, RowsRef::F32(&[self.t as f32])),
        }
    }

    fn end(&self, agent: &AgentId, turn: &mut Turn) {
        if self.terminates {
            turn.terminate(agent);
        }
        if self.truncates {
            turn.truncate(agent);
        }
    }

    fn end_all(&self, turn: &mut Turn) {
        if self.terminates {
            turn.terminate_all();
        }
        if self.truncates {
            turn.truncate_all();
        }
    }

    fn spaces(&self) -> EnvSpaces {
        let discrete = |n: i64| Space::Discrete { n: n as u32 };
        let (observation, observation_type) = match self.obs {
            Obs::Zero => (discrete(1), DType::I64),
            Obs::Count => (discrete(self.length + 1), DType::I64),
            Obs::Float => (unbounded(), DType::F32),
        };
        EnvSpaces { observation, observation_type, action: discrete(2), action_type: DType::I64 }
    }
}

fn unbounded() -> Space {
    Space::uniform(DType::F32, RowShape::vector(1), f64::NEG_INFINITY, f64::INFINITY)
}

fn all(agents: usize) -> Vec<AgentId> {
    (0..agents as u32).map(AgentId::Index).collect()
}

fn index(agent: &AgentId) -> usize {
    if let AgentId::Index(index) = agent { *index as usize } else { usize::MAX }
}

/// An environment with a single agent.
struct Alone {
    counter: Counter,
    /// The failing step, counted over all instances.
    raises: Option<u64>,
    steps: Arc<AtomicU64>,
}

impl MultiAgentEnv for Alone {
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::SINGLE]
    }

    fn spaces(&self, _: &AgentId) -> Option<EnvSpaces> {
        Some(self.counter.spaces())
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.counter.t = 0;
        self.counter.observe(&AgentId::SINGLE, turn);
        Ok(())
    }

    fn step(&mut self, _: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.raises == Some(self.steps.fetch_add(1, Ordering::Relaxed) + 1) {
            return Err(EnvError::Failed("as asked for".into()));
        }
        let (reward, over) = self.counter.step();
        self.counter.observe(&AgentId::SINGLE, turn);
        turn.reward(&AgentId::SINGLE, reward);
        if over {
            self.counter.end_all(turn);
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// An environment where all agents act in each step.
struct Crowd {
    counters: Vec<Counter>,
    over: usize,
}

impl MultiAgentEnv for Crowd {
    fn agents(&self) -> Vec<AgentId> {
        all(self.counters.len())
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.counters.get(index(agent)).map(Counter::spaces)
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.over = 0;
        for (agent, counter) in all(self.counters.len()).iter().zip(&mut self.counters) {
            counter.t = 0;
            counter.observe(agent, turn);
        }
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        for (agent, _) in actions.iter() {
            let Some(counter) = self.counters.get_mut(index(agent)) else { continue };
            let (reward, over) = counter.step();
            counter.observe(agent, turn);
            turn.reward(agent, reward);
            if over {
                counter.end(agent, turn);
                self.over += 1;
            }
        }
        if self.over == self.counters.len() {
            turn.terminate_all();
            turn.truncate_all();
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// An environment where the agents take turns; an agent gets the result of its action at its next turn.
#[derive(Clone)]
struct RoundRobin {
    counters: Vec<Counter>,
    last: Vec<Option<(f64, bool)>>,
    turn: usize,
    over: usize,
}

impl RoundRobin {
    fn fill(&mut self, turn: &mut Turn) {
        let agent = AgentId::Index(self.turn as u32);
        self.counters[self.turn].observe(&agent, turn);
        if let Some((reward, over)) = self.last[self.turn] {
            turn.reward(&agent, if over { 0.0 } else { reward });
            if over {
                self.counters[self.turn].end(&agent, turn);
                self.over += 1;
            }
        }
        self.turn = (self.turn + 1) % self.counters.len();
    }
}

impl MultiAgentEnv for RoundRobin {
    fn agents(&self) -> Vec<AgentId> {
        all(self.counters.len())
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.counters.get(index(agent)).map(Counter::spaces)
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.counters.iter_mut().for_each(|counter| counter.t = 0);
        self.last.fill(None);
        (self.turn, self.over) = (0, 0);
        self.fill(turn);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        for (agent, _) in actions.iter() {
            if let Some(counter) = self.counters.get_mut(index(agent)) {
                self.last[index(agent)] = Some(counter.step());
            }
        }
        self.fill(turn);
        if self.over == self.counters.len() {
            turn.terminate_all();
            turn.truncate_all();
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// An agent's values in a step of a script.
#[derive(Clone)]
struct Line {
    agent: u32,
    obs: Option<f32>,
    reward: f64,
    terminated: bool,
    truncated: bool,
}

fn script_step(step: &Value) -> Result<Vec<Line>, Fault> {
    let step = step.as_object().ok_or_else(|| bad("a step"))?;
    step.iter()
        .map(|(agent, line)| {
            let agent = agent.parse().map_err(|_| bad("the number of an agent"))?;
            if line.is_number() {
                let obs = Some(float(line)? as f32);
                return Ok(Line { agent, obs, reward: 0.0, terminated: false, truncated: false });
            }
            Ok(Line {
                agent,
                obs: if line[0].is_null() { None } else { Some(float(&line[0])? as f32) },
                reward: float(&line[1])?,
                terminated: line[2] == true,
                truncated: line[3] == true,
            })
        })
        .collect()
}

/// An environment that follows a script.
#[derive(Clone)]
struct Script {
    steps: Vec<Vec<Line>>,
    terminates: bool,
    t: usize,
}

impl MultiAgentEnv for Script {
    fn agents(&self) -> Vec<AgentId> {
        let mut agents: Vec<_> = self.steps.iter().flatten().map(|line| AgentId::Index(line.agent)).collect();
        agents.sort_unstable();
        agents.dedup();
        agents
    }

    fn spaces(&self, _: &AgentId) -> Option<EnvSpaces> {
        Some(EnvSpaces {
            observation: unbounded(),
            observation_type: DType::F32,
            action: Space::Discrete { n: 2 },
            action_type: DType::I64,
        })
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.t = 0;
        for line in self.steps.first().into_iter().flatten() {
            turn.observe(&AgentId::Index(line.agent), RowsRef::F32(&[line.obs.unwrap_or_default()]));
        }
        Ok(())
    }

    fn step(&mut self, _: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.t += 1;
        let lines = self.steps.get(self.t).ok_or_else(|| EnvError::Failed("the script is over".into()))?;
        for line in lines {
            let agent = AgentId::Index(line.agent);
            if let Some(obs) = line.obs {
                turn.observe(&agent, RowsRef::F32(&[obs]));
            }
            turn.reward(&agent, line.reward);
            if line.terminated {
                turn.terminate(&agent);
            }
            if line.truncated {
                turn.truncate(&agent);
            }
        }
        if self.t + 1 == self.steps.len() {
            if self.terminates { turn.terminate_all() } else { turn.truncate_all() }
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A policy that always chooses action 1, and estimates the value after every fragment as 100.
pub(super) struct MockPolicy {
    weights: Weights,
}

impl MockPolicy {
    pub(super) fn boxed() -> Result<Box<dyn Policy>, Fault> {
        let weights = Weights::new(WeightsVersion(0), Vec::new()).map_err(|_| bad("weights"))?;
        Ok(Box::new(Self { weights }))
    }
}

impl Policy for MockPolicy {
    fn compute_actions(&mut self, _: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let RowsMut::I64(actions) = out.actions else {
            return Err(PolicyError::Failed("it plays with integers".into()));
        };
        actions.fill(1);
        out.logp.fill(0.0);
        out.vf_preds.fill(0.0);
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::Custom
    }

    fn postprocess_trajectory(
        &mut self,
        trajectory: SampleBatch,
        _: &[OtherAgent<'_>],
        _: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        let config = AdvantageConfig { gamma: 0.9, lambda: 1.0, use_gae: false, use_critic: false };
        Ok(compute_advantages(&trajectory, 100.0, &config)?)
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }
}
