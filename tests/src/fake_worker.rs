//! A worker for the simulator: keeps its side of the group's contract, on fake rows.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    ids::{LeaseId, SlotId},
    lease::{Lease, LeasedSlot, SlotSource},
    protocol::{Inability, InabilityKind},
};

use crate::fake_rows::FakeState;

/// What a worker tells the group.
#[derive(Clone, Debug)]
pub enum Said {
    /// Env steps done so far.
    Progress(LeaseId, u64),
    /// Slots of a lease: all, or those that are done since the last time.
    Upload(LeaseId, Vec<SlotFragment>),
    /// The lease is not being worked on.
    Refused(LeaseId),
    /// The worker can run the run's leases, or not.
    Answer(Result<(), Inability>),
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum Told {
    /// Work.
    Grant(Lease),
    /// Drop a lease.
    Revoke(LeaseId),
}

/// A worker: a pure machine, advanced by whoever holds the clock.
#[derive(Debug, Default)]
pub struct FakeWorker {
    length: u32,
    may_miss_leases: bool,
    in_turn: bool,
    is_unable: bool,
    /// States after what the latest lease has brought.
    held: BTreeMap<SlotId, FakeState>,
    current: Option<Work>,
    /// The lease that follows the current one.
    follow_up: Option<Lease>,
    newest: Option<LeaseId>,
}

#[derive(Debug)]
struct Work {
    lease: Lease,
    starts: Vec<FakeState>,
    env_steps: u64,
    /// Slots that were handed over.
    handed: usize,
}

impl FakeWorker {
    /// A worker that knows nothing yet. If it may miss leases, one may come that follows a lease which got lost.
    #[must_use]
    pub fn new(length: u32, may_miss_leases: bool) -> Self {
        Self { length, may_miss_leases, ..Self::default() }
    }

    /// Works on one slot after the other, and hands each over when it is done.
    #[must_use]
    pub fn in_turn(self) -> Self {
        Self { in_turn: true, ..self }
    }

    /// Cannot run the run's leases, and says so.
    #[must_use]
    pub fn unable(self) -> Self {
        Self { is_unable: true, ..self }
    }

    /// What the worker answers to the announcement of the run.
    #[must_use]
    pub fn answer(&self) -> Said {
        let inability = || Inability::new(InabilityKind::UnknownEnv, "there is no environment 'Fake-v0'");
        Said::Answer(if self.is_unable { Err(inability()) } else { Ok(()) })
    }

    /// True while there is something to do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Takes a message and maybe answers. Old grants that were overtaken by newer ones are ignored.
    ///
    /// # Panics
    /// If the group says that the worker holds a state which it does not hold, where no message can have been lost, or
    /// leases something to a worker that is unable.
    pub fn hear(&mut self, told: Told) -> Option<Said> {
        assert!(!self.is_unable || !matches!(told, Told::Grant(_)), "{told:?} for a worker that is unable");
        match told {
            Told::Grant(lease) if self.newest.is_some_and(|newest| lease.id <= newest) => None,
            Told::Grant(lease) => {
                self.newest = Some(lease.id);
                let follows = |work: &Work| lease.is_follow_up_of(&work.lease);
                if self.follow_up.is_none() && self.current.as_ref().is_some_and(follows) {
                    self.follow_up = Some(lease);
                    return None;
                }
                self.follow_up = None;
                self.drop_current();
                // A follow-up may have come without the lease before it.
                if self.may_miss_leases && !self.has_states(&lease) {
                    return Some(Said::Refused(lease.id));
                }
                self.begin(lease);
                None
            }
            Told::Revoke(lease) => {
                // Without its states the one that follows is worth nothing; the group takes it back, too.
                if self.current.as_ref().is_some_and(|work| work.lease.id == lease) {
                    self.drop_current();
                    self.follow_up = None;
                }
                self.follow_up.take_if(|waiting| waiting.id == lease);
                self.newest = self.newest.max(Some(lease));
                Some(Said::Refused(lease))
            }
        }
    }

    /// Gives up the latest lease.
    pub fn refuse(&mut self) -> Option<Said> {
        let latest = self.follow_up.take().or_else(|| self.drop_current());
        latest.map(|lease| Said::Refused(lease.id))
    }

    /// Gives up what is being worked on, with all states.
    fn drop_current(&mut self) -> Option<Lease> {
        let dropped = self.current.take()?;
        self.held.clear();
        Some(dropped.lease)
    }

    /// Does at most so many env steps of the lease.
    pub fn work(&mut self, env_steps: u64) -> Option<Said> {
        let work = self.current.as_mut()?;
        work.env_steps += env_steps;
        let slots = work.starts.len();
        let done = slots.min((work.env_steps / u64::from(self.length)) as usize);
        if done == work.handed || done < slots && !self.in_turn {
            return Some(Said::Progress(work.lease.id, work.env_steps));
        }
        let make = |start: &FakeState| start.fragment(work.lease.weights_version, self.length);
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
        Some(Said::Upload(lease, fragments))
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
