//! How a run comes to be.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    time::Duration,
};

use rollmesh_core::{
    batch::SlotFragment,
    env::EnvState,
    filter::{FilterKind, RunFilter},
    group::{GroupConfig, GroupState, LeaseGroup},
    ids::{LeaseId, PolicyId},
    kernels::Kernels,
    policy::{PolicyError, Postprocessing},
    protocol::{Phase, convert::FragmentLimits},
    run::{ReplayMismatch, RunConfig},
    sampler::FragmentLayout,
    time::Micros,
    weights::Weights,
    worker::{LearningParts, Registry},
};
use tokio::sync::mpsc;

use super::{
    super::{
        RunRequest,
        consumer::Consumer,
        evaluation::{EvaluationLine, EvaluationMetrics, RunEvaluation},
        local::LocalWorker,
        metrics::{Episodes, Stopwatch},
        output::{OutputPlace, RunOutput},
        read_metrics::ReadMetrics,
        request::{Prepared, weights_of},
        run_dir::{RunDir, RunDirError, output_series},
        saving::{RunFiles, Saved, lock},
    },
    RolledBack, Run, RunTerms, StartError, Task,
};
use crate::learner::{LearnError, LearnerThread, Learners};

/// The discount that is told of a policy that has none: RLlib's.
const USUAL_GAMMA: f64 = 0.99;

/// The directory of a run that goes on.
struct Directory {
    lock: File,
    /// The iteration of the newest checkpoint in it; none without any.
    on_disk: Option<u64>,
}

impl Run {
    pub(crate) fn new(
        number: u32,
        task: Task,
        (registry, kernels): (&Registry, Kernels),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let known = (registry, kernels);
        match task {
            Task::Train(request) => Self::training(number, *request, known, first_lease),
            Task::Resume(saved) => {
                let (regenerated, on_disk) = (saved.regenerated(), saved.checkpoint());
                let (request, saved, lock) = saved.into_parts();
                let begun = request.run_dir.as_deref().map_or(Ok(None), output_series)?;
                let kept = saved.as_ref().and_then(|saved| saved.progress.output.clone());
                let output = kept.or_else(|| begun.map(OutputPlace::start_of));
                let directory = Some(Directory { lock, on_disk });
                Self::resumed(number, (request, saved, directory), output, regenerated, known, first_lease)
            }
            Task::RollBack(from) => {
                let RolledBack { request, saved, output, on_disk, regenerated } = *from;
                let lock = request.run_dir.as_deref().map(lock).transpose().map_err(RunDirError::from)?;
                // What is cut off its metrics is counted there.
                let regenerated = if lock.is_some() { 0 } else { regenerated };
                let directory = lock.map(|lock| Directory { lock, on_disk });
                Self::resumed(number, (request, saved, directory), output, regenerated, known, first_lease)
            }
            Task::Sample(request, batches) => Self::sampling(number, *request, batches, known, first_lease),
        }
    }

    fn training(
        number: u32,
        request: RunRequest,
        (registry, kernels): (&Registry, Kernels),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let request = request.written_out()?;
        let prepared = request.prepare(registry, kernels)?;
        request.run_dir.as_deref().map_or(Ok(()), RunDir::check_free)?;
        let slots = request.config.num_slots();
        let output = request.leased_output(&prepared).map(|dir| RunOutput::create(dir, slots)).transpose()?;
        Self::prepared(number, request, prepared, None, None, output, first_lease)
    }

    /// A run that learns: from its first weights, or from these weights and this state of the learner on.
    fn prepared(
        number: u32,
        request: RunRequest,
        prepared: Prepared,
        saved: Option<(Weights, Vec<u8>)>,
        group: Option<GroupState>,
        output: Option<RunOutput>,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        match prepared {
            Prepared::Leased(parts) => Self::learning(number, request, *parts, saved, group, output, first_lease),
            Prepared::Local(worker, notice) => {
                let mut run = Self::local(number, request, *worker, saved, first_lease)?;
                run.warnings.extend(notice);
                Ok(run)
            }
        }
    }

    /// Takes the directory of a run that is new: once nothing is in the way of its beginning any more.
    pub(crate) fn create_files(&mut self) -> Result<(), StartError> {
        if let (Some(path), None) = (&self.request.run_dir, &self.files) {
            let dir = RunDir::create(path, self.config(), self.request.init_weights.as_ref())?;
            self.output().map_or(Ok(()), |output| dir.note_output(output.series()))?;
            self.files = Some(RunFiles::new(dir, self.config().checkpoint_interval, None)?);
        }
        Ok(())
    }

    /// Goes on where the run was when it was saved, or begins it if it never was. Its output goes on from there, too, if
    /// somebody still wants it.
    fn resumed(
        number: u32,
        (request, saved, directory): (RunRequest, Option<Saved>, Option<Directory>),
        output: Option<OutputPlace>,
        regenerated: u64,
        (registry, kernels): (&Registry, Kernels),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let request = request.written_out()?;
        let prepared = request.prepare(registry, kernels)?;
        let kept = saved.as_ref().map_or((0, 0), |saved| (saved.progress.metrics_bytes, saved.progress.journal_bytes));
        let slots = request.config.num_slots();
        let mut warning = None;
        let (output, old_output) = match (request.leased_output(&prepared), output) {
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
            None => Self::prepared(number, request.clone(), prepared, None, None, output, first_lease)?,
            Some(Saved { policy, group, learner, progress }) => {
                let start = Some((policy.weights, learner));
                let run = Self::prepared(number, request.clone(), prepared, start, Some(group), output, first_lease)?;
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
        if run.is_local() && request.output.is_some() {
            warning = Some("the output goes on in new files, and rows from after the checkpoint are in it twice");
        }
        run.warnings.extend(warning.map(String::from));
        if directory.is_none() {
            run.group.count_regenerated(regenerated);
        }
        if let (Some(path), Some(Directory { lock, on_disk })) = (&request.run_dir, directory) {
            let (dir, cut) = RunDir::reopen(path, &request.config, kept, lock)?;
            run.output().map_or(Ok(()), |output| dir.note_output(output.series()))?;
            let files = RunFiles::new(dir, request.config.checkpoint_interval, on_disk)?;
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
            let latest = files.dir.metrics().last();
            run.evaluated = latest.map(|line: EvaluationLine<EvaluationMetrics>| line.evaluation);
            run.files = Some(files);
        }
        Ok(run)
    }

    /// As [`prepared`](Self::prepared), over leases.
    fn learning(
        number: u32,
        request: RunRequest,
        LearningParts { policies, layout, env_state, callbacks, info }: LearningParts,
        saved: Option<(Weights, Vec<u8>)>,
        group: Option<GroupState>,
        output: Option<RunOutput>,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let rollout = request.config.rollout.clone();
        let default = policies.get(&PolicyId::DEFAULT).filter(|_| policies.len() == 1);
        let postprocessing = default.map_or(Postprocessing::None, |policy| policy.postprocessing());
        let mut learners = Learners::new(policies, rollout.policies_to_train.clone(), callbacks, info)?;
        let saved = saved.or_else(|| Some((request.given_weights()?, Vec::new())));
        let is_new = saved.is_none();
        let (weights, state) = match saved {
            Some(saved) => saved,
            None => (learners.weights()?, Vec::new()),
        };
        let ids = learners.ids();
        // Of a run that is resumed, the filter's statistics are among the weights.
        let (mut weights, mut filter) = (weights, None);
        if rollout.observation_filter != FilterKind::NoFilter {
            (weights, filter) = RunFilter::split_from(&weights, &ids)?;
        }
        if filter.is_none() {
            filter = RunFilter::new(rollout.observation_filter, &layout.filtered(), &ids, weights.version())?;
        }
        if !is_new {
            learners.restore(&weights, &state)?;
        }
        let consumer = Consumer::Learner { thread: LearnerThread::spawn(learners)?, postprocessing, output };
        let terms = RunTerms { env_state, ..RunTerms::of(&request, gamma_of(postprocessing)) };
        let evaluation = RunEvaluation::of(&request.config);
        let weights = match &mut filter {
            None => weights,
            Some(filter) => filter.publish(&weights),
        };
        let run = Self::with(number, (request, &layout, ids), terms, weights, (consumer, group), first_lease)?;
        Ok(Self { evaluation, filter, ..run })
    }

    /// As [`prepared`](Self::prepared), by the run's own worker. It has no slots and grants nothing.
    fn local(
        number: u32,
        request: RunRequest,
        mut worker: LocalWorker,
        saved: Option<(Weights, Vec<u8>)>,
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        worker.begin()?;
        match saved {
            Some((weights, state)) => {
                worker.restore(&state)?;
                worker.set_weights(&weights)?;
            }
            None => request.given_weights().map_or(Ok(()), |weights| worker.set_weights(&weights))?,
        }
        let warning = (!worker.can_go_on())
            .then_some("this input can only be read from its beginning: a run that is interrupted cannot be resumed");
        let rank = request.data_parallel.as_ref().map_or(0, |ranks| ranks.rank);
        let (ids, weights, interruption, read) =
            (worker.ids(), worker.weights()?, worker.interruption(), worker.read().clone());
        let terms = RunTerms { num_workers: 0, ..RunTerms::of(&request, gamma_of(worker.postprocessing())) };
        let evaluation = RunEvaluation::of(&request.config).filter(|_| rank == 0);
        let layout = FragmentLayout::Agents(BTreeMap::new());
        let consumer = Consumer::Local(LearnerThread::spawn(worker)?, interruption);
        let run = Self::with(number, (request, &layout, ids), terms, weights, (consumer, None), first_lease)?;
        Ok(Self { evaluation, read, warnings: warning.map(String::from).into_iter().collect(), ..run })
    }

    fn sampling(
        number: u32,
        request: RunRequest,
        batches: mpsc::Sender<Vec<SlotFragment>>,
        (registry, kernels): (&Registry, Kernels),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let LearningParts { policies, layout, env_state, .. } = request.prepare_leased(registry, kernels)?;
        let terms = RunTerms { algo: "sample".into(), stop_return: None, env_state, ..RunTerms::of(&request, 1.0) };
        let ids = policies.keys().cloned().collect();
        let weights = match request.given_weights() {
            Some(weights) => weights,
            None => weights_of(&policies).map_err(|error| LearnError::from(PolicyError::from(error)))?,
        };
        Self::with(number, (request, &layout, ids), terms, weights, (Consumer::Taker(batches), None), first_lease)
    }

    fn with(
        number: u32,
        (request, layout, policies): (RunRequest, &FragmentLayout, Vec<PolicyId>),
        terms: RunTerms,
        weights: Weights,
        (consumer, group): (Consumer, Option<GroupState>),
        first_lease: LeaseId,
    ) -> Result<Self, StartError> {
        let config = &request.config;
        let (num_slots, fragment_length) = (config.num_slots(), config.fragment_length());
        let limits = FragmentLimits::new(config, layout);
        let group_config = GroupConfig {
            first_lease,
            max_fragment_steps: config.max_fragment_steps(),
            max_slots_per_lease: largest_lease(&limits, num_slots),
            mode: terms.mode,
            reproducible: match terms.env_state {
                EnvState::Snapshot => true,
                EnvState::Replay => config.replay_mismatch == ReplayMismatch::Fail,
                EnvState::Opaque => false,
            },
            ..GroupConfig::new(num_slots, fragment_length)
        };
        let group = match group {
            Some(state) => LeaseGroup::restore(group_config, state)?,
            None => LeaseGroup::new(group_config)?,
        };
        let opaque = "the environment is opaque: the open episodes of lost workers end, no fragment is audited, and the run is not \
                      reproducible";
        let warnings = (terms.env_state == EnvState::Opaque).then(|| opaque.into()).into_iter().collect();
        Ok(Self {
            number,
            terms,
            limits,
            request,
            group,
            phase: Phase::Running,
            watched_slot: 0,
            consumer: Some(consumer),
            published: weights.version(),
            filter: None,
            weights,
            policies,
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
            recent_weights: VecDeque::new(),
            snapshots: BTreeMap::new(),
            is_tainted: false,
            warnings,
            history: Vec::new(),
            evaluations: Vec::new(),
            evaluation: None,
            evaluated: None,
            is_batch_due: false,
            read: ReadMetrics::default(),
            #[cfg(test)]
            false_books: None,
        })
    }
}

impl RunTerms {
    /// What a request says of it, under a policy with this discount.
    fn of(request: &RunRequest, gamma: f64) -> Self {
        let RunConfig { rollout, algorithm, num_workers, stop, .. } = &request.config;
        Self {
            algo: algorithm.clone().unwrap_or_default(),
            gamma,
            num_workers: *num_workers,
            extra_environs: rollout.extra_environs.clone(),
            worker: request.config.host.worker.clone(),
            hung_worker_timeout: hung_worker_timeout(&request.config),
            pace: request.pace,
            stop_return: stop.episode_return_mean,
            max_env_steps: stop.env_steps,
            max_wall: stop.wall_s.map(Duration::from_secs_f64),
            mode: request.config.sampling_mode(),
            env_state: EnvState::default(),
        }
    }

    /// Why the same seed may give other rows, if it may, in the words of the summary.
    pub(super) fn causes(&self, abandoned_episodes: u64, is_tainted: bool) -> Vec<String> {
        let mut causes = Vec::new();
        if self.env_state == EnvState::Opaque {
            causes.push("the environment is opaque: its open episodes end where their slots move".into());
        }
        if abandoned_episodes > 0 {
            causes.push(format!("{abandoned_episodes} open episodes were given up"));
        }
        if !self.mode.is_synchronous() {
            causes.push(
                "which rows a batch has depends on time, unless its journal is replayed: mode is not synchronous"
                    .into(),
            );
        }
        if is_tainted {
            causes.push("rows were used that a worker had made up".into());
        }
        causes
    }
}

fn gamma_of(postprocessing: Postprocessing) -> f64 {
    match postprocessing {
        Postprocessing::Advantages(config) => config.gamma,
        Postprocessing::None | Postprocessing::Custom => USUAL_GAMMA,
    }
}

/// How long a local worker may hang; none for ever.
fn hung_worker_timeout(config: &RunConfig) -> Option<Micros> {
    let seconds = Some(config.hung_worker_timeout_s).filter(|seconds| *seconds > 0.0)?;
    Some(Micros((seconds * 1e6) as u64))
}

/// The most slots whose fragments fit into one upload.
fn largest_lease(limits: &FragmentLimits, num_slots: u32) -> u32 {
    let mut slots = num_slots;
    while slots > 1 && limits.check_lease_of(slots as usize).is_err() {
        slots = slots.div_ceil(2);
    }
    slots
}
