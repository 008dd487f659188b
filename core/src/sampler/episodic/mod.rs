//! The general sampler: every environment builds its rows separately, agent by agent.

mod agent;
mod builder;
mod inference;
mod lane;
mod perf;
#[cfg(test)]
mod tests;
mod trajectory;

use serde::{Deserialize, Serialize};

pub(crate) use self::lane::{
    Restarts,
    state::{agent_env, agent_position},
};
use self::{
    inference::PolicyInference,
    lane::{EpisodeLane, Round},
    perf::{PhaseStopwatch, lap},
};
use super::{Budget, InputReader, Position, ResumePoint, SampleError, SamplerHost, SamplerOptions, SlotState};
use crate::{
    batch::AnyBatch,
    column::RowBuffer,
    encoding,
    env::{
        BaseEnv, EnvActions, EnvError, EnvUpdates, Frame, Moment, StepMark, SubEnv, for_each_sub_env, multi_agent::Turn,
    },
    episode::{Losses, Quarantined, RolloutMetrics},
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
};

/// The sampler for everything that [`Lockstep`](super::Lockstep) does not support: several agents, whole episodes, filters
/// and preprocessors, callbacks at every step, horizons, recurrent policies, views, environments that fail, that run in
/// other processes or that begin their episodes by themselves.
///
/// A [`step`](Self::step) is one round: each policy chooses for all agents under it in one call, then the actions are sent,
/// the environments are [polled](BaseEnv::poll), their results recorded, and full fragments cut. So a batch is complete
/// before any agent acts on its last observations, and weights that are set between two batches take effect with the next
/// row. Environments are handled in the order of their indices, agents that appear or observe together in the order of their
/// ids. Rows of a slot do not depend on the other slots, except with an updating filter, whose statistics a policy's agents
/// share.
///
/// An agent's observation and action become a row once its next observation has arrived; the row's `t` is that of the env
/// step that returned it. An agent that acted and gets no observation by the end of the episode gets one of zeros, so that
/// its reward is not lost. Rows up to the end of the episode or the cut are a piece: the pieces of all agents get their
/// rewards clipped and are postprocessed, in the order of the agents' ids.
///
/// After an error the episodes in progress are lost, while finished ones and queued batches are kept; the next step resets
/// the environments and continues. A [quarantined](BaseEnv::quarantine) environment is skipped until it is restarted; its
/// finished pieces are kept until then. Every env step is in a batch, [held](Self::held_env_steps), or counted among the
/// [losses](InputReader::losses).
///
/// ```
/// use rollmesh_core::{
///     callbacks::{CallbackList, PolicyMappingFn, WorkerInfo},
///     env::{EnvContext, EnvMaker, EnvRegistry, EnvStart, InProcess},
///     ids::{HomeIndex, PolicyId, SlotId},
///     policy::{PolicyMap, RandomPolicy},
///     sampler::{Episodic, InputReader as _, SamplerOptions, SamplerHost},
///     time::Micros,
/// };
///
/// let registry = EnvRegistry::builtin();
/// let spec = registry.multi_agent("RockPaperScissors-v0").expect("a built-in environment");
/// let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
/// let start = EnvStart { slot: SlotId(0), episode: 0, context };
/// let envs = InProcess::new(EnvMaker::multi_agent(&spec), vec![start], 7)?;
///
/// let options = SamplerOptions { fragment_length: 20, single_agent: false, ..SamplerOptions::new(vec![(SlotId(0), 0)]) };
/// let mut sampler = Episodic::new(options, Box::new(envs))?;
/// let mut policies = PolicyMap::single(Box::new(RandomPolicy::new(3, 7)));
/// let mapping: PolicyMappingFn = std::sync::Arc::new(|_agent, _episode, _worker, _rng| PolicyId::DEFAULT);
/// let batch = sampler.next(&mut SamplerHost {
///     worker: &WorkerInfo::default(),
///     policies: &mut policies,
///     mapping: &mapping,
///     observation_fn: None,
///     callbacks: &mut CallbackList::new(),
///     clock: &|| Micros(0),
///     interrupt: None,
/// })?;
/// assert_eq!((batch.env_steps(), batch.agent_steps()), (20, 40));
/// // One player's gain is the other one's loss.
/// assert!(sampler.metrics().iter().all(|episode| episode.episode_return == 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("SyncSampler", "EnvRunnerV2"))]
pub struct Episodic {
    options: SamplerOptions,
    env: Box<dyn BaseEnv>,
    lanes: Vec<EpisodeLane>,
    mapping: Streams,
    updates: EnvUpdates,
    /// Buffer for the turns of resets.
    turn: Turn,
    inference: PolicyInference,
    answers: Vec<EnvActions>,
    sent: RowBuffer,
    outputs: VecDeque<Output>,
    metrics: Vec<RolloutMetrics>,
    extra_batches: Vec<AnyBatch>,
    stopwatch: PhaseStopwatch,
    /// Steps that are in no batch; the environments keep the quarantined ones.
    losses: Losses,
    /// Whether the environments may have outdated updates.
    stale_updates: bool,
    stopped: bool,
}

/// An output, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Output {
    Metrics(Box<RolloutMetrics>),
    /// A batch, with the index of its environment.
    Batch(usize, AnyBatch),
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleProgress {
    /// No environment was ready.
    Idle,
    /// This many environments had updates.
    Stepped(usize),
}

impl Episodic {
    /// Creates a sampler for these environments, none of which has been polled.
    ///
    /// # Errors
    /// [`EnvError::WrongLength`] unless there is one slot per environment, and at least one.
    pub fn new(options: SamplerOptions, mut env: Box<dyn BaseEnv>) -> Result<Self, SampleError> {
        let (wanted, found) = (env.num_envs(), options.slots.len());
        if wanted == 0 || wanted != found {
            return Err(EnvError::WrongLength { what: "slots", wanted: wanted.max(1), found }.into());
        }
        options.mark.iter().for_each(|mark| env.mark_with(mark));
        let slots = options.slots.iter().enumerate();
        Ok(Self {
            lanes: slots.map(|(env, (slot, episode))| EpisodeLane::new(env, *slot, *episode)).collect(),
            mapping: Streams::new(options.seed, Purpose::Mapping),
            options,
            env,
            updates: EnvUpdates::new(),
            turn: Turn::new(),
            inference: PolicyInference::default(),
            answers: Vec::new(),
            sent: RowBuffer::default(),
            outputs: VecDeque::new(),
            metrics: Vec::new(),
            extra_batches: Vec::new(),
            stopwatch: PhaseStopwatch::default(),
            losses: Losses::default(),
            stale_updates: false,
            stopped: false,
        })
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Runs one round, so that a caller with a time budget or other duties regains control.
    ///
    /// # Errors
    /// [`SampleError`]; episodes in progress are then lost, finished ones are not.
    pub fn step(&mut self, host: &mut SamplerHost<'_>) -> Result<SampleProgress, SampleError> {
        if self.stopped {
            return Err(SampleError::Stopped);
        }
        let progress = self.round(host);
        if progress.is_err() {
            self.inference.clear();
            // Updates that were not handled are lost with the rest.
            lose_updates(&mut self.lanes, &self.updates, &mut self.losses, |_| true);
            self.lanes.iter_mut().for_each(|lane| lane.abandon(&mut self.losses));
        }
        let place = |env: usize| Some((self.lanes.get(env)?.next().0, self.lane_position(env)?));
        progress.map_err(|error| error.located(self.lanes.len(), place))
    }

    /// Returns the number of env steps that are neither in a returned batch nor lost: those of episodes and fragments in
    /// progress, and of batches that are ready.
    #[must_use]
    pub fn held_env_steps(&self) -> usize {
        let ready = self.outputs.iter().map(|output| match output {
            Output::Batch(_, batch) => batch.env_steps(),
            Output::Metrics(_) => 0,
        });
        ready.chain(self.lanes.iter().map(EpisodeLane::held_env_steps)).sum()
    }

    /// Returns the batches that callbacks or environments have added since the last call, or since the last
    /// [`next`](InputReader::next), which joins them with its batch.
    #[doc(alias = "get_extra_batches")]
    pub fn extra_batches(&mut self) -> Vec<AnyBatch> {
        core::mem::take(&mut self.extra_batches)
    }

    /// Returns the next batch that is ready, if there is one.
    pub fn take(&mut self) -> Option<AnyBatch> {
        self.take_of_env().map(|(_, batch)| batch)
    }

    /// Returns the next batch that is ready, and the index of its environment.
    pub(crate) fn take_of_env(&mut self) -> Option<(usize, AnyBatch)> {
        while let Some(output) = self.outputs.pop_front() {
            match output {
                Output::Metrics(metrics) => self.metrics.push(*metrics),
                Output::Batch(env, batch) => return Some((env, batch)),
            }
        }
        None
    }

    /// Begins the episodes of environments that have none, and waits for their first observations, without a step of the
    /// others: afterwards all environments that can wait for actions do.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn begin_episodes(&mut self, host: &mut SamplerHost<'_>) -> Result<(), SampleError> {
        while self.lanes.iter().any(EpisodeLane::is_beginning) {
            self.open(host)?;
            let mut updates = core::mem::take(&mut self.updates);
            let polled = if updates.entries().is_empty() { self.env.poll(&mut updates) } else { Ok(()) };
            let begun = polled.map_err(SampleError::from).and_then(|()| self.process(&mut updates, host));
            self.updates = updates;
            begun?;
        }
        Ok(())
    }

    /// Returns the state of an environment's slot between two fragments; `None` in the middle of one, and for environments
    /// without snapshots.
    pub(crate) fn lane_state(&self, env: usize) -> Option<Vec<u8>> {
        self.lanes.get(env)?.encode_state(self.env.as_ref())
    }

    /// Returns why an environment's slot has no state between two fragments.
    pub(crate) fn state_error(&self, env: usize, slot: SlotId) -> SampleError {
        self.env.snapshot_error(env).map_or(SampleError::NoState(slot), SampleError::Env)
    }

    /// Returns the number of an environment's episode, and its env steps; after an error those of the lost episode.
    pub(crate) fn lane_position(&self, env: usize) -> Option<(u32, u32)> {
        self.lanes.get(env).map(EpisodeLane::position)
    }

    /// Sets where failures of an environment are tolerated from now on, until the next call, and begins to count them.
    pub(crate) fn set_restarts(&mut self, env: usize, restarts: Restarts) {
        self.env.forgive(env);
        if let Some(lane) = self.lanes.get_mut(env) {
            lane.restarts = restarts;
        }
    }

    /// Draws an environment; returns false if it has no picture.
    pub(crate) fn try_render(&mut self, env: usize, frame: &mut Frame) -> bool {
        self.env.try_render(env, frame)
    }

    /// Restores the episode of a slot from an untrusted state. The environment must not have been polled.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`]; errors of the environment and of the policies.
    pub(crate) fn restore_lane(
        &mut self,
        env: usize,
        state: &[u8],
        host: &mut SamplerHost<'_>,
    ) -> Result<(), SampleError> {
        let num_envs = self.lanes.len();
        let (lanes, mut round) = self.parts(host);
        lanes.get_mut(env).ok_or(EnvError::NoSuchLane { lane: env, num_envs })?.restore(state, &mut round)
    }

    /// Starts over with other options: each environment with its first episode, restarted if `remake`. Work in progress
    /// and ready batches are lost.
    ///
    /// # Errors
    /// As [`BaseEnv::try_restart`].
    pub(crate) fn restart(&mut self, options: SamplerOptions, remake: bool) -> Result<(), SampleError> {
        self.options = options;
        self.stale_updates = true;
        self.outputs.clear();
        self.metrics.clear();
        for (env, lane) in self.lanes.iter_mut().enumerate() {
            if remake {
                self.env.try_restart(env)?;
            }
            lane.begin_at(0, 0, None, &mut self.losses);
        }
        Ok(())
    }

    /// Returns whether a step may find nothing to do, and has to be retried.
    pub(crate) fn may_be_idle(&self) -> bool {
        self.env.may_be_idle()
    }

    /// Begins no further episode in an environment once the present one ends, unless the environment begins episodes by
    /// itself.
    pub(crate) fn rest(&mut self, env: usize) {
        if self.env.may_be_idle() {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(env) {
            lane.is_last = true;
        }
    }

    /// Answers the results of the last round, and waits for updates. So changes between two calls, weights above all, take
    /// effect with the first row after them.
    fn round(&mut self, host: &mut SamplerHost<'_>) -> Result<SampleProgress, SampleError> {
        let mut last = (host.clock)();
        self.open(host)?;
        lap(&mut self.stopwatch.env_wait, &mut last, host.clock);
        self.infer(host)?;
        lap(&mut self.stopwatch.inference, &mut last, host.clock);
        let answers = self.collect_answers()?;
        lap(&mut self.stopwatch.action_processing, &mut last, host.clock);
        if answers > 0 {
            self.stale_updates = true;
            self.lanes.iter_mut().for_each(EpisodeLane::send_answer);
            self.env.send_actions(self.answers.get(..answers).unwrap_or_default())?;
        }
        self.lanes.iter_mut().for_each(EpisodeLane::begin_round);
        let mut updates = core::mem::take(&mut self.updates);
        let polled = if updates.entries().is_empty() { self.env.poll(&mut updates) } else { Ok(()) };
        self.stale_updates = polled.is_err();
        lap(&mut self.stopwatch.env_wait, &mut last, host.clock);
        let processed = polled.map_err(SampleError::from).and_then(|()| self.process(&mut updates, host));
        let entries = updates.entries().len();
        self.updates = updates;
        processed?;
        lap(&mut self.stopwatch.obs_processing, &mut last, host.clock);
        self.stopwatch.iterations += 1;
        Ok(if entries == 0 && answers == 0 {
            SampleProgress::Idle
        } else {
            SampleProgress::Stepped(entries.max(answers))
        })
    }

    /// Begins the episodes of environments that have none: before the first poll, and after an error.
    fn open(&mut self, host: &mut SamplerHost<'_>) -> Result<(), SampleError> {
        self.updates.clear();
        if core::mem::take(&mut self.stale_updates) && self.lanes.iter().any(EpisodeLane::is_lost) {
            // Discards updates of lost episodes, whether there were any or not.
            let _ = self.env.poll(&mut self.updates);
            lose_updates(&mut self.lanes, &self.updates, &mut self.losses, EpisodeLane::is_lost);
            let lanes = &self.lanes;
            self.updates.retain(|entry| lanes.get(entry.env).is_none_or(|lane| !lane.is_lost()));
        }
        let (lanes, mut round) = self.parts(host);
        lanes.iter_mut().try_for_each(|lane| lane.open(&mut round))?;
        Ok(())
    }

    fn process(&mut self, updates: &mut EnvUpdates, host: &mut SamplerHost<'_>) -> Result<(), SampleError> {
        // A round without updates, while others drive the environments, is progress, too.
        self.options.mark.iter().for_each(StepMark::beat);
        let (lanes, mut round) = self.parts(host);
        let num_envs = lanes.len();
        for entry in updates.entries_mut() {
            let unknown = EnvError::NoSuchLane { lane: entry.env, num_envs };
            lanes.get_mut(entry.env).ok_or(unknown)?.take_update(entry, &mut round)?;
        }
        lanes.iter_mut().try_for_each(|lane| lane.cut_if_full(&mut round))
    }

    fn saved(&self, lane: &EpisodeLane) -> SavedLane {
        let ((slot, next, steps), state) = (lane.next(), lane.encode_state(self.env.as_ref()));
        let can_continue = |state: &Vec<u8>| {
            let known = agent_env(state, slot).is_some_and(|(_, env)| !env.is_empty());
            known && state.len() <= SlotState::MAX_BYTES
        };
        (slot, next, steps, state.filter(can_continue))
    }

    fn infer(&mut self, host: &mut SamplerHost<'_>) -> Result<(), SampleError> {
        let moment = |lane: &EpisodeLane| {
            let ((slot, ..), (episode, t)) = (lane.next(), lane.position());
            Moment { slot, episode, t, agent: 0 }
        };
        let only = if let [lane] = &self.lanes[..] { Some(moment(lane)) } else { None };
        self.options.mark.iter().for_each(|mark| mark.at_all(only.as_slice()));
        let (lanes, mut round) = self.parts(host);
        lanes.iter_mut().try_for_each(|lane| lane.queue(&mut round))?;
        self.inference.run(&mut self.lanes, host, self.options.explore)
    }

    /// Converts the actions to the form that the environments take, and returns how many environments get an answer.
    fn collect_answers(&mut self) -> Result<usize, SampleError> {
        let mut count = 0;
        for (env, lane) in self.lanes.iter().enumerate() {
            let Some(agents) = lane.answer() else { continue };
            if count == self.answers.len() {
                self.answers.push(EnvActions::default());
            }
            let Some(answer) = self.answers.get_mut(count) else { continue };
            count += 1;
            answer.env = env;
            answer.actions.clear();
            for agent in agents {
                let invalid = |error: crate::space::PointError| EnvError::InvalidAction {
                    lane: env,
                    action: format!("of agent '{}': {error}", agent.id),
                };
                agent.sent_action(&mut self.sent).map_err(invalid)?;
                answer.actions.set(&agent.id, self.sent.all());
            }
        }
        Ok(count)
    }

    fn parts<'a, 'h>(&'a mut self, host: &'a mut SamplerHost<'h>) -> (&'a mut [EpisodeLane], Round<'a, 'h>) {
        let round = Round {
            env: self.env.as_mut(),
            host,
            options: &self.options,
            mapping: self.mapping,
            inference: &mut self.inference,
            outputs: &mut self.outputs,
            extra_batches: &mut self.extra_batches,
            losses: &mut self.losses,
            turn: &mut self.turn,
        };
        (&mut self.lanes, round)
    }
}

impl InputReader for Episodic {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.next_within(host, &mut Budget::endless())?.ok_or_else(SampleError::no_update)
    }

    /// Samples the next batch. A round in which no environment was ready ends the call, even if the budget is not used
    /// up, since its caller may have to do something first.
    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        loop {
            if self.stopped {
                return Err(SampleError::Stopped);
            }
            if let Some(batch) = self.take() {
                if self.extra_batches.is_empty() {
                    return Ok(Some(batch));
                }
                let extra_batches = self.extra_batches();
                return Ok(Some(AnyBatch::concat([&batch].into_iter().chain(&extra_batches))?));
            }
            host.check_interrupt()?;
            if !budget.allows_round(host.clock) {
                return Ok(None);
            }
            if self.step(host)? == SampleProgress::Idle && !(budget.is_endless() && self.env.may_be_idle()) {
                return Ok(None);
            }
        }
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        let perf = self.stopwatch.means();
        let metrics = core::mem::take(&mut self.metrics);
        metrics.into_iter().map(|metrics| RolloutMetrics { perf, ..metrics }).collect()
    }

    fn losses(&mut self) -> Losses {
        let of = |env| self.env.quarantine(env).map(|reason| Quarantined { env, reason: reason.into() });
        let quarantined = (0..self.lanes.len()).filter_map(of).collect();
        let losses = core::mem::take(&mut self.losses);
        Losses { quarantined, env_steps: losses.env_steps + self.env.forgotten_steps(), ..losses }
    }

    /// Calls `f` for every environment. Environments that cannot be reached individually are passed together.
    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        if !self.stopped {
            for_each_sub_env(self.env.as_mut(), f);
        }
    }

    /// Returns for each slot the number of its next episode, its steps, and the open episode if that can be restored:
    /// between two fragments, in an environment with a snapshot or recorded actions.
    fn resume_point(&self) -> ResumePoint {
        let saved: Vec<SavedLane> = self.lanes.iter().map(|lane| self.saved(lane)).collect();
        let lost = self.lanes.iter().zip(&saved).filter(|(lane, (.., state))| lane.has_episode() && state.is_none());
        ResumePoint {
            lost_episodes: Some(lost.count() as u64),
            state: encoding::encode(&saved),
            outputs: self.outputs.clone(),
        }
    }

    fn resume(&mut self, point: &ResumePoint) -> Result<(), SampleError> {
        self.set_position(&Position::from_bytes(point.state.clone()))?;
        self.outputs.clone_from(&point.outputs);
        Ok(())
    }

    /// Resumes from a position. Quarantined environments are retried.
    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let state = position.as_bytes();
        let damaged = || SampleError::Env(EnvError::BadSnapshot(state.len()));
        let (next, outputs): (Vec<SavedLane>, &[u8]) = postcard::take_from_bytes(state).map_err(|_| damaged())?;
        let outputs = ResumePoint::read_outputs(outputs, self.lanes.len()).ok_or_else(damaged)?;
        // Larger numbers are implausible, and later additions could overflow.
        if next.iter().any(|(_, _, steps, _)| *steps > u64::MAX / 2) {
            return Err(damaged());
        }
        for output in self.outputs.drain(..) {
            if let Output::Batch(_, batch) = output {
                self.losses.env_steps += batch.env_steps() as u64;
                self.losses.agent_steps += batch.agent_steps() as u64;
            }
        }
        self.outputs = outputs;
        self.extra_batches.clear();
        self.stale_updates = true;
        // A panic may have left rows of agents that have not acted.
        self.inference.clear();
        for (env, lane) in self.lanes.iter_mut().enumerate() {
            if let Some((_, episode, steps, saved)) = next.iter().find(|(slot, ..)| *slot == lane.next().0) {
                lane.begin_at(*episode, *steps, saved.clone(), &mut self.losses);
                if self.env.quarantine(env).is_some() {
                    // An environment that cannot be restarted now is retried with its reset, where the error is reported.
                    let _ = self.env.try_restart(env);
                }
            }
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.stopped = true;
        Ok(self.env.stop()?)
    }
}

/// Saved state of a lane: slot, number of its next episode, env steps, and its state.
type SavedLane = (SlotId, u32, u64, Option<Vec<u8>>);

/// Counts the steps of unhandled updates as lost, for some lanes.
fn lose_updates(
    lanes: &mut [EpisodeLane],
    updates: &EnvUpdates,
    losses: &mut Losses,
    of: impl Fn(&EpisodeLane) -> bool,
) {
    for entry in updates.entries() {
        if let Some(lane) = lanes.get_mut(entry.env).filter(|lane| of(lane)) {
            losses.env_steps += u64::from(lane.take_answered() && entry.fault.is_none());
        }
    }
}

impl core::fmt::Debug for Episodic {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Episodic").field("options", &self.options).finish_non_exhaustive()
    }
}
