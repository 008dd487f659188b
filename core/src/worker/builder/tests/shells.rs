use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    batch::{AnyBatch, REWARDS, SampleBatch},
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    column::ColumnData,
    env::{EnvError, EnvMaker, EnvStart, InProcess},
    episode::RolloutMetrics,
    filter::FilterKind,
    ids::{PolicyId, SlotId},
    kernels::Kernels,
    policy::RandomPolicy,
    prelude::*,
    sampler::{InputReader, Interrupt, SampleError, SamplerHost},
    worker::{
        AsyncSampling, MovedEnvs, MovedSampler, NewPolicy, Registry, RemoteEnvSpec, RemoteEnvs, RolloutConfig,
        RolloutWorker, RolloutWorkerBuilder, Shell, config::InputEvaluation,
    },
};

/// A shell whose threads and processes are in this process, and that records no files.
#[derive(Default)]
struct Toy {
    threads: Arc<AtomicU32>,
    episodes: Arc<AtomicU32>,
}

/// Counts the episodes that it would record.
struct Recorder(Arc<AtomicU32>);

impl Callbacks for Recorder {
    fn on_episode_start(&mut self, _hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Shell for Toy {
    fn sample_async(&mut self, sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        assert!(sampling.policies.ids().eq([&PolicyId::DEFAULT]));
        self.threads.fetch_add(1 + 10 * u32::from(sampling.discard_batches), Ordering::Relaxed);
        Ok(Some(MovedSampler { sampler: sampling.sampler, callbacks: sampling.callbacks }))
    }

    fn remote_envs(&mut self, envs: &RemoteEnvs<'_>) -> Result<Option<MovedEnvs>, SampleError> {
        assert_eq!((envs.batch_wait.0, envs.specs.len()), (5_000, 3));
        assert_eq!(envs.config.extra_environs["OMP_NUM_THREADS"], "1");
        let spec = Registry::builtin().envs.spec("CartPole-v1").unwrap();
        let starts: Vec<EnvStart> = envs.specs.iter().map(RemoteEnvSpec::start).collect();
        for (index, (start, spec)) in starts.iter().zip(&envs.specs).enumerate() {
            assert!(start.context.remote && start.slot == SlotId(index as u32) && spec.seed == 7);
        }
        let maker = EnvMaker::single_agent(&spec, Kernels::PORTABLE);
        Ok(Some(MovedEnvs { envs: Box::new(InProcess::new(maker, starts, 7)?), are_wrapped: false }))
    }

    fn monitor(&mut self, path: &str) -> Result<Option<Box<dyn Callbacks>>, SampleError> {
        assert_eq!(path, "runs");
        Ok(Some(Box::new(Recorder(self.episodes.clone()))))
    }
}

fn config() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").rollout_fragment_length(30).single_policy("random").seed(7)
}

fn build(config: RolloutConfig, shell: Toy) -> RolloutWorkerBuilder {
    RolloutWorker::builder().config(config).shell(Box::new(shell))
}

#[test]
fn a_sampler_on_a_thread_makes_the_same_batches() {
    let shell = Toy::default();
    let threads = shell.threads.clone();
    let filter = FilterKind::ConcurrentMeanStdFilter;
    let here = RolloutConfig { observation_filter: filter, ..config() };
    let there = RolloutConfig { sample_async: true, ..here.clone() };
    let mut there = build(there, shell).build().unwrap();
    let mut here = RolloutWorker::builder().config(here).build().unwrap();
    assert_eq!(there.sample(), here.sample());
    assert_eq!(threads.load(Ordering::Relaxed), 1);
}

#[test]
fn environments_of_other_processes_make_the_same_rows() {
    let remote = RolloutConfig {
        num_envs: 3,
        remote_worker_envs: true,
        remote_env_batch_wait_ms: 5,
        extra_environs: [("OMP_NUM_THREADS".into(), "1".into())].into(),
        ..config()
    };
    let mut remote = build(remote, Toy::default()).build().unwrap();
    let mut local = RolloutWorker::builder().config(config().num_envs(3)).build().unwrap();
    assert!(local.is_lockstep() && !remote.is_lockstep());
    assert_eq!(remote.sample().unwrap(), local.sample().unwrap());
}

#[test]
fn environments_of_custom_shape_run_in_every_placement() {
    let remote = RolloutConfig { env: Some("Radio-v0".into()), num_envs: 2, remote_worker_envs: true, ..config() };
    let radio = Registry::builtin().with_base_env("Radio-v0", |_, _| Err(EnvError::Failed("never made".into())));
    let builder = RolloutWorkerBuilder::new(radio.clone()).config(remote).shell(Box::new(Toy::default()));
    let error = builder.build().unwrap_err().to_string();
    assert!(error.starts_with("environments of their own shape say themselves where they run: "), "{error}");
    let text = r#"{"env": "Radio-v0", "env_config": {}, "worker_index": 0, "vector_index": 0, "num_workers": 0,
        "recreated_worker": false, "slot": 0, "seed": 7, "deepmind": {}}"#;
    let spec: RemoteEnvSpec = serde_json::from_str(text).unwrap();
    assert_eq!(spec.make(&radio, Kernels::PORTABLE).err().unwrap().to_string(), error);
}

#[test]
fn episodes_are_recorded_where_there_are_files() {
    let shell = Toy::default();
    let episodes = shell.episodes.clone();
    let mut worker = build(RolloutConfig { monitor_path: Some("runs".into()), ..config() }, shell).build().unwrap();
    worker.sample().unwrap();
    assert!(episodes.load(Ordering::Relaxed) > 0);
}

/// Batches of two rows.
struct Rows;

impl InputReader for Rows {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        Ok(SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![0.0; 2]))?.into())
    }
}

#[test]
fn simulation_counts_episodes_alongside_an_input() {
    let shell = Toy::default();
    let threads = shell.threads.clone();
    let config = RolloutConfig { input_evaluation: [InputEvaluation::Simulation].into(), ..config() };
    let mut worker = build(config, shell).input_creator(|_| Ok(Box::new(Rows))).build().unwrap();
    assert_eq!(threads.load(Ordering::Relaxed), 11);
    for _ in 0..5 {
        // At least 30 rows of the input, none of the environment.
        assert_eq!(worker.sample().unwrap().single().unwrap().iter().count(), 1);
    }
    assert!(!worker.metrics().episodes.is_empty());
}

/// Interrupts the sampler on request.
struct Interrupts(Option<Box<dyn InputReader>>, Arc<Interrupt>);

impl Shell for Interrupts {
    fn sample_async(&mut self, sampling: AsyncSampling) -> Result<Option<MovedSampler>, SampleError> {
        let sampler = Box::new(Self(Some(sampling.sampler), self.1.clone()));
        Ok(Some(MovedSampler { sampler, callbacks: sampling.callbacks }))
    }
}

impl InputReader for Interrupts {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let SamplerHost { worker, policies, mapping, observation_fn, callbacks, clock, .. } = host;
        let (observation_fn, clock, interrupt) = (*observation_fn, *clock, Some(&*self.1));
        let callbacks = &mut **callbacks;
        let mut host = SamplerHost { worker, policies, mapping, observation_fn, callbacks, clock, interrupt };
        self.0.as_mut().map_or(Err(SampleError::Stopped), |sampler| sampler.next(&mut host))
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.0.as_mut().map_or_else(Vec::new, |sampler| sampler.metrics())
    }
}

#[test]
fn interrupted_sampler_stops_and_can_continue() {
    for observation_filter in [FilterKind::NoFilter, FilterKind::ConcurrentMeanStdFilter] {
        let interrupt = Arc::new(Interrupt::default());
        let config = RolloutConfig { sample_async: true, observation_filter, ..config() };
        let shell = Interrupts(None, interrupt.clone());
        let mut worker = RolloutWorker::builder().config(config).shell(Box::new(shell)).build().unwrap();
        assert_eq!(worker.sample().unwrap().env_steps(), 30);
        interrupt.set(true);
        assert_eq!(worker.sample(), Err(SampleError::Stopped.into()));
        interrupt.set(false);
        let rounds = interrupt.rounds();
        assert_eq!(worker.sample().unwrap().env_steps(), 30);
        // A round steps all environments once.
        assert!(interrupt.rounds() - rounds >= 30, "{rounds}, then {}", interrupt.rounds());
    }
}

/// A shell that implements nothing.
struct Nothing;

impl Shell for Nothing {}

#[test]
fn a_shell_without_threads_says_so() {
    for config in [
        RolloutConfig { sample_async: true, ..config() },
        RolloutConfig { remote_worker_envs: true, num_envs: 2, ..config() },
        RolloutConfig { monitor_path: Some("runs".into()), ..config() },
    ] {
        let error = RolloutWorker::builder().config(config).shell(Box::new(Nothing)).build().unwrap_err();
        assert!(matches!(error, crate::worker::SetupError::Unsupported { .. }), "{error}");
        assert!(error.to_string().ends_with("which this program's shell does not give: leave the setting out"));
    }
}

#[test]
fn sampler_thread_needs_policies_that_can_be_rebuilt() {
    let object = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
    let builder = build(RolloutConfig { sample_async: true, ..config() }, Toy::default());
    let error = builder.policy(PolicyId::DEFAULT, object).build().unwrap_err().to_string();
    assert!(error.starts_with("policy 'default_policy': ") && error.contains("or a PolicySpec instead"), "{error}");
}
