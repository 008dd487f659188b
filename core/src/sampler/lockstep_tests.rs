//! Environments that give what is no number.

use super::{Collector as _, DriveError, LaneStart, Lockstep, drive};
use crate::{
    env::{AnyVectorEnv, Env, EnvError, Rng, Step, Vectorized},
    ids::{FragmentNo, SlotId, WeightsVersion},
    policy::RandomPolicy,
    prelude::*,
    space::Space,
};

/// What an environment does wrong, and in which step of its life.
#[derive(Clone, Copy)]
enum Fault {
    Reward(f64),
    Observation(f32),
    /// Of the last step of an episode, which a reset follows.
    FinalObservation,
    /// The same, beyond the bounds.
    FinalOutside,
    FirstObservation,
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
        obs.fill(0.25);
        let mut step = Step { reward: 1.0, ..Step::default() };
        if self.steps == self.at {
            match self.fault {
                Fault::Reward(reward) => step.reward = reward,
                Fault::Observation(value) => obs[1] = value,
                Fault::FinalObservation => (obs[0], step.terminated) = (f32::INFINITY, true),
                Fault::FinalOutside => (obs[0], step.terminated) = (7.0, true),
                Fault::FirstObservation | Fault::None => {}
            }
        }
        Ok(step)
    }
    fn snapshot(&self, _: &mut Vec<u8>) {}
    fn restore(&mut self, _: &[u8], _: &mut [f32]) -> Result<(), EnvError> {
        Ok(())
    }
}

/// Two fragments of 4 steps of three lanes, of which the second one is faulty in a step.
fn sample(fault: Fault, at: u32) -> Result<(), DriveError> {
    let fault = |lane: u32| if lane == 1 { fault } else { Fault::None };
    let mut env = Vectorized::new((0..3).map(|lane| Faulty { fault: fault(lane), at, steps: 0 }).collect());
    let env: &mut dyn AnyVectorEnv = &mut env;
    let starts: Vec<_> = (0..3).map(|slot| LaneStart { slot: SlotId(slot), state: None }).collect();
    let mut lockstep = Lockstep::<f32, i64>::new(&starts, 1, None, env)?;
    for fragment in 0..2 {
        lockstep.begin(FragmentNo(fragment), WeightsVersion(0), 4);
        drive(&mut lockstep, env, &mut RandomPolicy::new(2, 1), u32::MAX)?;
        assert_eq!(lockstep.take(env).len(), 3);
    }
    Ok(())
}

#[test]
fn what_is_no_number_is_an_error_that_names_lane_and_step() {
    let not_finite = |what, step| Err(DriveError::Env(EnvError::NotFinite { what, lane: 1, step }));
    assert_eq!(sample(Fault::Reward(f64::NAN), 3), not_finite("reward", 3));
    assert_eq!(sample(Fault::Reward(f64::NEG_INFINITY), 5), not_finite("reward", 1));
    // More than a column can hold.
    assert_eq!(sample(Fault::Reward(1e300), 8), not_finite("reward", 4));
    assert_eq!(sample(Fault::Observation(f32::NAN), 2), not_finite("observation", 2));
    assert_eq!(sample(Fault::Observation(f32::INFINITY), 8), not_finite("observation", 4));
    assert_eq!(sample(Fault::FinalObservation, 6), not_finite("observation", 2));
    assert_eq!(sample(Fault::FirstObservation, 0), not_finite("observation", 0));
    assert_eq!(sample(Fault::None, 3), Ok(()));
    let error = sample(Fault::Reward(f64::NAN), 3).unwrap_err().to_string();
    assert!(error.starts_with("lane 1: the reward of step 3 of the fragment"), "{error}");
}

#[test]
fn what_is_not_in_the_space_is_an_error_unless_it_is_the_last_of_an_episode() {
    let error = sample(Fault::Observation(1.5), 6).unwrap_err().to_string();
    let wanted = "environment 1, agent 0: the observation [0.25, 1.5] after step 2 of the fragment is not in Box(";
    assert!(error.starts_with(wanted), "{error}");
    assert_eq!(sample(Fault::FinalOutside, 6), Ok(()));
}
