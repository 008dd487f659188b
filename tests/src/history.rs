//! Records the externally visible events of a run, and checks that a correct group can have produced them.
//!
//! The checker shares no code with the group. It replays the history with its own model of committed, queued and taken
//! fragments, and reports the first violation: lost, duplicated or wrong rows, late or stale fragments, a batch of the wrong
//! fragments, or a ledger that does not match the events.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

use rollmesh_core::{
    batch::SlotFragment,
    group::{Ledger, SamplingMode},
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::Lease,
};

use crate::{fake_rows::FakeState, scenario::Scenario};

/// All events, in order.
#[derive(Clone, Debug, Default)]
pub struct History(pub Vec<Happened>);

/// An event.
#[derive(Clone, Debug)]
pub enum Happened {
    /// An iteration began, and these became the newest weights.
    Began {
        /// The weights.
        weights_version: WeightsVersion,
    },
    /// A worker got a lease.
    Granted {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// The fragment number.
        fragment: FragmentNo,
        /// The version of the weights.
        weights_version: WeightsVersion,
        /// The slots.
        slots: Vec<SlotId>,
    },
    /// A lease was revoked or refused.
    Over {
        /// The lease.
        lease: LeaseId,
    },
    /// A worker was removed, and its leases ended.
    Left {
        /// The worker.
        worker: WorkerId,
    },
    /// A fragment was accepted.
    Committed {
        /// The worker.
        worker: WorkerId,
        /// The lease.
        lease: LeaseId,
        /// The fragment.
        fragment: Box<SlotFragment>,
    },
    /// A batch was taken.
    Batch {
        /// Its fragments.
        fragments: Vec<SlotFragment>,
    },
    /// The current state of the ledger.
    Ledger(Box<Ledger>),
    /// The group's state was saved.
    Saved,
    /// The group was restarted from its last saved state.
    Restored,
}

impl Happened {
    /// Returns the event of a grant.
    #[must_use]
    pub fn granted(worker: WorkerId, lease: &Lease) -> Self {
        let Lease { id, fragment, weights_version, slots } = lease;
        let slots = slots.iter().map(|leased| leased.slot).collect();
        Self::Granted { worker, lease: *id, fragment: *fragment, weights_version: *weights_version, slots }
    }
}

/// The rules that every run must follow.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    num_slots: u32,
    length: u32,
    mode: SamplingMode,
    is_fragile: bool,
}

impl Rules {
    /// Returns the rules of a scenario.
    #[must_use]
    pub fn of(scenario: &Scenario) -> Self {
        let &Scenario { num_slots, length, mode, is_fragile, .. } = scenario;
        Self { num_slots, length, mode, is_fragile }
    }

    fn allows(self, newest: WeightsVersion, version: WeightsVersion) -> bool {
        match self.mode {
            SamplingMode::Synchronous => true,
            SamplingMode::Asynchronous { max_staleness, .. } | SamplingMode::Deadline { max_staleness, .. } => {
                newest.0.saturating_sub(version.0) <= max_staleness
            }
        }
    }
}

/// The first event that a correct group cannot produce.
#[derive(Debug)]
pub struct Violation {
    /// The index in the history.
    pub at: usize,
    /// The violated rule.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of the history: {}", self.at, self.what)
    }
}

impl History {
    /// Checks a run from its beginning.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self, rules: Rules) -> Result<(), Violation> {
        let mut model = Model::new(rules);
        for (at, happened) in self.0.iter().enumerate() {
            model.apply(happened).map_err(|what| Violation { at, what })?;
        }
        Ok(())
    }
}

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

struct Grant {
    worker: WorkerId,
    fragment: FragmentNo,
    weights_version: WeightsVersion,
    slots: BTreeSet<SlotId>,
}

/// The state that a group must have.
#[derive(Clone)]
struct Kept {
    slots: Vec<FakeState>,
    /// The slots in the order in which their queued fragments were committed.
    order: VecDeque<(SlotId, WeightsVersion)>,
    /// The weights of the iterations so far.
    began: Vec<WeightsVersion>,
    batches: usize,
    granted: u64,
    committed: u64,
    consumed: u64,
    dropped: u64,
    regenerated: u64,
}

struct Model {
    rules: Rules,
    kept: Kept,
    queues: Vec<VecDeque<SlotFragment>>,
    /// The state of each slot after its taken fragments.
    taken: Vec<FakeState>,
    live: BTreeMap<LeaseId, Grant>,
    newest_lease: Option<LeaseId>,
    saved: Option<Kept>,
    ledger: Ledger,
}

impl Model {
    fn new(rules: Rules) -> Self {
        let slots: Vec<FakeState> = (0..rules.num_slots).map(|slot| FakeState::new(SlotId(slot))).collect();
        let kept = Kept {
            slots: slots.clone(),
            order: VecDeque::new(),
            began: Vec::new(),
            batches: 0,
            granted: 0,
            committed: 0,
            consumed: 0,
            dropped: 0,
            regenerated: 0,
        };
        let queues = vec![VecDeque::new(); slots.len()];
        let live = BTreeMap::new();
        Self { rules, kept, queues, taken: slots, live, newest_lease: None, saved: None, ledger: Ledger::default() }
    }

    fn apply(&mut self, happened: &Happened) -> Result<(), String> {
        match happened {
            Happened::Began { weights_version } => self.begin(*weights_version),
            Happened::Granted { worker, lease, fragment, weights_version, slots } => {
                let slots = slots.iter().copied().collect();
                let grant = Grant { worker: *worker, fragment: *fragment, weights_version: *weights_version, slots };
                self.grant(*lease, grant)
            }
            Happened::Over { lease } => {
                self.live.remove(lease);
                Ok(())
            }
            Happened::Left { worker } => {
                self.live.retain(|_, grant| grant.worker != *worker);
                Ok(())
            }
            Happened::Committed { worker, lease, fragment } => self.commit(*worker, *lease, fragment),
            Happened::Batch { fragments } => self.take(fragments),
            Happened::Ledger(ledger) => self.compare(ledger),
            Happened::Saved => {
                self.save();
                Ok(())
            }
            Happened::Restored => self.restore(),
        }
    }

    fn newest(&self) -> WeightsVersion {
        self.kept.began.last().copied().unwrap_or_default()
    }

    fn steps(&self, fragments: usize) -> u64 {
        fragments as u64 * u64::from(self.rules.length)
    }

    fn begin(&mut self, weights: WeightsVersion) -> Result<(), String> {
        let newest = self.newest();
        ensure!(weights >= newest, "weights {weights} came after weights {newest}");
        self.kept.began.push(weights);
        let (rules, order) = (self.rules, std::mem::take(&mut self.kept.order));
        let (fresh, stale) = order.into_iter().partition(|(_, version)| rules.allows(weights, *version));
        self.kept.order = fresh;
        self.kept.dropped += self.steps(VecDeque::len(&stale));
        for (slot, _) in stale {
            self.take_first(slot)?;
        }
        Ok(())
    }

    fn grant(&mut self, lease: LeaseId, grant: Grant) -> Result<(), String> {
        ensure!(self.newest_lease.is_none_or(|newest| newest < lease), "lease {lease} is not new");
        ensure!(
            self.kept.began.contains(&grant.weights_version),
            "weights {} were never published",
            grant.weights_version
        );
        self.newest_lease = Some(lease);
        self.kept.granted += self.steps(grant.slots.len());
        self.live.insert(lease, grant);
        Ok(())
    }

    /// Checks that the fragment is committed exactly once, in order, for a live lease, not too old, and with the rows that
    /// follow from the earlier ones.
    fn commit(&mut self, worker: WorkerId, lease: LeaseId, fragment: &SlotFragment) -> Result<(), String> {
        let SlotFragment { slot, fragment: number, weights_version, .. } = *fragment;
        let what = format!("fragment {number} of slot {slot}");
        let Some(grant) = self.live.get_mut(&lease) else { return Err(format!("{what} came late, for lease {lease}")) };
        ensure!(grant.worker == worker, "{what} came from worker {worker}, who does not have lease {lease}");
        ensure!(grant.slots.remove(&slot), "{what} is not in lease {lease}, or not any more");
        let asked = (grant.fragment, grant.weights_version);
        ensure!(asked == (number, weights_version), "{what} is not what lease {lease} asked for");
        let newest = self.newest();
        ensure!(self.rules.allows(newest, weights_version), "{what} is too old: {weights_version} under {newest}");
        let Some(state) = self.kept.slots.get_mut(slot.0 as usize) else { return Err(format!("{what}: no such slot")) };
        ensure!(state.next == number, "{what} came when {} was next", state.next);
        let expected = match self.rules.is_fragile {
            true => state.fragile_fragment(weights_version, self.rules.length),
            false => state.fragment(weights_version, self.rules.length),
        };
        ensure!(*fragment == expected, "{what} has other rows than it must have");
        *state = FakeState::decode(&fragment.state);
        self.kept.order.push_back((slot, weights_version));
        self.kept.committed += self.steps(1);
        self.queues[slot.0 as usize].push_back(fragment.clone());
        Ok(())
    }

    fn take_first(&mut self, slot: SlotId) -> Result<SlotFragment, String> {
        let fragment = self.queues[slot.0 as usize].pop_front().ok_or("the model is wrong")?;
        self.taken[slot.0 as usize] = FakeState::decode(&fragment.state);
        Ok(fragment)
    }

    /// Checks that a batch has exactly the fragments that the mode requires, in order, and none of them too old.
    fn take(&mut self, batch: &[SlotFragment]) -> Result<(), String> {
        let number = self.kept.batches;
        let Some(&weights) = self.kept.began.get(number) else {
            return Err(format!("batch {number} was not requested"));
        };
        let queued = self.kept.order.len();
        let wanted = match self.rules.mode {
            SamplingMode::Synchronous => self.rules.num_slots as usize,
            SamplingMode::Asynchronous { batch_env_steps, .. } => {
                batch_env_steps.div_ceil(u64::from(self.rules.length)) as usize
            }
            SamplingMode::Deadline { .. } => queued.max(1),
        };
        ensure!(batch.len() == wanted, "batch {number} has {} fragments instead of {wanted}", batch.len());
        let is_first = |fragment: &&SlotFragment| fragment.fragment.0 == number as u64;
        let mut expected = Vec::new();
        if self.rules.mode == SamplingMode::Synchronous {
            let fits = |fragment: &SlotFragment| fragment.weights_version == weights && is_first(&fragment);
            ensure!(batch.iter().all(fits), "batch {number} has fragments of another iteration");
            for slot in (0..self.rules.num_slots).map(SlotId) {
                let place = self.kept.order.iter().position(|(queued, _)| *queued == slot);
                place.and_then(|place| self.kept.order.remove(place)).ok_or("a slot is missing")?;
                expected.push(self.take_first(slot)?);
            }
        } else {
            ensure!(queued >= wanted, "batch {number} has {wanted} fragments, but {queued} were queued");
            let order: Vec<_> = self.kept.order.drain(..wanted).collect();
            for (slot, _) in order {
                expected.push(self.take_first(slot)?);
            }
            expected.sort_by_key(|fragment| (fragment.slot, fragment.fragment));
        }
        ensure!(batch == expected, "batch {number} is not made of the fragments that were committed for it");
        self.kept.batches += 1;
        self.kept.consumed += self.steps(wanted);
        Ok(())
    }

    fn compare(&mut self, ledger: &Ledger) -> Result<(), String> {
        ensure!(ledger.balances(), "the ledger does not balance: {ledger:?}");
        let queued = self.steps(self.kept.order.len());
        let Kept { granted, committed, consumed, dropped, regenerated, .. } = self.kept;
        let seen = [granted, committed, consumed, queued, dropped, regenerated];
        let said = [
            ledger.granted,
            ledger.committed,
            ledger.consumed,
            ledger.queued,
            ledger.dropped_stale,
            ledger.regenerated,
        ];
        ensure!(
            seen == said,
            "granted, committed, consumed, queued, dropped, regenerated: {seen:?}, but the ledger say {said:?}"
        );
        self.ledger = *ledger;
        Ok(())
    }

    /// Saves the model; queued and outstanding fragments are not saved.
    fn save(&mut self) {
        let queued = self.steps(self.kept.order.len());
        let again = queued + self.ledger.outstanding;
        self.saved = Some(Kept {
            slots: self.taken.clone(),
            order: VecDeque::new(),
            began: self.kept.began[..self.kept.batches].to_vec(),
            granted: self.kept.granted - again,
            committed: self.kept.committed - queued,
            regenerated: self.kept.regenerated + again,
            ..self.kept
        });
    }

    fn restore(&mut self) -> Result<(), String> {
        self.kept = self.saved.clone().ok_or("nothing was saved")?;
        self.taken = self.kept.slots.clone();
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.live.clear();
        Ok(())
    }
}
