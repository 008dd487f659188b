//! Drives sub-environments as a sampler does, and records their updates.

use std::{
    env::current_exe,
    time::{Duration, Instant},
};

use rollmesh::{NativeWorker as _, envs::RemoteBaseEnv, native};
use rollmesh_core::{
    config::Config,
    env::{BaseEnv as _, EnvActions, EnvError, EnvUpdates, RowsRef, multi_agent::Turn},
    ids::{AgentId, SlotId},
    time::Micros,
    worker::{RemoteEnvSpec, RemoteEnvs, RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};
use serde_json::json;

use super::zoo;

/// Longer than any wait of these tests.
pub(crate) const FULL_WAIT: u32 = 60_000;

/// Returns settings of remote animals, one for each kind.
pub(crate) fn animals(kinds: &[&str]) -> RolloutConfig {
    let env_config: Config = json!({ "kinds": kinds }).to_string().parse().unwrap();
    RolloutConfig {
        remote_worker_envs: true,
        remote_env_timeout_ms: 3_000,
        restart_failed_sub_environments: true,
        ..RolloutConfig::new("Zoo-v0").num_envs(kinds.len() as u32).env_config(env_config).seed(7)
    }
}

/// Returns the same settings, with misbehaviour in the first process of each only, which a file in `dir` records.
pub(crate) fn only_once(config: RolloutConfig, dir: &tempfile::TempDir) -> RolloutConfig {
    let env_config = config.env_config.clone().with("once", dir.path()).unwrap();
    config.env_config(env_config)
}

/// Starts the environments of these settings, without a worker.
pub(crate) fn start(config: &RolloutConfig) -> Result<RemoteBaseEnv, EnvError> {
    let spec = |index: u32| RemoteEnvSpec {
        env: config.env.clone().unwrap(),
        env_config: config.env_config.clone(),
        worker_index: 0,
        vector_index: index,
        num_workers: 0,
        recreated_worker: false,
        slot: SlotId(index),
        seed: config.seed,
        deepmind: None,
    };
    let specs = (0..config.num_envs).map(spec).collect();
    let batch_wait = Micros::from_millis(config.remote_env_batch_wait_ms.into());
    RemoteBaseEnv::start(&current_exe().unwrap(), &RemoteEnvs { config, specs, batch_wait })
}

/// Returns a worker with the zoo's names.
pub(crate) fn builder(config: RolloutConfig) -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(native(zoo::registry())).config(config).native()
}

/// Returns two workers of the same settings: all in this process, and with sub-environments elsewhere that are always
/// waited for.
pub(crate) fn pair(config: RolloutConfig) -> [RolloutWorker; 2] {
    let remote = RolloutConfig { remote_worker_envs: true, remote_env_batch_wait_ms: FULL_WAIT, ..config.clone() };
    [config, remote].map(|config| builder(config).build().unwrap())
}

/// The updates of a sub-environment.
#[derive(Default)]
pub(crate) struct Story {
    /// Observations of each episode that has begun.
    pub(crate) episodes: Vec<Vec<i64>>,
    pub(crate) faults: Vec<EnvError>,
}

impl Story {
    /// Returns the number of steps of all episodes.
    pub(crate) fn steps(&self) -> usize {
        self.episodes.iter().map(|episode| episode.len().saturating_sub(1)).sum()
    }

    /// Returns whether every episode counts from 0.
    pub(crate) fn counts(&self) -> bool {
        self.episodes.iter().all(|episode| episode.iter().enumerate().all(|(at, obs)| at as i64 == *obs))
    }
}

/// Sub-environments, their updates, and the longest wait for one.
pub(crate) struct Rig {
    pub(crate) envs: RemoteBaseEnv,
    pub(crate) stories: Vec<Story>,
    pub(crate) longest_wait: Duration,
    updates: EnvUpdates,
    answers: Vec<EnvActions>,
}

impl Rig {
    pub(crate) fn new(config: &RolloutConfig) -> Self {
        let envs = start(config).unwrap();
        let stories = (0..envs.num_envs()).map(|_| Story::default()).collect();
        Self { envs, stories, longest_wait: Duration::ZERO, updates: EnvUpdates::new(), answers: Vec::new() }
    }

    /// Polls once and answers; returns the indices of those that had updates.
    pub(crate) fn round(&mut self) -> Result<Vec<usize>, EnvError> {
        self.updates.clear();
        let start = Instant::now();
        self.envs.poll(&mut self.updates)?;
        self.longest_wait = self.longest_wait.max(start.elapsed());
        self.answers.clear();
        let mut who = Vec::new();
        for entry in self.updates.entries_mut() {
            let story = &mut self.stories[entry.env];
            who.push(entry.env);
            if let Some(fault) = entry.fault.take() {
                assert!(entry.turn.obs().is_empty());
                story.faults.push(fault);
                if self.envs.quarantine(entry.env).is_none() {
                    self.envs.try_reset(entry.env, &mut Turn::new())?;
                }
                continue;
            }
            let obs = entry.turn.obs().row_of::<i64>(&AgentId::SINGLE).unwrap()[0];
            if entry.turn.outcomes().len() == 0 {
                story.episodes.push(Vec::new());
            }
            story.episodes.last_mut().unwrap().push(obs);
            if entry.turn.is_over() {
                self.envs.try_reset(entry.env, &mut Turn::new())?;
            } else {
                let mut answer = EnvActions { env: entry.env, ..EnvActions::default() };
                answer.actions.set(&AgentId::SINGLE, RowsRef::I64(&[0]));
                self.answers.push(answer);
            }
        }
        self.envs.send_actions(&self.answers)?;
        Ok(who)
    }

    /// Waits for the updates of all, without answering; returns the number of those that are of steps.
    pub(crate) fn poll_all(&mut self) -> usize {
        let (mut heard, mut steps) = (0, 0);
        while heard < self.stories.len() {
            self.updates.clear();
            self.envs.poll(&mut self.updates).unwrap();
            heard += self.updates.entries().len();
            steps += self.updates.entries().iter().filter(|entry| entry.turn.outcomes().len() > 0).count();
        }
        steps
    }

    /// Polls and answers until the condition holds, for at most a minute.
    pub(crate) fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !enough(self) {
            self.round().unwrap();
            assert!(start.elapsed() < Duration::from_secs(60), "this does not come to an end");
        }
    }
}
