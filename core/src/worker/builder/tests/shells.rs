use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    batch::{AnyBatch, REWARDS, SampleBatch},
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    column::ColumnData,
    env::{BaseEnv, EnvMaker, EnvStart, InProcess},
    filter::FilterKind,
    ids::SlotId,
    kernels::Kernels,
    prelude::*,
    sampler::{InputReader, SampleError, SamplerHost, SamplerInput},
    worker::{
        Registry, RemoteEnvs, RolloutConfig, RolloutWorker, RolloutWorkerBuilder, Shell, config::InputEvaluation,
    },
};

/// Threads that are none, processes that are here, and files of episodes.
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
    fn sample_async(
        &mut self,
        sampler: Box<dyn SamplerInput>,
        discard_batches: bool,
    ) -> Result<Option<Box<dyn SamplerInput>>, SampleError> {
        self.threads.fetch_add(1 + 10 * u32::from(discard_batches), Ordering::Relaxed);
        Ok(Some(sampler))
    }

    fn remote_envs(&mut self, envs: &RemoteEnvs<'_>) -> Result<Option<Box<dyn BaseEnv>>, SampleError> {
        assert_eq!((envs.batch_wait.0, envs.contexts.len(), envs.seed), (5_000, 3, 7));
        assert_eq!(envs.config.extra_environs["OMP_NUM_THREADS"], "1");
        assert!(envs.contexts.iter().all(|context| context.remote));
        let spec = Registry::builtin().envs.spec("CartPole-v1").cloned().unwrap();
        let start = |(slot, context): (u32, &crate::env::EnvContext)| EnvStart {
            slot: SlotId(slot),
            episode: 0,
            context: context.clone(),
        };
        let starts = (0..).zip(envs.contexts).map(start).collect();
        let maker = EnvMaker::single_agent(&spec, Kernels::PORTABLE);
        Ok(Some(Box::new(InProcess::new(maker, starts, envs.seed)?)))
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
fn simulation_counts_episodes_beside_an_input() {
    let shell = Toy::default();
    let threads = shell.threads.clone();
    let config = RolloutConfig { input_evaluation: [InputEvaluation::Simulation].into(), ..config() };
    let mut worker = build(config, shell).input_creator(|_| Ok(Box::new(Rows))).build().unwrap();
    assert_eq!(threads.load(Ordering::Relaxed), 11);
    for _ in 0..5 {
        // At least 30 rows of the input, none of the environment's.
        assert_eq!(worker.sample().unwrap().single().unwrap().iter().count(), 1);
    }
    assert!(!worker.metrics().episodes.is_empty());
}

/// What a program has that has nothing.
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
    }
}
