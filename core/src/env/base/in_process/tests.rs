//! Turns of agents, delivery of rewards, and environments that break the rules.

mod failures;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::*;
use crate::{
    batch::{ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS},
    column::{DType, Element},
    env::{
        EnvContext, EnvRegistry, EnvSpec, MultiAgentEnv, MultiAgentSpec, Rng, RowsRef,
        multi_agent::{AgentRows, Outcome},
    },
    ids::{FragmentNo, HomeIndex, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{Policy, PolicyEntry, RandomPolicy},
    sampler::{Collector as _, LaneStart, Lockstep, SamplerOptions, drive},
    space::Space,
};

/// The result of a step with these actions; step 0 is the reset.
type Script = Box<dyn FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send>;

/// Agents 0 to 9, which observe one float and have two actions.
struct Scripted {
    t: u32,
    script: Script,
}

impl MultiAgentEnv for Scripted {
    fn agents(&self) -> Vec<AgentId> {
        (0..10).rev().map(AgentId::Index).collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        (*agent < AgentId::Index(10)).then(|| EnvSpaces {
            observation: Space::vector(&[-9.0], &[9.0]),
            observation_type: DType::F32,
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
    let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: index });
    EnvStart { slot: SlotId(index), episode: 0, context }
}

fn envs<S>(num_envs: u32, script: impl Fn() -> S + Send + Sync + 'static) -> InProcess
where
    S: FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send + 'static,
{
    let spec = MultiAgentSpec::new("Scripted", move |_| Ok(Box::new(Scripted { t: 0, script: Box::new(script()) })));
    InProcess::new(EnvMaker::multi_agent(&spec), (0..num_envs).map(start).collect(), 1).unwrap()
}

fn agent(index: u32) -> AgentId {
    AgentId::Index(index)
}

fn see(turn: &mut Turn, index: u32, obs: f32) {
    turn.observe(&agent(index), RowsRef::F32(&[obs]));
}

/// Returns an action for every agent with an observation.
fn answer(updates: &EnvUpdates) -> Vec<EnvActions> {
    let going_on = updates.entries().iter().filter(|entry| !entry.turn.is_over() && entry.fault.is_none());
    let act = |turn: &Turn| {
        let mut actions = AgentRows::new();
        for (agent, _) in turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done()) {
            actions.set(agent, RowsRef::I64(&[1]));
        }
        actions
    };
    going_on.map(|entry| EnvActions { env: entry.env, actions: act(&entry.turn) }).collect()
}

fn poll(envs: &mut InProcess, updates: &mut EnvUpdates) -> Result<(), EnvError> {
    updates.clear();
    envs.poll(updates)
}

/// Answers the updates and polls for the next ones.
fn step(envs: &mut InProcess, updates: &mut EnvUpdates) -> Result<(), EnvError> {
    envs.send_actions(&answer(updates))?;
    poll(envs, updates)
}

/// Returns a script in which two agents act simultaneously for 25 steps.
fn basic() -> impl FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send {
    |t, actions, turn| {
        assert_eq!(actions.len(), if t == 0 { 0 } else { 2 });
        for index in 0..2 {
            see(turn, index, 0.0);
            if t > 0 {
                turn.reward(&agent(index), 1.0);
            }
            if t == 25 {
                turn.terminate(&agent(index));
            }
        }
        if t == 25 {
            turn.terminate_all();
        }
        Ok(())
    }
}

#[test]
fn nothing_is_reset_before_the_first_poll_or_stepped_after_the_end() {
    static RESETS: AtomicU32 = AtomicU32::new(0);
    let mut envs = envs(2, || {
        let mut script = basic();
        move |t, actions: &AgentRows, turn: &mut Turn| {
            RESETS.fetch_add(u32::from(t == 0), SeqCst);
            script(t, actions, turn)
        }
    });
    assert_eq!((envs.num_envs(), envs.agents().len(), RESETS.load(SeqCst)), (2, 10, 0));
    assert!(envs.agents().is_sorted() && envs.spaces(&agent(9)).is_some() && envs.spaces(&agent(10)).is_none());
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    assert_eq!(RESETS.load(SeqCst), 2);
    for t in 1..=25 {
        step(&mut envs, &mut updates).unwrap();
        assert_eq!(updates.entries().iter().map(|entry| entry.env).collect::<Vec<_>>(), [0, 1]);
        for entry in updates.entries() {
            assert_eq!((entry.turn.all_terminated(), entry.turn.all_truncated()), (t == 25, false));
            let outcome = Outcome { reward: 1.0, terminated: t == 25, truncated: false };
            assert_eq!([0, 1].map(|index| entry.turn.outcome(&agent(index))), [outcome; 2]);
        }
    }
    let again = EnvActions { env: 1, actions: AgentRows::new() };
    let error = envs.send_actions(&[again]).unwrap_err();
    assert_eq!(error.to_string(), "environment 1: its episode is over: begin the next one with try_reset");
    let mut turn = Turn::new();
    for env in 0..2 {
        assert_eq!(envs.try_reset(env, &mut turn), Ok(Reset::Done));
        assert_eq!(turn.obs().len(), 2);
        turn.clear();
    }
    assert_eq!(RESETS.load(SeqCst), 4);
}

/// Returns a script of five agents, each with a counter to 5, which it observes only when it is its turn.
fn round_robin() -> impl FnMut(u32, &AgentRows, &mut Turn) -> Result<(), EnvError> + Send {
    let mut counters = [0u32; 5];
    move |t, actions, turn| {
        if t == 0 {
            counters = [0; 5];
        }
        for (actor, _) in actions.iter() {
            (0..5).filter(|index| *actor == agent(*index)).for_each(|index| counters[index as usize] += 1);
        }
        let next = t % 5;
        let count = counters[next as usize];
        see(turn, next, count as f32);
        if count > 0 {
            turn.reward(&agent(next), if count == 5 { 0.0 } else { 100.0 });
        }
        if count == 5 {
            turn.terminate(&agent(next));
        }
        if counters == [5; 5] && next == 4 {
            turn.terminate_all();
        }
        Ok(())
    }
}

#[test]
fn sequential_agents_act_one_at_a_time() {
    let mut envs = envs(1, round_robin);
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    let mut rewards = Vec::new();
    for t in 1..=29 {
        step(&mut envs, &mut updates).unwrap();
        let turn = &updates.entries()[0].turn;
        assert!(turn.obs().iter().map(|(agent, _)| agent).eq([&agent(t % 5)]));
        if t % 5 == 0 {
            rewards.push(turn.outcome(&agent(0)).reward);
        }
        assert_eq!(turn.all_terminated(), t == 29);
    }
    assert_eq!(rewards, [100.0, 100.0, 100.0, 100.0, 0.0]);
}

#[test]
fn silent_agents_are_paid_at_their_next_observation_or_at_the_end() {
    let mut envs = envs(1, || {
        |t, actions: &AgentRows, turn: &mut Turn| {
            match t {
                0 => [0, 1, 2].into_iter().for_each(|index| see(turn, index, 0.0)),
                1 => assert_eq!(actions.len(), 3),
                2 => {
                    assert!(actions.is_empty());
                    see(turn, 1, 2.0);
                }
                _ => {
                    turn.terminate(&agent(1));
                    turn.truncate_all();
                }
            }
            if t > 0 {
                (0..3).for_each(|index| turn.reward(&agent(index), f64::from(t)));
            }
            Ok(())
        }
    });
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    step(&mut envs, &mut updates).unwrap();
    let turn = &updates.entries()[0].turn;
    assert!(turn.obs().is_empty() && turn.outcomes().len() == 0 && !turn.is_over());
    step(&mut envs, &mut updates).unwrap();
    assert!(
        updates.entries()[0]
            .turn
            .outcomes()
            .map(|(agent, outcome)| (agent.clone(), outcome.reward))
            .eq([(agent(1), 3.0)])
    );
    step(&mut envs, &mut updates).unwrap();
    let turn = &updates.entries()[0].turn;
    assert!(turn.obs().is_empty() && turn.all_truncated());
    assert_eq!([0, 1, 2].map(|index| turn.outcome(&agent(index)).reward), [6.0, 3.0, 6.0]);
    assert_eq!([0, 1].map(|index| turn.outcome(&agent(index)).is_done()), [false, true]);
}

/// Returns the error of two environments for actions of the second one.
fn refusal(change: impl Fn(&mut Vec<EnvActions>)) -> String {
    let mut envs = envs(2, basic);
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    let mut actions = answer(&updates);
    change(&mut actions);
    let error = envs.send_actions(&actions).unwrap_err();
    // Nothing has moved, so the right answer is still accepted.
    step(&mut envs, &mut updates).unwrap();
    assert_eq!(updates.entries().len(), 2);
    error.to_string()
}

#[test]
fn wrong_answers_are_refused_before_anything_moves() {
    let said = refusal(|actions| actions[1].actions.remove(&agent(1)));
    assert_eq!(said, "environment 1, agent 1: its action is missing");
    let said = refusal(|actions| actions[1].actions.set(&agent(2), RowsRef::I64(&[0])));
    assert_eq!(said, "environment 1, agent 2: it cannot act, it has no observation to act on");
    let said = refusal(|actions| actions[1].actions.set(&agent(0), RowsRef::F32(&[0.0])));
    assert_eq!(said, "environment 1, agent 0: its action is 1 of float32, not a row of int64 for Discrete(2)");
    let said = refusal(|actions| actions[1].actions.set(&agent(0), RowsRef::I64(&[0, 1])));
    assert_eq!(said, "environment 1, agent 0: its action is 2 of int64, not a row of int64 for Discrete(2)");
    let said = refusal(|actions| _ = actions.pop());
    assert_eq!(said, "environment 1: it has no entry in the answer, not even an empty one");
    let said = refusal(|actions| actions[0].env = 1);
    assert_eq!(said, "environment 1: it has two entries in one answer");
    let said = refusal(|actions| actions[1].env = 2);
    assert_eq!(said, "there is no lane 2, the environment has 2");
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut envs = envs(1, basic);
    let (mut updates, mut turn) = (EnvUpdates::new(), Turn::new());
    let nothing = EnvActions::default();
    assert!(envs.send_actions(std::slice::from_ref(&nothing)).unwrap_err().to_string().contains("poll first"));
    poll(&mut envs, &mut updates).unwrap();
    let actions = answer(&updates);
    let error = poll(&mut envs, &mut updates).unwrap_err();
    assert!(error.to_string().contains("answer the latest ones") && updates.entries().is_empty(), "{error}");
    envs.send_actions(&actions).unwrap();
    assert!(envs.send_actions(&actions).unwrap_err().to_string().contains("results that have not been polled"));
    assert!(envs.try_reset(0, &mut turn).unwrap_err().to_string().contains("results that have not been polled"));
    assert_eq!(envs.try_reset(1, &mut turn), Err(EnvError::NoSuchLane { lane: 1, num_envs: 1 }));
    poll(&mut envs, &mut updates).unwrap();
    // In the middle of an episode, as time limits do.
    assert_eq!(envs.try_reset(0, &mut turn), Ok(Reset::Done));
    for _ in 0..2 {
        assert_eq!(envs.stop(), Ok(()));
    }
    assert_eq!(envs.poll(&mut updates), Err(EnvError::Stopped));
    assert_eq!(envs.send_actions(&actions), Err(EnvError::Stopped));
    assert_eq!(envs.try_reset(0, &mut turn), Err(EnvError::Stopped));
    assert_eq!(envs.try_restart(0), Err(EnvError::Stopped));
    assert!(envs.sub_environments().is_empty() && !envs.try_render(0, &mut Frame::new()));
}

/// Returns the error of an environment whose only step returns this.
fn fault(bring: impl Fn(&mut Turn) + Copy + Send + Sync + 'static) -> String {
    let mut envs = envs(1, move || {
        move |t, _: &AgentRows, turn: &mut Turn| {
            if t == 0 {
                see(turn, 1, 0.0)
            } else {
                bring(turn)
            }
            Ok(())
        }
    });
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    let error = step(&mut envs, &mut updates).unwrap_err();
    // The environment waits for its next episode.
    assert_eq!(envs.try_reset(0, &mut Turn::new()), Ok(Reset::Done));
    error.to_string()
}

#[test]
fn observations_and_rewards_are_checked() {
    let at = "environment 0, agent 1: the observation";
    assert_eq!(
        fault(|turn| turn.observe(&agent(1), RowsRef::F64(&[0.0]))),
        format!("{at} is a row of float64, not of float32")
    );
    let space = "Box(-9.0, 9.0, (1,), float32)";
    assert_eq!(fault(|turn| turn.observe(&agent(1), RowsRef::F32(&[]))), format!("{at} has 0 elements, {space} has 1"));
    assert_eq!(fault(|turn| see(turn, 1, f32::NAN)), format!("{at} [NaN] is not finite"));
    assert_eq!(fault(|turn| see(turn, 1, 9.5)), format!("{at} [9.5] is not in {space}"));
    let endless = |turn: &mut Turn| turn.reward(&agent(1), f64::INFINITY);
    assert_eq!(fault(endless), "environment 0, agent 1: the reward is inf");
    // Batches hold rewards as 32-bit floats, which end at 3.4e38.
    for parts in [[2e38, 2e38], [1e39, 0.0]] {
        let large = move |turn: &mut Turn| parts.iter().for_each(|reward| turn.reward(&agent(1), *reward));
        let error = fault(large);
        assert!(error.starts_with("environment 0, agent 1: the reward is "), "{error}");
    }
    assert_eq!(fault(|turn| see(turn, 10, 0.0)), "environment 0 has an agent 10, but no spaces for it");
    assert_eq!(fault(|turn| turn.reward(&agent(11), 0.0)), "environment 0 has an agent 11, but no spaces for it");
}

#[test]
fn a_terminal_state_may_look_like_no_other_and_is_the_last_one() {
    let mut envs = envs(1, || {
        |t, _: &AgentRows, turn: &mut Turn| {
            see(turn, 0, 0.0);
            see(turn, 1, if t == 1 { 100.0 } else { 0.0 });
            if t == 1 {
                turn.terminate(&agent(1));
            }
            Ok(())
        }
    });
    let mut updates = EnvUpdates::new();
    poll(&mut envs, &mut updates).unwrap();
    step(&mut envs, &mut updates).unwrap();
    assert!(updates.entries()[0].turn.outcome(&agent(1)).terminated);
    let error = step(&mut envs, &mut updates).unwrap_err();
    assert_eq!(error.to_string(), "environment 0, agent 1: the observation comes after the agent's end");
}

#[test]
fn a_reset_brings_observations_only() {
    for bring in [|turn: &mut Turn| turn.reward(&agent(0), 1.0), |turn: &mut Turn| turn.terminate_all()] {
        let mut envs = envs(1, move || {
            move |_, _: &AgentRows, turn: &mut Turn| {
                bring(turn);
                Ok(())
            }
        });
        assert!(matches!(poll(&mut envs, &mut EnvUpdates::new()), Err(EnvError::Failed(_))));
    }
}

/// Checks that the rows of a vector of lanes equal those of separate environments with the same actions, bit for bit.
fn agrees_with_lockstep<O: Element>(spec: &EnvSpec, num_actions: u32, bits: impl Fn(O) -> u64) {
    const LANES: u32 = 3;
    const STEPS: u32 = 400;
    const SEED: u64 = 11;
    let contexts: Vec<_> = (0..LANES).map(|index| start(index).context).collect();
    let mut vector = spec.make(&contexts, Kernels::PORTABLE).unwrap();
    let lanes: Vec<_> = (0..LANES).map(|lane| LaneStart { slot: SlotId(lane), state: None }).collect();
    let mut policy = PolicyEntry::<dyn Policy>::new("", Box::new(RandomPolicy::new(num_actions, SEED)));
    let max_episode_steps = spec.max_episode_steps;
    let options = SamplerOptions { seed: SEED, max_episode_steps, ..SamplerOptions::default() };
    let mut collector = Lockstep::<O>::new(&lanes, &options, &policy, vector.as_mut()).unwrap();
    collector.begin(FragmentNo(0), WeightsVersion(0), STEPS);
    drive(&mut collector, vector.as_mut(), &mut policy, u32::MAX).unwrap();
    let fragments = collector.take(vector.as_ref()).unwrap();

    let maker = EnvMaker::single_agent(spec, Kernels::PORTABLE);
    let mut envs = InProcess::new(maker, (0..LANES).map(start).collect(), SEED).unwrap();
    assert_eq!(envs.agents(), [AgentId::SINGLE]);
    let (mut updates, mut firsts) = (EnvUpdates::new(), Vec::new());
    poll(&mut envs, &mut updates).unwrap();
    for entry in updates.entries() {
        firsts.push(O::rows(entry.turn.obs().get(&AgentId::SINGLE).unwrap()).unwrap().to_vec());
    }
    let mut seen: Vec<Vec<O>> = firsts.clone();
    let mut t = [0; LANES as usize];
    for step in 0..STEPS as usize {
        let act = |lane: usize| {
            let mut actions = AgentRows::new();
            let taken = &fragments[lane].rows.get(ACTIONS).unwrap()[step];
            actions.set(&AgentId::SINGLE, RowsRef::I64(std::slice::from_ref(taken)));
            EnvActions { env: lane, actions }
        };
        envs.send_actions(&(0..LANES as usize).map(act).collect::<Vec<_>>()).unwrap();
        poll(&mut envs, &mut updates).unwrap();
        for (lane, entry) in updates.entries().iter().enumerate() {
            t[lane] += 1;
            let outcome = entry.turn.outcome(&AgentId::SINGLE);
            let truncated = outcome.truncated || Some(t[lane]) == spec.max_episode_steps;
            let rows = &fragments[lane].rows;
            assert_eq!(outcome.terminated, rows.get(TERMINATEDS).unwrap()[step], "{}", spec.name);
            assert_eq!(truncated, rows.get(TRUNCATEDS).unwrap()[step], "{}", spec.name);
            assert_eq!((outcome.reward as f32).to_bits(), rows.get(REWARDS).unwrap()[step].to_bits());
            let mut turn = Turn::new();
            if outcome.terminated || truncated {
                t[lane] = 0;
                assert_eq!(envs.try_reset(lane, &mut turn), Ok(Reset::Done));
            } else {
                turn.observe(&AgentId::SINGLE, entry.turn.obs().get(&AgentId::SINGLE).unwrap());
            }
            seen[lane].extend_from_slice(turn.obs().row_of::<O>(&AgentId::SINGLE).unwrap());
        }
    }
    for (lane, fragment) in fragments.iter().enumerate() {
        let column = fragment.rows.column("obs").unwrap().typed::<O>().unwrap().values();
        let to_bits = |values: &[O]| values.iter().map(|value| bits(*value)).collect::<Vec<_>>();
        let width = firsts[lane].len();
        assert_eq!(to_bits(column), to_bits(&seen[lane][..STEPS as usize * width]), "{} lane {lane}", spec.name);
    }
}

#[test]
fn a_single_agent_sees_the_bits_of_the_vectorised_path() {
    let registry = EnvRegistry::builtin();
    // Random first states; a time limit; random steps, from the environment's own words and drawn one by one.
    agrees_with_lockstep::<f32>(&registry.spec("CartPole-v1").unwrap(), 2, |x| u64::from(x.to_bits()));
    agrees_with_lockstep::<f32>(&registry.spec("MountainCar-v0").unwrap(), 3, |x| u64::from(x.to_bits()));
    agrees_with_lockstep::<i64>(&registry.spec("FrozenLake-v1").unwrap(), 4, |x| x as u64);
    agrees_with_lockstep::<u8>(&registry.spec("PixelAsterix-v0").unwrap(), 5, u64::from);
}

#[test]
fn sub_environments_are_lent_out_one_by_one() {
    let registry = EnvRegistry::builtin();
    let maker = EnvMaker::single_agent(&registry.spec("CartPole-v1").unwrap(), Kernels::PORTABLE);
    let mut lanes = InProcess::new(maker, (0..2).map(start).collect(), 1).unwrap();
    let lanes = lanes.sub_environments();
    assert!(lanes.len() == 2 && lanes.iter().all(|sub| matches!(sub, SubEnv::Lane { lane: 0, .. })));
    let mut scripted = envs(2, basic);
    for sub in scripted.sub_environments() {
        let SubEnv::MultiAgent(env) = sub else { panic!("no multi-agent environment") };
        assert!(env.as_any().is::<Scripted>());
    }
}

#[test]
fn failing_maker_returns_its_error() {
    let spec = EnvSpec::fallible("Never", |_, _| Err(EnvError::Failed("never".into())));
    let make = |maker| InProcess::new(maker, vec![start(0)], 1).map(|_| ());
    assert_eq!(make(EnvMaker::single_agent(&spec, Kernels::PORTABLE)), Err(EnvError::Failed("never".into())));
    let registry = EnvRegistry::builtin();
    let cart_pole = registry.spec("CartPole-v1").unwrap().clone();
    let twins =
        EnvSpec::fallible("Twins", move |contexts, kernels| cart_pole.make(&[contexts, contexts].concat(), kernels));
    let error = make(EnvMaker::single_agent(&twins, Kernels::PORTABLE)).unwrap_err();
    assert_eq!(error.to_string(), "the environment failed: made for one lane, it has 2");
}
