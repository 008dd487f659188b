//! How long a sampler may go on.

use crate::time::Micros;

/// How long a sampler may go on before its caller wants a turn, with a batch or without.
///
/// It is asked before every round, which is the least that can be done at once: a step of the environments that are
/// ready, or a batch of a reader that gives whole ones. The first round is always allowed, so that every call gets on;
/// the others as long as the clock says so. On a clock that stands still, as the one of a worker that was given none, a
/// budget that is not 0 never ends.
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
    /// A budget that never ends, and for which nobody looks at a clock.
    #[must_use]
    pub const fn endless() -> Self {
        Self { until: None, begun: false }
    }

    /// A budget that ends at a moment on the clock of whoever spends it.
    #[must_use]
    pub const fn until(until: Micros) -> Self {
        Self { until: Some(until), begun: false }
    }

    /// Whether it never ends.
    #[must_use]
    pub const fn is_endless(&self) -> bool {
        self.until.is_none()
    }

    /// Whether another round may begin.
    pub fn allows_round(&mut self, clock: &dyn Fn() -> Micros) -> bool {
        let Some(until) = self.until else { return true };
        !core::mem::replace(&mut self.begun, true) || clock() < until
    }

    /// What is left of it, for those who wait instead of working; none if it never ends.
    #[must_use]
    pub fn left(&self, clock: &dyn Fn() -> Micros) -> Option<Micros> {
        Some(self.until?.since(clock()))
    }
}
