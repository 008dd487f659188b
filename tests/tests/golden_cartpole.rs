//! CartPole against what Gymnasium's does: `golden/CartPole-v1.jsonl` holds trajectories and single steps of it.

use rollmesh_core::{
    env::{CartPole, EnvRegistry, Moment, Moments, StepOut, VectorEnv as _},
    kernels::Kernels,
    rng::{Purpose, Streams},
};
use serde::Deserialize;

const GOLDEN: &str = include_str!("../golden/CartPole-v1.jsonl");

#[derive(Deserialize)]
struct Case {
    id: String,
    #[serde(rename = "in")]
    given: Given,
    expect: Expect,
    /// Distance of observations, relative above 1.
    tol: f64,
    /// Steps whose observations are compared: a difference in the last bit of a sine grows in an unstable system.
    compare_prefix: Option<usize>,
    args: Args,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    /// One after the other, from one state.
    Trajectory { state: [f64; 4], actions: Vec<i64> },
    /// Each from a state of its own.
    Steps { states: Vec<[f64; 4]>, actions: Vec<i64> },
}

#[derive(Deserialize)]
struct Expect {
    ok: Outcome,
}

#[derive(Deserialize)]
struct Outcome {
    initial_obs: Option<[f32; 4]>,
    obs: Vec<[f32; 4]>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Option<Vec<bool>>,
}

#[derive(Deserialize)]
struct Args {
    max_episode_steps: Option<u32>,
}

/// What a step of all lanes brings.
struct Stepped {
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

fn cases() -> impl Iterator<Item = Case> {
    GOLDEN.lines().map(|line| serde_json::from_str(line).expect(line))
}

fn step(env: &mut CartPole, actions: &[i64]) -> Stepped {
    let lanes = env.num_envs();
    let mut stepped = Stepped {
        obs: vec![f32::NAN; 4 * lanes],
        rewards: vec![f64::NAN; lanes],
        terminateds: vec![false; lanes],
        truncateds: vec![true; lanes],
    };
    let Stepped { obs, rewards, terminateds, truncateds } = &mut stepped;
    let moments = Moments { streams: Streams::new(0, Purpose::EnvStep), lanes: &vec![Moment::default(); lanes] };
    env.step(actions, moments, obs, StepOut { rewards, terminateds, truncateds }).unwrap();
    stepped
}

fn assert_close(case: &Case, at: usize, obs: &[f32], expected: &[f32]) {
    for (x, y) in obs.iter().zip(expected) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        assert!((x - y).abs() <= case.tol * y.abs().max(1.0), "{} at {at}: {obs:?}, not {expected:?}", case.id);
    }
}

#[test]
fn trajectories_are_those_of_gymnasium() {
    let registry = EnvRegistry::builtin();
    let max_episode_steps = registry.spec("CartPole-v1").unwrap().max_episode_steps;
    let (mut episodes, mut cut) = (0, 0);
    for case in cases() {
        let Given::Trajectory { state, actions } = &case.given else { continue };
        let expected = &case.expect.ok;
        assert_eq!(max_episode_steps, case.args.max_episode_steps, "{}", case.id);
        let mut env = CartPole::new(1, Kernels::PORTABLE);
        env.set_state(0, *state);
        assert_eq!(expected.initial_obs, Some(state.map(|x| x as f32)), "{}", case.id);
        for (t, action) in actions.iter().enumerate() {
            let stepped = step(&mut env, &[*action]);
            if t < case.compare_prefix.unwrap_or(usize::MAX) {
                assert_close(&case, t, &stepped.obs, &expected.obs[t]);
            }
            assert_eq!(stepped.rewards, [expected.rewards[t]], "{} at {t}", case.id);
            assert_eq!(stepped.terminateds, [expected.terminateds[t]], "{} at {t}", case.id);
            // The time limit is the sampler's; the environment cuts nothing.
            assert_eq!(stepped.truncateds, [false], "{} at {t}", case.id);
            let at_limit = max_episode_steps.is_some_and(|limit| t + 1 >= limit as usize);
            assert_eq!(expected.truncateds.as_ref().map(|all| all[t]), Some(at_limit), "{} at {t}", case.id);
            cut += usize::from(at_limit);
        }
        episodes += 1;
    }
    assert_eq!((episodes, cut), (20, 1));
}

#[test]
fn single_steps_are_those_of_gymnasium_in_any_lane() {
    let mut steps = 0;
    for case in cases() {
        let Given::Steps { states, actions } = &case.given else { continue };
        let mut env = CartPole::new(states.len(), Kernels::PORTABLE);
        for (lane, state) in states.iter().enumerate() {
            env.set_state(lane, *state);
        }
        let stepped = step(&mut env, actions);
        let expected = &case.expect.ok;
        for (lane, (obs, expected)) in stepped.obs.chunks(4).zip(&expected.obs).enumerate() {
            assert_close(&case, lane, obs, expected);
        }
        assert_eq!(stepped.rewards, expected.rewards, "{}", case.id);
        assert_eq!(stepped.terminateds, expected.terminateds, "{}", case.id);
        steps += states.len();
    }
    assert_eq!(steps, 419);
}
