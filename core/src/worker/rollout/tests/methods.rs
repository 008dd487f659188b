use super::super::test_support::*;
use crate::{
    config::Config,
    env::{SubEnv, Vectorized},
    episode::GlobalVars,
    prelude::*,
    time::Micros,
    worker::{
        HostFacts, Registry, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder, Samples, WorkerPlace,
    },
};

fn worker() -> RolloutWorker {
    let config = RolloutConfig { num_envs: 2, ..RolloutConfig::default() };
    counting(4, config.rollout_fragment_length(5)).build().unwrap()
}

#[test]
fn workers_can_move_to_other_threads() {
    fn movable<T: Send>() {}
    movable::<RolloutWorker>();
    movable::<RolloutWorkerBuilder>();
}

/// RLlib 2.9.3 returns the same for workers 0 to 2.
#[test]
fn workers_know_their_place() {
    let at = |index| {
        let config = RolloutConfig { num_envs: 2, create_env_on_local_worker: true, ..RolloutConfig::default() };
        counting(4, config.rollout_fragment_length(5)).place(WorkerPlace::remote(index, 2)).build().unwrap()
    };
    for index in 0..3 {
        let mut worker = at(index);
        assert_eq!((worker.steps_per_sample(), worker.rollout_fragment_length(), worker.num_envs()), (10, 5, 2));
        let fragment = worker.apply_fn(|worker| (worker.place().worker_index, worker.steps_per_sample()));
        assert_eq!(fragment, (index, 10));
        assert_eq!(worker.foreach_env(|_| 1), [1, 1]);
        let homes = worker.foreach_env_with_context(|_, context| (context.home, context.num_workers));
        assert_eq!(homes.len(), 2);
        for (vector_index, (home, num_workers)) in homes.into_iter().enumerate() {
            assert_eq!((home.worker_index, home.vector_index as usize, num_workers), (index, vector_index, 2));
        }
    }
    assert_eq!(at(1).creation_args().num_envs, 2);
}

#[test]
fn environments_can_be_reached_in_both_samplers() {
    use crate::worker::SamplerChoice::{Episodic, Lockstep};
    // No policy has acted on the last observations yet when a batch is returned.
    for sampler in [Lockstep, Episodic] {
        let config = RolloutConfig { num_envs: 3, ..RolloutConfig::default() }.rollout_fragment_length(5);
        let mut worker = counting(4, config).sampler(sampler).build().unwrap();
        worker.sample().unwrap();
        let ts = worker.foreach_env(|env| match env {
            SubEnv::Lane { env, lane } => {
                let counters = env.as_any().downcast_mut::<Vectorized<Counter>>().unwrap();
                counters.envs()[lane].t
            }
            SubEnv::MultiAgent(_) | SubEnv::Base(_) => u32::MAX,
        });
        assert_eq!(ts, [1; 3]);
    }
}

#[test]
fn stopping_twice_is_harmless_and_use_after_it_is_an_error() {
    let mut worker = worker();
    worker.assert_healthy().unwrap();
    worker.stop().unwrap();
    worker.stop().unwrap();
    assert!(worker.is_stopped());
    assert_eq!(worker.sample(), Err(RolloutError::Stopped));
    assert_eq!(worker.sample_fragments(1), Err(RolloutError::Stopped));
    assert_eq!(worker.set_weights(&by_id(&weight(1.0)), None, None), Err(RolloutError::Stopped));
    assert_eq!(worker.save(), Err(RolloutError::Stopped));
    assert_eq!(worker.sync_filters(&BTreeMap::new()), Err(RolloutError::Stopped));
    assert_eq!(worker.set_global_vars(&GlobalVars::default(), None), Err(RolloutError::Stopped));
    assert_eq!(worker.set_policy_mapping_fn(None), Err(RolloutError::Stopped));
    assert_eq!(worker.samples().next_of_slice(2, 1).unwrap_err(), RolloutError::Stopped);
    assert_eq!(worker.assert_healthy(), Err(RolloutError::Unhealthy("it was stopped")));
    assert_eq!((worker.foreach_env(|_| ()).len(), worker.ping()), (0, "pong"));
}

#[test]
fn a_lock_is_taken_once() {
    let mut worker = worker();
    assert_eq!(worker.unlock(), Err(RolloutError::NotLocked));
    worker.lock().unwrap();
    assert_eq!(worker.lock(), Err(RolloutError::Locked));
    assert!(worker.is_locked());
    worker.unlock().unwrap();
    assert!(!worker.is_locked());
}

#[test]
fn registered_functions_are_applied_by_name() {
    let registry = registry(4).with_worker_fn("count", |worker, arguments| {
        let factor = arguments.get::<usize>("factor")?.unwrap_or(1);
        Ok(Config::new().with("envs", factor * worker.num_envs())?)
    });
    let config = RolloutConfig::new("Counter").num_envs(3).single_policy("mock");
    let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::LOCAL).unwrap();
    let answer = worker.apply("count", &r#"{"factor": 2}"#.parse().unwrap()).unwrap();
    assert_eq!(answer.get::<usize>("envs"), Ok(Some(6)));
    assert!(matches!(worker.apply("count", &r#"{"factor": "x"}"#.parse().unwrap()), Err(RolloutError::Callback(_))));
    let error = worker.apply("recount", &Config::new()).unwrap_err().to_string();
    assert!(error.contains("'recount'") && error.contains("count"), "{error}");
}

struct Laptop;

impl HostFacts for Laptop {
    fn hostname(&self) -> Option<String> {
        Some("laptop".into())
    }
}

#[test]
fn unknown_facts_of_the_machine_are_errors() {
    assert_eq!(worker().hostname(), Err(RolloutError::UnknownHost("hostname")));
    let worker = counting(4, RolloutConfig::default()).host(Box::new(Laptop)).build().unwrap();
    assert_eq!(worker.hostname(), Ok("laptop".into()));
    assert_eq!(worker.node_ip(), Err(RolloutError::UnknownHost("node_ip")));
    assert_eq!(worker.find_free_port(), Err(RolloutError::UnknownHost("find_free_port")));
}

/// Returns the first `t` of a sample.
fn first_t(batch: &crate::batch::AnyBatch) -> i64 {
    batch.single().unwrap().get(crate::batch::T).unwrap()[0]
}

#[test]
fn readers_share_samples_without_losing_any() {
    let config = RolloutConfig::default().rollout_fragment_length(1);
    let mut worker = counting(100, config.clone()).build().unwrap();
    let mut samples = worker.samples();
    assert_eq!(samples.next_of_slice(2, 2).unwrap_err(), RolloutError::BadSlice);
    assert_eq!(samples.next_of_slice(0, 0).unwrap_err(), RolloutError::BadSlice);
    let slices = [(2, 1), (2, 1), (2, 0), (2, 0), (2, 0)];
    let ts = slices.map(|(step, start)| first_t(&samples.next_of_slice(step, start).unwrap()));
    assert_eq!(ts, [1, 3, 0, 2, 4]);
    let batch = samples.next_batch_of_slice(2, 1, 3, Micros(0)).unwrap();
    assert_eq!(batch.iter().map(first_t).collect::<Vec<_>>(), [5, 7, 9]);
    let mut worker = counting(100, config).build().unwrap();
    let rest: Vec<i64> = worker.samples().skip(3).step_by(2).take(3).map(|batch| first_t(&batch.unwrap())).collect();
    assert_eq!(rest, [3, 5, 7]);
}

#[test]
fn samples_that_no_reader_takes_are_counted_as_discarded() {
    let config = RolloutConfig::default().rollout_fragment_length(1);
    let mut worker = counting(100, config).build().unwrap();
    let most = Samples::MAX_WAITING as u64;
    // Of two rounds of the readers, one has taken its samples.
    (0..2).for_each(|_| drop(worker.samples().next_of_slice(most, most - 1).unwrap()));
    assert_eq!(worker.metrics().discarded_env_steps, most - 2);
    let state = worker.sampler_state().unwrap();
    worker.set_sampler_state(&state).unwrap();
    assert_eq!(worker.metrics().discarded_env_steps, most);
    worker.samples().next_of_slice(2, 1).unwrap();
    worker.stop().unwrap();
    let metrics = worker.metrics();
    assert_eq!((metrics.discarded_env_steps, metrics.discarded_agent_steps), (1, 1));
}

#[test]
fn batches_of_samples_end_with_the_time() {
    let ticks = core::sync::atomic::AtomicU32::new(0);
    let clock = move || Micros(ticks.fetch_add(1, core::sync::atomic::Ordering::Relaxed).into());
    let mut worker = counting(4, RolloutConfig::default().rollout_fragment_length(1)).clock(clock).build().unwrap();
    let few = worker.samples().next_batch(1_000, Micros(12)).unwrap().len();
    assert!((1..12).contains(&few), "{few}");
    assert_eq!(worker.samples().next_batch(5, Micros(0)).unwrap().len(), 5);
}

#[test]
fn a_worker_of_a_file_is_the_worker_of_the_builder() {
    let text = r#"{"env": "CartPole-v1", "num_envs": 2, "rollout_fragment_length": 20, "seed": 5}"#;
    let config: RolloutConfig = serde_json::from_str(text).unwrap();
    let mut named = RolloutWorker::from_config(config.clone(), &Registry::builtin(), WorkerPlace::LOCAL).unwrap();
    let spec = Registry::builtin().envs.spec("CartPole-v1").unwrap().clone();
    let mut built =
        RolloutWorker::builder().config(RolloutConfig { env: None, ..config }).env_spec(spec).build().unwrap();
    assert_eq!(named.sample().unwrap(), built.sample().unwrap());
}
