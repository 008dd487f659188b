//! The part of a worker in a group that runs leases. No protocol in here.

use super::{RolloutWorkerBuilder, SetupError, agent_lanes::AgentLanes, builder::LeaseParts, lane_set::LaneSet};
use crate::{
    batch::SlotFragment,
    env::{EnvContext, EnvError, EnvStart},
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    lease::{Lease, LeasedSlot, SlotSource},
    policy::PolicyError,
    prelude::*,
    run::RunConfig,
    sampler::{DriveError, FragmentLayout, LaneStart, SampleError, StateError, set_weights},
    weights::{Weights, WeightsError},
};

/// Runs leases of one run, one at a time.
pub struct SlotRunner {
    run: RunConfig,
    parts: LeaseParts,
    /// The lanes of the latest lease: one set of all its slots, or one for each if they are worked on in turn.
    lanes: Vec<Lanes>,
    version: WeightsVersion,
    /// The fragment for which the lanes stand ready, while no lease is running.
    next: FragmentNo,
    lease: Option<Running>,
    in_turn: bool,
}

/// Slots that are worked on together, by the collector that fits.
enum Lanes {
    Lockstep(LaneSet),
    Agents(Box<AgentLanes>),
}

struct Running {
    id: LeaseId,
    fragment: FragmentNo,
    env_steps: u64,
    /// The set of lanes that is worked on; those before it are done.
    turn: usize,
}

/// How far a lease has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Advance {
    /// There is no lease.
    Idle,
    /// The lease needs more.
    Working {
        /// The lease.
        lease: LeaseId,
        /// Env steps done for it so far.
        env_steps: u64,
    },
    /// Slots of the lease are done, and it goes on with others.
    Part {
        /// The lease.
        lease: LeaseId,
        /// Env steps done for it so far.
        env_steps: u64,
        /// One fragment for each of these slots.
        fragments: Vec<SlotFragment>,
    },
    /// The lease is done.
    Done {
        /// The lease.
        lease: LeaseId,
        /// One fragment per slot that was not handed over before, in the lease's order.
        fragments: Vec<SlotFragment>,
    },
}

/// Why a lease or weights could not be taken, or a lease could not be finished.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunnerError {
    /// Another lease is running.
    #[error("lease {0} is still running")]
    Busy(LeaseId),
    /// The lease wants other weights than the ones that are here.
    #[error("the lease wants weights {wanted}, here are {here}")]
    WrongWeights {
        /// The lease's.
        wanted: WeightsVersion,
        /// The policy's.
        here: WeightsVersion,
    },
    /// The lease names a slot that the run does not have.
    #[error("the run has {num_slots} slots, there is no slot {slot}")]
    NoSuchSlot {
        /// The slot.
        slot: SlotId,
        /// Slots of the run.
        num_slots: u32,
    },
    /// The lease has no slots, or not in ascending order.
    #[error("the slots of a lease must be ascending, and at least one")]
    BadSlots,
    /// The lease says that the state is here, and it is not.
    #[error("the state of slot {0} is not here")]
    NotHeld(SlotId),
    /// The lease's state of a slot cannot be read.
    #[error("slot {slot}: {source}")]
    State {
        /// The slot.
        slot: SlotId,
        /// What is wrong.
        source: StateError,
    },
    /// The environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy does not fit, or failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The weights are not those of the run's policies.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Sampling several agents, or the user's code, failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl From<DriveError> for RunnerError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Env(error) => Self::Env(error),
            DriveError::Policy(error) => Self::Policy(error),
            DriveError::Preprocess(error) => Self::Policy(PolicyError::Failed(error.to_string())),
            DriveError::Filter(error) => Self::Policy(error.into()),
        }
    }
}

impl SlotRunner {
    /// Gets ready for a run, with the names, kernels and shell of a builder. The policy has the run's first weights,
    /// version 0.
    ///
    /// # Errors
    /// [`SetupError`] if the run cannot be sampled here: an unknown environment or kind of policy, settings that make no
    /// sense.
    pub fn new(run: &RunConfig, builder: RolloutWorkerBuilder) -> Result<Self, SetupError> {
        let parts = builder.lease_parts(run)?;
        let (version, next) = (WeightsVersion(0), FragmentNo(0));
        Ok(Self { run: run.clone(), parts, lanes: Vec::new(), version, next, lease: None, in_turn: false })
    }

    /// What the rows of its fragments hold.
    #[must_use]
    pub fn layout(&self) -> &FragmentLayout {
        &self.parts.layout
    }

    /// Version of the weights that act.
    #[must_use]
    pub fn weights_version(&self) -> WeightsVersion {
        self.version
    }

    /// Acts with other weights from the next lease on.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] while a lease is running: one version acts in a whole fragment;
    /// [`RunnerError::Policy`] when they do not fit.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), RunnerError> {
        self.check_idle()?;
        set_weights(&mut self.parts.host.policies, weights)?;
        self.version = weights.version();
        Ok(())
    }

    /// From the next lease on, works on one slot after the other and hands each over when it is done, or on all together.
    /// The rows are the same.
    pub fn work_in_turn(&mut self, in_turn: bool) {
        self.in_turn = in_turn;
    }

    /// Takes a lease. After an error nothing has changed.
    ///
    /// # Errors
    /// [`RunnerError`], which says why the lease cannot be run here.
    pub fn begin(&mut self, lease: Lease) -> Result<(), RunnerError> {
        self.check_idle()?;
        self.check(&lease)?;
        if !self.stands_ready_for(&lease) {
            self.lanes = self.open(&lease)?;
        }
        for lanes in &mut self.lanes {
            lanes.begin(lease.fragment, lease.weights_version, self.run.fragment_length());
        }
        self.lease = Some(Running { id: lease.id, fragment: lease.fragment, env_steps: 0, turn: 0 });
        Ok(())
    }

    /// Goes on with the lease for at most `max_vector_steps` steps of all its slots, or of the one whose turn it is.
    ///
    /// # Errors
    /// [`RunnerError::Env`] or [`RunnerError::Policy`]; the lease is then given up.
    pub fn advance(&mut self, max_vector_steps: u32) -> Result<Advance, RunnerError> {
        let Some(running) = &mut self.lease else { return Ok(Advance::Idle) };
        let Some(lanes) = self.lanes.get_mut(running.turn) else { return Ok(Advance::Idle) };
        let (steps, fragments) = match lanes.advance(&mut self.parts, max_vector_steps) {
            Ok(progress) => progress,
            Err(error) => {
                self.abandon();
                return Err(error);
            }
        };
        running.env_steps += u64::from(steps) * lanes.len() as u64;
        let (lease, env_steps) = (running.id, running.env_steps);
        let Some(fragments) = fragments else { return Ok(Advance::Working { lease, env_steps }) };
        running.turn += 1;
        if running.turn < self.lanes.len() {
            return Ok(Advance::Part { lease, env_steps, fragments });
        }
        self.next = FragmentNo(running.fragment.0 + 1);
        self.lease = None;
        Ok(Advance::Done { lease, fragments })
    }

    /// Makes a lease's fragments with these weights, from beginning to end: to compare them with somebody else's.
    ///
    /// # Errors
    /// [`RunnerError`], as [`set_weights`](Self::set_weights), [`begin`](Self::begin) and [`advance`](Self::advance).
    pub fn replay(&mut self, lease: Lease, weights: &Weights) -> Result<Vec<SlotFragment>, RunnerError> {
        if self.weights_version() != weights.version() || lease.weights_version.0 == 0 {
            self.set_weights(weights)?;
        }
        self.begin(lease)?;
        let mut made = Vec::new();
        loop {
            match self.advance(u32::MAX)? {
                Advance::Working { .. } => {}
                Advance::Part { fragments, .. } => made.extend(fragments),
                Advance::Done { fragments, .. } => {
                    made.extend(fragments);
                    return Ok(made);
                }
                Advance::Idle => return Ok(made),
            }
        }
    }

    /// The lease that is running.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease.as_ref().map(|running| running.id)
    }

    /// Gives up the running lease, and with it the state of its slots.
    pub fn abandon(&mut self) {
        if self.lease.take().is_some() {
            self.lanes.clear();
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

    /// True if the lanes are the lease's, where it wants to go on: nothing has to be moved.
    fn stands_ready_for(&self, lease: &Lease) -> bool {
        let sets = lease.slots.chunks(self.slots_per_set(lease));
        self.next == lease.fragment
            && lease.slots.iter().all(|leased| leased.source == SlotSource::Held)
            && sets.len() == self.lanes.len()
            && sets
                .zip(&self.lanes)
                .all(|(set, lanes)| lanes.slots().into_iter().eq(set.iter().map(|leased| leased.slot)))
    }

    /// Slots of a lease that are worked on together.
    fn slots_per_set(&self, lease: &Lease) -> usize {
        let together = !self.in_turn && (self.is_lockstep() || self.parts.keeps_step());
        if together { lease.slots.len().max(1) } else { 1 }
    }

    fn is_lockstep(&self) -> bool {
        matches!(self.parts.layout, FragmentLayout::Lane { .. })
    }

    fn open(&mut self, lease: &Lease) -> Result<Vec<Lanes>, RunnerError> {
        let starts: Vec<(SlotId, Option<Vec<u8>>)> =
            lease.slots.iter().map(|leased| self.start(lease.fragment, leased)).collect::<Result<_, _>>()?;
        starts.chunks(self.slots_per_set(lease)).map(|starts| self.open_set(starts)).collect()
    }

    fn open_set(&mut self, starts: &[(SlotId, Option<Vec<u8>>)]) -> Result<Lanes, RunnerError> {
        let context = |slot: &SlotId| self.run.env_context(*slot);
        let parts = &mut self.parts;
        if let FragmentLayout::Lane { .. } = parts.layout {
            let contexts: Vec<EnvContext> = starts.iter().map(|(slot, _)| context(slot)).collect();
            let decode = |(slot, state): &(SlotId, Option<Vec<u8>>)| match state {
                None => Ok(LaneStart { slot: *slot, state: None }),
                Some(state) => {
                    LaneStart::decode(*slot, state).map_err(|source| RunnerError::State { slot: *slot, source })
                }
            };
            let starts: Vec<LaneStart> = starts.iter().map(decode).collect::<Result<_, _>>()?;
            let entry = parts.host.policies.get_mut(&PolicyId::DEFAULT).map_err(SampleError::from)?;
            let envs = parts.envs.make_lanes(&contexts)?;
            return Ok(Lanes::Lockstep(LaneSet::of(envs, &starts, &parts.options, entry)?));
        }
        let env_start = |(slot, _): &(SlotId, _)| EnvStart { slot: *slot, episode: 0, context: context(slot) };
        let envs = parts.envs.make_base(starts.iter().map(env_start).collect(), parts.options.seed)?;
        let home = starts.first().map_or(1, |(slot, _)| self.run.home(*slot).worker_index);
        Ok(Lanes::Agents(Box::new(AgentLanes::open(envs, starts, home, &parts.options, &mut parts.host)?)))
    }

    /// A slot with its state; none for one that begins its first episode.
    fn start(&self, fragment: FragmentNo, leased: &LeasedSlot) -> Result<(SlotId, Option<Vec<u8>>), RunnerError> {
        let slot = leased.slot;
        let state = match &leased.source {
            SlotSource::New => None,
            SlotSource::State(bytes) => Some(bytes.clone()),
            SlotSource::Held => {
                let lanes = if self.next == fragment { &self.lanes[..] } else { &[] };
                Some(lanes.iter().find_map(|lanes| lanes.state(slot)).ok_or(RunnerError::NotHeld(slot))?)
            }
        };
        Ok((slot, state))
    }
}

impl Lanes {
    fn begin(&mut self, fragment: FragmentNo, version: WeightsVersion, steps: u32) {
        match self {
            Self::Lockstep(lanes) => lanes.begin(fragment, version, steps),
            Self::Agents(lanes) => lanes.begin(fragment, version),
        }
    }

    /// Takes at most `max_steps` steps of all slots; the fragments if they are ready.
    fn advance(
        &mut self,
        parts: &mut LeaseParts,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), RunnerError> {
        match self {
            Self::Lockstep(lanes) => {
                let entry = parts.host.policies.get_mut(&PolicyId::DEFAULT).map_err(SampleError::from)?;
                Ok(lanes.advance(entry, max_steps)?)
            }
            Self::Agents(lanes) => Ok(lanes.advance(&mut parts.host, max_steps)?),
        }
    }

    fn slots(&self) -> Vec<SlotId> {
        match self {
            Self::Lockstep(lanes) => lanes.slots().collect(),
            Self::Agents(lanes) => lanes.slots().to_vec(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Lockstep(lanes) => lanes.len(),
            Self::Agents(lanes) => lanes.slots().len(),
        }
    }

    fn state(&self, slot: SlotId) -> Option<Vec<u8>> {
        match self {
            Self::Lockstep(lanes) => lanes.state(slot).map(|state| state.encode()),
            Self::Agents(lanes) => lanes.state(slot),
        }
    }
}
