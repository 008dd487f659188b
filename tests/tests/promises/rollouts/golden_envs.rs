//! Environments compared with those of Gymnasium 1.4: `golden/envs/` holds its trajectories and single steps.
//!
//! Flags are equal, and so are observations and rewards to the last bit of a 32-bit float, over whole episodes. The
//! one exception is Acrobot, which is chaotic: a sine that is off by the last of its 53 bits, as those of platform
//! libraries are too, shows in an observation after more than 400 steps, in 30 numbers of one of the two episodes
//! here. Rewards of Pendulum, as 64-bit floats, differ in their last bits for the same reason.

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
use serde::{Deserialize, Deserializer};
use serde_json::Value;

mod frozen;

#[derive(Deserialize)]
struct Case {
    id: String,
    args: Args,
    #[serde(rename = "in")]
    given: Given,
    expect: Expect,
}

#[derive(Deserialize)]
struct Args {
    env: String,
    kwargs: Kwargs,
    max_episode_steps: Option<u32>,
}

#[derive(Deserialize)]
struct Kwargs {
    is_slippery: Option<bool>,
}

#[derive(Deserialize)]
struct Given {
    /// The initial state of a trajectory, or of each single step.
    #[serde(alias = "states", deserialize_with = "numbers")]
    state: Vec<f64>,
    #[serde(deserialize_with = "numbers")]
    actions: Vec<f64>,
}

#[derive(Deserialize)]
struct Expect {
    ok: Outcome,
}

#[derive(Deserialize)]
struct Outcome {
    /// Of trajectories.
    #[serde(default, deserialize_with = "numbers")]
    initial_obs: Vec<f64>,
    #[serde(deserialize_with = "numbers")]
    obs: Vec<f64>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    /// Of trajectories.
    truncateds: Option<Vec<bool>>,
}

/// Reads a number, or the numbers of all rows.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    fn collect(value: &Value, into: &mut Vec<f64>) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
            value => into.push(value.as_f64().expect("a number")),
        }
    }
    let mut all = Vec::new();
    collect(&Value::deserialize(from)?, &mut all);
    Ok(all)
}

/// Lanes with all numbers converted to 64-bit floats.
struct Probe {
    env: Box<dyn AnyVectorEnv>,
    max_episode_steps: Option<u32>,
    obs: Vec<f64>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

impl Probe {
    fn new(args: &Args, lanes: usize) -> Self {
        let registry = EnvRegistry::builtin();
        let spec = registry.spec(&args.env).unwrap();
        let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
        let env: Box<dyn AnyVectorEnv> = match args.kwargs.is_slippery {
            None => spec.make(&vec![context; lanes], Kernels::PORTABLE).unwrap(),
            Some(is_slippery) => {
                let options = FrozenLakeOptions { is_slippery, ..FrozenLakeOptions::default() };
                Box::new(TabularEnv::new(lanes, Mdp::frozen_lake(&FrozenLakeMap::small(), options)))
            }
        };
        let obs = vec![0.0; lanes * env.observation_space().shape().elements()];
        let max_episode_steps = spec.max_episode_steps;
        let (rewards, flags) = (vec![f64::NAN; lanes], vec![true; lanes]);
        Self { env, max_episode_steps, obs, rewards, terminateds: flags.clone(), truncateds: flags }
    }

    fn lanes(&self) -> usize {
        self.rewards.len()
    }

    fn set_states(&mut self, states: &[f64]) {
        let (lanes, width) = (self.lanes(), self.obs.len() / self.lanes());
        for (lane, state) in states.chunks_exact(states.len() / lanes).enumerate() {
            let obs = &mut self.obs[lane * width..][..width];
            match self.env.dtypes().0 {
                DType::I64 => {
                    let (snapshot, mut row) = ((state[0] as u16).to_le_bytes(), vec![0; width]);
                    self.env.restore_at(lane, &snapshot, RowsMut::I64(&mut row)).unwrap();
                    obs.copy_from_slice(&row.iter().map(|x| *x as f64).collect::<Vec<_>>());
                }
                _ => {
                    let snapshot: Vec<u8> = state.iter().flat_map(|value| value.to_le_bytes()).collect();
                    let mut row = vec![0.0; width];
                    self.env.restore_at(lane, &snapshot, RowsMut::F32(&mut row)).unwrap();
                    obs.copy_from_slice(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
                }
            }
        }
    }

    fn step(&mut self, actions: &[f64]) {
        let moments = vec![Moment::default(); self.lanes()];
        let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &moments, mark: None };
        let Self { env, rewards, terminateds, truncateds, .. } = self;
        let out = StepOut { rewards, terminateds, truncateds };
        let integers: Vec<i64> = actions.iter().map(|x| *x as i64).collect();
        let floats: Vec<f32> = actions.iter().map(|x| *x as f32).collect();
        let (obs_type, action_type) = env.dtypes();
        let actions = if action_type == DType::I64 { RowsRef::I64(&integers) } else { RowsRef::F32(&floats) };
        if obs_type == DType::I64 {
            let mut obs = vec![0; self.obs.len()];
            env.step(actions, moments, RowsMut::I64(&mut obs), out).unwrap();
            self.obs = obs.into_iter().map(|x| x as f64).collect();
        } else {
            let mut obs = vec![0.0; self.obs.len()];
            env.step(actions, moments, RowsMut::F32(&mut obs), out).unwrap();
            self.obs = obs.into_iter().map(f64::from).collect();
        }
        // The sampler applies time limits; the environments never truncate.
        assert!(self.truncateds.iter().all(|flag| !flag));
    }
}

/// The counts of the comparison.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    trajectories: usize,
    /// The number of trajectories that end at the time limit.
    at_limit: usize,
    /// The number of single steps and of steps of trajectories.
    steps: usize,
    /// The number of steps that end in a terminal state.
    terminal: usize,
    /// The number of values in observations that are not bit-identical.
    differing: usize,
}

impl Tally {
    fn compare_obs(&mut self, case: &Case, at: usize, found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len(), "{} at {at}", case.id);
        for (x, y) in found.iter().zip(expected) {
            // The file has as many digits as a 32-bit float needs.
            let y = f64::from(*y as f32);
            let distance = (x - y).abs();
            assert!(distance <= 1e-6 * y.abs().max(1.0), "{} at {at}: {found:?}, not {expected:?}", case.id);
            self.differing += usize::from(distance > 0.0);
        }
    }

    fn trajectory(&mut self, case: &Case, truncateds: &[bool]) {
        let expected = &case.expect.ok;
        let steps = expected.rewards.len();
        let mut probe = Probe::new(&case.args, 1);
        assert_eq!(probe.max_episode_steps, case.args.max_episode_steps, "{}", case.id);
        probe.set_states(&case.given.state);
        self.compare_obs(case, 0, &probe.obs, &expected.initial_obs);
        let actions = case.given.actions.chunks_exact(case.given.actions.len() / steps);
        let rows = expected.obs.chunks_exact(expected.obs.len() / steps);
        for (t, (action, row)) in actions.zip(rows).enumerate() {
            probe.step(action);
            self.compare_obs(case, t, &probe.obs, row);
            assert_eq!(as_f32(&probe.rewards), as_f32(&expected.rewards[t..=t]), "{} at {t}", case.id);
            assert_eq!(probe.terminateds, [expected.terminateds[t]], "{} at {t}", case.id);
            let at_limit = probe.max_episode_steps.is_some_and(|limit| t + 1 >= limit as usize);
            assert_eq!(truncateds[t], at_limit, "{} at {t}", case.id);
            self.at_limit += usize::from(at_limit);
        }
        self.trajectories += 1;
    }

    /// Compares single steps, each in its own lane.
    fn single_steps(&mut self, case: &Case) {
        let expected = &case.expect.ok;
        let mut probe = Probe::new(&case.args, expected.rewards.len());
        probe.set_states(&case.given.state);
        probe.step(&case.given.actions);
        self.compare_obs(case, 0, &probe.obs, &expected.obs);
        assert_eq!(as_f32(&probe.rewards), as_f32(&expected.rewards), "{}", case.id);
        assert_eq!(probe.terminateds, expected.terminateds, "{}", case.id);
    }
}

fn as_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

fn tally(golden: &str) -> Tally {
    let mut tally = Tally::default();
    for line in golden.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let expected = &case.expect.ok;
        match &expected.truncateds {
            Some(truncateds) => tally.trajectory(&case, truncateds),
            None => tally.single_steps(&case),
        }
        tally.steps += expected.rewards.len();
        tally.terminal += expected.terminateds.iter().filter(|flag| **flag).count();
    }
    tally
}

macro_rules! golden {
    ($($test:ident: $file:literal => $tally:expr;)+) => {$(
        #[test]
        fn $test() {
            assert_eq!(tally(include_str!(concat!("../../../golden/envs/", $file, ".jsonl"))), $tally);
        }
    )+};
}

golden! {
    cart_pole: "CartPole-v1" => Tally { trajectories: 8, at_limit: 1, steps: 1565, terminal: 18, differing: 0 };
    mountain_car: "MountainCar-v0" => Tally { trajectories: 5, at_limit: 1, steps: 806, terminal: 13, differing: 0 };
    mountain_car_continuous: "MountainCarContinuous-v0"
        => Tally { trajectories: 6, at_limit: 1, steps: 1603, terminal: 13, differing: 0 };
    pendulum: "Pendulum-v1" => Tally { trajectories: 4, at_limit: 4, steps: 960, terminal: 0, differing: 0 };
    acrobot: "Acrobot-v1" => Tally { trajectories: 2, at_limit: 2, steps: 1240, terminal: 13, differing: 30 };
    frozen_lake: "FrozenLake-v1" => Tally { trajectories: 20, at_limit: 0, steps: 209, terminal: 50, differing: 0 };
    cliff_walking: "CliffWalking-v1" => Tally { trajectories: 6, at_limit: 0, steps: 411, terminal: 7, differing: 0 };
    taxi: "Taxi-v4" => Tally { trajectories: 6, at_limit: 3, steps: 3647, terminal: 7, differing: 0 };
}
