//! Scripted environments, policies that record their inputs, and a host of the sampler.

mod agents;
mod batches;
mod elsewhere;
mod ends;
mod faults;
mod hooks;
mod law;
mod memory;
mod spaces;

use core::num::NonZeroU32;

use super::*;
use crate::{
    batch::{ADVANTAGES, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS, UNROLL_ID},
    callbacks::{CallbackList, ObservationFn, PolicyMappingFn, WorkerInfo},
    column::{ColumnKey, DType, RowShape},
    env::{
        EnvContext, EnvMaker, EnvSpaces, EnvStart, InProcess, MultiAgentEnv, MultiAgentSpec, Rng, RowsMut, RowsRef,
        multi_agent::AgentRows,
    },
    episode::{Episode, OtherAgent},
    ids::{AgentId, HomeIndex, PolicyId, SlotId, WeightsVersion},
    policy::{ActionInput, ActionOutput, Policy, PolicyEntry, PolicyError, PolicyMap, Postprocessing},
    sampler::{BatchMode, CountStepsBy, Horizon, RecordColumns, RewardClipping, wants},
    space::Space,
    time::Micros,
    view::{ViewRequirement, ViewRequirements},
    weights::Weights,
};

/// The result of a step with these actions; step 0 is the reset.
type Script = Box<dyn FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send>;

/// Agents 0 to 9, which observe an integer and have two actions.
struct Scripted {
    t: u32,
    script: Script,
}

impl MultiAgentEnv for Scripted {
    fn agents(&self) -> Vec<AgentId> {
        (0..10).map(AgentId::Index).collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        (*agent < AgentId::Index(10)).then_some(EnvSpaces {
            observation: Space::Discrete { n: 1_000 },
            observation_type: DType::I64,
            action: Space::Discrete { n: 2 },
            action_type: DType::I64,
        })
    }

    fn reset(&mut self, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.t = 0;
        (self.script)(0, &AgentRows::new(), turn)
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.t += 1;
        (self.script)(self.t, actions, turn)
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

fn start(index: u32) -> EnvStart {
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: index });
    EnvStart { slot: SlotId(index), episode: 0, context }
}

/// Creates this many environments that follow a script.
fn scripted<S>(num_envs: u32, script: impl Fn() -> S + Send + Sync + 'static) -> InProcess
where
    S: FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send + 'static,
{
    let spec = MultiAgentSpec::new("Scripted", move |_| Ok(Box::new(Scripted { t: 0, script: Box::new(script()) })));
    InProcess::new(EnvMaker::multi_agent(&spec), (0..num_envs).map(start).collect(), 1).unwrap()
}

fn agent(index: u32) -> AgentId {
    AgentId::Index(index)
}

fn see(turn: &mut Turn, index: u32, obs: i64) {
    turn.observe(&agent(index), RowsRef::I64(&[obs]));
}

/// Returns a script of one agent that observes the number of its steps with reward 100 each, until both flags are set.
fn counter(length: u32) -> impl Fn() -> Script + Send + Sync + 'static {
    move || {
        Box::new(move |t, _, turn| {
            see(turn, 0, i64::from(t));
            if t > 0 {
                turn.reward(&AgentId::SINGLE, 100.0);
            }
            if t >= length {
                turn.terminate_all();
                turn.truncate_all();
            }
            Ok(())
        })
    }
}

/// Returns a script of agents that all act, with reward 1 in each of 25 steps.
fn crowd(agents: u32) -> impl Fn() -> Script + Send + Sync + 'static {
    move || {
        Box::new(move |t, _, turn| {
            for index in 0..agents {
                see(turn, index, 0);
                if t > 0 {
                    turn.reward(&agent(index), 1.0);
                }
            }
            if t == 25 {
                turn.terminate_all();
            }
            Ok(())
        })
    }
}

/// Counts its rows, chooses 1, and returns the value 7 for every observation.
struct Player {
    weights: Weights,
    postprocessing: Postprocessing,
    states: Vec<usize>,
    views: ViewRequirements,
}

impl Player {
    fn new() -> Self {
        let weights = Weights::new(WeightsVersion(0), Vec::new()).unwrap();
        Self { weights, postprocessing: Postprocessing::Custom, states: Vec::new(), views: ViewRequirements::new() }
    }
}

impl Policy for Player {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let RowsMut::I64(actions) = out.actions else { return Err(PolicyError::Failed("not int64".into())) };
        actions.fill(1);
        out.logp.fill(-0.5);
        out.vf_preds.fill(7.0);
        for (after, before) in out.state.iter_mut().zip(input.state) {
            *after = before + 1.0;
        }
        for (row, values) in out.dist_inputs.chunks_exact_mut(2).enumerate() {
            values.copy_from_slice(&[row as f32, input.moments[row].t as f32]);
        }
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(state.first().copied().unwrap_or(7.0));
        Ok(())
    }

    fn state_lens(&self) -> &[usize] {
        &self.states
    }

    fn initial_state(&self, state: &mut [f32]) {
        state.fill(10.0);
    }

    fn dist_inputs_len(&self) -> usize {
        2
    }

    fn view_requirements(&self) -> ViewRequirements {
        self.views.clone()
    }

    fn postprocessing(&self) -> Postprocessing {
        self.postprocessing
    }

    /// Computes discounted returns, with 100 following the last row.
    fn postprocess_trajectory(
        &mut self,
        trajectory: SampleBatch,
        _: &[OtherAgent<'_>],
        _: &Episode,
    ) -> Result<SampleBatch, PolicyError> {
        let config = crate::postprocess::AdvantageConfig { gamma: 0.9, lambda: 1.0, use_gae: false, use_critic: false };
        Ok(crate::postprocess::compute_advantages(&trajectory, 100.0, &config)?)
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.weights = weights.clone();
        Ok(())
    }
}

/// A host of the sampler.
struct Bench {
    worker: WorkerInfo,
    policies: PolicyMap,
    mapping: PolicyMappingFn,
    observation_fn: Option<ObservationFn>,
    callbacks: CallbackList,
}

impl Bench {
    /// Creates a bench in which all agents have the default policy.
    fn new(policy: impl Policy + 'static) -> Self {
        Self {
            worker: WorkerInfo::default(),
            policies: PolicyMap::single(Box::new(policy)),
            mapping: Arc::new(|_, _, _, _| PolicyId::DEFAULT),
            observation_fn: None,
            callbacks: CallbackList::new(),
        }
    }

    /// Creates a bench in which agents alternate between `p0` and `p1`.
    fn pair() -> Self {
        let mut bench = Self::new(Player::new());
        bench.policies = PolicyMap::new();
        for id in ["p0", "p1"] {
            let policy: Box<dyn Policy> = Box::new(Player::new());
            bench.policies.insert(PolicyId::new(id), PolicyEntry::new("player", policy)).unwrap();
        }
        bench.mapping = Arc::new(|agent, _, _, _| match agent {
            AgentId::Index(index) if index % 2 == 1 => PolicyId::new("p1"),
            _ => PolicyId::new("p0"),
        });
        bench
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut SamplerHost<'_>) -> R) -> R {
        f(&mut SamplerHost {
            worker: &self.worker,
            policies: &mut self.policies,
            mapping: &self.mapping,
            observation_fn: self.observation_fn.as_ref(),
            callbacks: &mut self.callbacks,
            clock: &|| Micros(0),
            interrupt: None,
        })
    }

    fn data(&mut self, sampler: &mut Episodic) -> Result<AnyBatch, SampleError> {
        self.with(|host| sampler.next(host))
    }

    /// Returns the next batch of the default policy.
    fn single(&mut self, sampler: &mut Episodic) -> SampleBatch {
        match self.data(sampler).unwrap() {
            AnyBatch::Single(batch) => batch,
            AnyBatch::Multi(batch) => panic!("{batch}"),
        }
    }
}

fn options(num_envs: u32, fragment_length: u32) -> SamplerOptions {
    let slots = (0..num_envs).map(|slot| (SlotId(slot), 0)).collect();
    SamplerOptions { fragment_length, ..SamplerOptions::new(slots) }
}

fn complete(num_envs: u32) -> SamplerOptions {
    SamplerOptions { batch_mode: BatchMode::CompleteEpisodes, ..options(num_envs, 1) }
}

fn sampler(options: SamplerOptions, envs: impl BaseEnv + 'static) -> Episodic {
    Episodic::new(options, Box::new(envs)).unwrap()
}

fn ints(batch: &SampleBatch, name: &'static str) -> Vec<i64> {
    batch.get(ColumnKey::<i64>::new(name)).unwrap().to_vec()
}

fn lengths(sampler: &mut Episodic) -> Vec<(u32, f64)> {
    sampler.metrics().iter().map(|episode| (episode.length, episode.episode_return)).collect()
}
