//! A run as the hub drives it: group, consumer and measurements, without sockets.

use std::{collections::BTreeMap, io, time::Duration};

use rollmesh_core::{
    batch::{OBS, SlotFragment},
    env::{EnvRegistry, EnvSpaces},
    group::{BeginError, GroupConfig, GroupConfigError, WorkerGroup},
    hash::weights_hash,
    ids::{LeaseId, WeightsVersion, WorkerId},
    lease::Lease,
    policy::{MlpPolicySpec, init_weights},
    postprocess::PostprocessError,
    protocol::{
        Frame, Message, Phase, TooLarge,
        convert::{self, FragmentLimits},
        message::{EnvTrace, FragmentUpload, Iteration, RunStart, RunStatus, WeightsApplied},
    },
    run::RunSpec,
    time::Micros,
    weights::Weights,
};
use tokio::sync::mpsc;

use super::{
    RunEnd, SampleConfig, Summary, TrainConfig, TrainConfigError,
    consumer::{Consumer, Consuming},
    metrics::{Episodes, IterationMetrics, Stopwatch},
    run_dir::{RunDir, RunDirError},
};
use crate::learner::{DeviceError, LearnError, Learner, LearnerThread, UpdateStats};

/// Granted leases that are remembered per worker, to read uploads that come after the end of their lease.
const REMEMBERED_LEASES: usize = 4;

/// What a run is for.
#[derive(Debug)]
pub(crate) enum Task {
    /// Learning.
    Train(TrainConfig),
    /// Rows, for whoever holds the other end.
    Sample(SampleConfig, mpsc::Sender<Vec<SlotFragment>>),
}

/// What the hub must know of a run, whatever it is for.
pub(crate) struct RunTerms {
    pub(crate) algo: &'static str,
    /// Local workers that it begins with.
    pub(crate) num_workers: u32,
    /// Environment variables that they have besides the hub's.
    pub(crate) extra_environs: BTreeMap<String, String>,
    /// The least time between two batches.
    pace: Duration,
    stop_return: Option<f64>,
    max_env_steps: u64,
}

/// A run in progress, or over.
pub(crate) struct Run {
    pub(crate) number: u32,
    pub(crate) terms: RunTerms,
    pub(crate) spec: RunSpec,
    pub(crate) group: WorkerGroup,
    pub(crate) phase: Phase,
    pub(crate) watched_slot: u32,
    limits: FragmentLimits,
    /// None once the run is over: whoever takes its batches sees that no more come.
    consumer: Option<Consumer>,
    weights: Weights,
    /// The weights that all workers were sent, but for those that came later and were sent newer ones.
    published: WeightsVersion,
    /// Weights that were set in the middle of an iteration: they act from the next one on that has not begun.
    next_weights: Option<Weights>,
    granted: BTreeMap<LeaseId, (WorkerId, Lease)>,
    /// Iterations that have begun.
    begun: u64,
    iteration: u64,
    env_steps: u64,
    episodes: Episodes,
    stopwatch: Stopwatch,
    /// On the stopwatch.
    iteration_began: Duration,
    steps_per_s: f64,
    error: String,
    files: Option<RunDir>,
}

/// A batch that is being consumed.
pub(crate) struct Submitted {
    pub(crate) update: Consuming,
    /// What the watched slot saw.
    pub(crate) trace: EnvTrace,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Config(#[from] TrainConfigError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Learner(#[from] LearnError),
    #[error("cannot start the learner's thread: {0}")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Group(#[from] GroupConfigError),
    #[error("another run is going on; stop it first")]
    Busy,
    #[error("the hub has stopped")]
    HubGone,
}

/// Why weights could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// There is no run that takes weights from outside.
    #[error("no run of rows alone is going on: begin one with Hub::sample")]
    NoRun,
    /// The policy of the run has other tensors.
    #[error("the run's policy has other tensors: {0}")]
    Misfit(String),
    /// The weights are too many for a message.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The run or the hub ended before all workers had applied them.
    #[error("the run ended before all workers had applied the weights")]
    Ended,
}

/// An upload that is not what its lease asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadFault {
    /// The group's books decide on it: the lease is long over, or never was.
    #[error("the lease is unknown")]
    Unknown,
    #[error(transparent)]
    Invalid(#[from] convert::UploadError),
}

impl Run {
    pub(crate) fn new(number: u32, task: Task, envs: &EnvRegistry, first_lease: LeaseId) -> Result<Self, StartError> {
        match task {
            Task::Train(config) => Self::training(number, config, envs, first_lease),
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
        let files = config.run_dir.as_deref().map(|path| RunDir::create(path, &config)).transpose()?;
        let thread = LearnerThread::spawn(learner)?;
        let consumer = Consumer::Learner { thread, gamma: config.ppo.gamma, lambda: config.ppo.lambda };
        let terms = RunTerms {
            algo: config.algo.name(),
            num_workers: config.num_workers,
            extra_environs: config.extra_environs,
            pace: config.pace,
            stop_return: config.stop_return,
            max_env_steps: config.max_env_steps,
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
            num_workers: config.num_workers,
            extra_environs: BTreeMap::new(),
            pace: Duration::ZERO,
            stop_return: None,
            max_env_steps: config.env_steps,
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
            ..GroupConfig::new(spec.num_slots, spec.rollout_fragment_length)
        };
        let group = WorkerGroup::new(group_config)?;
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
            env_steps: 0,
            episodes: Episodes::default(),
            stopwatch: Stopwatch::started(),
            iteration_began: Duration::ZERO,
            steps_per_s: 0.0,
            error: String::new(),
            files: None,
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.phase, Phase::Running | Phase::Paused)
    }

    /// Time since the run began, without pauses.
    pub(crate) fn elapsed(&self) -> Duration {
        self.stopwatch.elapsed()
    }

    /// True once the first iteration has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun > 0
    }

    pub(crate) fn announcement(&self) -> Message {
        Message::RunStart(RunStart { run: self.number, spec: self.spec.clone() })
    }

    pub(crate) fn weights_frame(&self) -> Result<Frame, TooLarge> {
        convert::weights_frame(self.number, &self.weights)
    }

    /// True if weights were set that need not wait any longer.
    pub(crate) fn has_next_weights(&self) -> bool {
        self.next_weights.is_some() && self.group.fragment().is_none()
    }

    /// The weights, if they have changed since they were sent to everybody. Not while a fragment is being made: whoever
    /// has newer ones cannot help with it.
    pub(crate) fn news(&mut self) -> Result<Option<Frame>, TooLarge> {
        if self.group.fragment().is_some() {
            return Ok(None);
        }
        if let Some(next) = self.next_weights.take() {
            self.weights = next;
        }
        if self.weights.version() == self.published {
            return Ok(None);
        }
        self.published = self.weights.version();
        self.weights_frame().map(Some)
    }

    /// Sets weights of a run without a learner; the version that they get. They act from the next iteration on that has
    /// not begun.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<WeightsVersion, SyncError> {
        if !self.has_taker() {
            return Err(SyncError::NoRun);
        }
        let newest = self.next_weights.as_ref().unwrap_or(&self.weights);
        let shapes = |weights: &Weights| -> Vec<String> {
            weights.tensors().iter().map(|tensor| format!("{} {:?}", tensor.name, tensor.shape)).collect()
        };
        let (wanted, found) = (shapes(newest), shapes(weights));
        if wanted != found {
            let odd = wanted.iter().find(|name| !found.contains(name)).or_else(|| found.last());
            return Err(SyncError::Misfit(odd.cloned().unwrap_or_default()));
        }
        let version = WeightsVersion(newest.version().0 + 1);
        self.next_weights = Some(weights.with_version(version));
        Ok(version)
    }

    /// Notes what a worker says it acts with; nobody acts with weights that were never sent.
    pub(crate) fn handle_weights_applied(&mut self, worker: WorkerId, applied: &WeightsApplied) {
        let version = WeightsVersion(applied.version);
        if applied.run == self.number && version <= self.weights.version() {
            self.group.handle_weights_applied(worker, version);
        }
    }

    /// True once all workers act with these weights, or newer ones.
    pub(crate) fn have_applied(&self, version: WeightsVersion, now: Micros) -> bool {
        self.published >= version && self.group.workers(now).all(|worker| worker.weights_version >= Some(version))
    }

    /// Begins the next iteration. Where no weights are to come before it, the one after it, too: then workers go on with
    /// that while their uploads travel.
    pub(crate) fn begin_iteration(&mut self, now: Micros) -> Result<(), BeginError> {
        self.iteration_began = self.stopwatch.elapsed();
        if !self.has_taker() || self.group.open_iterations() == 0 {
            self.begin_one(now)?;
        }
        while self.may_begin_ahead() {
            self.begin_one(now)?;
        }
        Ok(())
    }

    fn begin_one(&mut self, now: Micros) -> Result<(), BeginError> {
        self.begun += 1;
        self.group.begin_iteration(self.weights.version(), now).map(|_| ())
    }

    fn may_begin_ahead(&self) -> bool {
        self.has_taker()
            && self.next_weights.is_none()
            && self.begun.saturating_mul(self.steps_per_iteration()) < self.terms.max_env_steps
            && self.group.may_begin(self.weights.version())
    }

    fn has_taker(&self) -> bool {
        matches!(self.consumer, Some(Consumer::Taker(_)))
    }

    fn steps_per_iteration(&self) -> u64 {
        u64::from(self.spec.num_slots) * u64::from(self.spec.rollout_fragment_length)
    }

    /// How long the next iteration has to wait for the run's pace.
    pub(crate) fn rest(&self) -> Duration {
        self.terms.pace.saturating_sub(self.stopwatch.elapsed().saturating_sub(self.iteration_began))
    }

    /// Remembers a lease on its way to a worker; the message to send.
    pub(crate) fn grant(&mut self, worker: WorkerId, lease: Lease) -> Message {
        let message = Message::LeaseGrant(convert::lease_grant(self.number, &lease));
        self.granted.insert(lease.id, (worker, lease));
        let of_worker: Vec<LeaseId> =
            self.granted.iter().filter(|(_, (owner, _))| *owner == worker).map(|(id, _)| *id).collect();
        for old in of_worker.iter().rev().skip(REMEMBERED_LEASES) {
            self.granted.remove(old);
        }
        message
    }

    /// Slots of a worker's latest lease.
    pub(crate) fn latest_slots(&self, worker: WorkerId) -> u32 {
        let mut latest = self.granted.values().rev().filter(|(owner, _)| *owner == worker);
        latest.next().map_or(0, |(_, lease)| lease.slots.len() as u32)
    }

    pub(crate) fn forget_worker(&mut self, worker: WorkerId) {
        self.granted.retain(|_, (owner, _)| *owner != worker);
    }

    /// Reads an upload and hands it to the group.
    pub(crate) fn handle_upload(
        &mut self,
        worker: WorkerId,
        upload: &FragmentUpload,
        now: Micros,
    ) -> Result<(), UploadFault> {
        let id = LeaseId(upload.lease);
        let Some((_, lease)) = self.granted.get(&id).filter(|(owner, _)| *owner == worker) else {
            self.group.handle_fragments(worker, id, Vec::new(), now);
            return Err(UploadFault::Unknown);
        };
        match convert::slot_fragments(upload, self.number, lease, &self.limits) {
            Ok(fragments) => {
                self.group.handle_fragments(worker, id, fragments, now);
                Ok(())
            }
            Err(error) => {
                self.group.handle_invalid(worker, id, now);
                Err(error.into())
            }
        }
    }

    /// The batch of the iteration, if it is complete: counted, and handed to its consumer.
    pub(crate) fn poll_update(&mut self) -> Option<Result<Submitted, PostprocessError>> {
        let consumer = self.consumer.as_ref()?;
        let fragments = self.group.poll_batch()?;
        self.episodes.count(&fragments);
        let trace = self.trace(&fragments);
        Some(consumer.submit(fragments).map(|update| Submitted { update, trace }))
    }

    /// The batch has been consumed.
    pub(crate) fn count_batch(&mut self) {
        let steps = self.steps_per_iteration();
        self.iteration += 1;
        self.env_steps += steps;
        let took = self.stopwatch.elapsed().saturating_sub(self.iteration_began);
        self.steps_per_s = steps as f64 / took.as_secs_f64().max(1e-9);
    }

    /// The learner is done with the batch.
    pub(crate) fn handle_update(&mut self, weights: Weights, stats: &UpdateStats) -> IterationMetrics {
        self.weights = weights;
        self.count_batch();
        IterationMetrics {
            steps_per_s: self.steps_per_s,
            wall_s: self.stopwatch.elapsed().as_secs_f64(),
            ..IterationMetrics::new(self.iteration, self.env_steps, &self.episodes, stats)
        }
    }

    /// Writes a line of metrics, if the run has files.
    pub(crate) fn write_metrics(&mut self, metrics: &IterationMetrics) -> io::Result<()> {
        self.files.as_mut().map_or(Ok(()), |files| files.add_metrics(metrics))
    }

    /// Why the run should end now, if it should.
    pub(crate) fn end_reached(&self) -> Option<RunEnd> {
        if self.terms.stop_return.is_some_and(|target| self.episodes.have_reached(target)) {
            return Some(RunEnd::Solved);
        }
        (self.env_steps >= self.terms.max_env_steps).then_some(RunEnd::Finished)
    }

    pub(crate) fn pause(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Paused;
            self.group.pause();
            self.stopwatch.pause();
        }
    }

    pub(crate) fn resume(&mut self, now: Micros) {
        if self.phase == Phase::Paused {
            self.phase = Phase::Running;
            self.stopwatch.resume();
            self.group.resume(now);
        }
    }

    /// Ends the run and writes its last files. A file that cannot be written is told as an error beside the summary.
    pub(crate) fn end(&mut self, end: RunEnd, now: Micros) -> (Summary, io::Result<()>) {
        self.stopwatch.pause();
        self.consumer = None;
        self.group.stop(now);
        self.phase = match &end {
            RunEnd::Solved => Phase::Solved,
            RunEnd::Finished => Phase::Finished,
            RunEnd::Stopped => Phase::Stopped,
            RunEnd::Failed(error) => {
                self.error = error.clone();
                Phase::Failed
            }
        };
        let summary = Summary {
            env: self.spec.env.clone(),
            algo: self.terms.algo,
            seed: self.spec.seed,
            solved: end == RunEnd::Solved,
            env_steps: self.env_steps,
            episode_return_mean: self.episodes.return_mean(),
            wall_s: self.stopwatch.elapsed().as_secs_f64(),
            weights_hash: weights_hash(&self.weights),
            end,
        };
        let written = self.files.take().map_or(Ok(()), |files| {
            super::weights_file::write(&files.weights_path(), &self.weights)?;
            files.write_summary(&summary)
        });
        (summary, written)
    }

    pub(crate) fn status(&self) -> RunStatus {
        let ledger = self.group.ledger();
        RunStatus {
            run: self.number,
            phase: self.phase.to_wire(),
            env: self.spec.env.clone(),
            algo: self.terms.algo.into(),
            seed: self.spec.seed,
            num_slots: self.spec.num_slots,
            iteration: self.iteration,
            env_steps: self.env_steps,
            episodes: self.episodes.finished,
            episode_return_mean: self.episodes.return_mean().map_or(f32::NAN, |mean| mean as f32),
            stop_return: self.terms.stop_return.map_or(f32::NAN, |target| target as f32),
            max_env_steps: self.terms.max_env_steps,
            wall_ms: self.stopwatch.elapsed().as_millis() as u64,
            steps_per_s: self.steps_per_s as f32,
            watched_slot: self.watched_slot,
            granted: ledger.granted,
            committed: ledger.committed,
            superseded: ledger.superseded,
            rejected: ledger.rejected.total(),
            expired: ledger.expired.total(),
            outstanding: ledger.outstanding,
            error: self.error.clone(),
        }
    }

    /// A point for dashboards.
    pub(crate) fn point(&self, metrics: &IterationMetrics) -> Iteration {
        Iteration {
            run: self.number,
            iteration: metrics.iteration,
            env_steps: metrics.env_steps,
            wall_ms: (metrics.wall_s * 1e3) as u64,
            episode_return_mean: metrics.episode_return_mean.map_or(f32::NAN, |mean| mean as f32),
            episode_len_mean: metrics.episode_len_mean.map_or(f32::NAN, |mean| mean as f32),
            steps_per_s: metrics.steps_per_s as f32,
            policy_loss: metrics.policy_loss as f32,
            vf_loss: metrics.vf_loss as f32,
            entropy: metrics.entropy as f32,
            kl: metrics.kl as f32,
        }
    }

    /// Updates between a worker's weights and the newest.
    pub(crate) fn weights_lag(&self, version: Option<WeightsVersion>) -> u64 {
        self.weights.version().0.saturating_sub(version.map_or(0, |version| version.0))
    }

    fn trace(&self, fragments: &[SlotFragment]) -> EnvTrace {
        let mut trace = EnvTrace {
            run: self.number,
            slot: self.watched_slot,
            episode: 0,
            t: 0,
            obs_len: 0,
            obs: Vec::new(),
            dones: Vec::new(),
        };
        let Some(fragment) = fragments.get(self.watched_slot as usize) else { return trace };
        if let (Ok(obs), Ok(dones)) = (fragment.rows.data(OBS), fragment.rows.dones()) {
            (trace.episode, trace.t) = (fragment.first_episode, fragment.first_t);
            trace.obs_len = obs.shape().elements() as u32;
            trace.obs = obs.values().iter().flat_map(|value| value.to_le_bytes()).collect();
            trace.dones = dones.into_iter().map(u8::from).collect();
        }
        trace
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

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        group::{GroupCommand, WorkerProfile},
        kernels::Kernels,
        worker::{Advance, SlotRunner},
    };

    use super::*;

    /// Between the first batch and its update there is neither a fragment in the making nor an iteration counted;
    /// a run that seemed not to have begun then would be begun a second time, with the first weights.
    #[test]
    fn a_run_begins_once() {
        let envs = EnvRegistry::builtin();
        let config = TrainConfig {
            num_workers: 1,
            num_envs_per_worker: 2,
            hidden: vec![4],
            ppo: crate::learner::PpoConfig { rollout_fragment_length: 8, ..Default::default() },
            ..TrainConfig::new("CartPole-v1")
        };
        let mut run = Run::new(1, Task::Train(config), &envs, LeaseId(0)).unwrap();
        assert!(!run.has_begun());
        let (worker, now) = (WorkerId(1), Micros(0));
        run.group.handle_joined(worker, WorkerProfile::NATIVE, now);
        run.begin_iteration(now).unwrap();
        let Some(GroupCommand::Grant { lease, .. }) = run.group.poll_command() else { panic!("no lease") };
        let mut runner = SlotRunner::new(&run.spec, &envs, Kernels::PORTABLE).unwrap();
        let id = lease.id;
        runner.begin(lease).unwrap();
        let Advance::Done { fragments, .. } = runner.advance(8).unwrap() else { panic!("8 steps are a fragment") };
        run.group.handle_fragments(worker, id, fragments, now);
        assert!(run.poll_update().is_some_and(|submitted| submitted.is_ok()));
        assert!(run.has_begun() && run.group.fragment().is_none());
    }
}
