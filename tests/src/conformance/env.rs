//! Runs `env.*`: environments that start from given states and get given actions.

use rollmesh_core::{
    column::DType,
    env::{
        AnyVectorEnv, EnvContext, EnvRegistry, Moment, Moments, RowsMut, RowsRef, StepOut,
        toy_text::{FrozenLakeMap, FrozenLakeOptions, Mdp, TabularEnv},
    },
    ids::HomeIndex,
    kernels::Kernels,
    rng::{Purpose, Streams},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{JsonElement, bad, float, floats, integer, list, text},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    match name {
        "replay" => replay(input, args),
        "transitions" => transitions(input, args),
        _ => Err(Fault::UnknownOperation),
    }
}

/// Steps one lane through an episode.
fn replay(input: &Value, args: &Value) -> Answer {
    let mut lanes = Lanes::new(args, 1)?;
    lanes.restore(0, &input["state"])?;
    let initial_obs = lanes.obs(0);
    let limit = args["max_episode_steps"].as_u64();
    let (mut obs, mut rewards, mut terminateds, mut truncateds) = (vec![], vec![], vec![], vec![]);
    for (step, action) in (1u64..).zip(input["actions"].as_array().ok_or_else(|| bad("a list of actions"))?) {
        lanes.step(std::slice::from_ref(action))?;
        obs.push(lanes.obs(0));
        rewards.push(lanes.rewards[0]);
        terminateds.push(lanes.terminateds[0]);
        // As in the sampler: environments do not implement time limits themselves.
        truncateds.push(lanes.truncateds[0] || limit.is_some_and(|limit| step >= limit));
    }
    Ok(json!({
        "initial_obs": initial_obs,
        "obs": obs,
        "rewards": rewards,
        "terminateds": terminateds,
        "truncateds": truncateds,
    }))
}

/// Takes one step in as many lanes as there are states.
fn transitions(input: &Value, args: &Value) -> Answer {
    let states = input["states"].as_array().ok_or_else(|| bad("a list of states"))?;
    let actions = input["actions"].as_array().ok_or_else(|| bad("a list of actions"))?;
    let mut lanes = Lanes::new(args, states.len())?;
    for (lane, state) in states.iter().enumerate() {
        lanes.restore(lane, state)?;
    }
    lanes.step(actions)?;
    let obs: Vec<Value> = (0..states.len()).map(|lane| lanes.obs(lane)).collect();
    Ok(json!({"obs": obs, "rewards": lanes.rewards, "terminateds": lanes.terminateds}))
}

struct Lanes {
    env: Box<dyn AnyVectorEnv>,
    obs: Obs,
    width: usize,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

enum Obs {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

impl Lanes {
    fn new(args: &Value, lanes: usize) -> Result<Self, Fault> {
        let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
        let (name, kwargs) = (text(&args["env"])?, &args["kwargs"]);
        let env: Box<dyn AnyVectorEnv> = if name == "FrozenLake-v1" {
            let is_slippery = kwargs["is_slippery"].as_bool().unwrap_or(true);
            let map = if kwargs["map_name"] == "8x8" { FrozenLakeMap::large() } else { FrozenLakeMap::small() };
            let options = FrozenLakeOptions { is_slippery, ..FrozenLakeOptions::default() };
            Box::new(TabularEnv::new(lanes, Mdp::frozen_lake(&map, options)))
        } else {
            let registry = EnvRegistry::builtin();
            let spec = registry.spec(name).map_err(|_| Fault::InvalidArgument)?;
            spec.make(&vec![context; lanes], Kernels::PORTABLE).map_err(|_| Fault::EnvError)?
        };
        let width = env.observation_space().shape().elements();
        let obs = match env.dtypes().0 {
            DType::I64 => Obs::Integers(vec![0; lanes * width]),
            _ => Obs::Floats(vec![0.0; lanes * width]),
        };
        let flags = vec![false; lanes];
        Ok(Self { env, obs, width, rewards: vec![0.0; lanes], terminateds: flags.clone(), truncateds: flags })
    }

    /// Sets a lane's state: floats unchanged, or the number of a state in 16 bits.
    fn restore(&mut self, lane: usize, state: &Value) -> Result<(), Fault> {
        let snapshot: Vec<u8> = if state.is_array() {
            floats(state)?.into_iter().flat_map(f64::to_le_bytes).collect()
        } else {
            integer::<u16>(state)?.to_le_bytes().into()
        };
        let range = lane * self.width..(lane + 1) * self.width;
        let rows = match &mut self.obs {
            Obs::Floats(obs) => RowsMut::F32(&mut obs[range]),
            Obs::Integers(obs) => RowsMut::I64(&mut obs[range]),
        };
        self.env.restore_at(lane, &snapshot, rows).map_err(|_| Fault::EnvError)
    }

    fn step(&mut self, actions: &[Value]) -> Result<(), Fault> {
        let moments = vec![Moment::default(); self.rewards.len()];
        let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &moments, mark: None };
        let out = StepOut {
            rewards: &mut self.rewards,
            terminateds: &mut self.terminateds,
            truncateds: &mut self.truncateds,
        };
        let (integers, numbers);
        let actions = if self.env.dtypes().1 == DType::I64 {
            integers = actions.iter().map(integer).collect::<Result<Vec<i64>, _>>()?;
            RowsRef::I64(&integers)
        } else {
            let rows = actions.iter().map(|row| list(row, |x| float(x).map(|x| x as f32)));
            numbers = rows.collect::<Result<Vec<_>, _>>()?.concat();
            RowsRef::F32(&numbers)
        };
        let rows = match &mut self.obs {
            Obs::Floats(obs) => RowsMut::F32(obs),
            Obs::Integers(obs) => RowsMut::I64(obs),
        };
        self.env.step(actions, moments, rows, out).map_err(|_| Fault::EnvError)
    }

    fn obs(&self, lane: usize) -> Value {
        match &self.obs {
            Obs::Floats(obs) => obs[lane * self.width..][..self.width].iter().map(|x| x.write()).collect(),
            Obs::Integers(obs) => obs[lane].into(),
        }
    }
}
