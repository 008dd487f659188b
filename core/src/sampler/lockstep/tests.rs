//! Environments that return invalid numbers, and slots that move with their recurrent states.

use core::num::NonZeroU32;

use super::{Collector as _, LaneStart, Lockstep, SampleError, SamplerOptions, SlotFragment, SlotState};
use crate::{
    env::{AnyVectorEnv, Env, EnvContext, EnvError, EnvRegistry, EnvState, Rng, Step, Vectorized},
    hash::RolloutHasher,
    ids::{FragmentNo, HomeIndex, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec, NetPolicy, Policy, PolicyEntry, RandomPolicy},
    postprocess::{AdvantageConfig, train_batch},
    prelude::*,
    sampler::drive,
    space::Space,
};

/// A fault of an environment, and the step in which it occurs.
#[derive(Clone, Copy)]
enum Fault {
    Reward(f64),
    Observation(f32),
    /// In the last step of an episode, before a reset.
    FinalObservation,
    /// The same, out of bounds.
    FinalOutside,
    FirstObservation,
    /// Half of a row is not written.
    Unwritten,
    None,
}

struct Faulty {
    fault: Fault,
    at: u32,
    steps: u32,
}

impl Env for Faulty {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[-1.0; 2], &[1.0; 2])
    }
    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }
    fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        obs.fill(if matches!(self.fault, Fault::FirstObservation) { f32::NAN } else { 0.5 });
        Ok(())
    }
    fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        self.steps += 1;
        if matches!(self.fault, Fault::Unwritten) && self.steps == self.at {
            obs[0] = 0.25;
            return Ok(Step::default());
        }
        obs.fill(0.25);
        let mut step = Step { reward: 1.0, ..Step::default() };
        if self.steps == self.at {
            match self.fault {
                Fault::Reward(reward) => step.reward = reward,
                Fault::Observation(value) => obs[1] = value,
                Fault::FinalObservation => (obs[0], step.terminated) = (f32::INFINITY, true),
                Fault::FinalOutside => (obs[0], step.terminated) = (7.0, true),
                Fault::FirstObservation | Fault::Unwritten | Fault::None => {}
            }
        }
        Ok(step)
    }
    fn snapshot(&self, _: &mut Vec<u8>) -> EnvState {
        EnvState::Snapshot
    }
    fn restore(&mut self, _: &[u8], _: &mut [f32]) -> Result<(), EnvError> {
        Ok(())
    }
}

fn random() -> PolicyEntry {
    PolicyEntry::new("", Box::new(RandomPolicy::new(2, 1)))
}

/// Samples two fragments of 4 steps of three lanes, of which the second one has a fault.
fn sample(fault: Fault, at: u32) -> Result<(), SampleError> {
    let fault = |lane: u32| if lane == 1 { fault } else { Fault::None };
    let mut env = Vectorized::new((0..3).map(|lane| Faulty { fault: fault(lane), at, steps: 0 }).collect());
    let env: &mut dyn AnyVectorEnv = &mut env;
    let starts: Vec<_> = (0..3).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut policy = random();
    let options = SamplerOptions { seed: 1, ..SamplerOptions::default() };
    let mut lockstep = Lockstep::<f32>::new(&starts, &options, &policy, env)?;
    for fragment in 0..2 {
        lockstep.begin(FragmentNo(fragment), WeightsVersion(0), 4);
        drive(&mut lockstep, env, &mut policy, u32::MAX)?;
        assert_eq!(lockstep.take(env).unwrap().len(), 3);
    }
    Ok(())
}

#[test]
fn value_that_is_not_finite_is_named_with_lane_and_step() {
    let not_finite = |what, step, value: &str| {
        Err(SampleError::Env(EnvError::NotFinite { what, lane: 1, step, value: value.into() }))
    };
    assert_eq!(sample(Fault::Reward(f64::NAN), 3), not_finite("reward", 3, "NaN"));
    assert_eq!(sample(Fault::Reward(f64::NEG_INFINITY), 5), not_finite("reward", 1, "-inf"));
    // Beyond the range of the column.
    assert_eq!(sample(Fault::Reward(1e300), 8), not_finite("reward", 4, "inf"));
    assert_eq!(sample(Fault::Observation(f32::NAN), 2), not_finite("observation", 2, "NaN"));
    assert_eq!(sample(Fault::Observation(f32::INFINITY), 8), not_finite("observation", 4, "inf"));
    assert_eq!(sample(Fault::FinalObservation, 6), not_finite("observation", 2, "inf"));
    assert_eq!(sample(Fault::FirstObservation, 0), not_finite("observation", 0, "NaN"));
    assert_eq!(sample(Fault::None, 3), Ok(()));
    let error = sample(Fault::Reward(f64::NAN), 3).unwrap_err().to_string();
    assert!(error.starts_with("lane 1: the reward of step 3 of the fragment"), "{error}");
}

#[cfg(debug_assertions)]
#[test]
fn rows_that_an_environment_does_not_write_are_found_in_debug_builds() {
    let not_written = EnvError::NotWritten { array: "obs", lane: 1 };
    assert_eq!(sample(Fault::Unwritten, 6), Err(SampleError::Env(not_written)));
}

#[test]
fn observation_outside_its_space_fails_unless_final() {
    let error = sample(Fault::Observation(1.5), 6).unwrap_err().to_string();
    let wanted = "environment 1, agent 0: the observation [0.25, 1.5] after step 2 of the fragment is not in Box(";
    assert!(error.starts_with(wanted), "{error}");
    assert_eq!(sample(Fault::FinalOutside, 6), Ok(()));
}

const LANES: u32 = 3;

fn home(lane: u32) -> HomeIndex {
    HomeIndex { worker_index: 1, vector_index: lane }
}

/// Returns fragments of `steps` steps of CartPole under a recurrent policy, 21 steps in all, in sequences of at most
/// four steps. Between two fragments the slots stay, or move to newly opened lanes.
fn with_memory(steps: u32, moves: bool) -> Vec<SlotFragment> {
    let registry = EnvRegistry::builtin();
    let spec = registry.spec("CartPole-v1").unwrap();
    let four = NonZeroU32::new(4).unwrap();
    let model = ModelConfig { use_lstm: true, max_seq_len: four, ..ModelConfig::default() };
    let spaces = spec.spaces().unwrap();
    let weights = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(3).unwrap();
    let policy = NetPolicy::new(&spaces, &model, weights, 5, Kernels::PORTABLE).unwrap();
    let mut policy = PolicyEntry::<dyn Policy>::new("", Box::new(policy));
    // Episodes end in the middle of fragments.
    let options = SamplerOptions { seed: 1, horizon: Some(9), ..SamplerOptions::default() };
    let contexts: Vec<_> = (0..LANES).map(|lane| EnvContext::new(home(lane))).collect();
    let mut env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
    let mut starts: Vec<_> = (0..LANES).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut lanes = Lockstep::<f32>::new(&starts, &options, &policy, env.as_mut()).unwrap();
    let mut all = Vec::new();
    for fragment in 0..u64::from(21 / steps) {
        lanes.begin(FragmentNo(fragment), WeightsVersion(0), steps);
        drive(&mut lanes, env.as_mut(), &mut policy, u32::MAX).unwrap();
        let fragments = lanes.take(env.as_ref()).unwrap();
        if moves {
            starts = fragments.iter().map(|made| LaneStart::decode(made.slot, &made.state).unwrap()).collect();
            env = spec.make(&contexts, Kernels::PORTABLE).unwrap();
            lanes = Lockstep::new(&starts, &options, &policy, env.as_mut()).unwrap();
        }
        all.extend(fragments);
    }
    all
}

#[test]
fn a_slot_takes_its_memory_along() {
    let stayed = with_memory(7, false);
    assert_eq!(with_memory(7, true), stayed);
    let hash = |fragments: &[SlotFragment]| {
        let mut hasher = RolloutHasher::new();
        fragments.iter().for_each(|fragment| hasher.add(fragment).unwrap());
        hasher.finish()
    };
    assert_eq!(hash(&with_memory(21, false)), hash(&stayed), "cuts leave no trace in the rows");
    let second = &stayed[LANES as usize];
    assert_eq!((second.rows.seq_lens(), second.first_t), (Some(&[2, 4, 1][..]), 7));
    let state = SlotState::decode(&second.state).unwrap();
    assert_eq!((state.t, state.recurrent.len()), (5, 128));
    let hidden =
        |row: usize| second.rows.column("state_in_0").unwrap().typed::<f32>().unwrap().row(row).unwrap().to_vec();
    // An episode begins with zeros, a sequence within it with its present state.
    assert_eq!(hidden(1), [0.0; 64]);
    assert!(hidden(0) != hidden(1) && hidden(2) != hidden(1));
    // Learners get the same sequences.
    let batch = train_batch(
        &stayed[..LANES as usize],
        &AdvantageConfig { gamma: 0.9, lambda: 0.9, ..AdvantageConfig::default() },
    )
    .unwrap();
    assert_eq!(batch.seq_lens(), Some(&[4, 3, 4, 3, 4, 3][..]));
    // Another policy's recurrent states are rejected.
    let mut env = EnvRegistry::builtin()
        .spec("CartPole-v1")
        .unwrap()
        .make(&[EnvContext::new(home(0))], Kernels::PORTABLE)
        .unwrap();
    let start = LaneStart::decode(SlotId(0), &second.state).unwrap();
    let opened = Lockstep::<f32>::new(&[start], &SamplerOptions::default(), &random(), env.as_mut());
    let wrong = EnvError::WrongLength { what: "recurrent state elements", wanted: 0, found: 128 };
    assert_eq!(opened.err(), Some(wrong));
}
