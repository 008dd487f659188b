//! Several agents that appear, leave and stay silent.

use super::*;
use crate::batch::{AGENT_INDEX, MultiAgentBatch};

fn several(num_envs: u32, fragment_length: u32) -> SamplerOptions {
    SamplerOptions { single_agent: false, ..options(num_envs, fragment_length) }
}

fn multi(bench: &mut Bench, sampler: &mut Episodic) -> MultiAgentBatch {
    bench.data(sampler).unwrap().as_multi_agent()
}

fn batch_of<'a>(batch: &'a MultiAgentBatch, policy: &'static str) -> &'a SampleBatch {
    batch.policy_batch(&PolicyId::new(policy)).unwrap()
}

#[test]
fn rows_go_to_their_agents_policies() {
    let mut bench = Bench::pair();
    for num_envs in [1, 4] {
        let mut sampler = sampler(several(num_envs, 50), scripted(num_envs, crowd(5)));
        for _ in 0..num_envs {
            let batch = multi(&mut bench, &mut sampler);
            assert_eq!((batch.env_steps(), batch.agent_steps()), (50, 250));
            let (p0, p1) = (batch_of(&batch, "p0"), batch_of(&batch, "p1"));
            assert_eq!((p0.len(), p1.len()), (150, 100));
            // Ordered by agent, then episode.
            let ts: Vec<i64> = (0..6).flat_map(|_| 0..25).collect();
            assert_eq!(p0.get(T).unwrap(), ts);
            let agents = |of: &[i64]| -> Vec<i64> {
                let pieces = [of, of].concat();
                pieces.iter().flat_map(|&agent| [agent; 25]).collect()
            };
            assert_eq!(p0.get(AGENT_INDEX).unwrap(), agents(&[0, 2, 4]));
            assert_eq!(p1.get(AGENT_INDEX).unwrap(), agents(&[1, 3]));
        }
        assert_eq!(lengths(&mut sampler), vec![(25, 125.0); 2 * num_envs as usize]);
    }
}

#[test]
fn pieces_have_ids_of_their_own() {
    let mut bench = Bench::pair();
    let mut sampler = sampler(several(2, 10), scripted(2, crowd(3)));
    let mut seen: BTreeSet<i64> = BTreeSet::new();
    let mut pieces = 0;
    for _ in 0..10 {
        for batch in multi(&mut bench, &mut sampler).policy_batches.values() {
            let ids = batch.get(UNROLL_ID).unwrap();
            let of = |row: usize| (batch.get(EPS_ID).unwrap()[row], batch.get(AGENT_INDEX).unwrap()[row]);
            pieces += 1 + (1..ids.len()).filter(|&row| of(row) != of(row - 1)).count();
            seen.extend(ids);
        }
    }
    assert_eq!(seen.len(), pieces);
}

#[test]
fn agent_steps_are_counted_after_whole_env_steps() {
    let mut bench = Bench::pair();
    let options = SamplerOptions { count_steps_by: CountStepsBy::AgentSteps, ..several(1, 30) };
    let mut sampler = sampler(options, scripted(1, crowd(4)));
    for _ in 0..3 {
        let batch = multi(&mut bench, &mut sampler);
        assert_eq!((batch.env_steps(), batch.agent_steps()), (8, 32));
    }
}

/// Under a single policy several agents have more rows than there are env steps.
#[test]
fn rows_of_several_agents_are_no_env_steps() {
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(several(1, 10), scripted(1, crowd(3)));
    let batch = bench.data(&mut sampler).unwrap();
    assert!(matches!(batch, AnyBatch::Multi(_)));
    assert_eq!((batch.env_steps(), batch.agent_steps()), (10, 30));
}

/// Agents 0 and 1 alternate: each gets the reward of its action when it acts again.
#[test]
fn agents_that_take_turns_have_their_own_rows() {
    let envs = scripted(1, || {
        |t: u32, actions: &AgentRows, turn: &mut Turn| {
            let index = t % 2;
            assert!(t == 0 || actions.len() == 1 && actions.get(&agent(1 - index)).is_some());
            see(turn, index, i64::from(t));
            if t > 1 {
                turn.reward(&agent(index), f64::from(t));
            }
            if t == 6 {
                turn.terminate_all();
            }
            Ok(())
        }
    });
    let mut bench = Bench::pair();
    let mut sampler = sampler(SamplerOptions { batch_mode: BatchMode::CompleteEpisodes, ..several(1, 1) }, envs);
    let batch = multi(&mut bench, &mut sampler);
    let (p0, p1) = (batch_of(&batch, "p0"), batch_of(&batch, "p1"));
    assert_eq!((ints(p0, "obs"), ints(p0, "new_obs")), (vec![0, 2, 4], vec![2, 4, 6]));
    assert_eq!((p0.get(T).unwrap(), p0.get(REWARDS).unwrap()), (&[1, 3, 5][..], &[2.0, 4.0, 6.0][..]));
    // The last action of agent 1 was never answered: it ends with zeros.
    assert_eq!((ints(p1, "obs"), ints(p1, "new_obs")), (vec![1, 3, 5], vec![3, 5, 0]));
    assert_eq!((p1.get(T).unwrap(), p1.get(REWARDS).unwrap()), (&[2, 4, 5][..], &[3.0, 5.0, 0.0][..]));
    assert_eq!(p1.get(TERMINATEDS).unwrap(), [false, false, true]);
    assert_eq!(
        sampler.metrics()[0].agent_rewards.iter().map(|(_, _, reward)| *reward).collect::<Vec<_>>(),
        [12.0, 8.0]
    );
}

/// Agent 0 leaves at step 2, without a last observation; agent 7 appears at step 1; agent 3 appears and leaves in one step.
#[test]
fn agents_join_and_leave() {
    let envs = scripted(1, || {
        |t: u32, _: &AgentRows, turn: &mut Turn| {
            see(turn, 9, i64::from(t));
            if t < 2 {
                see(turn, 0, i64::from(t));
            } else if t == 2 {
                turn.reward(&agent(0), 5.0);
                turn.truncate(&agent(0));
            }
            if (1..4).contains(&t) {
                see(turn, 7, 10 * i64::from(t));
                if t == 3 {
                    turn.terminate(&agent(7));
                }
            }
            if t == 2 {
                see(turn, 3, 1);
                turn.terminate(&agent(3));
            }
            if t == 4 {
                turn.truncate_all();
            }
            Ok(())
        }
    });
    let mut bench = Bench::new(Player::new());
    let mut sampler = sampler(SamplerOptions { batch_mode: BatchMode::CompleteEpisodes, ..several(1, 1) }, envs);
    let batch = multi(&mut bench, &mut sampler);
    let batch = batch_of(&batch, "default_policy");
    // Agents 0 and 9 appear first, then 7; 3 had no step.
    assert_eq!(batch.get(AGENT_INDEX).unwrap(), [0, 0, 2, 2, 1, 1, 1, 1]);
    assert_eq!(ints(batch, "obs"), [0, 1, 10, 20, 0, 1, 2, 3]);
    assert_eq!(ints(batch, "new_obs"), [1, 0, 20, 30, 1, 2, 3, 4]);
    assert_eq!(batch.get(T).unwrap(), [0, 3, 1, 2, 0, 1, 2, 3]);
    assert_eq!(batch.get(REWARDS).unwrap()[1], 5.0);
    let truncated = [false, true, false, false, false, false, false, true];
    assert_eq!(batch.get(TRUNCATEDS).unwrap(), truncated);
    assert_eq!(batch.get(TERMINATEDS).unwrap(), [false, false, false, true, false, false, false, false]);
    let agents: Vec<AgentId> = sampler.metrics()[0].agent_rewards.iter().map(|(agent, _, _)| agent.clone()).collect();
    assert_eq!(agents, [agent(0), agent(9), agent(7)]);
}

#[test]
fn the_mapping_is_asked_once_per_agent_and_episode() {
    use std::sync::{Arc as StdArc, Mutex};
    let asked = StdArc::new(Mutex::new(Vec::new()));
    let mut bench = Bench::pair();
    let notes = asked.clone();
    bench.mapping = Arc::new(move |agent, episode, _, rng| {
        let draw = rng.next_u32();
        notes.lock().unwrap().push((agent.clone(), episode.number(), draw));
        PolicyId::new(if draw % 2 == 0 { "p0" } else { "p1" })
    });
    let options = SamplerOptions { seed: 9, ..several(1, 10) };
    let mut first = sampler(options.clone(), scripted(1, crowd(3)));
    let batches: Vec<_> = (0..5).map(|_| multi(&mut bench, &mut first)).collect();
    let seen = core::mem::take(&mut *asked.lock().unwrap());
    let who: Vec<_> = seen.iter().map(|(agent, episode, _)| (agent.clone(), *episode)).collect();
    assert_eq!(who, (0..3).flat_map(|episode| [0, 1, 2].map(|index| (agent(index), episode))).collect::<Vec<_>>());
    // The random numbers depend on agent and episode, so another run maps in the same way.
    let mut second = sampler(options, scripted(1, crowd(3)));
    let again: Vec<_> = (0..5).map(|_| multi(&mut bench, &mut second)).collect();
    assert_eq!((batches, seen), (again, asked.lock().unwrap().clone()));
}

#[test]
fn unknown_policy_is_named() {
    let mut bench = Bench::pair();
    bench.mapping = Arc::new(|_, _, _, _| PolicyId::new("rival"));
    let mut sampler = sampler(several(1, 5), scripted(1, crowd(2)));
    let error = bench.data(&mut sampler).unwrap_err();
    let text = "the policy mapping function gave agent '0' policy 'rival', but there are only: p0, p1";
    assert_eq!(error.to_string(), text);
    // Once the mapping is repaired, sampling continues.
    bench.mapping = Arc::new(|_, _, _, _| PolicyId::new("p1"));
    assert_eq!(multi(&mut bench, &mut sampler).agent_steps(), 10);
}

#[test]
fn agents_of_a_removed_policy_get_another_one() {
    let mut bench = Bench::pair();
    let mut sampler = sampler(several(1, 10), scripted(1, crowd(2)));
    assert_eq!(multi(&mut bench, &mut sampler).policy_batches.len(), 2);
    bench.policies.remove(&PolicyId::new("p1")).unwrap();
    bench.mapping = Arc::new(|_, _, _, _| PolicyId::new("p0"));
    // In the middle of an episode, without losing a row.
    for _ in 0..3 {
        let batch = multi(&mut bench, &mut sampler);
        assert_eq!((batch_of(&batch, "p0").len(), batch.policy_batches.len()), (20, 1));
    }
}

#[test]
fn rows_of_agents_without_training_are_dropped() {
    // Training on agent 1 is disabled in the first episode.
    let envs = scripted(1, || {
        let mut episodes = 0;
        let mut script = crowd(2)();
        move |t: u32, actions: &AgentRows, turn: &mut Turn| {
            episodes += u32::from(t == 0);
            if episodes == 1 {
                turn.info(&agent(1), *b"{\"training_enabled\": false}");
            }
            script(t, actions, turn)
        }
    });
    let mut bench = Bench::pair();
    let mut sampler = sampler(several(1, 50), envs);
    let batch = multi(&mut bench, &mut sampler);
    assert_eq!((batch_of(&batch, "p0").len(), batch_of(&batch, "p1").len(), batch.env_steps()), (50, 25, 50));
    // If no rows are left, the env steps still count.
    let silent = scripted(1, || {
        let mut script = counter(4)();
        move |t: u32, actions: &AgentRows, turn: &mut Turn| {
            turn.info(&AgentId::SINGLE, *b"{\"training_enabled\":false}");
            script(t, actions, turn)
        }
    });
    let mut sampler = super::sampler(complete(1), silent);
    let batch = Bench::new(Player::new()).data(&mut sampler).unwrap();
    assert_eq!((batch.env_steps(), batch.agent_steps()), (4, 0));
}
