//! How a run comes to be.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    time::Duration,
};

use rollmesh_core::{
    batch::SlotFragment,
    env::{EnvRegistry, EnvSpaces},
    filter::RunFilter,
    group::{GroupConfig, GroupState, LeaseGroup},
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
        evaluation::{EvaluationLine, EvaluationMetrics, RunEvaluation},
        metrics::{Episodes, Stopwatch},
        output::{OutputPlace, RunOutput},
        run_dir::{RunDir, RunDirError, RunSettings, output_series},
        saving::{RunFiles, Saved, lock},
    },
    RolledBack, Run, RunTerms, StartError, Task,
};
use crate::learner::{Learner, LearnerThread};

/// The directory of a run that goes on.
struct Directory {
    lock: File,
    /// The iteration of the newest checkpoint in it; none without any.
    on_disk: Option<u64>,
}

impl Run {
    pub(crate) fn new(number: u32, task: Task, envs: &EnvRegistry, first_lease: LeaseId) -> Result<Self, StartError> {
        match task {
            Task::Train(config) => Self::training(number, *config, envs, first_lease),
            Task::Resume(saved) => {
                let (regenerated, on_disk) = (saved.regenerated(), saved.checkpoint());
                let (config, saved, lock) = saved.into_parts();
                let begun = config.run_dir.as_deref().map_or(Ok(None), output_series)?;
                let kept = saved.as_ref().and_then(|saved| saved.progress.output.clone());
                let output = kept.or_else(|| begun.map(OutputPlace::start_of));
                let directory = Some(Directory { lock, on_disk });
                Self::resumed(number, (config, saved, directory), output, regenerated, envs, first_lease)
            }
            Task::RollBack(from) => {
                let RolledBack { config, saved, output, on_disk, regenerated } = *from;
                let lock = config.run_dir.as_deref().map(lock).transpose().map_err(RunDirError::from)?;
                // What is cut off its metrics is counted there.
                let regenerated = if lock.is_some() { 0 } else { regenerated };
                let directory = lock.map(|lock| Directory { lock, on_disk });
                Self::resumed(number, (config, saved, directory), output, regenerated, envs, first_lease)
            }
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
        config.run_dir.as_deref().map_or(Ok(()), RunDir::check_free)?;
        let weights = first_weights(&config.spec(), &spaces)?;
        let slots = config.spec().num_slots;
        let output = config.output.as_deref().map(|dir| RunOutput::create(dir, slots)).transpose()?;
        Self::learning(number, &config, &spaces, (weights, &[]), None, output, first_lease)
    }

    /// Takes the directory of a run that is new: once nothing is in the way of its beginning any more.
    pub(crate) fn create_files(&mut self) -> Result<(), StartError> {
        let Some(config) = self.config.as_ref().filter(|_| self.files.is_none()) else { return Ok(()) };
        if let Some(path) = &config.run_dir {
            let dir = RunDir::create(path, RunSettings::of_hub(config)?)?;
            self.output().map_or(Ok(()), |output| dir.note_output(output.series()))?;
            self.files = Some(RunFiles::new(dir, config.checkpoint_interval, None)?);
        }
        Ok(())
    }

    /// Goes on where the run was when it was saved, or begins it if it never was. Its output goes on from there, too, if
    /// somebody still wants it.
    fn resumed(
        number: u32,
        (config, saved, directory): (TrainConfig, Option<Saved>, Option<Directory>),
        output: Option<OutputPlace>,
        regenerated: u64,
        envs: &EnvRegistry,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let spaces = config.check(envs)?;
        let kept = saved.as_ref().map_or((0, 0), |saved| (saved.progress.metrics_bytes, saved.progress.journal_bytes));
        let slots = config.spec().num_slots;
        let mut warning = None;
        let (output, old_output) = match (&config.output, output) {
            (None, old) => {
                warning = old.as_ref().map(|_| "the run was begun with --output; without it nothing more is kept");
                (None, old)
            }
            (Some(dir), None) => (Some(RunOutput::create(dir, slots)?), None),
            (Some(dir), Some(place)) => {
                let (output, is_whole) = RunOutput::reopen(dir, place, slots)?;
                warning = (!is_whole).then_some("the output lacks rows from before the checkpoint");
                (Some(output), None)
            }
        };
        let mut run = match saved {
            None => {
                let weights = first_weights(&config.spec(), &spaces)?;
                Self::learning(number, &config, &spaces, (weights, &[]), None, output, first_lease)?
            }
            Some(Saved { policy, group, learner, progress }) => {
                let start = (policy.weights, learner.as_slice());
                let run = Self::learning(number, &config, &spaces, start, Some(group), output, first_lease)?;
                Self {
                    iteration: policy.iteration,
                    env_steps: policy.env_steps,
                    episodes: progress.episodes(),
                    is_tainted: progress.tainted,
                    stopwatch: Stopwatch::started_at(progress.elapsed()),
                    ..run
                }
            }
        };
        run.old_output = old_output;
        run.warnings.extend(warning.map(String::from));
        if directory.is_none() {
            run.group.count_regenerated(regenerated);
        }
        if let (Some(path), Some(Directory { lock, on_disk })) = (&config.run_dir, directory) {
            let (dir, cut) = RunDir::reopen(path, RunSettings::of_hub(&config)?, kept, lock)?;
            run.output().map_or(Ok(()), |output| dir.note_output(output.series()))?;
            let files = RunFiles::new(dir, config.checkpoint_interval, on_disk)?;
            let lost = cut.env_steps.map_or(0, |env_steps| env_steps.saturating_sub(run.env_steps));
            run.group.count_regenerated(regenerated.saturating_add(lost));
            let lacks = |file: &&str| format!("{file} lacks lines from before the checkpoint");
            run.warnings.extend(cut.short.iter().map(lacks));
            if let Err(error) = files.write_ledger(run.group.ledger()) {
                run.warnings.push(format!("ledger.json could not be written: {error}"));
            }
            run.history = files.dir.metrics().map(|metrics| run.point(&metrics)).collect();
            let evaluated = |line: EvaluationLine<EvaluationMetrics>| line.evaluation.point(run.number);
            run.evaluations = files.dir.metrics().map(evaluated).collect();
            run.files = Some(files);
        }
        Ok(run)
    }

    /// A run that learns from these weights and this state of the learner on.
    fn learning(
        number: u32,
        config: &TrainConfig,
        spaces: &EnvSpaces,
        (weights, learner_state): (Weights, &[u8]),
        group: Option<GroupState>,
        output: Option<RunOutput>,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        // Of a run that goes on, they are among the weights.
        let (weights, mut filter) = RunFilter::split_from(&weights)?;
        if filter.is_none() {
            filter = RunFilter::new(config.observation_filter, spaces.observation.shape(), weights.version())?;
        }
        let mut learner = Learner::new(config.ppo.clone(), spaces, config.seed, &weights, config.device.open()?)?;
        learner.set_state(learner_state)?;
        let thread = LearnerThread::spawn(learner)?;
        let consumer = Consumer::Learner { thread, gamma: config.ppo.gamma, lambda: config.ppo.lambda, output };
        let terms = RunTerms {
            algo: config.algo.name(),
            gamma: config.ppo.gamma,
            num_workers: config.num_workers,
            extra_environs: config.extra_environs.clone(),
            worker: config.worker.clone(),
            hung_worker_timeout: config.hung_worker_timeout(),
            pace: config.pace,
            stop_return: config.stop_return,
            max_env_steps: config.max_env_steps,
            mode: config.mode,
        };
        let evaluation = RunEvaluation::of(config.evaluation, &config.spec(), &config.extra_environs);
        let weights = match &mut filter {
            None => weights,
            Some(filter) => filter.publish(&weights),
        };
        let run = Self::with(number, (config.spec(), spaces), terms, weights, (consumer, group), first_lease)?;
        Ok(Self { evaluation, filter, config: Some(Box::new(config.clone())), ..run })
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
            hung_worker_timeout: TrainConfig::new(config.env.as_str()).hung_worker_timeout(),
            pace: Duration::ZERO,
            stop_return: None,
            max_env_steps: config.env_steps,
            mode: config.mode,
        };
        Self::with(number, (spec, &spaces), terms, weights, (Consumer::Taker(batches), None), first_lease)
    }

    fn with(
        number: u32,
        (spec, spaces): (RunSpec, &EnvSpaces),
        terms: RunTerms,
        weights: Weights,
        (consumer, group): (Consumer, Option<GroupState>),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let limits = FragmentLimits::new(&spec, spaces);
        let group_config = GroupConfig {
            first_lease,
            max_slots_per_lease: largest_lease(&limits, spec.num_slots),
            mode: terms.mode,
            ..GroupConfig::new(spec.num_slots, spec.rollout_fragment_length)
        };
        let group = match group {
            Some(state) => LeaseGroup::restore(group_config, state)?,
            None => LeaseGroup::new(group_config)?,
        };
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
            filter: None,
            weights,
            next_weights: None,
            granted: BTreeMap::new(),
            begun: 0,
            iteration: 0,
            batch_env_steps: 0,
            env_steps: 0,
            episodes: Episodes::default(),
            is_learning: false,
            stopwatch: Stopwatch::started_at(Duration::ZERO),
            iteration_began: Duration::ZERO,
            steps_per_s: 0.0,
            error: String::new(),
            files: None,
            old_output: None,
            config: None,
            recent_weights: VecDeque::new(),
            snapshots: BTreeMap::new(),
            is_tainted: false,
            warnings: Vec::new(),
            history: Vec::new(),
            evaluations: Vec::new(),
            evaluation: None,
            #[cfg(test)]
            false_books: None,
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
