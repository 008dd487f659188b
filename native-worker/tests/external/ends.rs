//! Waiting drivers and samplers, and the consequences when one of them ends.

use super::*;

#[test]
fn sampling_ends_with_the_thread_that_drives() {
    type Drive = fn(&ExternalEnv) -> Result<(), String>;
    let drives: [(Drive, &str); 3] = [
        (|_| Ok(()), "the serving thread has stopped"),
        (|_| Err("no more money".into()), "the serving thread has stopped: no more money"),
        (|_| panic!("no more money"), "the serving thread panicked: no more money"),
    ];
    for (end, why) in drives {
        let env = ExternalEnv::new(2, counted()).unwrap();
        env.run(move |env| {
            let drive = || -> Result<(), ExternalEnvError> {
                for _ in 0..2 {
                    let episode = env.start_episode(true)?;
                    for t in 0..20 {
                        env.log_action(episode, &[t as f32], &[1_i64])?;
                    }
                    env.end_episode(episode, &[0.0_f32])?;
                }
                // In the middle of an episode.
                let episode = env.start_episode(true)?;
                env.log_action(episode, &[1.0_f32], &[1_i64])
            };
            drive().unwrap();
            end(env)
        })
        .unwrap();
        let mut worker = worker(&env, config(BatchMode::TruncateEpisodes));
        assert_eq!(single(&mut worker).len(), 40, "what was said is sampled");
        for _ in 0..2 {
            let error = worker.sample().unwrap_err().to_string();
            let text = format!("no client drives the external environment: {why}");
            assert_eq!(error, text);
        }
        let episodes = worker.metrics().episodes;
        assert_eq!(episodes.iter().map(|episode| episode.faulty.is_some()).collect::<Vec<_>>(), [false, false, true]);
    }
}

#[test]
fn another_thread_continues_episodes_of_an_ended_one() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let mut worker = worker(&env, config(BatchMode::TruncateEpisodes));
    env.run(|_| Err("out of memory")).unwrap();
    worker.sample().unwrap_err();
    env.run(|env| {
        loop {
            // The sampler starts again after an error: a driver that loses an episode by that begins another one.
            match count(env, 100) {
                Err(ExternalEnvError::Episode(ExternalError::LostEpisode(_))) => {}
                end => return end,
            }
        }
    })
    .unwrap();
    (0..3).for_each(|_| assert_eq!(single(&mut worker).len(), 40));
}

#[test]
fn steps_of_abandoned_episodes_are_counted() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    env.run(|env| {
        let episode = env.start_episode(true)?;
        for t in 0..=5_u8 {
            env.log_action(episode, &[f32::from(t)], &[1_i64])?;
        }
        env.abandon(episode)?;
        count(env, 100)
    })
    .unwrap();
    let mut worker = worker(&env, config(BatchMode::CompleteEpisodes));
    assert_eq!(single(&mut worker).len(), 50);
    let metrics = worker.metrics();
    assert_eq!((metrics.discarded_env_steps, metrics.discarded_agent_steps), (5, 5));
    assert_eq!(metrics.summary().faulty_episodes, 1);
}

#[test]
fn the_last_handle_counts_as_the_driver() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let mut worker = worker(&env, config(BatchMode::TruncateEpisodes));
    let other = env.clone();
    let driver = thread::spawn(move || {
        let episode = other.start_episode(true).unwrap();
        (0..41).for_each(|_| other.log_action(episode, &[0.0_f32], &[1_i64]).unwrap());
    });
    drop(env);
    driver.join().unwrap();
    assert_eq!(single(&mut worker).len(), 40);
    let mut retries = Retries::new(|work| {
        work();
        Ok(())
    });
    let sampled = retries.sample(
        &mut worker,
        |worker| worker.sample().map(Some),
        |failure| panic!("no retry brings the driver back: {failure}"),
    );
    let error = sampled.unwrap_err().to_string();
    assert_eq!(error, "no client drives the external environment: all its handles were dropped");
}

#[test]
fn every_client_is_notified_of_a_stop() {
    for by_driver in [true, false] {
        for sample_async in [false, true] {
            let env = ExternalEnv::new(1, counted()).unwrap();
            let config = RolloutConfig { sample_async, ..config(BatchMode::TruncateEpisodes) };
            let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::kind(7)).native();
            let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
            let (said, heard) = channel();
            env.run(move |env| {
                let end = count(env, 100);
                said.send(end.clone()).unwrap();
                end
            })
            .unwrap();
            assert_eq!(single(&mut worker).len(), 40);
            if by_driver {
                env.stop();
                // Batches that were sampled ahead of it are still returned.
                let error = loop {
                    if let Err(error) = worker.sample() {
                        break error;
                    }
                };
                assert_eq!(error.to_string(), "the environments were stopped: make new ones");
            } else {
                worker.stop().unwrap();
                assert_eq!(worker.sample().unwrap_err(), RolloutError::Stopped);
            }
            assert_eq!(heard.recv().unwrap().unwrap_err(), ExternalError::Stopped.into());
            assert_eq!(env.start_episode(true).unwrap_err(), ExternalError::Stopped.into());
        }
    }
}

#[test]
fn a_worker_that_waits_for_drivers_can_be_stopped() {
    // No client drives: the sampling thread waits, and ends when it is stopped.
    let env = ExternalEnv::new(1, counted()).unwrap();
    let config = RolloutConfig { sample_async: true, ..config(BatchMode::TruncateEpisodes) };
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::kind(7)).native();
    let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
    let episode = env.start_episode(true).unwrap();
    let driver = thread::spawn({
        let env = env.clone();
        move || {
            (0..41).for_each(|_| drop(env.action::<f32, i64>(episode, &[0.0]).unwrap()));
        }
    });
    assert_eq!(single(&mut worker).len(), 40);
    driver.join().unwrap();
    worker.stop().unwrap();
    // Without a thread, by dropping the worker.
    let env = ExternalEnv::new(1, counted()).unwrap();
    drop(self::worker(&env, self::config(BatchMode::TruncateEpisodes)));
    let mut worker = self::worker(&env, self::config(BatchMode::TruncateEpisodes));
    env.run(|env| count(env, 100)).unwrap();
    worker.sample().unwrap();
    drop(worker);
    assert_eq!(env.start_episode(true).unwrap_err(), ExternalError::Stopped.into());
}

#[test]
fn an_environment_has_one_sampler() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let _worker = worker(&env, config(BatchMode::TruncateEpisodes));
    let builder = RolloutWorker::builder().policy(PolicyId::DEFAULT, Stubborn::kind(7));
    let error = builder.base_env_creator(env.creator()).build().unwrap_err().to_string();
    assert!(error.ends_with("the external environment has a sampler already: make one for each worker"), "{error}");
}

#[test]
fn waiting_ends_at_the_timeout() {
    let short = Duration::from_millis(1);
    let env = ExternalEnv::new(1, counted()).unwrap().with_timeouts(short, short);
    let episode = env.start_episode(true).unwrap();
    let error = env.action::<f32, i64>(episode, &[0.0]).unwrap_err();
    let text = "episode 0: the sampler has not chosen actions within 1ms; is a worker sampling?";
    assert_eq!(error.to_string(), text);
    let again = env.action::<f32, i64>(episode, &[0.0]).unwrap_err();
    assert_eq!(again, ExternalError::AwaitsActions(0).into());
    env.abandon(episode).unwrap();
    let episode = env.start_episode(true).unwrap();
    let error = loop {
        if let Err(error) = env.log_action(episode, &[0.0_f32], &[1_i64]) {
            break error;
        }
    };
    let text = "episode 1: the sampler has not taken the turns before within 1ms; is a worker sampling?";
    assert_eq!(error.to_string(), text);
    let error = env.action::<f32, f32>(episode, &[0.0]).unwrap_err();
    assert_eq!(error, ExternalEnvError::WrongType { found: "int64", wanted: "float32" });
    let broken = EnvSpaces { action: Space::Discrete { n: 0 }, ..counted() };
    assert!(matches!(ExternalEnv::new(1, broken), Err(ExternalEnvError::Spaces(_))));
}

#[test]
fn waiting_call_is_notified_when_another_abandons_the_episode() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    let episode = env.start_episode(true).unwrap();
    let driver = thread::spawn({
        let env = env.clone();
        move || env.action::<f32, i64>(episode, &[0.0])
    });
    env.abandon(episode).unwrap();
    assert_eq!(driver.join().unwrap().unwrap_err(), ExternalError::FinishedEpisode(0).into());
}

/// Waits for a future, for longer than anything takes that does not hang.
async fn soon<T>(happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), happens).await.expect("it hangs")
}

/// Drives episodes as a server would: a task per driver, all on one thread.
#[tokio::test]
async fn tasks_can_drive() {
    const LANES: usize = 8;
    let env = ExternalMultiAgentEnv::new(LANES, [(AgentId::SINGLE, counted())]).unwrap();
    let config = config(BatchMode::CompleteEpisodes).num_envs(LANES as u32);
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::kind(7));
    let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
    let sampling = thread::spawn(move || (worker.sample().unwrap(), episodes(&mut worker), worker));
    let drive = |number: u64| {
        let env = env.clone();
        async move {
            for episode in (number..).step_by(LANES) {
                env.start_episode_as(episode, true)?;
                let row = |t: u32| AgentRows::single(RowsRef::F32(&[t as f32]));
                for t in 0..20 + number as u32 {
                    let actions = env.actions_async(episode, &row(t)).await?;
                    assert_eq!(actions.row_of::<i64>(&AgentId::SINGLE), Some(&[7][..]));
                    let outcome = Outcome { reward: 1.0, ..Outcome::default() };
                    env.log_returns(episode, &AgentId::SINGLE, outcome, None)?;
                }
                env.log_actions_async(episode, &row(0), &AgentRows::single(RowsRef::I64(&[3]))).await?;
                env.end_episode_async(episode, &row(0), true).await?;
            }
            Ok::<_, ExternalEnvError>(())
        }
    };
    let tasks: Vec<_> = (0..LANES as u64).map(|number| tokio::spawn(drive(number))).collect();
    let sampled = tokio::task::spawn_blocking(move || sampling.join().unwrap());
    let (batch, episodes, worker) = soon(sampled).await.unwrap();
    assert!(batch.env_steps() >= 40 * LANES);
    assert!(episodes.iter().all(|episode| episode.episode_return == f64::from(episode.length - 1)));
    drop(worker);
    for task in tasks {
        let end = soon(task).await.unwrap();
        assert_eq!(end.unwrap_err(), ExternalError::Stopped.into());
    }
}
