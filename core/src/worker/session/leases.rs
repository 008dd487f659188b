//! The leases that wait or run, and the weights that they wait for.

use crate::{
    ids::{LeaseId, WeightsVersion},
    lease::Lease,
    prelude::*,
    weights::Weights,
};

/// Leases that a worker may have at a time: one, and its follow-up.
const MAX_LEASES: usize = 2;

/// The most revoked leases that are remembered.
const MAX_REVOKED: usize = 64;

/// A lease wants weights that will never be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease wants weights {wanted}, which will not come any more: the newest here are {newest}")]
pub(super) struct Outdated {
    wanted: WeightsVersion,
    newest: WeightsVersion,
}

/// What the turn of the waiting lease has come to.
pub(super) enum Turn {
    /// It runs from now on, with these weights if others are acting.
    Run(Lease, Option<Weights>),
    /// It cannot run.
    Refuse(LeaseId, Outdated),
}

/// The lease of this worker, maybe with one that follows it, and the weights that they need.
#[derive(Default)]
pub(super) struct Leases {
    /// Each follows the one before, and the first the running one, if there is one. All want the same weights.
    waiting: VecDeque<Lease>,
    running: Option<Lease>,
    /// The newest weights, and before them those that the waiting leases want.
    weights: Vec<Weights>,
    /// Leases that were revoked and had not arrived: a small message may overtake a large one.
    revoked: VecDeque<LeaseId>,
}

impl Leases {
    pub(super) fn running(&self) -> Option<LeaseId> {
        self.running.as_ref().map(|lease| lease.id)
    }

    /// The running lease is no more.
    pub(super) fn finish(&mut self) {
        self.running = None;
    }

    /// Keeps new weights; of the older ones those that a lease waits for.
    pub(super) fn add_weights(&mut self, weights: Weights) {
        let version = weights.version();
        if self.weights.last().is_some_and(|newest| newest.version() >= version) {
            return;
        }
        let wanted = self.waiting.front().map(|lease| lease.weights_version);
        self.weights.retain(|kept| Some(kept.version()) == wanted);
        self.weights.push(weights);
    }

    /// True, once, for a lease that was revoked before it came.
    pub(super) fn was_revoked(&mut self, lease: LeaseId) -> bool {
        let place = self.revoked.iter().position(|&revoked| revoked == lease);
        place.is_some_and(|place| self.revoked.remove(place).is_some())
    }

    /// The weights that may take the place of the acting ones now: those that the waiting lease wants, the newest if
    /// there is none. None while a lease is running.
    pub(super) fn weights_to_apply(&self, acting: WeightsVersion) -> Option<&Weights> {
        let newest = self.weights.last()?.version();
        let wanted = self.waiting.front().map_or(newest, |lease| lease.weights_version);
        let weights = self.weights.iter().find(|weights| weights.version() == wanted)?;
        (self.running.is_none() && wanted > acting).then_some(weights)
    }

    /// Lets a lease wait: behind the one that it follows, else in place of all that are here; then it gives those that
    /// waited, and the running one is none any more. `acting` is the version of the weights in use.
    pub(super) fn queue(&mut self, lease: Lease, acting: WeightsVersion) -> Result<Option<Vec<LeaseId>>, Outdated> {
        if let Some(Err(error)) = self.weights_for(&lease, acting) {
            return Err(error);
        }
        let has_room = self.waiting.len() + usize::from(self.running.is_some()) < MAX_LEASES;
        let last = self.waiting.back().or(self.running.as_ref());
        let follows = has_room && last.is_some_and(|last| lease.is_follow_up_of(last));
        let replaced = (!follows).then(|| self.waiting.drain(..).map(|lease| lease.id).collect());
        self.waiting.push_back(lease);
        Ok(replaced)
    }

    /// Forgets a lease that waits, or one that is still to come.
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

    /// True if the first waiting lease need not wait any more, but for the end of the running one.
    pub(super) fn is_ready(&self, acting: WeightsVersion) -> bool {
        self.waiting.front().is_some_and(|lease| self.weights_for(lease, acting).is_some())
    }

    /// Takes the first waiting lease if it need not wait any more.
    pub(super) fn next(&mut self, acting: WeightsVersion) -> Option<Turn> {
        let weights = self.weights_for(self.waiting.front()?, acting)?;
        let lease = self.waiting.pop_front()?;
        Some(match weights {
            Ok(weights) => {
                self.running = Some(lease.clone());
                Turn::Run(lease, weights)
            }
            Err(error) => Turn::Refuse(lease.id, error),
        })
    }

    /// The weights to set for a lease, none if they are acting; an error if they will never be here. `None` while
    /// they may still come.
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
