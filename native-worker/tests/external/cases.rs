//! Samples of external episodes, compared with those of RLlib 2.9.3.

use super::*;

/// Checks the number of rows, which is that of RLlib 2.9.3.
#[test]
fn episodes_are_sampled_in_both_modes() {
    for (mode, rows) in [(BatchMode::TruncateEpisodes, 40), (BatchMode::CompleteEpisodes, 50)] {
        for (every, others) in [(1, 0), (3, 25 - 9), (100, 24)] {
            let env = ExternalEnv::new(1, counted()).unwrap();
            env.run(move |env| count(env, every)).unwrap();
            let mut worker = worker(&env, config(mode));
            for sample in 0..3 {
                let batch = single(&mut worker);
                assert_eq!(batch.len(), rows, "{mode:?}");
                assert!(batch.get(REWARDS).unwrap().iter().all(|reward| *reward == 100.0));
                let actions = batch.get(ACTIONS).unwrap();
                let (t, obs) = (batch.get(T).unwrap(), batch.get(OBS).unwrap());
                for ((action, t), obs) in actions.iter().zip(t).zip(obs) {
                    assert_eq!((*action, *obs), (if t % i64::from(every) == 0 { 42 } else { 7 }, *t as f32));
                }
                let first = if mode == BatchMode::TruncateEpisodes { sample * 40 % 25 } else { 0 };
                assert_eq!(t[0], first);
                if mode == BatchMode::CompleteEpisodes {
                    assert_eq!(actions.iter().filter(|action| **action == 7).count(), 2 * others);
                }
            }
            let episodes = worker.metrics().episodes;
            assert!(episodes.iter().all(|episode| (episode.length, episode.episode_return) == (25, 2_500.0)));
        }
    }
}

/// Checks the error, as in RLlib 2.9.3.
#[test]
fn a_horizon_is_refused_when_sampling() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let (said, heard) = channel();
    env.run(move |env| {
        said.send(count(env, 100)).unwrap();
        count(env, 100)
    })
    .unwrap();
    let config = RolloutConfig { horizon: Some(20), ..config(BatchMode::CompleteEpisodes) };
    let mut worker = worker(&env, config);
    let error = worker.sample().unwrap_err();
    assert_eq!(error.to_string(), "a horizon needs environments that can be reset; leave it out for external ones");
    // The driver gets the error as soon as a worker samples again.
    assert!(worker.sample().is_err());
    assert_eq!(heard.recv().unwrap().unwrap_err(), ExternalError::LostEpisode(0).into());
}

/// Checks that env steps are counted, also for a lone policy, unlike in RLlib 2.9.3: both modes give 160 rows.
#[test]
fn several_agents_under_one_policy_count_env_steps() {
    for mode in [BatchMode::TruncateEpisodes, BatchMode::CompleteEpisodes] {
        let agents = (0..4).map(|index| (AgentId::Index(index), counted()));
        let env = ExternalMultiAgentEnv::new(1, agents).unwrap();
        env.run(|env| -> Result<(), ExternalEnvError> {
            let mut obs = AgentRows::new();
            env.agents().iter().for_each(|agent| obs.set(agent, RowsRef::F32(&[0.0])));
            loop {
                // Episodes of one step.
                let episode = env.start_episode(true)?;
                assert_eq!(env.actions(episode, &obs)?.len(), 4);
                for agent in env.agents() {
                    env.log_returns(episode, &agent, Outcome { reward: 1.0, ..Outcome::default() }, None)?;
                }
                env.end_episode(episode, &obs, false)?;
            }
        })
        .unwrap();
        let builder = RolloutWorker::builder().config(config(mode)).policy(PolicyId::DEFAULT, Stubborn::kind(7));
        let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
        for _ in 0..3 {
            let AnyBatch::Multi(batch) = worker.sample().unwrap() else { panic!("single") };
            let rows = &batch.policy_batches[&PolicyId::DEFAULT];
            assert_eq!((batch.env_steps(), rows.len()), (40, 160), "{mode:?}");
            let mut indices = rows.get(AGENT_INDEX).unwrap().to_vec();
            indices.sort_unstable();
            indices.dedup();
            assert_eq!(indices, [0, 1, 2, 3]);
        }
    }
}

#[test]
fn impossible_action_is_an_error_of_the_sampler() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    env.run(|env| count(env, 100)).unwrap();
    let builder = RolloutWorker::builder().config(config(BatchMode::TruncateEpisodes));
    let mut worker =
        builder.policy(PolicyId::DEFAULT, Stubborn::kind(50)).base_env_creator(env.creator()).build().unwrap();
    let error = worker.sample().unwrap_err().to_string();
    assert_eq!(error, "slot 0, episode 0, step 1: lane 0: action [50] is not in the action space");
}

/// Checks the numbers of steps and rows, which are those of RLlib 2.9.3.
#[test]
fn episodes_without_training_are_not_in_the_batch() {
    for (mode, steps, rows) in [(BatchMode::TruncateEpisodes, 15, 15), (BatchMode::CompleteEpisodes, 50, 25)] {
        let env = ExternalEnv::new(1, counted()).unwrap();
        env.run(|env| -> Result<(), ExternalEnvError> {
            for number in 0.. {
                let episode = env.start_episode(number % 2 == 1)?;
                for _ in 0..25 {
                    env.log_action(episode, &[number as f32], &[1_i64])?;
                }
                env.end_episode(episode, &[number as f32])?;
            }
            Ok(())
        })
        .unwrap();
        let mut worker = worker(&env, config(mode));
        for _ in 0..2 {
            let batch = worker.sample().unwrap();
            assert_eq!((batch.env_steps(), batch.agent_steps()), (steps, rows), "{mode:?}");
            let obs = batch.single().unwrap().get(OBS).unwrap();
            assert!(obs.iter().all(|number| number % 2.0 == 1.0), "{mode:?}: {obs:?}");
        }
    }
}

/// Checks rewards of agents without observations, which RLlib 2.9.3 loses.
#[test]
fn rewards_of_silent_agents_wait_for_their_next_observation() {
    let agents = (0..2).map(|index| (AgentId::Index(index), counted()));
    let env = ExternalMultiAgentEnv::new(1, agents).unwrap();
    env.run(|env| -> Result<(), ExternalEnvError> {
        loop {
            let episode = env.start_episode(true)?;
            let mut obs = AgentRows::new();
            for t in 0..=6_u32 {
                obs.clear();
                obs.set(&AgentId::Index(0), RowsRef::F32(&[t as f32]));
                if t % 2 == 0 {
                    obs.set(&AgentId::Index(1), RowsRef::F32(&[10.0 + t as f32]));
                }
                if t == 6 {
                    break;
                }
                env.actions(episode, &obs)?;
                for (index, reward) in [(0, 1.0), (1, 0.25 * f64::from(t + 1))] {
                    let outcome = Outcome { reward, ..Outcome::default() };
                    env.log_returns(episode, &AgentId::Index(index), outcome, None)?;
                }
            }
            env.end_episode(episode, &obs, false)?;
        }
    })
    .unwrap();
    let config =
        RolloutConfig { rollout_fragment_length: FragmentLength::Steps(6), ..config(BatchMode::CompleteEpisodes) };
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::kind(7));
    let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
    let AnyBatch::Multi(batch) = worker.sample().unwrap() else { panic!("single") };
    let rows = &batch.policy_batches[&PolicyId::DEFAULT];
    assert_eq!(rows.get(OBS).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 12.0, 14.0]);
    assert_eq!(rows.get(REWARDS).unwrap(), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 1.75, 2.75]);
    assert_eq!(rows.get(T).unwrap(), [0, 1, 2, 3, 4, 5, 1, 3, 5]);
    let ends: Vec<bool> = rows.get(TERMINATEDS).unwrap().to_vec();
    assert_eq!(ends, [false, false, false, false, false, true, false, false, true]);
}

#[test]
fn a_restored_worker_begins_new_episodes() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let mut worker = worker(&env, config(BatchMode::TruncateEpisodes));
    let (said, heard) = channel();
    env.run(move |env| -> Result<(), ExternalEnvError> {
        loop {
            // A driver that loses an episode begins another one.
            match count(env, 100) {
                Err(ExternalEnvError::Episode(ExternalError::LostEpisode(id))) => said.send(id).unwrap(),
                end => return end,
            }
        }
    })
    .unwrap();
    single(&mut worker);
    let state = worker.save().unwrap();
    worker.restore(&state).unwrap();
    let batch = single(&mut worker);
    assert_eq!((batch.get(T).unwrap()[0], batch.get(EPS_ID).unwrap()[0]), (0, 2));
    assert_eq!(heard.recv(), Ok(1));
}
