//! The fast sampler for single agents, as an [`InputReader`].

use serde::{Deserialize, Serialize};

use super::lane_set::LaneSet;
use crate::{
    batch::{AnyBatch, CutReason, SlotFragment},
    encoding,
    env::{AnyVectorEnv, EnvError, EnvState, Moment, SubEnv},
    episode::{Losses, RolloutMetrics, SamplerPerf},
    ids::{AgentId, FragmentNo, PolicyId, SlotId, eps_id},
    policy::{PolicyEntry, PolicyMapError, Postprocessing},
    postprocess::{Finisher, PostprocessError},
    prelude::*,
    sampler::{
        Budget, InputReader, Interrupt, LaneStart, Position, ResumePoint, SampleError, SamplerHost, SamplerOptions,
        SlotState, StateError,
    },
    time::Micros,
    worker::SetupError,
};

/// Most bytes of a sample's observations and states; a step counts as at least 64.
const MAX_FRAGMENT_BYTES: u64 = 1 << 34;

/// All environments of a worker as lanes in lockstep. Every batch contains a fragment of each.
pub(super) struct LockstepSampler {
    lanes: LaneSet,
    options: SamplerOptions,
    /// Bytes of a row: the environment's observation, the policy's view of it, and its states.
    row_bytes: u64,
    next: FragmentNo,
    finisher: Finisher,
    episodes: Vec<RolloutMetrics>,
    perf: SamplerPerf,
    /// The fragment in progress between two calls.
    open: Option<OpenFragment>,
    /// The lanes' positions before the fragment `started`. The buffer is reused.
    starts: Vec<CollectorStart>,
    started: Option<FragmentNo>,
    losses: Losses,
    progress: LockstepProgress,
    stopped: bool,
}

/// The position of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockstepProgress {
    /// Between two fragments.
    Between,
    /// In a fragment. A panic leaves them there.
    Within,
    /// In a fragment that failed: its steps are lost, and every lane begins its next episode.
    Failed,
    /// Like `Failed`, and the episodes were counted as abandoned.
    Abandoned,
}

/// A fragment in progress.
struct OpenFragment {
    /// Steps of every lane.
    steps: u32,
    /// Time spent on it so far.
    took: Micros,
}

/// A lane's position between two fragments.
#[derive(Clone)]
struct CollectorStart {
    lane: LaneStart,
    /// See [`Collector::seen`](crate::sampler::Collector::seen).
    seen: Vec<f64>,
    /// Env steps of the slot.
    steps: u64,
}

impl LockstepSampler {
    pub(super) fn new(
        env: Box<dyn AnyVectorEnv>,
        options: SamplerOptions,
        entry: &PolicyEntry,
    ) -> Result<Self, EnvError> {
        let starts: Vec<LaneStart> = options.slots.iter().map(|&(slot, _)| LaneStart { slot, state: None }).collect();
        let bytes = |elements: usize, bytes: usize| (elements as u64).saturating_mul(bytes as u64);
        let observed = bytes(env.observation_space().shape().elements(), env.dtypes().0.size());
        let preprocessed = entry.preprocessor.as_ref().map_or(0, |stage| bytes(stage.output_len(), size_of::<f32>()));
        let recurrent = bytes(entry.policy.state_lens().iter().sum(), size_of::<f32>());
        let lanes = LaneSet::of(env, &starts, &options, entry)?;
        Ok(Self {
            lanes,
            options,
            row_bytes: observed.saturating_add(preprocessed).saturating_add(recurrent),
            next: FragmentNo(0),
            finisher: Finisher::default(),
            episodes: Vec::new(),
            perf: SamplerPerf::default(),
            open: None,
            starts: Vec::new(),
            started: None,
            losses: Losses::default(),
            progress: LockstepProgress::Between,
            stopped: false,
        })
    }

    /// Checks that this many steps of all lanes fit into memory.
    ///
    /// # Errors
    /// [`SetupError::Conflict`].
    pub(super) fn check_size(&self, steps: u32) -> Result<(), SetupError> {
        let (lanes, bytes) = (self.lanes.len() as u64, self.row_bytes.max(64));
        if (u64::from(steps) + 1).saturating_mul(lanes).saturating_mul(bytes)
            > MAX_FRAGMENT_BYTES.min(isize::MAX as u64)
        {
            return Err(SetupError::Conflict(
                "the observations of a sample are more than 16 GiB, or than memory can have: lower num_envs or \
                 rollout_fragment_length",
            ));
        }
        Ok(())
    }

    /// Returns the steps of the fragment in progress, if there is one.
    pub(super) fn open_steps(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.steps)
    }

    /// Returns the next `steps` steps of every lane, with cuts and states, or those of the fragment in progress, without
    /// unnecessary copies. `None` if that exceeds the budget.
    pub(super) fn fragments(
        &mut self,
        steps: u32,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<Vec<SlotFragment>>, SampleError> {
        if self.stopped {
            return Err(SampleError::Stopped);
        }
        // Without an interrupt or a limited budget, run the fragment in one piece, without looking at the clock.
        let at_once = if host.interrupt.is_some() || !budget.is_endless() { 1 } else { u32::MAX };
        let (clock, begun) = (host.clock, (host.clock)());
        let interrupt = host.interrupt;
        let entry = host.policies.get_mut(&PolicyId::DEFAULT).map_err(missing)?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin(steps, entry, !budget.is_endless())?,
        };
        let fragments = loop {
            if let Err(stopped) = interrupt.map_or(Ok(()), Interrupt::check) {
                return Err(self.lose(stopped));
            }
            if !budget.allows_round(clock) {
                open.took = open.took + clock().since(begun);
                self.open = Some(open);
                return Ok(None);
            }
            match self.lanes.advance(entry, at_once) {
                Ok((_, Some(fragments))) => {
                    self.progress = LockstepProgress::Between;
                    break fragments;
                }
                Ok(_) => {}
                Err(error) => return Err(self.lose(error)),
            }
        };
        let took = (open.took + clock().since(begun)).0 as f64 / 1_000.0;
        let (before, now) = (self.perf.iterations as f64, f64::from(open.steps));
        // Policy and environment are one loop here, so their times cannot be separated.
        self.perf.env_wait_ms = (self.perf.env_wait_ms * before + took) / (before + now);
        self.perf.iterations += u64::from(open.steps);
        self.record_episodes(&fragments);
        Ok(Some(fragments))
    }

    /// Begins a fragment, which may be interrupted between calls if `may_rest`.
    fn begin(&mut self, steps: u32, entry: &PolicyEntry, may_rest: bool) -> Result<OpenFragment, EnvError> {
        if self.has_failed() {
            self.begin_next_episodes()?;
        }
        if may_rest && self.started != Some(self.next) {
            self.keep_starts();
        }
        self.lanes.collector.begin(self.next, entry.policy.weights().version(), steps);
        self.next.0 += 1;
        self.progress = LockstepProgress::Within;
        Ok(OpenFragment { steps, took: Micros(0) })
    }

    /// Records the lanes' positions before the next fragment, or before the one in progress between two calls, and returns
    /// its number for [`return_to`](Self::return_to). `None` if open episodes cannot be restored.
    pub(super) fn savepoint(&mut self) -> Option<FragmentNo> {
        if !self.can_continue() {
            return None;
        }
        if self.open.is_none() {
            self.keep_starts();
        }
        self.started
    }

    /// Returns to the latest [savepoint](Self::savepoint) if it is before this fragment; else returns false.
    ///
    /// # Errors
    /// Errors of the environment, which refuses a state of its own.
    pub(super) fn return_to(&mut self, fragment: FragmentNo) -> Result<bool, EnvError> {
        if self.started != Some(fragment) {
            return Ok(false);
        }
        if self.open.take().is_some() {
            self.count_lost();
        }
        let starts = core::mem::take(&mut self.starts);
        let reopened = self.reopen(&starts);
        starts.iter().for_each(|start| self.finisher.set_steps(start.lane.slot, start.steps));
        self.starts = starts;
        reopened?;
        (self.next, self.progress) = (fragment, LockstepProgress::Between);
        Ok(true)
    }

    /// Abandons the fragment in progress, with the episodes that ended in it, and the open episodes: every lane begins its
    /// next one. Returns their number; 0 until the lanes have begun the next ones.
    pub(super) fn abandon(&mut self) -> u64 {
        self.open = None;
        let ended = match core::mem::replace(&mut self.progress, LockstepProgress::Abandoned) {
            LockstepProgress::Abandoned => return 0,
            LockstepProgress::Between => 0,
            LockstepProgress::Within => {
                self.count_lost();
                self.lanes.collector.num_ended()
            }
            LockstepProgress::Failed => self.lanes.collector.num_ended(),
        };
        ended as u64 + self.open_episodes()
    }

    fn open_episodes(&self) -> u64 {
        self.lanes.collector.lanes().moments().iter().filter(|moment| moment.t > 0).count() as u64
    }

    fn keep_starts(&mut self) {
        let mut starts = core::mem::take(&mut self.starts);
        starts.clear();
        starts.extend(self.positions());
        (self.starts, self.started) = (starts, Some(self.next));
    }

    /// Returns the lanes' positions between two fragments.
    fn positions(&self) -> impl Iterator<Item = CollectorStart> {
        self.lanes.slots().enumerate().map(|(lane, slot)| CollectorStart {
            lane: LaneStart { slot, state: Some(self.lanes.collector.state(lane, self.lanes.env.as_ref())) },
            seen: self.lanes.collector.seen(lane),
            steps: self.finisher.steps(slot),
        })
    }

    fn has_failed(&self) -> bool {
        matches!(self.progress, LockstepProgress::Failed | LockstepProgress::Abandoned)
    }

    fn can_continue(&self) -> bool {
        !self.has_failed() && self.lanes.env.state() != EnvState::Opaque
    }

    /// Continues from there. After an error, also for statistics that no filter can have made, the lanes are unchanged,
    /// except those that have begun another episode.
    fn reopen(&mut self, starts: &[CollectorStart]) -> Result<(), EnvError> {
        let lanes: Vec<LaneStart> = starts.iter().map(|start| start.lane.clone()).collect();
        self.lanes.collector.reopen(&lanes, self.lanes.env.as_mut())?;
        let mut seen = starts.iter().map(|start| &start.seen).enumerate();
        let wrong = seen.find(|(lane, seen)| !self.lanes.collector.set_seen(*lane, seen));
        wrong.map_or(Ok(()), |(_, seen)| Err(EnvError::BadSnapshot(size_of_val(&**seen))))
    }

    fn count_lost(&mut self) {
        self.losses.env_steps += self.lanes.done();
        self.losses.agent_steps += self.lanes.done();
    }

    /// Records that the fragment in progress is lost.
    fn lose(&mut self, error: SampleError) -> SampleError {
        self.progress = LockstepProgress::Failed;
        self.count_lost();
        let slots: Vec<SlotId> = self.lanes.slots().collect();
        error.located(slots.len(), |lane| Some((*slots.get(lane)?, self.lanes.collector.failed_at(lane))))
    }

    /// Begins the next episode in every lane, after a failure in the middle of a fragment.
    fn begin_next_episodes(&mut self) -> Result<(), EnvError> {
        let next = |moment: &Moment| LaneStart {
            slot: moment.slot,
            state: Some(SlotState { episode: moment.episode.wrapping_add(1), ..SlotState::default() }),
        };
        let starts: Vec<LaneStart> = self.lanes.collector.lanes().moments().iter().map(next).collect();
        self.lanes.collector.reopen(&starts, self.lanes.env.as_mut())?;
        (self.progress, self.started) = (LockstepProgress::Between, None);
        Ok(())
    }

    /// Records finished episodes in the order in which they ended.
    fn record_episodes(&mut self, fragments: &[SlotFragment]) {
        let mut ended = Vec::new();
        for (lane, fragment) in fragments.iter().enumerate() {
            let ends = fragment.cuts.iter().filter(|cut| cut.reason != CutReason::FragmentEnd).map(|cut| cut.end);
            ended.extend(ends.zip(&fragment.episodes).map(|(end, episode)| (end, lane, fragment.slot, episode)));
        }
        ended.sort_by_key(|(end, lane, ..)| (*end, *lane));
        let perf = self.perf;
        self.episodes.extend(ended.into_iter().map(|(_, lane, slot, episode)| RolloutMetrics {
            episode_id: eps_id(slot, episode.episode),
            env: lane,
            length: episode.len,
            episode_return: episode.episode_return,
            agent_rewards: vec![(AgentId::SINGLE, PolicyId::DEFAULT, episode.episode_return)],
            perf,
            ..RolloutMetrics::default()
        }));
    }
}

fn missing(error: PolicyMapError) -> SampleError {
    match error {
        PolicyMapError::Unknown(unknown) => SampleError::UnknownPolicy {
            agent: AgentId::SINGLE,
            id: unknown.id,
            known: unknown.known.iter().map(PolicyId::as_str).collect::<Vec<_>>().join(", "),
        },
        other => SampleError::PolicyMap(other),
    }
}

/// The state of one slot.
#[derive(Serialize, Deserialize)]
struct LockstepLaneState {
    slot: SlotId,
    steps: u64,
    state: Vec<u8>,
    seen: Vec<f64>,
}

impl InputReader for LockstepSampler {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.next_within(host, &mut Budget::endless())?.ok_or_else(SampleError::no_update)
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        let Some(fragments) = self.fragments(self.options.fragment_length, host, budget)? else { return Ok(None) };
        let rows: usize = fragments.iter().map(|fragment| fragment.rows.len()).sum();
        let policy = host.policies.policy_mut(&PolicyId::DEFAULT).map_err(missing)?;
        let config = match policy.postprocessing() {
            Postprocessing::Advantages(config) => Some(config),
            Postprocessing::None | Postprocessing::Custom => None,
        };
        let finished = self.finisher.finish(&fragments, config.as_ref());
        let mut batch = finished.map_err(|error: PostprocessError| {
            self.losses.env_steps += rows as u64;
            self.losses.agent_steps += rows as u64;
            SampleError::Policy { id: PolicyId::DEFAULT, source: error.into() }
        })?;
        batch.set_training(true);
        Ok(Some(batch.into()))
    }

    fn losses(&mut self) -> Losses {
        core::mem::take(&mut self.losses)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        core::mem::take(&mut self.episodes)
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        let lanes = if self.stopped { 0 } else { self.lanes.len() };
        (0..lanes).for_each(|lane| f(SubEnv::Lane { env: self.lanes.env.as_mut(), lane }));
    }

    /// Returns the state at the beginning of the fragment in progress.
    fn resume_point(&self) -> ResumePoint {
        let state = |CollectorStart { lane: LaneStart { slot, state }, seen, steps }| {
            Some(LockstepLaneState { slot, steps, state: state?.encode(), seen })
        };
        let (next, states): (u64, Vec<LockstepLaneState>) = match &self.open {
            Some(_) => (self.next.0 - 1, self.starts.iter().cloned().filter_map(state).collect()),
            None => (self.next.0, self.positions().filter_map(state).collect()),
        };
        let state = encoding::encode(&(next, states));
        let lost = if self.can_continue() { 0 } else { self.open_episodes() };
        ResumePoint { state, lost_episodes: Some(lost), ..ResumePoint::default() }
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let state = position.as_bytes();
        let damaged = || SampleError::Env(EnvError::BadSnapshot(state.len()));
        let (next, states): (u64, Vec<LockstepLaneState>) = encoding::decode(state).ok_or_else(damaged)?;
        // Larger numbers are implausible, and later additions could overflow.
        if next > u64::MAX / 2 || states.iter().any(|state| state.steps > u64::MAX / 2) {
            return Err(damaged());
        }
        // Everything is decoded before anything changes: damaged bytes do not cost the fragment in progress.
        let by_slot: BTreeMap<SlotId, &LockstepLaneState> =
            states.iter().map(|state| (state.slot, state)).collect_ordered();
        let found = self.lanes.slots().map(|slot| {
            let found = by_slot.get(&slot).map(|found| Ok((SlotState::decode(&found.state)?, found.seen.clone())));
            found.transpose().map_err(|_: StateError| damaged())
        });
        let found: Vec<Option<(SlotState, Vec<f64>)>> = found.collect::<Result<_, _>>()?;
        if let Some(started) = self.started.filter(|_| self.open.is_some()) {
            self.return_to(started)?;
        }
        let before: Vec<CollectorStart> = self.positions().collect();
        let mut starts = before.clone();
        for (start, found) in starts.iter_mut().zip(found) {
            if let Some((state, seen)) = found {
                (start.lane.state, start.seen) = (Some(state), seen);
            }
        }
        if let Err(error) = self.reopen(&starts) {
            // The previous states fit this environment.
            self.reopen(&before)?;
            return Err(error.into());
        }
        (self.next, self.progress, self.started) = (FragmentNo(next), LockstepProgress::Between, None);
        for LockstepLaneState { slot, steps, .. } in states {
            self.finisher.set_steps(slot, steps);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.stopped = true;
        Ok(())
    }
}
