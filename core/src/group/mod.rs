//! The group of workers: leases slots to them and joins the fragments they return, without I/O.
//!
//! [`LeaseGroup`] corresponds to RLlib's `WorkerSet` or `EnvRunnerGroup`. A run has a fixed number of slots; an iteration
//! requests one fragment of each, made with one version of the weights, and is complete when all of them are committed. Rows
//! do not depend on which worker runs a slot. So workers that join, leave, hang, are slow or return false rows cost time,
//! but no data, and every batch is the same as without such faults. If waiting for stragglers costs too much, two other
//! [modes](SamplingMode) take what is ready, under a bound on the staleness of its weights; what they took is recorded in a
//! [journal](LeaseGroup::replay), from which the same batches can be replayed.
//! There are four kinds of method:
//! - `handle_*` take an event and its time: a worker joined, answered whether it can run this, left, made progress, uploaded
//!   fragments, …
//! - mutators ([`begin_iteration`](LeaseGroup::begin_iteration), [`pause`](LeaseGroup::pause),
//!   [`remove_worker`](LeaseGroup::remove_worker), …) take a request of the caller;
//! - `poll_*` return outputs, until `None`: after every call of the first two kinds drain
//!   [`poll_command`](LeaseGroup::poll_command), [`poll_event`](LeaseGroup::poll_event),
//!   [`poll_batch`](LeaseGroup::poll_batch) and, in modes that have one, [`poll_journal`](LeaseGroup::poll_journal), then
//!   set a timer for [`poll_timeout`](LeaseGroup::poll_timeout) and call [`handle_timeout`](LeaseGroup::handle_timeout) when
//!   it fires (earlier does no harm). Handle all messages that have already arrived first, so that a hub that was suspended
//!   does not expire leases of live workers;
//! - getters ([`workers`](LeaseGroup::workers), [`ledger`](LeaseGroup::ledger), …) change nothing.
//!
//! Rules:
//! - A worker gets no lease before it has answered that it can run this. A worker that cannot stays connected, which is no
//!   failure.
//! - A worker works on one lease at a time. Two iterations may be open if they have the same weights; behind its lease of
//!   the first a worker may then have a *follow-up*, the next fragment of the very same slots, which it begins without
//!   waiting for the first one's commit. The follow-up's deadline is counted from that commit on. If the lease before it
//!   ends in any other way, the follow-up is revoked.
//! - A slot's fragments are committed in order: a fragment that arrives before its predecessor is rejected.
//! - In the asynchronous modes a fragment's staleness is checked twice: when it arrives, and when a batch takes it.
//! - Leases are sticky: a slot stays with the worker that holds its state unless balance requires otherwise; on a move the
//!   last committed state travels in the lease.
//! - Only progress (more env steps) and fragments extend a lease. Pongs do not.
//! - Late fragments are rejected: a lease that has ended can commit nothing, even if the slot is open.
//! - The slots of an overdue lease are leased a second time (hedged) when a worker is idle. The first commit wins; the
//!   second must be bit-identical, or its sender is quarantined. A worker that was overtaken gets its next lease once it has
//!   answered, and counts as hung if it has not when the lost lease would have expired.
//! - A share of the fragments of untrusted workers is recomputed by a trusted one, see [`AuditPolicy`]; a principal with a
//!   failed audit is quarantined.
//! - A failed fragment is granted again, in a lease of its own and to another worker if there is one; one that fails again
//!   in the same way, or five times in a row, is [fatal](LeaseGroup::fatal_failure).
//! - Every granted env step ends in exactly one place of the [`Ledger`].
//! - Deterministic: the same sequence of calls gives the same outputs. Memory is bounded by slots and workers.
//!
//! ```
//! use rollmesh_core::{
//!     group::{GroupCommand, GroupConfig, LeaseGroup, WorkerProfile},
//!     ids::{WeightsVersion, WorkerId},
//!     time::Micros,
//! };
//!
//! let mut group = LeaseGroup::new(GroupConfig::new(8, 128))?;
//! group.handle_joined(WorkerId(1), WorkerProfile::NATIVE, Micros(0));
//! group.handle_answer(WorkerId(1), Ok(()), Micros(0));
//! group.begin_iteration(WeightsVersion(0), Micros(0))?;
//! let Some(GroupCommand::Grant { worker, lease }) = group.poll_command() else { panic!("no lease") };
//! assert_eq!((worker, lease.slots.len()), (WorkerId(1), 8));
//! assert_eq!(group.ledger().outstanding, 8 * 128);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: sockets, clocks, encoding and its checks (see [`protocol`](crate::protocol)), learning.

mod assign;
mod audit;
mod commit;
mod config;
mod consistency;
mod failures;
mod flow;
mod follow_up;
mod grant;
mod handle;
mod hedge;
mod iteration;
mod journal;
mod lease_table;
mod ledger;
mod output;
mod replay;
mod script;
mod slot_table;
mod state;
mod status;
mod worker;

#[doc(inline)]
pub use crate::protocol::{FatalFailure, WorkerState};
pub use config::{BeginError, GroupConfig, GroupConfigError, SamplingMode};
pub use journal::{JournalEntry, JournalError};
pub use ledger::{Expired, Ledger, Rejected, UnbalancedLedger, Uninvited};
pub use output::{ExpiryCause, FragmentOutcome, GroupCommand, GroupEvent, QuarantineCause, Receipt, RejectReason};
pub use replay::{AuditPolicy, AuditTask, Audits, BadShare, FailedAudit, Principal, Verdict};
pub use state::{GroupState, RestoreError};
pub use status::{IdleReason, TooFewSlots, WorkerStatus};
pub(crate) use worker::RateMeter;
pub use worker::WorkerProfile;

use self::{
    failures::Failures, flow::Flow, grant::Iteration, hedge::Durations, lease_table::LeaseTable, ledger::End,
    slot_table::SlotTable, worker::Worker,
};
use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WorkerId},
    prelude::*,
    time::Micros,
};

/// Leases the slots of a run to workers and joins their fragments. See the [module](self).
#[derive(Debug)]
#[doc(alias = "WorkerSet")]
#[doc(alias = "EnvRunnerGroup")]
pub struct LeaseGroup {
    config: GroupConfig,
    mode: Mode,
    /// The open iterations in order, see [`MAX_OPEN`](Self::MAX_OPEN). All but the last are in progress or complete.
    open: VecDeque<Iteration>,
    next_fragment: FragmentNo,
    slots: SlotTable,
    /// Additional state of the asynchronous and deadline modes.
    flow: Flow,
    workers: BTreeMap<WorkerId, Worker>,
    leases: LeaseTable,
    audits: Audits,
    failures: Failures,
    durations: Durations,
    ledger: Ledger,
    hints: Hints,
    commands: VecDeque<GroupCommand>,
    events: VecDeque<GroupEvent>,
}

/// Hints about the workers as a whole that were already emitted.
#[derive(Debug, Default)]
struct Hints {
    too_few_slots: bool,
    all_unable: bool,
    not_audited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    Paused,
    Stopped,
}

impl LeaseGroup {
    /// Most iterations open at a time, all with the same weights.
    const MAX_OPEN: usize = 2;
    /// Limit of unpolled events; beyond it the oldest are dropped.
    const MAX_EVENTS: usize = 1_024;

    /// Creates a group without workers.
    ///
    /// # Errors
    /// [`GroupConfigError`] if a size in the settings is 0.
    pub fn new(config: GroupConfig) -> Result<Self, GroupConfigError> {
        if config.num_slots == 0 {
            return Err(GroupConfigError::NoSlots);
        }
        if config.rollout_fragment_length == 0 {
            return Err(GroupConfigError::EmptyFragments);
        }
        if config.max_slots_per_lease == 0 {
            return Err(GroupConfigError::EmptyLeases);
        }
        if matches!(config.mode, SamplingMode::Asynchronous { batch_env_steps: 0, .. }) {
            return Err(GroupConfigError::EmptyBatches);
        }
        Ok(Self {
            config,
            mode: Mode::Running,
            open: VecDeque::with_capacity(Self::MAX_OPEN),
            next_fragment: FragmentNo(0),
            slots: SlotTable::new(config.num_slots),
            flow: Flow::default(),
            workers: BTreeMap::new(),
            leases: LeaseTable::new(config.first_lease),
            audits: Audits::default(),
            failures: Failures::default(),
            durations: Durations::new(config.hedge_floor),
            ledger: Ledger::default(),
            hints: Hints::default(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    /// Stops granting leases; those already granted continue.
    pub fn pause(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Paused;
        }
    }

    /// Resumes granting after [`pause`](Self::pause).
    pub fn resume(&mut self, now: Micros) {
        if self.mode == Mode::Paused {
            self.mode = Mode::Running;
            self.advance(now);
        }
    }

    /// Ends the run: revokes all leases and accepts no more fragments. A complete batch can still be taken.
    pub fn stop(&mut self, now: Micros) {
        self.mode = Mode::Stopped;
        for lease in self.leases.ids(|_| true) {
            self.expire(lease, ExpiryCause::Revoked);
        }
        self.advance(now);
    }

    /// Lets a worker finish its lease and then dismisses it; revokes its follow-up. Returns false if there is no such
    /// worker.
    pub fn remove_worker(&mut self, worker: WorkerId, now: Micros) -> bool {
        let Some(known) = self.workers.get_mut(&worker) else { return false };
        known.leaving = true;
        self.take_back_follow_up(worker);
        self.advance(now);
        true
    }

    /// Returns the next command to send to a worker.
    pub fn poll_command(&mut self) -> Option<GroupCommand> {
        self.commands.pop_front()
    }

    /// Returns the next event to log or to show.
    pub fn poll_event(&mut self) -> Option<GroupEvent> {
        self.events.pop_front()
    }

    /// Returns the latest time at which to call [`handle_timeout`](Self::handle_timeout) if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Micros> {
        if self.mode == Mode::Stopped {
            return None;
        }
        let running = self.leases.iter().filter(|(_, lease)| !lease.is_waiting());
        let deadlines = running.map(|(_, lease)| lease.deadline);
        let questions = self.workers.values().filter_map(Worker::ask_at);
        let silences = self.workers.values().filter_map(Worker::hangs_at);
        deadlines.chain(questions).chain(silences).chain(self.next_hedge()).chain(self.iteration_ends_at()).min()
    }

    /// Returns the ledger of all granted env steps.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the state after a slot's last committed fragment; `None` before the first one.
    #[must_use]
    pub fn state_of(&self, slot: SlotId) -> Option<&[u8]> {
        self.slots.get(slot)?.state().map(Vec::as_slice)
    }

    /// Returns the state that a slot's fragment begins with; `None` for the first one, and for one that is not kept any
    /// more.
    #[must_use]
    pub fn start_of(&self, slot: SlotId, fragment: FragmentNo) -> Option<&[u8]> {
        self.slots.get(slot)?.start_of(fragment).map(Vec::as_slice)
    }

    /// Returns how many times the next fragment of a slot was committed, in the middle of an episode, by another worker than
    /// the previous one, since the group was created or restored.
    #[must_use]
    pub fn moved_slots(&self) -> u64 {
        self.slots.moved
    }

    /// Returns true between [`pause`](Self::pause) and [`resume`](Self::resume).
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.mode == Mode::Paused
    }

    /// Returns the id that the next lease will have.
    #[must_use]
    pub fn next_lease_id(&self) -> LeaseId {
        self.leases.next_id()
    }

    fn event(&mut self, event: GroupEvent) {
        if self.events.len() == Self::MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}
