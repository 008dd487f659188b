use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    batch::OBS,
    callbacks::{CallbackError, Callbacks, WorkerInfo},
    env::{
        Env, EnvContext, EnvError, EnvMaker, EnvRegistry, EnvStart, InProcess, Lane, RowsRef, SubEnv, Typed,
        classic::Pendulum,
    },
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    policy::{Policy, RandomPolicy},
    prelude::*,
    rng::{Purpose, Streams},
    sampler::SampleError,
    worker::{NewPolicy, Registry, RolloutConfig, RolloutError, RolloutWorker, SetupError, WorkerPlace},
};

fn config() -> RolloutConfig {
    RolloutConfig { num_envs: 3, ..RolloutConfig::default() }.rollout_fragment_length(10).single_policy("random")
}

#[test]
fn every_environment_receives_its_place_and_is_inspected() {
    let (validated, looked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (count_validated, look) = (validated.clone(), looked.clone());
    let place = WorkerPlace { recreated_worker: true, ..WorkerPlace::remote(2, 4) };
    let config = RolloutConfig { env_config: r#"{"size": 3}"#.parse().unwrap(), ..config() };
    let builder =
        RolloutWorker::builder().config(config.raw()).place(place).env_creator(move |context: &EnvContext| {
            assert_eq!((context.home.worker_index, context.num_workers), (2, 4));
            assert!(context.recreated_worker && !context.remote);
            assert_eq!(context.config.get::<u32>("size"), Ok(Some(3)));
            count_validated.fetch_add(10u32.pow(context.home.vector_index), Ordering::Relaxed);
            Ok(Lane::new(Pendulum::new(1)))
        });
    let mut worker = builder
        .validate_env(move |env, context| {
            assert!(matches!(env, SubEnv::Lane { lane, .. } if lane == context.home.vector_index as usize));
            look.fetch_add(10u32.pow(context.home.vector_index), Ordering::Relaxed);
            Ok(())
        })
        .build()
        .unwrap();
    assert_eq!((validated.load(Ordering::Relaxed), looked.load(Ordering::Relaxed)), (111, 111));
    assert_eq!(worker.sample().unwrap().env_steps(), 30);
}

#[test]
fn an_environment_that_is_refused_ends_the_construction() {
    for (horizon, lanes) in [(None, "lockstep"), (Some(5), "each for itself")] {
        let builder = RolloutWorker::builder()
            .config(RolloutConfig { horizon, ..config() })
            .env_spec(EnvRegistry::builtin().spec("CartPole-v1").unwrap().clone())
            .validate_env(|_, context| match context.home.vector_index {
                2 => Err(EnvError::Failed("no wheels".into())),
                _ => Ok(()),
            });
        let error = builder.build().unwrap_err();
        let source = EnvError::Failed("no wheels".into());
        assert_eq!(error, SetupError::InvalidEnv { env: 2, source }, "{lanes}");
    }
}

/// Records what is made.
#[derive(Clone, Default)]
struct Notes(Arc<AtomicU32>);

impl Callbacks for Notes {
    fn on_create_policy(&mut self, _id: &PolicyId, _policy: &mut dyn Policy) -> Result<(), CallbackError> {
        self.0.fetch_add(100, Ordering::Relaxed);
        Ok(())
    }

    fn on_sub_environment_created(
        &mut self,
        worker: &WorkerInfo,
        _env: SubEnv<'_>,
        context: &EnvContext,
    ) -> Result<(), CallbackError> {
        assert_eq!(worker.worker_index, context.home.worker_index);
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn callbacks_are_notified_of_environments_and_policies() {
    let notes = Notes::default();
    let named = notes.clone();
    let registry = Registry::builtin().with_callbacks("notes", move |config| {
        assert_eq!(config.get::<f64>("gamma")?, Some(0.5));
        Ok(Box::new(named.clone()))
    });
    let config = RolloutConfig {
        env: Some("CartPole-v1".into()),
        callbacks: vec!["notes".into()],
        policy_config: r#"{"gamma": 0.5}"#.parse().unwrap(),
        ..config()
    };
    let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::LOCAL).unwrap();
    assert_eq!(notes.0.load(Ordering::Relaxed), 103);
    let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
    worker.add_policy(PolicyId::new("b"), object, None, None).unwrap();
    assert_eq!(notes.0.load(Ordering::Relaxed), 203);
}

#[test]
fn observations_are_rewritten_first() {
    let registry = Registry::builtin().with_observation_fn("dark", |obs, hook| {
        assert_eq!(hook.worker.worker_index, 0);
        let agents: Vec<_> = obs.iter().map(|(agent, _)| agent.clone()).collect();
        agents.iter().for_each(|agent| obs.set(agent, RowsRef::F32(&[0.0; 4])));
        Ok(())
    });
    let config = RolloutConfig { env: Some("CartPole-v1".into()), observation_fn: Some("dark".into()), ..config() };
    let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::LOCAL).unwrap();
    let batch = worker.sample().unwrap();
    assert!(batch.single().unwrap().data(OBS).unwrap().values().iter().all(|x| *x == 0.0));
}

#[test]
fn environments_of_ones_own_shape_are_sampled() {
    let make = |contexts: &[EnvContext], kernels: Kernels| -> Result<Box<dyn crate::env::BaseEnv>, EnvError> {
        let spec =
            EnvRegistry::builtin().spec("CartPole-v1").map_err(|error| EnvError::Failed(error.to_string()))?.clone();
        // Always eight environments, whatever number is requested.
        let start =
            |slot: u32| EnvStart { slot: SlotId(slot), episode: 0, context: contexts[0].with_vector_index(slot) };
        Ok(Box::new(InProcess::new(EnvMaker::single_agent(&spec, kernels), (0..8).map(start).collect(), 1)?))
    };
    let config = RolloutConfig { num_envs: 8, ..config() };
    let mut worker = RolloutWorker::builder().config(config).base_env_creator(make).build().unwrap();
    assert_eq!(worker.sample().unwrap().env_steps(), 80);
    let registry = Registry::builtin().with_base_env("Eight-v0", make);
    let config = RolloutConfig { env: Some("Eight-v0".into()), num_envs: 8, ..self::config() };
    let mut named = RolloutWorker::from_config(config, &registry, WorkerPlace::LOCAL).unwrap();
    assert_eq!(named.sample().unwrap().env_steps(), 80);
    assert_eq!(named.foreach_env(|_| ()).len(), 8);
    // RLlib 2.9.3: a sample's size follows from the requested number, which is 1 here.
    let config = RolloutConfig { env: Some("Eight-v0".into()), num_envs: 1, ..self::config() };
    let mut eight = RolloutWorker::from_config(config, &registry, WorkerPlace::LOCAL).unwrap();
    assert_eq!((eight.sample().unwrap().env_steps(), eight.sample().unwrap().env_steps()), (10, 10));
    let indices = eight.foreach_env_with_context(|_, context| context.home.vector_index);
    assert_eq!(indices, (0..8).collect::<Vec<_>>());
}

/// Appends a digit for each object that is made.
struct Order(Arc<AtomicU32>);

impl Order {
    fn record(&self, digit: u32) {
        self.0.store(self.0.load(Ordering::Relaxed) * 10 + digit, Ordering::Relaxed);
    }
}

impl Callbacks for Order {
    fn on_create_policy(&mut self, _id: &PolicyId, _policy: &mut dyn Policy) -> Result<(), CallbackError> {
        self.record(2);
        Ok(())
    }

    fn on_sub_environment_created(
        &mut self,
        _worker: &WorkerInfo,
        _env: SubEnv<'_>,
        _context: &EnvContext,
    ) -> Result<(), CallbackError> {
        self.record(1);
        Ok(())
    }
}

/// The order is that of RLlib 2.9.3.
#[test]
fn callbacks_are_notified_of_environments_before_policies() {
    let order = Arc::new(AtomicU32::new(0));
    let config = RolloutConfig { env: Some("CartPole-v1".into()), ..config() };
    RolloutWorker::builder().config(config).callbacks(Box::new(Order(order.clone()))).build().unwrap();
    assert_eq!(order.load(Ordering::Relaxed), 1112);
}

#[test]
fn inputs_and_outputs_receive_their_place() {
    let config = RolloutConfig {
        env: Some("CartPole-v1".into()),
        log_dir: Some("runs/1".into()),
        io_config: r#"{"max_file_size": 7}"#.parse().unwrap(),
        dataset_shards: Some(5),
        ..config()
    };
    let build = |place| {
        let output = RolloutWorker::builder().config(config.clone()).place(place).output_creator(move |context| {
            assert_eq!(context.log_dir.as_deref(), Some("runs/1"));
            assert_eq!(context.config.get::<u32>("max_file_size"), Ok(Some(7)));
            assert_eq!(context.worker.worker_index, place.worker_index);
            assert_eq!(context.shard, Some((place.worker_index.saturating_sub(1), 5)));
            Ok(Box::new(crate::sampler::NoopOutput))
        });
        output.build().unwrap()
    };
    for place in [WorkerPlace::LOCAL, WorkerPlace::remote(2, 3)] {
        assert_eq!(build(place).sample().unwrap().env_steps(), 30);
    }
}

#[test]
fn agents_get_other_policies_in_new_episodes_alone() {
    let config = RolloutConfig::new("RockPaperScissors-v0").rollout_fragment_length(5);
    let mut worker = RolloutWorker::builder()
        .config(config)
        .policy(PolicyId::new("a"), NewPolicy::named("random"))
        .policy_mapping_fn(|_, _, _, _| PolicyId::new("a"))
        .build()
        .unwrap();
    let policies = |worker: &mut RolloutWorker| {
        let batch = worker.sample().unwrap().as_multi_agent();
        batch.policy_batches.into_keys().map(|id| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(policies(&mut worker), ["a"]);
    let to_b: crate::callbacks::PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::new("b"));
    worker.add_policy(PolicyId::new("b"), NewPolicy::named("random"), Some(to_b), None).unwrap();
    // The open episode continues, ten steps in all.
    assert_eq!(policies(&mut worker), ["a"]);
    assert_eq!(policies(&mut worker), ["b"]);
    worker.set_policy_mapping_fn(None).unwrap();
    assert_eq!(policies(&mut worker), ["b"]);
    worker.set_policy_mapping_fn(Some(Arc::new(|_, _, _, _| PolicyId::new("unknown")))).unwrap();
    let error = core::iter::repeat_with(|| worker.sample()).take(4).find_map(Result::err).unwrap();
    assert!(matches!(error, RolloutError::Sample(SampleError::UnknownPolicy { .. })), "{error}");
}

#[test]
fn wrapped_environments_keep_their_bits() {
    // The random numbers of an environment are addressed by slot, so they do not depend on erasing its type.
    let typed = |spec: &str| {
        let env = EnvRegistry::builtin()
            .spec(spec)
            .unwrap()
            .make(&[EnvContext::new(WorkerPlace::LOCAL.home(0))], Kernels::PORTABLE);
        Lane::new(Typed::<f32, f32>::new(env.unwrap()).unwrap())
    };
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    let (mut a, mut b) = ([0.0; 3], [0.0; 3]);
    typed("Pendulum-v1").reset(&mut rng.clone(), &mut a).unwrap();
    Lane::new(Pendulum::new(1)).reset(&mut rng, &mut b).unwrap();
    assert_eq!(a, b);
}
