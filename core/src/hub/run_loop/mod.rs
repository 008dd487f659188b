//! The loop of a run: iterations over leases, batches, weights, and the end.

mod batch;
mod end;
mod leases;
mod report;
#[cfg(test)]
mod tests;
mod weights;

pub use batch::{BatchWork, Observed, TrainBatchError, TrainRows};
pub use leases::{DecodedUpload, UploadDecoder, UploadFault, WorkerUpload};
pub use weights::SyncError;

use super::{RecentEpisodes, Stopwatch};
use crate::{
    env::EnvState,
    filter::RunFilter,
    group::{BeginError, GroupConfig, GroupConfigError, GroupState, LeaseGroup, RestoreError, SamplingMode},
    ids::{LeaseId, PolicyId, WeightsVersion, WorkerId},
    lease::Lease,
    policy::Postprocessing,
    prelude::*,
    protocol::{
        Message, MessageFrame, Phase, TooLarge,
        convert::FragmentLimits,
        message::{RunStart, WeightsNotice},
    },
    run::RunConfig,
    sampler::FragmentLayout,
    time::Micros,
    weights::{Weights, WeightsError},
    worker::LearningParts,
};

/// The consumer of a run's batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchConsumer {
    /// A learner computes new weights from each batch. Rows of one agent per slot are postprocessed as its policy requires.
    Learner(Postprocessing),
    /// The run's own worker samples or reads each batch by itself and learns from it: the run has no leases.
    OwnWorker,
    /// The caller takes the rows as they are. The weights stay until the caller sets others.
    Caller,
}

/// Parts of a [`RunLoop`].
#[derive(Clone, Debug)]
pub struct RunLoopConfig {
    /// The run's number, unique on its hub.
    pub number: u32,
    /// The settings of the run.
    pub config: RunConfig,
    /// The run directory for display; empty without one.
    pub run_dir: String,
    /// The algorithm for display.
    pub algo: String,
    /// The least time between two batches; has no influence on the rows.
    pub throttle: Micros,
    /// The layout of the rows of fragments.
    pub layout: FragmentLayout,
    /// The way in which open episodes move from one worker to another.
    pub env_state: EnvState,
    /// Whether fragments can be recomputed from their actions, see
    /// [`LearningParts::can_replay_actions`](crate::worker::LearningParts::can_replay_actions).
    pub can_replay_actions: bool,
    /// The ids of its policies, sorted.
    pub policies: Vec<PolicyId>,
    /// The weights of all policies, with the statistics of the filter if there is one.
    pub weights: Weights,
    /// Normalises the observations that a learner sees; workers get its statistics among the weights.
    pub filter: Option<RunFilter>,
    /// The consumer of the batches.
    pub consumer: BatchConsumer,
    /// The leases of a run that is resumed.
    pub group: Option<GroupState>,
    /// The number of the first lease: higher than those of earlier runs of the hub.
    pub first_lease: LeaseId,
}

/// The reason why a [`RunLoop`] could not be created.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunLoopError {
    /// The number of slots or the sampling mode is invalid.
    #[error(transparent)]
    Group(#[from] GroupConfigError),
    /// The saved leases do not fit the run.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The policies' weights cannot be joined.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The policies' weights do not fit into a message to workers.
    #[error(
        "the weights of this run cannot be sent to its workers: {0}; set smaller layers in `model_config` (`fcnet_hiddens`, \
         `conv_filters`), or use fewer policies"
    )]
    TooLarge(#[from] TooLarge),
    /// The fragment of one slot does not fit into an upload.
    #[error("the fragments of this run cannot be uploaded: {error}; {}", shorter(*.longest))]
    LongFragment {
        /// The upload of one slot.
        error: TooLarge,
        /// The longest `rollout_fragment_length` that fits; 0 for none.
        longest: u32,
    },
}

fn shorter(longest: u32) -> String {
    match longest {
        0 => "not even one step fits: use smaller observations or fewer agents".into(),
        longest => format!("set `rollout_fragment_length` to at most {longest}"),
    }
}

/// Progress of a run when it was saved.
#[derive(Clone, Debug, Default)]
pub struct RunProgress {
    /// Updates.
    pub iteration: u64,
    /// Env steps of the batches so far.
    pub env_steps: u64,
    /// Its latest episodes.
    pub episodes: RecentEpisodes,
    /// Time that it had been running.
    pub elapsed: Micros,
    /// The learner has used rows of a worker that failed an audit.
    pub is_tainted: bool,
}

/// A run in progress, or over, without I/O.
///
/// The driver passes messages of workers to [`group`](Self::group) and the `handle_` methods, sends the group's commands,
/// [takes](Self::poll_batch) complete batches, reports their results, and asks [whether the run is over](Self::end_reached).
/// Times are points on the driver's clock.
#[derive(Debug)]
pub struct RunLoop {
    number: u32,
    config: RunConfig,
    run_dir: String,
    algo: String,
    throttle: Micros,
    mode: SamplingMode,
    env_state: EnvState,
    /// The leases of the run.
    pub group: LeaseGroup,
    phase: Phase,
    /// The slot whose observations dashboards are shown.
    pub watched_slot: u32,
    /// Whether a dashboard is connected: weights that recompute the watched slot's fragments are kept for it.
    pub is_watched: bool,
    limits: Arc<FragmentLimits>,
    consumer: BatchConsumer,
    filter: Option<RunFilter>,
    weights: Weights,
    /// The weights that workers act with, if they are others.
    acting: Option<Weights>,
    /// The message with the newest weights, once it was needed, and its notice.
    frame: Option<MessageFrame>,
    notice: Option<WeightsNotice>,
    policies: Vec<PolicyId>,
    /// The weights that all workers were sent, except for workers that joined later and were sent newer ones.
    published: WeightsVersion,
    /// Weights that were set during an iteration: they take effect with the next iteration that has not begun.
    next_weights: Option<Weights>,
    granted: BTreeMap<LeaseId, (WorkerId, Arc<Lease>)>,
    /// Iterations that have begun since the run was started or resumed.
    begun: u64,
    iteration: u64,
    /// Of the batch that is being consumed, or was last.
    batch_env_steps: u64,
    env_steps: u64,
    episodes: RecentEpisodes,
    /// A batch has been taken that is not counted yet.
    is_consuming: bool,
    stopwatch: Stopwatch,
    /// When this process created it.
    created: Micros,
    /// On the stopwatch.
    iteration_began: Micros,
    steps_per_s: f64,
    error: String,
    /// Weights of fragments that may still be uploaded or audited.
    recent_weights: VecDeque<Weights>,
    is_tainted: bool,
    /// Workers that sample or read by themselves and were lost.
    disturbances: u64,
    /// The mean return that the latest evaluation found.
    evaluated_return: Option<f64>,
    /// The next batch of the run's own worker is due.
    is_batch_due: bool,
    /// Rows whose outputs workers have computed for others, since the run was started or resumed.
    pub(super) inferred_rows: u64,
}

impl RunLoopConfig {
    /// The algorithm that is shown to users for a run without a learner.
    pub const SAMPLING: &'static str = "sample";

    /// Returns the configuration of a new run whose rows the caller takes, under the first weights of its policies.
    ///
    /// # Errors
    /// [`RunLoopError::Weights`] if the policies' weights cannot be joined.
    pub fn sampling(number: u32, config: RunConfig, parts: &LearningParts) -> Result<Self, RunLoopError> {
        let weights = parts.policies.iter().map(|(id, policy)| (id, policy.weights()));
        Ok(Self {
            number,
            run_dir: String::new(),
            algo: Self::SAMPLING.into(),
            throttle: Micros(0),
            layout: parts.layout.clone(),
            env_state: parts.env_state,
            can_replay_actions: parts.can_replay_actions(),
            policies: parts.policies.keys().cloned().collect(),
            weights: Weights::of_run(WeightsVersion(0), weights)?,
            filter: None,
            consumer: BatchConsumer::Caller,
            group: None,
            first_lease: LeaseId(0),
            config,
        })
    }
}

impl RunLoop {
    /// Creates a run that has not begun an iteration. Its stopwatch starts now.
    ///
    /// # Errors
    /// [`RunLoopError`] names what does not fit.
    pub fn new(parts: RunLoopConfig, now: Micros) -> Result<Self, RunLoopError> {
        let RunLoopConfig { number, config, run_dir, algo, throttle, layout, env_state, .. } = parts;
        let (num_slots, mode) = (config.num_slots(), config.sampling_mode());
        let limits = FragmentLimits::new(&config, &layout);
        if parts.consumer != BatchConsumer::OwnWorker {
            let long = |error| RunLoopError::LongFragment { error, longest: limits.longest_fragment() };
            limits.check_lease_of(1).map_err(long)?;
        }
        let moves = config.episodes_move(env_state);
        let group_config = GroupConfig {
            slots_per_worker: config.slots_per_worker(),
            first_lease: parts.first_lease,
            max_fragment_steps: config.max_fragment_steps(),
            max_slots_per_lease: largest_lease(&limits, num_slots),
            mode,
            reproducible: moves && !config.device_rows,
            restart_failed: config.rollout.restart_failed_sub_environments,
            audited: moves && (!config.device_rows || parts.can_replay_actions),
            ..GroupConfig::new(num_slots, config.fragment_length())
        };
        let group = match parts.group {
            Some(state) => LeaseGroup::restore(group_config, state)?,
            None => LeaseGroup::new(group_config)?,
        };
        let acting = weights::acting(&config, &parts.weights);
        let mut run = Self {
            number,
            config,
            run_dir,
            algo,
            throttle,
            mode,
            env_state,
            group,
            phase: Phase::Running,
            watched_slot: 0,
            is_watched: false,
            limits: Arc::new(limits),
            consumer: parts.consumer,
            filter: parts.filter,
            published: parts.weights.version(),
            acting,
            frame: None,
            notice: None,
            weights: parts.weights,
            policies: parts.policies,
            next_weights: None,
            granted: BTreeMap::new(),
            begun: 0,
            iteration: 0,
            batch_env_steps: 0,
            env_steps: 0,
            episodes: RecentEpisodes::default(),
            is_consuming: false,
            stopwatch: Stopwatch::started_at(Micros(0), now),
            created: now,
            iteration_began: Micros(0),
            steps_per_s: 0.0,
            error: String::new(),
            recent_weights: VecDeque::new(),
            is_tainted: false,
            disturbances: 0,
            evaluated_return: None,
            is_batch_due: false,
            inferred_rows: 0,
        };
        if !run.is_local() {
            run.weights_frame()?;
        }
        Ok(run)
    }

    /// Continues the counts of a run that was saved.
    pub fn resume_from(&mut self, progress: RunProgress, now: Micros) {
        let RunProgress { iteration, env_steps, episodes, elapsed, is_tainted } = progress;
        (self.iteration, self.env_steps, self.episodes, self.is_tainted) = (iteration, env_steps, episodes, is_tainted);
        self.stopwatch = Stopwatch::started_at(elapsed, now);
    }

    /// Returns the run's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the settings of the run.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Returns the algorithm for display.
    #[must_use]
    pub fn algo(&self) -> &str {
        &self.algo
    }

    /// Returns the ids of its policies, sorted.
    #[must_use]
    pub fn policies(&self) -> &[PolicyId] {
        &self.policies
    }

    /// Returns the phase of the run.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true once the run has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.phase.is_active()
    }

    /// Returns the updates so far.
    #[must_use]
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Returns the env steps of the batches so far.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.env_steps
    }

    /// Returns the rows whose outputs workers have computed for others, since the run was started or resumed.
    #[must_use]
    pub fn inferred_rows(&self) -> u64 {
        self.inferred_rows
    }

    /// Returns the env steps of the batch that is being consumed, or was last.
    #[must_use]
    pub fn batch_env_steps(&self) -> u64 {
        self.batch_env_steps
    }

    /// Returns the env steps per second of the latest iteration.
    #[must_use]
    pub fn steps_per_s(&self) -> f64 {
        self.steps_per_s
    }

    /// Returns the latest episodes.
    #[must_use]
    pub fn episodes(&self) -> &RecentEpisodes {
        &self.episodes
    }

    /// Returns the time that the run has been running, without pauses.
    #[must_use]
    pub fn elapsed(&self, now: Micros) -> Micros {
        self.stopwatch.elapsed(now)
    }

    /// Returns the time since the run began or was resumed in this process.
    #[must_use]
    pub fn age(&self, now: Micros) -> Micros {
        now.since(self.created)
    }

    /// Returns true once the first iteration has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun > 0
    }

    /// Returns true if the caller takes the batches.
    #[must_use]
    pub fn is_sampling_only(&self) -> bool {
        self.consumer == BatchConsumer::Caller
    }

    /// Returns true if the run's own worker makes its batches: it has no leases.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.consumer == BatchConsumer::OwnWorker
    }

    /// Returns true while a batch is being consumed that is not counted yet.
    #[must_use]
    pub fn is_consuming(&self) -> bool {
        self.is_consuming
    }

    /// Returns whether the default policy is the only one.
    #[must_use]
    pub fn has_one_policy(&self) -> bool {
        self.policies == [PolicyId::DEFAULT]
    }

    /// Returns the message that announces the run to a worker.
    #[must_use]
    pub fn announcement(&self) -> Message {
        Message::RunStart(RunStart { run: self.number, config: self.config.to_wire() })
    }

    /// Begins the next iteration, and, if no new weights are due before it, the one after it: workers then continue with it
    /// while their uploads travel.
    ///
    /// # Errors
    /// [`BeginError`] if the group cannot begin one.
    pub fn begin_iteration(&mut self, now: Micros) -> Result<(), BeginError> {
        self.iteration_began = self.stopwatch.elapsed(now);
        if self.is_local() {
            self.begun += 1;
            self.is_batch_due = true;
            return Ok(());
        }
        if !self.has_lasting_weights() || self.group.open_iterations() == 0 {
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

    /// Returns true if no batch changes the weights, neither through a learner nor through a filter.
    fn has_lasting_weights(&self) -> bool {
        self.is_sampling_only() && self.filter.is_none()
    }

    fn may_begin_ahead(&self) -> bool {
        self.has_lasting_weights()
            && self.next_weights.is_none()
            && self.iterations_begun().saturating_mul(self.steps_per_iteration()) < self.config.stop.env_steps
            && self.group.may_begin(self.weights.version())
    }

    /// Returns the iterations that have begun, also before the run was resumed.
    fn iterations_begun(&self) -> u64 {
        self.iteration + self.group.open_iterations() as u64
    }

    fn steps_per_iteration(&self) -> u64 {
        u64::from(self.config.num_slots()) * u64::from(self.config.fragment_length())
    }

    /// Returns how long the next iteration has to wait because the run is throttled. Modes in which workers do not wait are
    /// not throttled.
    #[must_use]
    pub fn throttle(&self, now: Micros) -> Micros {
        if !self.mode.is_synchronous() {
            return Micros(0);
        }
        self.throttle.since(self.stopwatch.elapsed(now).since(self.iteration_began))
    }

    /// Pauses the run: it grants no more leases, and its stopwatch stops.
    ///
    /// # Errors
    /// Says why the run cannot be paused.
    pub fn pause(&mut self, now: Micros) -> Result<(), &'static str> {
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Paused;
                self.group.pause();
                self.stopwatch.pause(now);
            }
            Phase::Draining => return Err("the run is draining: it ends as soon as its leases have"),
            _ => {}
        }
        Ok(())
    }

    /// Resumes a paused run.
    ///
    /// # Errors
    /// Says why the run cannot be resumed.
    pub fn resume(&mut self, now: Micros) -> Result<(), &'static str> {
        match self.phase {
            Phase::Paused => {
                self.phase = Phase::Running;
                self.stopwatch.resume(now);
                self.group.resume(now);
            }
            Phase::Draining => return Err("the run is draining, which cannot be taken back"),
            _ => {}
        }
        Ok(())
    }

    /// Stops granting leases and beginning iterations.
    pub fn drain(&mut self) {
        if !self.is_over() {
            self.phase = Phase::Draining;
            self.group.pause();
        }
    }

    /// Returns true while the run is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Returns true once all leases of a draining run have ended.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_draining() && self.group.ledger().outstanding == 0
    }
}

/// Returns the most slots whose fragments fit into one upload, which holds at least one.
fn largest_lease(limits: &FragmentLimits, num_slots: u32) -> u32 {
    let mut slots = num_slots;
    while slots > 1 && limits.check_lease_of(slots as usize).is_err() {
        slots = slots.div_ceil(2);
    }
    slots
}
