//! Leases that wait for their turn, and the weights that they wait for.

use crate::{
    ids::{LeaseId, WeightsVersion},
    lease::Lease,
    prelude::*,
    weights::Weights,
};

/// The most leases that wait.
const MAX_WAITING: usize = 16;
/// The most revoked leases that are remembered.
const MAX_REVOKED: usize = 64;

/// Why a lease cannot wait here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("{MAX_WAITING} leases are waiting already")]
    Full,
    #[error("the lease wants weights {wanted}, which will not come any more: the newest here are {newest}")]
    Outdated { wanted: WeightsVersion, newest: WeightsVersion },
}

/// What the turn of a lease has come to.
pub(super) enum Turn {
    /// It can run once these weights are set; none if they are acting already.
    Run(Lease, Option<Weights>),
    /// It cannot run.
    Refuse(LeaseId, LeaseError),
}

/// Leases in the order of their arrival; at most one is running.
#[derive(Default)]
pub(super) struct Leases {
    waiting: VecDeque<Lease>,
    running: Option<LeaseId>,
    /// Weights that leases wait for or may yet want, oldest first.
    weights: Vec<Weights>,
    /// Leases that were revoked and had not arrived: a small message may overtake a large one.
    revoked: VecDeque<LeaseId>,
}

impl Leases {
    pub(super) fn running(&self) -> Option<LeaseId> {
        self.running
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
        let waiting = &self.waiting;
        self.weights.retain(|kept| waiting.iter().any(|lease| lease.weights_version == kept.version()));
        self.weights.push(weights);
    }

    /// Lets a lease wait, unless it was revoked before it came. `acting` is the version of the weights in use.
    pub(super) fn queue(&mut self, lease: Lease, acting: WeightsVersion) -> Result<(), LeaseError> {
        if let Some(place) = self.revoked.iter().position(|&id| id == lease.id) {
            self.revoked.remove(place);
            return Ok(());
        }
        if let Some(Err(error)) = self.weights_for(&lease, acting) {
            return Err(error);
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err(LeaseError::Full);
        }
        self.waiting.push_back(lease);
        Ok(())
    }

    /// Forgets a lease that waits, or one that is still to come.
    pub(super) fn revoke(&mut self, lease: LeaseId) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.id != lease);
        if self.waiting.len() == before {
            self.revoked.push_back(lease);
            if self.revoked.len() > MAX_REVOKED {
                self.revoked.pop_front();
            }
        }
    }

    /// True if the first lease need not wait any more.
    pub(super) fn is_ready(&self, acting: WeightsVersion) -> bool {
        self.waiting.front().is_some_and(|lease| self.weights_for(lease, acting).is_some())
    }

    /// Takes the first lease if it need not wait any more. It is the running one from now on.
    pub(super) fn next(&mut self, acting: WeightsVersion) -> Option<Turn> {
        let weights = self.weights_for(self.waiting.front()?, acting)?;
        let lease = self.waiting.pop_front()?;
        Some(match weights {
            Ok(weights) => {
                self.running = Some(lease.id);
                Turn::Run(lease, weights)
            }
            Err(error) => Turn::Refuse(lease.id, error),
        })
    }

    /// The weights to set for a lease, none if they are acting; an error if they will never be here. `None` while
    /// they may still come.
    fn weights_for(&self, lease: &Lease, acting: WeightsVersion) -> Option<Result<Option<Weights>, LeaseError>> {
        let wanted = lease.weights_version;
        if wanted == acting {
            return Some(Ok(None));
        }
        if let Some(weights) = self.weights.iter().find(|weights| weights.version() == wanted) {
            return Some(Ok(Some(weights.clone())));
        }
        let newest = self.weights.last().map_or(acting, Weights::version).max(acting);
        (wanted < newest).then_some(Err(LeaseError::Outdated { wanted, newest }))
    }
}
