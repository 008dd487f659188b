//! Execution of leases on a worker, without messages.

mod error;
mod lanes;
mod opening;

pub use self::error::RunnerError;
pub use self::lanes::ShowEnv;
use self::{error::check_finite, lanes::LeasedLanes, opening::Opening};
use super::{
    Guard, RolloutWorkerBuilder, SetupError,
    builder::LeaseParts,
    command::{guarded, unguarded},
};
use crate::{
    batch::SlotFragment,
    env::{EnvState, StepMark},
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    lease::{Lease, LeasedSlot, SlotSource},
    policy::{Input, Output, TakenActions},
    prelude::*,
    protocol::{FailureKind, FragmentFailure, convert::without_known},
    run::{ReplayMismatch, RunConfig},
    sampler::{FragmentLayout, Restarts, SampleError, position_in, set_weights},
    weights::Weights,
};

/// Runs leases of one run, one at a time.
///
/// A failure of user code costs the fragment of the slot that it happened in. If slots that are sampled together fail, each
/// is sampled again on its own, from the state that it had: so the failing slot is found, and the others' fragments are
/// completed.
pub struct SlotRunner {
    run: RunConfig,
    parts: LeaseParts,
    guard: Guard,
    /// The lanes of the latest lease: one set of all its slots, or one per slot if they are sampled sequentially.
    lanes: Vec<LeasedLanes>,
    version: WeightsVersion,
    /// The fragment that lanes and states are ready for, while no lease is in progress.
    next: FragmentNo,
    /// The slots' states after the latest lease.
    states: BTreeMap<SlotId, Vec<u8>>,
    /// The slots' states before the latest lease, if states contain recorded actions.
    begun: BTreeMap<SlotId, Vec<u8>>,
    lease: Option<RunningLease>,
    sequential: bool,
}

/// The row lengths of a policy's networks.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct NetworkLens {
    /// Encoded observations.
    pub(in crate::worker) obs: usize,
    /// Recurrent states, before and after.
    pub(in crate::worker) state: usize,
    /// Inputs of the actions' distribution.
    pub(in crate::worker) dist_inputs: usize,
}

/// A slot where its fragment begins.
#[derive(Clone)]
struct Start {
    slot: SlotId,
    /// `None` if it begins its first episode.
    state: Option<Vec<u8>>,
    restarts: Restarts,
}

/// Returns the episode that a slot begins with if its open one cannot move: the same one if no step of it was taken.
fn episode_after(Start { slot, state, .. }: &Start) -> u32 {
    let position = state.as_ref().and_then(|state| position_in(state, *slot));
    position.map_or(0, |(episode, t)| episode.wrapping_add(u32::from(t > 0)))
}

/// Slots of a lease that are sampled together, starting from these states.
struct SlotSet {
    starts: Vec<Start>,
    stage: Stage,
}

enum Stage {
    /// Nothing is created yet. With `gives_up` the slots abandon their open episodes and begin the next ones.
    Closed {
        gives_up: bool,
    },
    /// Open episodes are being replayed.
    Opening(Opening),
    Open(LeasedLanes),
}

struct RunningLease {
    id: LeaseId,
    fragment: FragmentNo,
    /// Includes those that were lost in a failure.
    env_steps: u64,
    /// The unfinished sets in order; the first one is in progress.
    open: VecDeque<SlotSet>,
    /// The failure of slots together, until one of them fails on its own.
    unexplained: Option<FragmentFailure>,
}

/// Takes the lanes of these slots if they are at the positions where the slots continue, so that nothing has to be restored.
fn take_ready(idle: &mut Vec<LeasedLanes>, leased: &[LeasedSlot]) -> Option<LeasedLanes> {
    let is_held = leased.iter().all(|leased| leased.source == SlotSource::Held);
    let is_theirs = |lanes: &LeasedLanes| lanes.slots().into_iter().eq(leased.iter().map(|leased| leased.slot));
    let place = idle.iter().position(is_theirs).filter(|_| is_held)?;
    Some(idle.remove(place))
}

/// Progress of a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Advance {
    /// There is no lease.
    Idle,
    /// The lease is in progress.
    Working {
        /// The lease.
        lease: LeaseId,
        /// Env steps done for it so far.
        env_steps: u64,
    },
    /// Some slots of the lease are complete; it continues with the others.
    Part {
        /// The lease.
        lease: LeaseId,
        /// Env steps done for it so far.
        env_steps: u64,
        /// One fragment for each of these slots.
        fragments: Vec<SlotFragment>,
    },
    /// A fragment of the lease failed; the lease continues with the others.
    Failed {
        /// The lease.
        lease: LeaseId,
        /// Env steps done for it so far.
        env_steps: u64,
        /// The failure and its place.
        failure: FragmentFailure,
    },
    /// The lease is complete.
    Done {
        /// The lease.
        lease: LeaseId,
        /// One fragment per slot that was not returned before and has not failed, in the lease's order.
        fragments: Vec<SlotFragment>,
    },
}

impl SlotRunner {
    /// Creates a runner for a run, with the names, kernels and shell of a builder. The policies have the run's first
    /// weights, version 0.
    ///
    /// # Errors
    /// [`SetupError`] if the run cannot be sampled here: an unknown environment or class of policy, or invalid settings.
    pub fn new(run: &RunConfig, builder: RolloutWorkerBuilder) -> Result<Self, SetupError> {
        let parts = builder.lease_parts(run)?;
        let (version, next) = (WeightsVersion(0), FragmentNo(0));
        let (lanes, states, begun) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (run, guard) = (run.clone(), unguarded as Guard);
        Ok(Self { run, parts, guard, lanes, version, next, states, begun, lease: None, sequential: false })
    }

    /// Sets a guard that turns panics of user code into failures.
    pub fn set_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Returns the layout of its fragments' rows.
    #[must_use]
    pub fn layout(&self) -> &FragmentLayout {
        &self.parts.layout
    }

    /// Returns the version of the present weights.
    #[must_use]
    pub fn weights_version(&self) -> WeightsVersion {
        self.version
    }

    /// Sets the weights for the following leases.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] while a lease is in progress, since a fragment is made with one version;
    /// [`RunnerError::Sample`] if they do not fit.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), RunnerError> {
        self.check_idle()?;
        let policies = &mut self.parts.host.policies;
        guarded(self.guard, || set_weights(policies, weights).map_err(RunnerError::from))?;
        self.version = weights.version();
        Ok(())
    }

    /// Returns how many numbers the rows of a policy's networks have.
    ///
    /// # Errors
    /// [`RunnerError::Sample`] if there is no such policy.
    pub(in crate::worker) fn network_lens(&mut self, id: &PolicyId) -> Result<NetworkLens, RunnerError> {
        let policy = self.parts.host.policies.policy_mut(id).map_err(SampleError::from)?;
        let (obs, dist_inputs) = (policy.encoded_obs_len(), policy.dist_inputs_len());
        Ok(NetworkLens { obs, dist_inputs, state: policy.state_lens().iter().sum() })
    }

    /// Computes the outputs of a policy's networks for rows of another worker.
    ///
    /// # Errors
    /// [`RunnerError::Policy`], and [`RunnerError::Sample`] if there is no such policy.
    pub(in crate::worker) fn compute_outputs(
        &mut self,
        id: &PolicyId,
        input: Input<'_>,
        out: Output<'_>,
    ) -> Result<(), RunnerError> {
        let policies = &mut self.parts.host.policies;
        let Output { dist_inputs, values, state } = out;
        guarded(self.guard, || {
            let policy = policies.policy_mut(id).map_err(SampleError::from)?;
            let out = Output { dist_inputs: &mut *dist_inputs, values: &mut *values, state: &mut *state };
            Ok(policy.compute_outputs(input, out)?)
        })
    }

    /// Sets whether, from the next lease on, slots are sampled sequentially, so that each is returned when it is complete,
    /// or concurrently. The rows are the same.
    pub fn set_sequential(&mut self, sequential: bool) {
        self.sequential = sequential;
    }

    /// Begins a lease. After an error nothing has changed.
    ///
    /// # Errors
    /// [`RunnerError`] if the lease cannot be run here.
    pub fn begin(&mut self, lease: Lease) -> Result<(), RunnerError> {
        self.begin_with(lease, |leased| Restarts::At(leased.restarts.clone()))
    }

    /// Begins a lease whose environments are restarted there.
    fn begin_with(&mut self, lease: Lease, restarts: impl Fn(&LeasedSlot) -> Restarts) -> Result<(), RunnerError> {
        self.check_idle()?;
        self.check(&lease)?;
        let start = |leased| {
            let state = self.start(lease.fragment, leased)?;
            Ok::<_, RunnerError>(Start { slot: leased.slot, state, restarts: restarts(leased) })
        };
        let starts = lease.slots.iter().map(start);
        let starts: Vec<Start> = starts.collect::<Result<_, _>>()?;
        let mut idle = core::mem::take(&mut self.lanes);
        if self.next != lease.fragment {
            idle.clear();
        }
        self.states.clear();
        self.begun.clear();
        if self.parts.env_state == EnvState::Replay {
            self.begun.extend(starts.iter().filter_map(|start| Some((start.slot, start.state.clone()?))));
        }
        let size = self.slots_per_set(&lease);
        let sets = starts.chunks(size).zip(lease.slots.chunks(size));
        let open = sets.map(|(starts, leased)| {
            let lanes = take_ready(&mut idle, leased);
            self.set(starts.to_vec(), lanes, lease.fragment)
        });
        let open = open.collect();
        self.lease =
            Some(RunningLease { id: lease.id, fragment: lease.fragment, env_steps: 0, open, unexplained: None });
        Ok(())
    }

    /// Continues the lease for at most `max_vector_steps` steps of the slots that are sampled together.
    pub fn advance(&mut self, max_vector_steps: u32) -> Advance {
        if self.lease.as_ref().is_some_and(|running| running.open.is_empty()) {
            return self.finish(Vec::new());
        }
        let mut left = max_vector_steps;
        let opened = if self.is_open() { Ok(()) } else { self.open_first(&mut left) };
        let Some(running) = &mut self.lease else { return Advance::Idle };
        running.env_steps += u64::from(max_vector_steps - left);
        let (lease, env_steps) = (running.id, running.env_steps);
        let worked = match (opened, running.open.front_mut()) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(SlotSet { starts, stage: Stage::Open(lanes) })) => {
                let parts = &mut self.parts;
                guarded(self.guard, || lanes.advance(parts, left)).and_then(|worked| {
                    worked.1.iter().flatten().try_for_each(check_finite)?;
                    Ok((worked, starts.len()))
                })
            }
            (Ok(()), _) => return Advance::Working { lease, env_steps },
        };
        match worked {
            Ok(((steps, fragments), slots)) => {
                running.env_steps += u64::from(steps) * slots as u64;
                let env_steps = running.env_steps;
                fragments.map_or(Advance::Working { lease, env_steps }, |fragments| self.complete(fragments))
            }
            Err(error) => self.fail(error),
        }
    }

    fn is_open(&self) -> bool {
        let first = self.lease.as_ref().and_then(|running| running.open.front());
        first.is_some_and(|set| matches!(set.stage, Stage::Open(_)))
    }

    /// Completes the first open set.
    fn complete(&mut self, fragments: Vec<SlotFragment>) -> Advance {
        let Some(running) = &mut self.lease else { return Advance::Idle };
        if let Some(SlotSet { stage: Stage::Open(lanes), .. }) = running.open.pop_front() {
            self.lanes.push(lanes);
        }
        self.states.extend(fragments.iter().map(|fragment| (fragment.slot, fragment.state.clone())));
        if running.open.is_empty() && running.unexplained.is_none() {
            return self.finish(fragments);
        }
        Advance::Part { lease: running.id, env_steps: running.env_steps, fragments }
    }

    /// Handles a failure of the first open set: if it has several slots, each is sampled again on its own.
    fn fail(&mut self, error: RunnerError) -> Advance {
        let Some(running) = &mut self.lease else { return Advance::Idle };
        let (lease, env_steps, fragment) = (running.id, running.env_steps, running.fragment);
        let Some(SlotSet { starts, stage }) = running.open.pop_front() else {
            return Advance::Working { lease, env_steps };
        };
        let [Start { slot, state, .. }] = &starts[..] else {
            let marked = self.parts.options.mark.as_ref().and_then(StepMark::position);
            running.unexplained = Some(error.of_slots(&starts, marked, |lane| match &stage {
                Stage::Open(lanes) => Some(lanes.failed_at(lane)),
                Stage::Closed { .. } | Stage::Opening(_) => None,
            }));
            drop(stage);
            let mut open: VecDeque<SlotSet> =
                starts.into_iter().map(|start| self.set(vec![start], None, fragment)).collect();
            if let Some(running) = &mut self.lease {
                open.append(&mut running.open);
                running.open = open;
            }
            return Advance::Working { lease, env_steps };
        };
        running.unexplained = None;
        if error.is_replay_mismatch() && self.run.replay_mismatch == ReplayMismatch::Abandon {
            running.open.push_front(SlotSet { starts, stage: Stage::Closed { gives_up: true } });
            return Advance::Working { lease, env_steps };
        }
        let kind = error.failure_kind();
        let (kind, at) = match (&stage, error.position(), state) {
            (_, Some(at), _) => (kind, at),
            (Stage::Open(lanes), None, _) => (kind, lanes.failed_at(0)),
            (_, None, Some(state)) => {
                let kind = if kind == FailureKind::Env { FailureKind::Restore } else { kind };
                (kind, position_in(state, *slot).unwrap_or_default())
            }
            (_, None, None) => (kind, (0, 0)),
        };
        let failure = FragmentFailure::new(kind, Some(*slot), at, &error.at_place());
        Advance::Failed { lease, env_steps, failure }
    }

    /// Completes the lease, once no set is open.
    fn finish(&mut self, fragments: Vec<SlotFragment>) -> Advance {
        let Some(mut running) = self.lease.take() else { return Advance::Idle };
        let lease = running.id;
        if let Some(failure) = running.unexplained.take() {
            let env_steps = running.env_steps;
            self.lease = Some(running);
            return Advance::Failed { lease, env_steps, failure };
        }
        self.next = FragmentNo(running.fragment.0 + 1);
        Advance::Done { lease, fragments }
    }

    /// Returns the fragments of the latest lease for a hub that has the states that they began with: recorded actions in
    /// these states are omitted.
    pub(in crate::worker) fn for_upload<'a>(&self, fragments: &'a [SlotFragment]) -> Cow<'a, [SlotFragment]> {
        let short = |fragment: &SlotFragment| {
            let start = self.begun.get(&fragment.slot);
            start.and_then(|start| without_known(fragment, start)).unwrap_or_else(|| fragment.clone())
        };
        match self.begun.is_empty() {
            true => Cow::Borrowed(fragments),
            false => fragments.iter().map(short).collect(),
        }
    }

    /// Recomputes a lease's fragments with these weights, to compare them with another worker's.
    ///
    /// # Errors
    /// [`RunnerError`], like [`set_weights`](Self::set_weights) and [`begin`](Self::begin), and for a fragment that failed.
    pub fn replay(&mut self, lease: Lease, weights: &Weights) -> Result<Vec<SlotFragment>, RunnerError> {
        self.recompute(lease, weights, None)
    }

    /// Replays the actions of a fragment, whose slot the lease names: environment and policy do with them what they did, and
    /// nothing is drawn. For fragments in which a policy on a device acted.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay), and [`PolicyError::Unsupported`](crate::policy::PolicyError::Unsupported) of a policy
    /// that takes no actions.
    pub fn replay_actions(
        &mut self,
        lease: Lease,
        weights: &Weights,
        taken: TakenActions,
    ) -> Result<Vec<SlotFragment>, RunnerError> {
        self.take_actions(Some(taken))?;
        let made = self.recompute(lease, weights, None);
        self.take_actions(None)?;
        made
    }

    fn take_actions(&mut self, taken: Option<TakenActions>) -> Result<(), RunnerError> {
        let policy = self.parts.host.policies.policy_mut(&PolicyId::DEFAULT).map_err(SampleError::from)?;
        Ok(policy.take_actions(taken)?)
    }

    /// Does the same as [`replay`](Self::replay), and shows the environment of a lease of one slot before each step.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay).
    pub fn replay_shown(
        &mut self,
        lease: Lease,
        weights: &Weights,
        show: &mut ShowEnv<'_>,
    ) -> Result<Vec<SlotFragment>, RunnerError> {
        self.recompute(lease, weights, Some(show))
    }

    fn recompute(
        &mut self,
        lease: Lease,
        weights: &Weights,
        mut show: Option<&mut ShowEnv<'_>>,
    ) -> Result<Vec<SlotFragment>, RunnerError> {
        if self.weights_version() != weights.version() || lease.weights_version.0 == 0 {
            self.set_weights(weights)?;
        }
        match &show {
            // Of a fragment that is shown it is not known where its environment was restarted: its caller compares the states.
            Some(_) => self.begin_with(lease, |_| Restarts::Everywhere)?,
            None => self.begin(lease)?,
        }
        let mut made = Vec::new();
        loop {
            let steps = match &mut show {
                None => u32::MAX,
                Some(show) => {
                    self.show(*show).inspect_err(|_| self.abandon())?;
                    1
                }
            };
            match self.advance(steps) {
                Advance::Working { .. } => {}
                Advance::Part { fragments, .. } => made.extend(fragments),
                Advance::Failed { failure, .. } => {
                    self.abandon();
                    return Err(RunnerError::Failed(Box::new(failure)));
                }
                Advance::Done { fragments, .. } => {
                    made.extend(fragments);
                    return Ok(made);
                }
                Advance::Idle => return Ok(made),
            }
        }
    }

    /// Opens the first open set, and shows the environment of its first slot.
    fn show(&mut self, show: &mut ShowEnv<'_>) -> Result<(), RunnerError> {
        if !self.is_open() {
            self.open_first(&mut u32::MAX.clone())?;
        }
        let first = self.lease.as_mut().and_then(|running| running.open.front_mut());
        match first {
            Some(SlotSet { stage: Stage::Open(lanes), .. }) => {
                guarded(self.guard, || lanes.show(&mut self.parts, show))
            }
            _ => Ok(()),
        }
    }

    /// Returns the lease in progress.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease.as_ref().map(|running| running.id)
    }

    /// Abandons the lease in progress, and with it the states of its slots.
    pub fn abandon(&mut self) {
        if self.lease.take().is_some() {
            self.lanes.clear();
            self.states.clear();
        }
    }

    fn check_idle(&self) -> Result<(), RunnerError> {
        self.lease().map_or(Ok(()), |lease| Err(RunnerError::Busy(lease)))
    }

    fn check(&self, lease: &Lease) -> Result<(), RunnerError> {
        let (wanted, here) = (lease.weights_version, self.weights_version());
        if wanted != here {
            return Err(RunnerError::WrongWeights { wanted, here });
        }
        let ascending = lease.slots.windows(2).all(|pair| pair[0].slot < pair[1].slot);
        if !ascending || lease.slots.is_empty() {
            return Err(RunnerError::BadSlots);
        }
        let num_slots = self.run.num_slots();
        match lease.slots.iter().find(|leased| leased.slot.0 >= num_slots) {
            Some(leased) => Err(RunnerError::NoSuchSlot { slot: leased.slot, num_slots }),
            None => Ok(()),
        }
    }

    /// Returns how many slots of a lease are sampled together. Slots whose episodes may not move are sampled separately, so
    /// that no episode is lost when another set of slots is leased.
    fn slots_per_set(&self, lease: &Lease) -> usize {
        let moves = self.run.episodes_move(self.parts.env_state);
        let together = moves && !self.sequential && (self.is_lockstep() || self.parts.keeps_step());
        if together { lease.slots.len().max(1) } else { 1 }
    }

    fn is_lockstep(&self) -> bool {
        matches!(self.parts.layout, FragmentLayout::Lane { .. })
    }

    /// Creates a set of slots from their states, with these lanes if they are ready.
    fn set(&self, starts: Vec<Start>, lanes: Option<LeasedLanes>, fragment: FragmentNo) -> SlotSet {
        let stage = match lanes {
            None => Stage::Closed { gives_up: self.parts.env_state == EnvState::Opaque },
            Some(mut lanes) => {
                lanes.begin(&starts, fragment, self.version, self.run.fragment_length());
                Stage::Open(lanes)
            }
        };
        SlotSet { starts, stage }
    }

    /// Opens the lanes of the first open set as far as `steps` replayed steps allow, and subtracts those taken.
    fn open_first(&mut self, steps: &mut u32) -> Result<(), RunnerError> {
        let (run, parts, guard, version) = (&self.run, &mut self.parts, self.guard, self.version);
        let Some(RunningLease { open, fragment, .. }) = &mut self.lease else { return Ok(()) };
        let Some(SlotSet { starts, stage }) = open.front_mut() else { return Ok(()) };
        if let Stage::Closed { gives_up } = *stage {
            *stage = Stage::Opening(guarded(guard, || Opening::new(run, parts, starts, gives_up))?);
        }
        let is_there = match stage {
            Stage::Opening(opening) => guarded(guard, || opening.replay(steps))?,
            Stage::Closed { .. } | Stage::Open(_) => false,
        };
        if !is_there {
            return Ok(());
        }
        let mut opening = Some(core::mem::replace(stage, Stage::Closed { gives_up: false }));
        let finished = guarded(guard, || match opening.take() {
            Some(Stage::Opening(opening)) => opening.finish(parts).map(Some),
            _ => Ok(None),
        });
        if let Some(mut lanes) = finished? {
            lanes.begin(starts, *fragment, version, run.fragment_length());
            *stage = Stage::Open(lanes);
        }
        Ok(())
    }

    fn start(&self, fragment: FragmentNo, leased: &LeasedSlot) -> Result<Option<Vec<u8>>, RunnerError> {
        match &leased.source {
            SlotSource::New => Ok(None),
            SlotSource::State(bytes) => Ok(Some(bytes.clone())),
            SlotSource::Held => {
                let held = self.states.get(&leased.slot).filter(|_| self.next == fragment);
                Ok(Some(held.ok_or(RunnerError::NotHeld(leased.slot))?.clone()))
            }
        }
    }
}
