//! External environments: not ready together, with late resets, or with episodes that they begin themselves.

use super::*;
use crate::env::{EnvActions, Reset};

/// Updates of one environment: an observation, optionally the last one of its episode, optionally with an off-policy action.
struct Event {
    env: usize,
    obs: i64,
    over: bool,
    did: Option<i64>,
}

fn sees(env: usize, obs: i64) -> Event {
    Event { env, obs, over: false, did: None }
}

fn ends(env: usize, obs: i64) -> Event {
    Event { env, obs, over: true, did: None }
}

fn did(env: usize, obs: i64, action: i64) -> Event {
    Event { env, obs, over: false, did: Some(action) }
}

/// Environments with scripted polls.
struct Remote {
    polls: VecDeque<Vec<Event>>,
    reset: Reset,
    /// Environments that wait for an answer.
    waiting: BTreeSet<usize>,
    started: BTreeSet<usize>,
}

impl Remote {
    fn new(reset: Reset, polls: Vec<Vec<Event>>) -> Self {
        Self { polls: polls.into(), reset, waiting: BTreeSet::new(), started: BTreeSet::new() }
    }
}

impl BaseEnv for Remote {
    fn num_envs(&self) -> usize {
        2
    }
    fn agents(&self) -> Vec<AgentId> {
        vec![AgentId::SINGLE]
    }
    fn spaces(&self, _: &AgentId) -> Option<EnvSpaces> {
        Some(EnvSpaces {
            observation: Space::Discrete { n: 100 },
            observation_type: DType::I64,
            action: Space::Discrete { n: 10 },
            action_type: DType::I64,
        })
    }
    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        assert!(self.waiting.is_empty(), "unanswered: {:?}", self.waiting);
        for Event { env, obs, over, did } in self.polls.pop_front().unwrap_or_default() {
            let entry = updates.add(env);
            entry.turn.observe(&AgentId::SINGLE, RowsRef::I64(&[obs]));
            if self.started.contains(&env) {
                entry.turn.reward(&AgentId::SINGLE, obs as f64);
            }
            if let Some(action) = did {
                entry.off_policy_actions.set(&AgentId::SINGLE, RowsRef::I64(&[action]));
            }
            if over {
                entry.turn.terminate_all();
                self.started.remove(&env);
            } else {
                self.started.insert(env);
                self.waiting.insert(env);
            }
        }
        Ok(())
    }
    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        for answer in actions {
            assert!(self.waiting.remove(&answer.env) && answer.actions.len() == 1);
            // The answer contains the policy's action even if the agent took another one.
            assert!(answer.actions.get(&AgentId::SINGLE).is_some());
        }
        Ok(())
    }
    fn try_reset(&mut self, _: usize, _: &mut Turn) -> Result<Reset, EnvError> {
        Ok(self.reset)
    }
    fn try_restart(&mut self, _: usize) -> Result<(), EnvError> {
        Ok(())
    }
}

#[test]
fn environments_step_at_their_own_speed() {
    let polls = || {
        vec![
            vec![sees(1, 50)],
            vec![sees(0, 10), sees(1, 51)],
            vec![sees(0, 11)],
            vec![ends(0, 12), sees(1, 52)],
            vec![sees(1, 53)],
            vec![sees(0, 20), sees(1, 54)],
            vec![sees(0, 21)],
        ]
    };
    for reset in [Reset::Later, Reset::Unsupported] {
        let mut bench = Bench::new(Player::new());
        let mut sampler = sampler(options(2, 3), Remote::new(reset, polls()));
        let one = bench.single(&mut sampler);
        assert_eq!((ints(&one, "obs"), one.get(EPS_ID).unwrap()), (vec![50, 51, 52], &[1 << 32; 3][..]));
        let zero = bench.single(&mut sampler);
        assert_eq!((ints(&zero, "obs"), ints(&zero, "new_obs")), (vec![10, 11, 20], vec![11, 12, 21]));
        assert_eq!(zero.get(EPS_ID).unwrap(), [0, 0, 1]);
        assert_eq!(zero.get(REWARDS).unwrap(), [11.0, 12.0, 21.0]);
        let error = bench.data(&mut sampler).unwrap_err();
        assert_eq!(error.to_string(), "the environment failed: a poll brought no updates of any environment");
        assert_eq!(bench.with(|host| sampler.step(host)), Ok(SampleProgress::Idle));
    }
}

#[test]
fn actions_that_agents_take_by_themselves_are_recorded() {
    let polls = vec![vec![did(0, 1, 7)], vec![sees(0, 2)], vec![did(0, 3, 9)], vec![sees(0, 4)]];
    let mut bench = Bench::new(Player::new());
    let batch = bench.single(&mut sampler(options(2, 3), Remote::new(Reset::Unsupported, polls)));
    assert_eq!((ints(&batch, "obs"), ints(&batch, "actions")), (vec![1, 2, 3], vec![7, 1, 9]));
}

#[test]
fn a_horizon_needs_resets() {
    let polls = || (0..4).map(|obs| vec![sees(0, obs)]).collect();
    let mut bench = Bench::new(Player::new());
    let options = SamplerOptions { horizon: Some(2), ..options(2, 9) };
    let error = bench.data(&mut sampler(options.clone(), Remote::new(Reset::Unsupported, polls()))).unwrap_err();
    assert_eq!(error, SampleError::HorizonWithoutReset);
    // A late reset works.
    let mut sampler = sampler(
        SamplerOptions { batch_mode: BatchMode::CompleteEpisodes, ..options },
        Remote::new(Reset::Later, polls()),
    );
    assert_eq!(bench.single(&mut sampler).len(), 2);
}

#[test]
fn updates_of_unknown_environments_are_refused() {
    for (polls, text) in [
        (vec![vec![sees(7, 1)]], "there is no lane 7, the environment has 2"),
        (vec![vec![sees(1, 1), sees(1, 2)]], "the environment failed: a poll brought updates of environment 1 twice"),
    ] {
        let mut sampler = sampler(options(2, 3), Remote::new(Reset::Later, polls));
        assert_eq!(Bench::new(Player::new()).data(&mut sampler).unwrap_err().to_string(), text);
    }
}
