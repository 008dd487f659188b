//! A worker for the simulator, which follows the group's protocol with fake rows.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    ids::{LeaseId, SlotId},
    lease::{FailedStep, Lease, LeasedSlot, SlotSource},
    protocol::{FailureKind, FragmentFailure, Inability, InabilityKind},
};

use crate::fake_rows::FakeState;

/// A message from a worker to the group.
#[derive(Clone, Debug)]
pub enum WorkerOutput {
    /// The number of env steps done so far.
    Progress(LeaseId, u64),
    /// The fragments of a lease's slots: all, or those finished since the last upload.
    Upload(LeaseId, Vec<SlotFragment>),
    /// The worker refuses the lease.
    Refused(LeaseId),
    /// A fragment of the lease failed; the others continue.
    Failed(LeaseId, FragmentFailure),
    /// Whether the worker can run the run's leases.
    Answer(Result<(), Inability>),
}

/// A message from the group to a worker.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// Work on a lease.
    Grant(Lease),
    /// Drop a lease.
    Revoke(LeaseId),
}

/// A worker: a state machine without a clock of its own.
#[derive(Debug, Default)]
pub struct FakeWorker {
    length: u32,
    may_miss_leases: bool,
    sequential: bool,
    is_unable: bool,
    is_fragile: bool,
    /// States after the slots of the latest lease.
    held: BTreeMap<SlotId, FakeState>,
    current: Option<Work>,
    /// The lease that follows up on the current one.
    follow_up: Option<Lease>,
    newest: Option<LeaseId>,
}

#[derive(Debug)]
struct Work {
    lease: Lease,
    starts: Vec<FakeState>,
    env_steps: u64,
    /// The number of uploaded slots.
    handed: usize,
}

impl Work {
    /// Returns the first step at which the environment of a slot fails and is not restarted.
    fn fails_at(&self, place: usize) -> Option<FailedStep> {
        let (fails, restarts) = (self.starts[place].failing_steps(), &self.lease.slots[place].restarts);
        assert!(restarts.iter().all(|step| fails.contains(step)), "{restarts:?} of {fails:?}");
        fails.into_iter().find(|step| !restarts.contains(step))
    }
}

impl FakeWorker {
    /// Creates a worker. With `may_miss_leases`, a follow-up may arrive whose previous lease was lost.
    #[must_use]
    pub fn new(length: u32, may_miss_leases: bool) -> Self {
        Self { length, may_miss_leases, ..Self::default() }
    }

    /// Works on one slot at a time, and uploads each when it is finished.
    #[must_use]
    pub fn sequential(self) -> Self {
        Self { sequential: true, ..self }
    }

    /// Makes the worker report that it cannot run the run's leases.
    #[must_use]
    pub fn unable(self) -> Self {
        Self { is_unable: true, ..self }
    }

    /// Makes the environments fail at some steps, each time that they come there. Where the lease says that they are restarted,
    /// they continue with other rows.
    #[must_use]
    pub fn fragile(self) -> Self {
        Self { is_fragile: true, ..self }
    }

    /// Returns the worker's answer to the announcement of the run.
    #[must_use]
    pub fn answer(&self) -> WorkerOutput {
        let inability = || Inability::new(InabilityKind::UnknownEnv, "there is no environment 'Fake-v0'");
        WorkerOutput::Answer(if self.is_unable { Err(inability()) } else { Ok(()) })
    }

    /// Returns true while the worker has work.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Handles a message and may answer. Ignores old grants that arrive after newer ones.
    ///
    /// # Panics
    /// If the group expects the worker to hold a state that it does not hold, although no message can have been lost, or
    /// grants a lease to an incapable worker.
    pub fn receive(&mut self, input: WorkerInput) -> Option<WorkerOutput> {
        assert!(!self.is_unable || !matches!(input, WorkerInput::Grant(_)), "{input:?} for a worker that is unable");
        match input {
            WorkerInput::Grant(lease) if self.newest.is_some_and(|newest| lease.id <= newest) => None,
            WorkerInput::Grant(lease) => {
                self.newest = Some(lease.id);
                let follows = |work: &Work| lease.is_follow_up_of(&work.lease);
                if self.follow_up.is_none() && self.current.as_ref().is_some_and(follows) {
                    self.follow_up = Some(lease);
                    return None;
                }
                self.follow_up = None;
                self.drop_current();
                // A follow-up may have arrived without the previous lease.
                if self.may_miss_leases && !self.has_states(&lease) {
                    return Some(WorkerOutput::Refused(lease.id));
                }
                self.begin(lease);
                None
            }
            WorkerInput::Revoke(lease) => {
                // Without its states the follow-up is useless; the group revokes it, too.
                if self.current.as_ref().is_some_and(|work| work.lease.id == lease) {
                    self.drop_current();
                    self.follow_up = None;
                }
                self.follow_up.take_if(|waiting| waiting.id == lease);
                self.newest = self.newest.max(Some(lease));
                Some(WorkerOutput::Refused(lease))
            }
        }
    }

    /// Refuses the latest lease.
    pub fn refuse(&mut self) -> Option<WorkerOutput> {
        let latest = self.follow_up.take().or_else(|| self.drop_current());
        latest.map(|lease| WorkerOutput::Refused(lease.id))
    }

    /// Drops the current lease, with all states.
    fn drop_current(&mut self) -> Option<Lease> {
        let dropped = self.current.take()?;
        self.held.clear();
        Some(dropped.lease)
    }

    /// Performs at most this number of env steps of the lease.
    pub fn work(&mut self, env_steps: u64) -> Option<WorkerOutput> {
        let work = self.current.as_mut()?;
        work.env_steps += env_steps;
        let slots = work.starts.len();
        let done = slots.min((work.env_steps / u64::from(self.length)) as usize);
        if done == work.handed || done < slots && !self.sequential {
            return Some(WorkerOutput::Progress(work.lease.id, work.env_steps));
        }
        if self.is_fragile
            && let Some((place, step)) = (work.handed..done).find_map(|place| Some((place, work.fails_at(place)?)))
        {
            return Some(self.fail(place, step, "no fuel"));
        }
        let make = |start: &FakeState| match self.is_fragile {
            true => start.fragile_fragment(work.lease.weights_version, self.length),
            false => start.fragment(work.lease.weights_version, self.length),
        };
        let fragments: Vec<SlotFragment> = work.starts[work.handed..done].iter().map(make).collect();
        work.handed = done;
        self.held.extend(fragments.iter().map(|fragment| (fragment.slot, FakeState::decode(&fragment.state))));
        let lease = work.lease.id;
        if done == slots {
            self.current = None;
            if let Some(next) = self.follow_up.take() {
                self.begin(next);
            }
        }
        Some(WorkerOutput::Upload(lease, fragments))
    }

    /// Makes the environment of the first unfinished slot fail in a way in which it does not fail again.
    pub fn fail_once(&mut self, reason: &str) -> Option<WorkerOutput> {
        let place = self.current.as_ref()?.handed;
        let episode = self.current.as_ref()?.starts.get(place)?.next.0 as u32;
        Some(self.fail(place, FailedStep { episode, t: 2 }, reason))
    }

    /// Drops a slot of the current lease, and reports its failure.
    fn fail(&mut self, place: usize, FailedStep { episode, t }: FailedStep, reason: &str) -> WorkerOutput {
        let work = self.current.as_mut().expect("a lease");
        let (lease, slot) = (work.lease.id, work.lease.slots.remove(place).slot);
        work.starts.remove(place);
        // It would begin with the state after this lease.
        self.follow_up = None;
        if work.handed == work.starts.len() {
            self.current = None;
        }
        WorkerOutput::Failed(lease, FragmentFailure::new(FailureKind::Env, Some(slot), (episode, t), reason))
    }

    fn begin(&mut self, lease: Lease) {
        let starts = lease.slots.iter().map(|leased| self.start(leased, &lease)).collect();
        self.held.clear();
        self.current = Some(Work { lease, starts, env_steps: 0, handed: 0 });
    }

    fn has_states(&self, lease: &Lease) -> bool {
        let is_here = |leased: &LeasedSlot| {
            leased.source != SlotSource::Held
                || self.held.get(&leased.slot).is_some_and(|state| state.next == lease.fragment)
        };
        lease.slots.iter().all(is_here)
    }

    fn start(&self, leased: &LeasedSlot, lease: &Lease) -> FakeState {
        let state = match &leased.source {
            SlotSource::Held => *self.held.get(&leased.slot).expect("a state that the group says is held"),
            SlotSource::New => FakeState::new(leased.slot),
            SlotSource::State(bytes) => FakeState::decode(bytes),
        };
        assert_eq!((state.slot, state.next), (leased.slot, lease.fragment), "start of {lease:?}");
        state
    }
}
