//! Environments that are driven from outside: the same rows as in process, and what happens when drivers or workers go.
#![cfg(target_os = "linux")]

mod support;

use std::{sync::mpsc::channel, thread, time::Duration};

use rollmesh::{
    NativeWorker as _,
    external::{ExternalEnv, ExternalEnvError, ExternalMultiAgentEnv},
};
use rollmesh_core::{
    batch::{ACTIONS, AGENT_INDEX, AnyBatch, OBS, REWARDS, SampleBatch, T, TRUNCATEDS},
    column::{DType, RowShape},
    env::{
        EnvSpaces, ExternalError, RowsRef,
        multi_agent::{AgentRows, Outcome},
    },
    episode::{RolloutMetrics, SamplerPerf},
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    policy::{ActionInput, ActionOutput, Policy, PolicyError, RandomPolicy},
    sampler::BatchMode,
    space::Space,
    weights::Weights,
    worker::{NewPolicy, Registry, RolloutConfig, RolloutError, RolloutWorker, WorkerPlace},
};
use support::cart_pole;

const SEED: u64 = 5;

fn cart_poles(lanes: u32) -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(lanes).rollout_fragment_length(60).fcnet_hiddens(&[8]).seed(SEED)
}

/// Two workers: in the second one's environment somebody else plays.
fn pair(config: RolloutConfig) -> [RolloutWorker; 2] {
    let env = ExternalMultiAgentEnv::new(config.num_envs as usize, [(AgentId::SINGLE, cart_pole::spaces())]).unwrap();
    let registry = rollmesh::native(Registry::builtin().with_base_env("elsewhere", env.creator()));
    env.run(|env| cart_pole::play(env, SEED)).unwrap();
    let elsewhere = RolloutConfig { env: Some("elsewhere".into()), ..config.clone() };
    let here = RolloutConfig { sample_async: false, ..config };
    [here, elsewhere].map(|config| {
        // Threads come from the shell, which a registry does not bring along.
        if config.sample_async {
            let builder = RolloutWorker::builder().config(RolloutConfig { env: None, ..config }).native();
            return builder.base_env_creator(env.creator()).build().unwrap();
        }
        RolloutWorker::from_config(config, &registry, WorkerPlace::default()).unwrap()
    })
}

fn episodes(worker: &mut RolloutWorker) -> Vec<RolloutMetrics> {
    let episodes = worker.metrics().episodes.into_iter();
    episodes.map(|episode| RolloutMetrics { perf: SamplerPerf::default(), ..episode }).collect()
}

#[test]
fn who_drives_leaves_no_trace() {
    let complete = |lanes| RolloutConfig { batch_mode: BatchMode::CompleteEpisodes, ..cart_poles(lanes) };
    let filtered = RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..cart_poles(1) };
    let on_a_thread = |config| RolloutConfig { sample_async: true, ..config };
    let configs = [
        cart_poles(1),
        cart_poles(3),
        complete(1),
        filtered.clone(),
        on_a_thread(cart_poles(1)),
        on_a_thread(filtered),
    ];
    for config in configs {
        let [mut here, mut there] = pair(config.clone());
        let mut ended = Vec::new();
        for sample in 0..5 {
            assert_eq!(there.sample().unwrap(), here.sample().unwrap(), "{sample} {config:?}");
            assert_eq!(episodes(&mut there), {
                let here = episodes(&mut here);
                ended.extend(here.clone());
                here
            });
        }
        assert!(ended.len() > 2);
        there.stop().unwrap();
    }
}

#[test]
fn what_is_learned_is_the_same() {
    let [mut here, mut there] = pair(cart_poles(1).single_policy("ppo"));
    for sample in 0..4 {
        let (batch, same) = (here.sample().unwrap(), there.sample().unwrap());
        assert_eq!(batch, same, "{sample}");
        here.learn_on_batch(&batch).unwrap();
        there.learn_on_batch(&same).unwrap();
    }
    assert_eq!(here.weights(None).unwrap(), there.weights(None).unwrap());
}

fn counted() -> EnvSpaces {
    EnvSpaces {
        observation: Space::uniform(DType::F32, RowShape::vector(1), 0.0, 1e6),
        observation_type: DType::F32,
        action: Space::Discrete { n: 50 },
        action_type: DType::I64,
    }
}

/// Counts its steps, 100 for each, in episodes of 25. In every so many steps it does 42, whatever the policy wants.
fn count(env: &ExternalEnv, every: u32) -> Result<(), ExternalEnvError> {
    loop {
        let episode = env.start_episode(true)?;
        for t in 0..25_u32 {
            if t % every == 0 {
                env.log_action(episode, &[t as f32], &[42_i64])?;
            } else {
                let action: Vec<i64> = env.action(episode, &[t as f32])?;
                assert_eq!(action, [7]);
            }
            env.log_returns(episode, 40.0, None)?;
            env.log_returns(episode, 60.0, Some(b"twice"))?;
        }
        env.end_episode(episode, &[25.0_f32])?;
    }
}

/// Always does the same.
struct Stubborn(i64, Weights);

impl Stubborn {
    fn new(action: i64) -> NewPolicy {
        NewPolicy::object(Box::new(Self(action, RandomPolicy::new(50, 0).weights().clone())))
    }
}

impl Policy for Stubborn {
    fn compute_actions(&mut self, _: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let rollmesh_core::env::RowsMut::I64(actions) = out.actions else {
            return Err(PolicyError::Failed("not int64".into()));
        };
        actions.fill(self.0);
        Ok(())
    }

    fn compute_values(&mut self, _: RowsRef<'_>, _: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        values.fill(0.0);
        Ok(())
    }

    fn weights(&self) -> &Weights {
        &self.1
    }

    fn set_weights(&mut self, _: &Weights) -> Result<(), PolicyError> {
        Ok(())
    }
}

fn config(batch_mode: BatchMode) -> RolloutConfig {
    RolloutConfig::default().rollout_fragment_length(40).batch_mode(batch_mode)
}

fn worker(env: &ExternalEnv, config: RolloutConfig) -> RolloutWorker {
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::new(7));
    builder.base_env_creator(env.creator()).build().unwrap()
}

fn single(worker: &mut RolloutWorker) -> SampleBatch {
    worker.sample().unwrap().single().unwrap().clone()
}

/// RLlib 2.9.3 gives as many rows.
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

/// As in RLlib 2.9.3.
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
    // The driver hears of it as soon as somebody samples again.
    assert!(worker.sample().is_err());
    assert_eq!(heard.recv().unwrap().unwrap_err(), ExternalError::LostEpisode(0).into());
}

/// Unlike in RLlib 2.9.3, env steps are counted, also for a lone policy: both modes give 160 rows.
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
        let builder = RolloutWorker::builder().config(config(mode)).policy(PolicyId::DEFAULT, Stubborn::new(7));
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
fn an_impossible_action_is_the_samplers_trouble() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    env.run(|env| count(env, 100)).unwrap();
    let builder = RolloutWorker::builder().config(config(BatchMode::TruncateEpisodes));
    let mut worker =
        builder.policy(PolicyId::DEFAULT, Stubborn::new(50)).base_env_creator(env.creator()).build().unwrap();
    assert_eq!(worker.sample().unwrap_err().to_string(), "lane 0: action [50] is not in the action space");
}

#[test]
fn what_is_not_to_be_learned_from_is_not_in_the_batch() {
    let env = ExternalEnv::new(1, counted()).unwrap();
    env.run(|env| -> Result<(), ExternalEnvError> {
        for number in 0.. {
            let episode = env.start_episode(number % 2 == 1)?;
            for _ in 0..10 {
                env.log_action(episode, &[number as f32], &[1_i64])?;
            }
            env.truncate_episode(episode, &[number as f32])?;
        }
        Ok(())
    })
    .unwrap();
    let mut worker = worker(&env, config(BatchMode::TruncateEpisodes));
    let batch = single(&mut worker);
    assert_eq!(batch.get(OBS).unwrap(), [[1.0; 10], [3.0; 10]].as_flattened());
    assert_eq!(batch.get(TRUNCATEDS).unwrap().iter().filter(|truncated| **truncated).count(), 2);
    assert_eq!(worker.metrics().episodes.len(), 4);
}

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
            let text = format!("the environment failed: nobody drives the external environment any more: {why}");
            assert_eq!(error, text);
        }
        let episodes = worker.metrics().episodes;
        assert_eq!(episodes.iter().map(|episode| episode.faulty.is_some()).collect::<Vec<_>>(), [false, false, true]);
    }
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
    let error = worker.sample().unwrap_err().to_string();
    assert!(error.ends_with("any more: all its handles were dropped"), "{error}");
}

#[test]
fn everybody_hears_of_a_stop() {
    for by_driver in [true, false] {
        for sample_async in [false, true] {
            let env = ExternalEnv::new(1, counted()).unwrap();
            let config = RolloutConfig { sample_async, ..config(BatchMode::TruncateEpisodes) };
            let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::new(7)).native();
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
                // What was sampled ahead of it is still there.
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
    // Nobody drives: the sampling thread waits, and ends when it is told to.
    let env = ExternalEnv::new(1, counted()).unwrap();
    let config = RolloutConfig { sample_async: true, ..config(BatchMode::TruncateEpisodes) };
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::new(7)).native();
    let mut worker = builder.base_env_creator(env.creator()).build().unwrap();
    let episode = env.start_episode(true).unwrap();
    let sampling = thread::spawn({
        let env = env.clone();
        move || {
            (0..41).for_each(|_| drop(env.action::<f32, i64>(episode, &[0.0]).unwrap()));
        }
    });
    assert_eq!(single(&mut worker).len(), 40);
    sampling.join().unwrap();
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
    let builder = RolloutWorker::builder().policy(PolicyId::DEFAULT, Stubborn::new(7));
    let error = builder.base_env_creator(env.creator()).build().unwrap_err().to_string();
    assert!(error.ends_with("the external environment has a sampler already: make one for each worker"), "{error}");
}

#[test]
fn nobody_waits_for_ever() {
    let short = Duration::from_millis(1);
    let env = ExternalEnv::new(1, counted()).unwrap().with_timeouts(short, short);
    let episode = env.start_episode(true).unwrap();
    let error = env.action::<f32, i64>(episode, &[0.0]).unwrap_err();
    let text = "episode 0: the sampler has not chosen actions within 1ms; is somebody sampling?";
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
    let text = "episode 1: the sampler has not taken the turns before within 1ms; is somebody sampling?";
    assert_eq!(error.to_string(), text);
    let error = env.action::<f32, f32>(episode, &[0.0]).unwrap_err();
    assert_eq!(error, ExternalEnvError::WrongType { found: "int64", wanted: "float32" });
    let broken = EnvSpaces { action: Space::Discrete { n: 0 }, ..counted() };
    assert!(matches!(ExternalEnv::new(1, broken), Err(ExternalEnvError::Spaces(_))));
}

/// As a server would do it: a task per driver, all on one thread.
#[tokio::test]
async fn tasks_can_drive() {
    const LANES: usize = 8;
    let env = ExternalMultiAgentEnv::new(LANES, [(AgentId::SINGLE, counted())]).unwrap();
    let config = config(BatchMode::CompleteEpisodes).num_envs(LANES as u32);
    let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, Stubborn::new(7));
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
    let sampled = support::soon("a sample", async {
        let mut pause = tokio::time::interval(Duration::from_millis(1));
        while !sampling.is_finished() {
            pause.tick().await;
        }
        sampling.join().unwrap()
    });
    let (batch, episodes, worker) = sampled.await;
    assert!(batch.env_steps() >= 40 * LANES);
    assert!(episodes.iter().all(|episode| episode.episode_return == f64::from(episode.length - 1)));
    drop(worker);
    for task in tasks {
        let end = support::soon("a stop", task).await.unwrap();
        assert_eq!(end.unwrap_err(), ExternalError::Stopped.into());
    }
}
