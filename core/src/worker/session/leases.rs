//! The queued and running leases, and the weights that they need.

use crate::{
    ids::{LeaseId, WeightsVersion},
    lease::Lease,
    prelude::*,
    weights::Weights,
};

/// Most leases of a worker at a time: one, and its follow-up.
const MAX_LEASES: usize = 2;

/// Most revoked leases that are kept.
const MAX_REVOKED: usize = 64;

/// A lease requires weights that will never arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease wants weights {wanted}, which will not come any more: the newest here are {newest}")]
pub(super) struct Outdated {
    wanted: WeightsVersion,
    newest: WeightsVersion,
}

/// The action for the first queued lease.
pub(super) enum SessionTurn {
    /// Run it, with these weights if others are set.
    Run(Lease, Option<Weights>),
    /// Refuse it.
    Refuse(LeaseId, Outdated),
}

/// The lease of this worker, with its follow-up if there is one, and the weights that they need.
#[derive(Default)]
pub(super) struct Leases {
    /// Each follows the one before, and the first one the running lease, if there is one. All require the same weights.
    waiting: VecDeque<Lease>,
    running: Option<Lease>,
    /// The newest weights, and before them those that the queued leases require.
    weights: Vec<Weights>,
    /// Leases that were revoked before they arrived, since a small message may overtake a large one.
    revoked: VecDeque<LeaseId>,
}

impl Leases {
    pub(super) fn running(&self) -> Option<LeaseId> {
        self.running.as_ref().map(|lease| lease.id)
    }

    /// Ends the running lease.
    pub(super) fn finish(&mut self) {
        self.running = None;
    }

    /// Stores new weights; of the older ones it keeps those that a lease waits for.
    pub(super) fn add_weights(&mut self, weights: Weights) {
        let version = weights.version();
        if self.weights.last().is_some_and(|newest| newest.version() >= version) {
            return;
        }
        let wanted = self.waiting.front().map(|lease| lease.weights_version);
        self.weights.retain(|kept| Some(kept.version()) == wanted);
        self.weights.push(weights);
    }

    /// Returns true, once, for a lease that was revoked before it arrived.
    pub(super) fn was_revoked(&mut self, lease: LeaseId) -> bool {
        let place = self.revoked.iter().position(|&revoked| revoked == lease);
        place.is_some_and(|place| self.revoked.remove(place).is_some())
    }

    /// Returns the weights to set now: those that the first queued lease requires, the newest if there is none. `None` while
    /// a lease is running.
    pub(super) fn weights_to_apply(&self, acting: WeightsVersion) -> Option<&Weights> {
        let newest = self.weights.last()?.version();
        let wanted = self.waiting.front().map_or(newest, |lease| lease.weights_version);
        let weights = self.weights.iter().find(|weights| weights.version() == wanted)?;
        (self.running.is_none() && wanted > acting).then_some(weights)
    }

    /// Queues a lease behind the one that it follows. If it follows none of the present leases, it replaces all of them;
    /// then returns those that were queued, and the running one is dropped. `acting` is the version of the present weights.
    pub(super) fn queue(&mut self, lease: Lease, acting: WeightsVersion) -> Result<Option<Vec<LeaseId>>, Outdated> {
        if let Some(Err(error)) = self.weights_for(&lease, acting) {
            return Err(error);
        }
        let is_below_limit = self.waiting.len() + usize::from(self.running.is_some()) < MAX_LEASES;
        let last = self.waiting.back().or(self.running.as_ref());
        let follows = is_below_limit && last.is_some_and(|last| lease.is_follow_up_of(last));
        let replaced = (!follows).then(|| self.waiting.drain(..).map(|lease| lease.id).collect());
        self.waiting.push_back(lease);
        Ok(replaced)
    }

    /// Drops a queued lease, or one that has not arrived yet.
    pub(super) fn revoke(&mut self, lease: LeaseId) {
        let waiting = self.waiting.len();
        self.waiting.retain(|waiting| waiting.id != lease);
        if self.waiting.len() == waiting {
            self.revoked.push_back(lease);
            if self.revoked.len() > MAX_REVOKED {
                self.revoked.pop_front();
            }
        }
    }

    /// Returns true if the first queued lease waits for nothing but the end of the running one.
    pub(super) fn is_ready(&self, acting: WeightsVersion) -> bool {
        self.waiting.front().is_some_and(|lease| self.weights_for(lease, acting).is_some())
    }

    /// Takes the first queued lease if it need not wait any more.
    pub(super) fn next(&mut self, acting: WeightsVersion) -> Option<SessionTurn> {
        let weights = self.weights_for(self.waiting.front()?, acting)?;
        let lease = self.waiting.pop_front()?;
        Some(match weights {
            Ok(weights) => {
                self.running = Some(lease.clone());
                SessionTurn::Run(lease, weights)
            }
            Err(error) => SessionTurn::Refuse(lease.id, error),
        })
    }

    /// Returns the weights to set for a lease, `Some(Ok(None))` if they are already set; an error if they will never arrive.
    /// `None` while they may still arrive.
    fn weights_for(&self, lease: &Lease, acting: WeightsVersion) -> Option<Result<Option<Weights>, Outdated>> {
        let wanted = lease.weights_version;
        if wanted == acting {
            return Some(Ok(None));
        }
        if let Some(weights) = self.weights.iter().find(|weights| weights.version() == wanted) {
            return Some(Ok(Some(weights.clone())));
        }
        let newest = self.weights.last().map_or(acting, Weights::version).max(acting);
        (wanted < newest).then_some(Err(Outdated { wanted, newest }))
    }
}
