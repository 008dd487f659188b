//! Status of the workers for logs and the page: what each one is doing, and why it makes no rows if it makes none.

use core::fmt;

use super::{
    LeaseGroup, Mode, QuarantineCause,
    worker::{Answer, Worker},
};
use crate::{
    ids::{FragmentNo, WeightsVersion, WorkerId},
    protocol::{Inability, WorkerState},
    time::Micros,
};

/// Status of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerStatus<'a> {
    /// The worker.
    pub worker: WorkerId,
    /// Its state.
    pub state: WorkerState,
    /// The reason why it makes no rows now; `None` while it does, and for a worker that is being removed.
    pub idle: Option<IdleReason<'a>>,
    /// Number of slots in its current lease.
    pub slots: u32,
    /// Env steps that it has committed.
    pub env_steps: u64,
    /// Env steps that it has committed per second, averaged over the last seconds.
    pub env_steps_per_s: f64,
    /// The newest weights that it has reported as applied; `None` before its first report, while it acts with the run's
    /// first ones.
    pub weights_version: Option<WeightsVersion>,
}

/// The reason why a worker makes no rows. `Display` describes it without the worker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdleReason<'a> {
    /// It has not answered yet whether it can run this.
    Unanswered,
    /// It cannot run this.
    Unable(&'a Inability),
    /// It is quarantined.
    Quarantined(QuarantineCause),
    /// Its lease made no progress for this long.
    Hung(Micros),
    /// The run is paused.
    Paused,
    /// The run is over.
    Over,
    /// No iteration is open, or in the other modes no batch was requested.
    Learner,
    /// It does not have the weights of its lease yet.
    Weights,
    /// All slots are leased, and there are fewer slots than workers.
    NoFreeSlot(TooFewSlots),
    /// Other workers have not finished their slots.
    OtherWorkers,
}

impl fmt::Display for IdleReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unanswered => f.write_str("it has not answered whether it can run this"),
            Self::Unable(inability) => write!(f, "{inability}"),
            Self::Quarantined(cause) => write!(f, "{cause}"),
            Self::Hung(patience) => write!(f, "no progress for {patience}"),
            Self::Paused => f.write_str("the run is paused"),
            Self::Over => f.write_str("the run is over"),
            Self::Learner => f.write_str("waiting for the learner"),
            Self::Weights => f.write_str("waiting for weights"),
            Self::NoFreeSlot(few) => write!(f, "no free slot: {few}"),
            Self::OtherWorkers => f.write_str("waiting for other workers"),
        }
    }
}

/// A run has fewer slots than its workers can act for, so some get fewer than they could, or none. `Display` recommends
/// an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewSlots {
    /// Number of slots of the run.
    pub slots: u32,
    /// Number of workers that can run its leases.
    pub workers: u32,
    /// Slots that each worker can act for.
    pub slots_per_worker: u32,
}

impl TooFewSlots {
    /// Returns `None` if these slots are enough.
    #[must_use]
    pub fn check(slots: u32, workers: u32, slots_per_worker: u32) -> Option<Self> {
        let few = Self { slots, workers, slots_per_worker: slots_per_worker.max(1) };
        (u64::from(slots) < few.wanted()).then_some(few)
    }

    fn wanted(self) -> u64 {
        u64::from(self.workers) * u64::from(self.slots_per_worker)
    }
}

impl fmt::Display for TooFewSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, workers, slots_per_worker } = self;
        write!(
            f,
            "the run has {slots} slots for {workers} workers that could have {slots_per_worker} each; raise num_slots to {}, or use fewer workers",
            self.wanted()
        )
    }
}

impl LeaseGroup {
    /// Returns the status of all workers, by id.
    pub fn workers(&self, now: Micros) -> impl Iterator<Item = WorkerStatus<'_>> {
        let leasable = self.num_leasable();
        self.workers.iter().map(move |(&id, worker)| WorkerStatus {
            worker: id,
            state: worker.state(),
            idle: self.idle_reason(worker, leasable),
            slots: worker.lease.and_then(|lease| self.leases.get(lease)).map_or(0, |lease| lease.open.len() as u32),
            env_steps: worker.env_steps,
            env_steps_per_s: worker.env_steps_per_s(now),
            weights_version: worker.applied,
        })
    }

    /// Returns the number of workers among which the slots are split.
    pub(super) fn num_leasable(&self) -> u32 {
        let is_leasable = |worker: &&Worker| matches!(worker.state(), WorkerState::Idle | WorkerState::Sampling);
        self.workers.values().filter(is_leasable).count() as u32
    }

    pub(super) fn too_few_slots(&self, workers: u32) -> Option<TooFewSlots> {
        TooFewSlots::check(self.config.num_slots, workers, self.config.slots_per_worker)
    }

    fn idle_reason<'a>(&self, worker: &'a Worker, leasable: u32) -> Option<IdleReason<'a>> {
        match worker.state() {
            WorkerState::Unable => match &worker.answer {
                Answer::Unable(inability) => Some(IdleReason::Unable(inability)),
                Answer::None | Answer::Able => None,
            },
            WorkerState::Quarantined => worker.quarantined.map(IdleReason::Quarantined),
            WorkerState::Hung => worker.hung.as_ref().map(|hung| IdleReason::Hung(hung.patience)),
            WorkerState::Leaving => None,
            WorkerState::Sampling => {
                let wanted = worker.lease.and_then(|lease| self.leases.get(lease))?.weights_version;
                (wanted > worker.applied.unwrap_or_default()).then_some(IdleReason::Weights)
            }
            WorkerState::Unanswered | WorkerState::Idle if self.mode == Mode::Stopped => Some(IdleReason::Over),
            WorkerState::Unanswered => Some(IdleReason::Unanswered),
            WorkerState::Idle => Some(self.why_not_leased(worker, leasable)),
        }
    }

    fn why_not_leased(&self, worker: &Worker, leasable: u32) -> IdleReason<'static> {
        let being_made = self.being_made();
        let is_wanted = if self.is_free() { !self.is_full() } else { being_made.is_some() };
        // Kept between two iterations, so that the status does not change with every iteration.
        let begun = || self.next_fragment.0.checked_sub(1).map(FragmentNo);
        let latest = being_made.map(|iteration| iteration.fragment).or_else(begun);
        let had_its_share = !self.is_free() && worker.latest >= latest;
        if self.mode == Mode::Paused {
            IdleReason::Paused
        } else if let Some(few) = self.too_few_slots(leasable)
            && leasable > few.slots
            && !had_its_share
        {
            IdleReason::NoFreeSlot(few)
        } else if !is_wanted {
            IdleReason::Learner
        } else {
            IdleReason::OtherWorkers
        }
    }
}
