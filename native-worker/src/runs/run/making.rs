//! Creating a run: new, resumed, rolled back, or for its rows only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    time::Duration,
};

use rollmesh_core::{
    env::EnvState,
    group::GroupState,
    hub::{BatchConsumer, RunLoop, RunLoopConfig, RunProgress, push_thinned},
    ids::LeaseId,
    run::RunConfig,
    sampler::FragmentLayout,
    time::Micros,
    weights::Weights,
    worker::{LearningParts, RolloutConfig},
};

use super::{
    super::{
        RunRequest,
        consumer::Consumer,
        evaluation::{EvaluationLine, EvaluationMetrics, RunEvaluation},
        local::LocalWorker,
        output::{OutputPlace, RunOutput},
        own_sampler::Watchdog,
        read_metrics::ReadMetrics,
        recording::Recording,
        request::Prepared,
        run_dir::{NO_ALGORITHM, RunDir, output_series},
        saving::{RunFiles, Saved, SavedRun},
    },
    Run, StartError, Taker, WorkerTerms,
    maker::{RunMaker, RunParts},
};
use crate::{
    envs::ENV_MEMORY_VARIABLE,
    learner::{LearnerThread, LearningStart, filter_of, gamma_of},
};

/// A directory's name that fits into a status together with everything else.
const MAX_RUN_DIR_BYTES: usize = 1_024;
/// Maximum number of iterations of earlier processes that dashboards are shown.
const MAX_HISTORY: usize = 4_096;

/// The hub's part in creating a run.
#[derive(Clone, Copy)]
pub(crate) struct RunPlace<'a> {
    pub(crate) number: u32,
    pub(crate) maker: &'a RunMaker,
    /// Higher than those of earlier runs.
    pub(crate) first_lease: LeaseId,
    /// The hub's clock. A run's time begins once all its parts have been made.
    pub(crate) clock: &'a dyn Fn() -> Micros,
}

/// The state from which a resumed run continues.
#[derive(Default)]
struct Start {
    /// The weights and the state of the learner, or of the taker of the rows; `None` for initial ones.
    learner: Option<(Weights, Vec<u8>)>,
    group: Option<GroupState>,
    output: Option<RunOutput>,
    /// `None` for a run with a learner.
    taker: Option<Taker>,
    /// True if an earlier process has begun it.
    resumes: bool,
}

/// A run that continues, from a checkpoint in its directory or from a snapshot in memory.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(super) saved: Option<Saved>,
    /// The lock of the run's directory; `None` for a run without one, and for ranks other than 0.
    pub(super) lock: Option<File>,
    /// The iteration of the newest checkpoint in the directory; `None` without any.
    pub(super) on_disk: Option<u64>,
    /// The position of its output.
    pub(super) output: Option<OutputPlace>,
    /// Env steps that are granted a second time, besides those behind the metrics that are cut off.
    pub(super) regenerated: u64,
}

impl Run {
    pub(crate) fn new(place: RunPlace<'_>, parts: RunParts) -> Result<Self, StartError> {
        let RunParts { request, prepared, taker, resumed } = parts;
        if let Some(resumed) = resumed {
            return Self::resumed(place, request, prepared, taker, resumed);
        }
        request.run_dir.as_deref().map_or(Ok(()), RunDir::check_free)?;
        let slots = request.config.num_slots();
        let output = request.run_output(&prepared).map(|target| RunOutput::create(target, slots)).transpose()?;
        Self::prepared(place, request, prepared, Start { taker, output, ..Start::default() })
    }

    fn prepared(
        place: RunPlace<'_>,
        request: RunRequest,
        prepared: Prepared,
        mut start: Start,
    ) -> Result<Self, StartError> {
        match prepared {
            Prepared::Leased(parts) => match start.taker.take() {
                Some(taker) => Self::sampling(place, request, *parts, taker, start),
                None => Self::learning(place, request, *parts, start),
            },
            Prepared::Local(worker, notice) => {
                let mut run = Self::local(place, request, *worker, start)?;
                run.warnings.extend(notice);
                Ok(run)
            }
        }
    }

    /// Creates the directory of a new run, once nothing can prevent its start any more.
    pub(crate) fn create_files(&mut self) -> Result<(), StartError> {
        if let (Some(path), None) = (&self.request.run_dir, &self.files) {
            let dir = RunDir::create(path, &self.stored_config(), self.request.init_weights.as_ref())?;
            self.output().map_or(Ok(()), |output| dir.record_output(output))?;
            self.files = Some(RunFiles::new(dir, self.config().checkpoint_interval, None)?);
        }
        Ok(())
    }

    /// Returns the configuration for the run's directory, in which a setting that is absent has its default.
    fn stored_config(&self) -> RunConfig {
        let mut config = self.config().clone();
        if self.state.is_sampling_only() {
            config.algorithm = Some(NO_ALGORITHM.into());
        }
        config
    }

    /// Resumes the run from its checkpoint, or starts it if it has none. Its output is resumed, too, if it still has one.
    fn resumed(
        place: RunPlace<'_>,
        request: RunRequest,
        prepared: Prepared,
        taker: Option<Taker>,
        resumed: Resumed,
    ) -> Result<Self, StartError> {
        let Resumed { saved, lock, on_disk, output, regenerated } = resumed;
        let kept = saved.as_ref().map_or((0, 0), |saved| (saved.progress.metrics_bytes, saved.progress.journal_bytes));
        let slots = request.config.num_slots();
        let mut warnings = Vec::new();
        let (iteration, ended) = (
            saved.as_ref().map_or(0, |saved| saved.policy.iteration),
            output.as_ref().map_or(0, OutputPlace::iteration),
        );
        let (output, old_output) = match (request.run_output(&prepared), output) {
            (None, old) => {
                if old.is_some() {
                    warnings.push("the run was begun with --output: without it, no more rows are written".into());
                }
                (None, old)
            }
            (Some(target), old) => {
                let (output, is_whole) = match old {
                    None => (RunOutput::create(target, slots)?, true),
                    Some(place) => RunOutput::reopen(target, place, slots)?,
                };
                if !is_whole {
                    warnings.push("the output lacks rows from before the checkpoint".into());
                }
                if ended < iteration {
                    let first = ended + 1;
                    warnings.push(format!(
                        "the output lacks the rows of iterations {first} to {iteration}, which were sampled without --output"
                    ));
                }
                (Some(output), None)
            }
        };
        let mut run = match saved {
            None => {
                let start = Start { taker, output, resumes: true, ..Start::default() };
                Self::prepared(place, request.clone(), prepared, start)?
            }
            Some(Saved { policy, group, learner, progress }) => {
                let abandoned = group.ledger().abandoned_episodes;
                let learner = Some((policy.weights, learner));
                let start = Start { learner, taker, group: Some(group), output, resumes: true };
                let mut run = Self::prepared(place, request.clone(), prepared, start)?;
                let progress = RunProgress {
                    iteration: policy.iteration,
                    env_steps: policy.env_steps,
                    episodes: progress.episodes(),
                    is_tainted: progress.tainted,
                    elapsed: progress.elapsed(),
                };
                run.state.resume_from(progress, (place.clock)());
                if run.is_local() {
                    // Its group is new, since there are no slots.
                    run.state.group.count_abandoned(abandoned);
                }
                run
            }
        };
        run.old_output = old_output;
        if run.is_local() && request.output.is_some() && run.output().is_none() {
            warnings
                .push("the output continues in new files, and rows from after the checkpoint are in it twice".into());
        }
        run.warnings.extend(warnings);
        run.state.group.count_regenerated(regenerated);
        if let (Some(path), Some(lock)) = (&request.run_dir, lock) {
            let (dir, cut) = RunDir::reopen(path, &run.stored_config(), kept, run.state.env_steps(), lock)?;
            run.output().map_or(Ok(()), |output| dir.record_output(output))?;
            let files = RunFiles::new(dir, request.config.checkpoint_interval, on_disk)?;
            let lost = cut.env_steps.map_or(0, |env_steps| env_steps.saturating_sub(run.state.env_steps()));
            run.state.group.count_regenerated(lost);
            let lacks = |file: &&str| format!("{file} lacks lines from before the checkpoint");
            run.warnings.extend(cut.short.iter().map(lacks));
            if let Err(error) = files.write_ledger(run.state.group.ledger()) {
                run.warnings.push(format!("ledger.json could not be written: {error}"));
            }
            files.dir.metrics().for_each(|metrics| _ = push_thinned(&mut run.history, metrics, MAX_HISTORY));
            let number = place.number;
            let evaluated = |line: EvaluationLine<EvaluationMetrics>| line.evaluation.point(number);
            run.evaluations = files.dir.metrics().map(evaluated).collect();
            let earlier = run.evaluations.len() as u64;
            run.evaluation.iter_mut().for_each(|evaluation| evaluation.count_earlier(earlier));
            let latest = files.dir.metrics().last();
            run.evaluated = latest.map(|line: EvaluationLine<EvaluationMetrics>| line.evaluation);
            run.state.handle_evaluated(run.evaluated.as_ref().and_then(|latest| latest.episode_return_mean));
            run.files = Some(files);
        }
        Ok(run)
    }

    /// Works like [`prepared`](Self::prepared), over leases.
    fn learning(
        place: RunPlace<'_>,
        request: RunRequest,
        parts: LearningParts,
        start: Start,
    ) -> Result<Self, StartError> {
        let saved = start.learner.or_else(|| Some((request.given_weights()?, Vec::new())));
        let LearningStart { learners, config, postprocessing } = LearningStart::new(&request.config, parts, saved)?;
        let consumer = Consumer::Learner { thread: LearnerThread::spawn(learners)?, output: start.output };
        let evaluation = RunEvaluation::of(&request);
        let shown = place.of_loop(&request, config.weights.clone());
        let state = RunLoopConfig {
            number: shown.number,
            run_dir: shown.run_dir,
            throttle: shown.throttle,
            first_lease: shown.first_lease,
            group: start.group,
            ..config
        };
        let run = Self::with(place, request, state, consumer, gamma_of(postprocessing))?;
        let recording = Recording::of(place, &run, start.resumes)?;
        Ok(Self { evaluation, recording, ..run })
    }

    /// Works like [`prepared`](Self::prepared), with the run's own worker. It has no slots and grants nothing.
    fn local(
        place: RunPlace<'_>,
        request: RunRequest,
        mut worker: LocalWorker,
        start: Start,
    ) -> Result<Self, StartError> {
        worker.begin()?;
        worker.is_saved = request.run_dir.is_some();
        worker.output.clone_from(&start.output);
        match start.learner {
            Some((weights, state)) => {
                worker.restore(&state)?;
                worker.set_weights(&weights)?;
            }
            None => request.given_weights().map_or(Ok(()), |weights| worker.set_weights(&weights))?,
        }
        let mut warnings = Vec::new();
        if !worker.can_be_resumed {
            let no_place =
                "this input can only be read from its beginning: a run that is interrupted cannot be resumed";
            warnings.push(no_place.into());
        }
        if worker.lost_episodes > 0 {
            let lost = worker.lost_episodes;
            warnings.push(format!(
                "{lost} open episodes cannot be continued from the checkpoint: their environments begin the next ones, and the run is \
                 not reproducible"
            ));
        }
        let rank = request.data_parallel.as_ref().map_or(0, |ranks| ranks.rank);
        let (policies, interruption, read) = (worker.ids(), worker.interruption(), worker.read().clone());
        let state = RunLoopConfig {
            policies,
            consumer: BatchConsumer::OwnWorker,
            ..place.of_loop(&request, worker.weights()?)
        };
        let gamma = gamma_of(worker.postprocessing());
        let evaluation = RunEvaluation::of(&request).filter(|_| rank == 0);
        let (rollout, patience_s) = (&request.config.rollout, request.config.hung_worker_timeout_s);
        let watchdog = worker.watch().map(|watch| Watchdog::new(watch, rollout, patience_s));
        let thread = LearnerThread::spawn(worker)?;
        let consumer = Consumer::Local { thread, is_interrupted: interruption, output: start.output };
        let mut run = Self::with(place, request, state, consumer, gamma)?;
        run.worker_terms.num_workers = 0;
        run.warnings.extend(warnings);
        if run.state.samples_ahead() {
            let ahead =
                "sample_async is set: which weights sample a row depends on time, and the run is not reproducible";
            run.warnings.push(ahead.into());
        }
        Ok(Self { evaluation, watchdog, read, ..run })
    }

    /// Works like [`prepared`](Self::prepared), over leases and without a learner.
    fn sampling(
        place: RunPlace<'_>,
        request: RunRequest,
        parts: LearningParts,
        taker: Taker,
        start: Start,
    ) -> Result<Self, StartError> {
        let Start { learner: saved, group, output, resumes, .. } = start;
        let state = RunLoopConfig::sampling(place.number, request.config.clone(), &parts)?;
        let (weights, taken) = match saved {
            Some((weights, taken)) => (weights, Some(taken)),
            None => (request.given_weights().unwrap_or(state.weights), None),
        };
        let kind = request.config.rollout.observation_filter;
        let (weights, mut filter) = filter_of(kind, &state.layout, &state.policies, weights)?;
        let weights = filter.as_mut().map_or_else(|| weights.clone(), |filter| filter.publish(&weights));
        let mut so_far = None;
        let consumer = match taker {
            Taker::Rows(mut rows) => {
                taken.map_or(Ok(()), |taken| rows.restore(&taken))?;
                so_far = Some(rows.taken());
                Consumer::Rows { thread: LearnerThread::spawn(rows)?, output }
            }
            Taker::Caller(batches) => Consumer::Caller(batches),
        };
        let RunLoopConfig { run_dir, throttle, first_lease, .. } = place.of_loop(&request, weights.clone());
        let state = RunLoopConfig { run_dir, throttle, first_lease, weights, filter, group, ..state };
        let evaluation = RunEvaluation::of(&request);
        let run = Self::with(place, request, state, consumer, 1.0)?;
        let recording = Recording::of(place, &run, resumes)?;
        Ok(Self { evaluation, recording, taken: so_far, ..run })
    }

    fn with(
        place: RunPlace<'_>,
        request: RunRequest,
        state: RunLoopConfig,
        consumer: Consumer,
        gamma: f64,
    ) -> Result<Self, StartError> {
        let opaque = "the environment is opaque: the open episodes of lost workers end, no fragment is audited, and the run is not \
                      reproducible";
        let devices = "device_rows is set: workers may act on GPUs, audits replay their actions and compare within 1e-4, and the run \
                       is not reproducible";
        let no_place = "evaluation.render draws GIFs into the run's directory, and this run has none";
        let warnings = [
            (state.env_state == EnvState::Opaque, opaque),
            (request.config.device_rows, devices),
            (request.config.evaluation.render && request.run_dir.is_none(), no_place),
        ];
        let warnings = warnings.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text.into()).collect();
        Ok(Self {
            state: RunLoop::new(state, (place.clock)())?,
            worker_terms: WorkerTerms::of(&request.config),
            gamma,
            request,
            consumer: Some(consumer),
            files: None,
            old_output: None,
            is_last_batch_cut: false,
            taken: None,
            snapshots: BTreeMap::new(),
            warnings,
            history: Vec::new(),
            evaluations: Vec::new(),
            evaluation: None,
            evaluated: None,
            watchdog: None,
            recording: None,
            replacing: BTreeSet::new(),
            recreated: Vec::new(),
            read: ReadMetrics::default(),
            #[cfg(test)]
            false_ledger: None,
        })
    }
}

impl Resumed {
    /// Returns the request of a saved run, and the state from which it continues.
    pub(super) fn of(saved: SavedRun) -> Result<(RunRequest, Self), StartError> {
        let (regenerated, on_disk) = (saved.regenerated(), saved.checkpoint());
        let (request, saved, lock) = saved.into_parts();
        let begun = request.run_dir.as_deref().map_or(Ok(None), output_series)?;
        let kept = saved.as_ref().and_then(|saved| saved.progress.output.clone());
        let output = kept.or_else(|| begun.map(OutputPlace::start_of));
        Ok((request, Self { saved, lock, on_disk, output, regenerated }))
    }

    /// Checks that as many processes learn as before.
    pub(super) fn check_ranks(&self, request: &RunRequest) -> Result<(), StartError> {
        let (ranks, now) = (self.saved.as_ref().map(|saved| saved.progress.world_size), request.world_size());
        ranks.filter(|saved| *saved != now).map_or(Ok(()), |saved| Err(StartError::Ranks { saved, now }))
    }
}

impl RunPlace<'_> {
    /// Returns the configuration of a run's loop with these weights, without policies and leases yet.
    fn of_loop(&self, request: &RunRequest, weights: Weights) -> RunLoopConfig {
        let directory = request.run_dir.as_ref().map_or_else(String::new, |directory| directory.display().to_string());
        RunLoopConfig {
            number: self.number,
            config: request.config.clone(),
            run_dir: if directory.len() <= MAX_RUN_DIR_BYTES { directory } else { String::new() },
            algo: request.config.algorithm.clone().unwrap_or_default(),
            throttle: micros(request.throttle),
            layout: FragmentLayout::Agents(BTreeMap::new()),
            env_state: EnvState::default(),
            can_replay_actions: false,
            policies: Vec::new(),
            weights,
            filter: None,
            consumer: BatchConsumer::OwnWorker,
            group: None,
            first_lease: self.first_lease,
        }
    }
}

impl WorkerTerms {
    fn of(config: &RunConfig) -> Self {
        let mut extra_environs = config.rollout.extra_environs.clone();
        let memory_mb = config.rollout.remote_env_memory_mb;
        if memory_mb != RolloutConfig::default().remote_env_memory_mb {
            extra_environs.entry(ENV_MEMORY_VARIABLE.into()).or_insert_with(|| memory_mb.to_string());
        }
        Self { num_workers: config.num_workers, extra_environs, spec: config.host.worker.clone() }
    }
}

fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
