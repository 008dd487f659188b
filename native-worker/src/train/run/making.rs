//! How a run comes to be.

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::{
    batch::SlotFragment,
    env::{EnvRegistry, EnvSpaces},
    group::{GroupConfig, LeaseGroup},
    ids::LeaseId,
    policy::{MlpPolicySpec, init_weights},
    protocol::{Phase, convert::FragmentLimits},
    run::RunSpec,
    weights::Weights,
};
use tokio::sync::mpsc;

use super::{
    super::{
        SampleConfig, TrainConfig, TrainConfigError,
        consumer::Consumer,
        metrics::{Episodes, Stopwatch},
        output::RunOutput,
        run_dir::RunDir,
    },
    Run, RunTerms, StartError, Task,
};
use crate::learner::{Learner, LearnerThread};

impl Run {
    pub(crate) fn new(number: u32, task: Task, envs: &EnvRegistry, first_lease: LeaseId) -> Result<Self, StartError> {
        match task {
            Task::Train(config) => Self::training(number, *config, envs, first_lease),
            Task::Sample(config, batches) => Self::sampling(number, config, batches, envs, first_lease),
        }
    }

    fn training(
        number: u32,
        config: TrainConfig,
        envs: &EnvRegistry,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let spaces = config.check(envs)?;
        let device = config.device.open()?;
        let spec = config.spec();
        let weights = first_weights(&spec, &spaces)?;
        let learner = Learner::new(config.ppo.clone(), &spaces, config.seed, &weights, device)?;
        let has_journal = !config.mode.is_synchronous();
        let create = |path| RunDir::create(path, &config, has_journal);
        let files = config.run_dir.as_deref().map(create).transpose()?;
        let thread = LearnerThread::spawn(learner)?;
        let output = config.output.as_deref().map(RunOutput::create).transpose()?;
        let consumer = Consumer::Learner { thread, gamma: config.ppo.gamma, lambda: config.ppo.lambda, output };
        let terms = RunTerms {
            algo: config.algo.name(),
            gamma: config.ppo.gamma,
            num_workers: config.num_workers,
            extra_environs: config.extra_environs,
            worker: config.worker,
            pace: config.pace,
            stop_return: config.stop_return,
            max_env_steps: config.max_env_steps,
            mode: config.mode,
        };
        let run = Self::with(number, (spec, &spaces), terms, weights, consumer, first_lease)?;
        Ok(Self { files, ..run })
    }

    fn sampling(
        number: u32,
        config: SampleConfig,
        batches: mpsc::Sender<Vec<SlotFragment>>,
        envs: &EnvRegistry,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let spaces = config.check(envs)?;
        let spec = config.spec();
        let weights = first_weights(&spec, &spaces)?;
        let terms = RunTerms {
            algo: "sample",
            gamma: 1.0,
            num_workers: config.num_workers,
            extra_environs: BTreeMap::new(),
            worker: None,
            pace: Duration::ZERO,
            stop_return: None,
            max_env_steps: config.env_steps,
            mode: config.mode,
        };
        Self::with(number, (spec, &spaces), terms, weights, Consumer::Taker(batches), first_lease)
    }

    fn with(
        number: u32,
        (spec, spaces): (RunSpec, &EnvSpaces),
        terms: RunTerms,
        weights: Weights,
        consumer: Consumer,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let limits = FragmentLimits::new(&spec, spaces);
        let group_config = GroupConfig {
            first_lease,
            max_slots_per_lease: largest_lease(&limits, spec.num_slots),
            mode: terms.mode,
            ..GroupConfig::new(spec.num_slots, spec.rollout_fragment_length)
        };
        let group = LeaseGroup::new(group_config)?;
        Ok(Self {
            number,
            terms,
            limits,
            spec,
            group,
            phase: Phase::Running,
            watched_slot: 0,
            consumer: Some(consumer),
            published: weights.version(),
            weights,
            next_weights: None,
            granted: BTreeMap::new(),
            begun: 0,
            iteration: 0,
            batch_env_steps: 0,
            env_steps: 0,
            episodes: Episodes::default(),
            stopwatch: Stopwatch::started(),
            iteration_began: Duration::ZERO,
            steps_per_s: 0.0,
            error: String::new(),
            files: None,
        })
    }
}

/// The weights that everybody makes from the seed.
fn first_weights(spec: &RunSpec, spaces: &EnvSpaces) -> Result<Weights, TrainConfigError> {
    let policy = MlpPolicySpec::for_spaces(spaces, &spec.hidden)?;
    Ok(init_weights(&policy, spec.seed)?)
}

/// The most slots whose fragments fit into one upload.
fn largest_lease(limits: &FragmentLimits, num_slots: u32) -> u32 {
    let mut slots = num_slots;
    while slots > 1 && limits.check_lease_of(slots as usize).is_err() {
        slots = slots.div_ceil(2);
    }
    slots
}
