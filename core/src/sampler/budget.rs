//! Time budgets of samplers.

use crate::time::Micros;

/// The time that a sampler may take before it returns to its caller, with a batch or without.
///
/// It is checked before every round, the smallest unit of work: a step of the environments that are ready, or a batch of a
/// reader that returns whole ones. The first round is always allowed, so that every call makes progress; the others as long
/// as the clock permits. On a clock that stands still, as that of a worker without one, a budget other than 0 never ends.
///
/// ```
/// use rollmesh_core::{sampler::Budget, time::Micros};
///
/// let mut budget = Budget::until(Micros(5));
/// let rounds = (3..10).take_while(|now| budget.allows_round(&|| Micros(*now)));
/// assert_eq!(rounds.count(), 2);
/// let mut spent = Budget::until(Micros(0));
/// assert_eq!([(); 3].map(|()| spent.allows_round(&|| Micros(7))), [true, false, false]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    until: Option<Micros>,
    begun: bool,
}

impl Budget {
    /// Creates a budget that never ends, and does not read the clock.
    #[must_use]
    pub const fn endless() -> Self {
        Self { until: None, begun: false }
    }

    /// Creates a budget that ends at a time on the caller's clock.
    #[must_use]
    pub const fn until(until: Micros) -> Self {
        Self { until: Some(until), begun: false }
    }

    /// Returns whether it never ends.
    #[must_use]
    pub const fn is_endless(&self) -> bool {
        self.until.is_none()
    }

    /// Returns whether another round may begin.
    pub fn allows_round(&mut self, clock: &dyn Fn() -> Micros) -> bool {
        let Some(until) = self.until else { return true };
        !core::mem::replace(&mut self.begun, true) || clock() < until
    }

    /// Returns the remaining time, for samplers that block; `None` if it never ends.
    #[must_use]
    pub fn left(&self, clock: &dyn Fn() -> Micros) -> Option<Micros> {
        Some(self.until?.since(clock()))
    }
}
