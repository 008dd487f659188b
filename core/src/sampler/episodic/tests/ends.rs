//! Ends of episodes: by the environment, by a time limit, at a horizon.

use super::*;

fn valued() -> Bench {
    let config = crate::postprocess::AdvantageConfig { gamma: 0.5, lambda: 1.0, use_gae: false, use_critic: false };
    Bench::new(Player { postprocessing: Postprocessing::Advantages(config), ..Player::new() })
}

/// Returns the value after the last row, computed from that row.
fn follows(batch: &SampleBatch) -> f32 {
    (batch.get(ADVANTAGES).unwrap().last().unwrap() - batch.get(REWARDS).unwrap().last().unwrap()) / 0.5
}

fn with_horizon(horizon: u32, means: Horizon) -> SamplerOptions {
    SamplerOptions { horizon: Some(horizon), horizon_means: means, ..complete(1) }
}

#[test]
fn a_time_limit_truncates_and_is_bootstrapped() {
    for options in [
        SamplerOptions { max_episode_steps: Some(4), ..complete(1) },
        with_horizon(4, Horizon::Truncated),
        SamplerOptions { max_episode_steps: Some(4), ..with_horizon(5, Horizon::LegacyHard) },
    ] {
        let (mut bench, mut sampler) = (valued(), sampler(options, scripted(1, counter(10))));
        for episode in 0..3 {
            let batch = bench.single(&mut sampler);
            assert_eq!(ints(&batch, "obs"), [0, 1, 2, 3]);
            assert_eq!(batch.get(TERMINATEDS).unwrap(), [false; 4]);
            assert_eq!(batch.get(TRUNCATEDS).unwrap(), [false, false, false, true]);
            assert_eq!(batch.get(EPS_ID).unwrap(), [episode; 4]);
            assert_eq!(follows(&batch), 7.0);
        }
        assert_eq!(lengths(&mut sampler), [(4, 400.0); 3]);
    }
}

/// Returns a script in which agent 1 acts first and gets no further observation; its reward is 1 in every step, while
/// agent 0 acts in all.
fn silent_partner() -> Script {
    Box::new(|t, _, turn| {
        see(turn, 0, i64::from(t));
        if t == 0 {
            see(turn, 1, 0);
        } else {
            turn.reward(&agent(1), 1.0);
            turn.info(&agent(1), *b"owed");
        }
        Ok(())
    })
}

#[test]
fn time_limit_pays_pending_rewards_of_silent_agents() {
    for means in [Horizon::Truncated, Horizon::LegacyHard] {
        let record = RecordColumns { infos: true, ..RecordColumns::default() };
        let options = SamplerOptions { single_agent: false, record, ..with_horizon(4, means) };
        let (mut bench, mut sampler) = (Bench::pair(), sampler(options, scripted(1, || silent_partner())));
        for _ in 0..2 {
            let AnyBatch::Multi(batch) = bench.data(&mut sampler).unwrap() else { panic!("several agents") };
            let silent = &batch.policy_batches[&PolicyId::new("p1")];
            assert_eq!(silent.get(REWARDS).unwrap(), [4.0]);
            assert_eq!(silent.get(T).unwrap(), [3]);
            assert_eq!(silent.dones().unwrap(), [true]);
        }
        assert_eq!(lengths(&mut sampler), [(4, 4.0); 2]);
    }
}

#[test]
fn a_soft_horizon_leaves_debts_to_the_environment() {
    let options = SamplerOptions { single_agent: false, ..with_horizon(2, Horizon::LegacySoft) };
    let envs = scripted(1, || {
        let mut script = silent_partner();
        move |t: u32, actions: &AgentRows, turn: &mut Turn| {
            if t == 3 {
                see(turn, 1, 3);
            }
            script(t, actions, turn)
        }
    });
    let (mut bench, mut sampler) = (Bench::pair(), sampler(options, envs));
    let AnyBatch::Multi(first) = bench.data(&mut sampler).unwrap() else { panic!("several agents") };
    assert!(!first.policy_batches.contains_key(&PolicyId::new("p1")));
    let AnyBatch::Multi(second) = bench.data(&mut sampler).unwrap() else { panic!("several agents") };
    assert_eq!(second.policy_batches[&PolicyId::new("p1")].get(REWARDS).unwrap(), [3.0]);
}

#[test]
fn terminated_and_truncated_is_terminated() {
    let batch = valued().single(&mut sampler(complete(1), scripted(1, counter(3))));
    assert_eq!(
        (batch.get(TERMINATEDS).unwrap()[2], batch.get(TRUNCATEDS).unwrap()[2], follows(&batch)),
        (true, true, 0.0)
    );
}

#[test]
fn a_cut_is_bootstrapped() {
    let batch = valued().single(&mut sampler(options(1, 2), scripted(1, counter(3))));
    assert_eq!((batch.len(), follows(&batch)), (2, 7.0));
}

#[test]
fn a_hard_horizon_is_an_end() {
    let (mut bench, mut sampler) = (valued(), sampler(with_horizon(4, Horizon::LegacyHard), scripted(1, counter(10))));
    for episode in 0..3 {
        let batch = bench.single(&mut sampler);
        assert_eq!((ints(&batch, "obs"), follows(&batch)), (vec![0, 1, 2, 3], 0.0));
        assert_eq!(batch.get(TERMINATEDS).unwrap(), [false, false, false, true]);
        assert_eq!(batch.get(EPS_ID).unwrap(), [episode; 4]);
    }
}

#[test]
fn soft_horizon_ends_the_episode_in_the_metrics_only() {
    let (mut bench, mut sampler) = (valued(), sampler(with_horizon(4, Horizon::LegacySoft), scripted(1, counter(10))));
    let batches: Vec<SampleBatch> = (0..4).map(|_| bench.single(&mut sampler)).collect();
    let obs: Vec<Vec<i64>> = batches.iter().map(|batch| ints(batch, "obs")).collect();
    assert_eq!(obs, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9], vec![0, 1, 2, 3]]);
    let joined = SampleBatch::concat(&batches[..3]).unwrap();
    assert_eq!(joined.get(EPS_ID).unwrap(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
    assert_eq!(joined.get(T).unwrap(), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
    assert_eq!(joined.get(TERMINATEDS).unwrap().iter().filter(|done| **done).count(), 1);
    assert_eq!(batches.iter().map(follows).collect::<Vec<_>>(), [7.0, 7.0, 0.0, 7.0]);
    assert_eq!(lengths(&mut sampler), [(4, 400.0), (4, 400.0), (2, 200.0), (4, 400.0)]);
}

#[test]
fn no_done_at_end_clears_both_flags_of_every_end() {
    for means in [Horizon::Truncated, Horizon::LegacyHard, Horizon::LegacySoft] {
        let options = SamplerOptions { no_done_at_end: true, ..with_horizon(4, means) };
        let (mut bench, mut sampler) = (valued(), sampler(options, scripted(1, counter(6))));
        for _ in 0..4 {
            let batch = bench.single(&mut sampler);
            assert!(batch.dones().unwrap().iter().all(|done| !done));
            assert_eq!(follows(&batch), 7.0);
        }
        let soft = [(4, 400.0), (2, 200.0), (4, 400.0), (2, 200.0)];
        assert_eq!(lengths(&mut sampler), if means == Horizon::LegacySoft { soft } else { [(4, 400.0); 4] });
    }
}

#[test]
fn an_episode_without_actions_is_refused() {
    let envs = scripted(1, || {
        |t: u32, _: &AgentRows, turn: &mut Turn| {
            if t == 3 {
                turn.terminate_all();
            }
            Ok(())
        }
    });
    let mut sampler = sampler(options(1, 10), envs);
    let mut bench = Bench::new(Player::new());
    for episode in 0..2 {
        let error = bench.data(&mut sampler).unwrap_err();
        assert_eq!(error, SampleError::NoAgentSteps(episode));
    }
}
