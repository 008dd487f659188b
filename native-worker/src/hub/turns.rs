//! Stepwise runs: a program asks for their iterations one at a time.

use tokio::sync::oneshot;

use super::actor::Actor;
use crate::train::IterationMetrics;

/// When the iterations of a run begin.
#[derive(Debug, Default)]
pub(super) enum Turns {
    /// One after the other, without being asked for.
    #[default]
    Free,
    /// Each when the program asks for it; the sender delivers the iteration's metrics.
    Asked(Option<oneshot::Sender<IterationMetrics>>),
}

impl Turns {
    pub(super) fn of(stepwise: bool) -> Self {
        if stepwise { Self::Asked(None) } else { Self::Free }
    }

    pub(super) fn may_begin(&self) -> bool {
        !matches!(self, Self::Asked(None))
    }

    /// Delivers the metrics of an iteration that is over.
    pub(super) fn tell(&mut self, metrics: IterationMetrics) {
        if let Self::Asked(asker) = self
            && let Some(asker) = asker.take()
        {
            // The program may no longer wait.
            let _ = asker.send(metrics);
        }
    }
}

impl Actor {
    /// True while the current run is stepwise.
    pub(super) fn has_stepwise_run(&self) -> bool {
        matches!(self.turns, Turns::Asked(_)) && self.run.as_ref().is_some_and(|run| !run.is_over())
    }

    /// Handles the program's request for the next iteration. It gets no answer if its run is over.
    pub(super) fn take_turn(&mut self, asker: oneshot::Sender<IterationMetrics>) {
        if !self.has_stepwise_run() {
            return;
        }
        self.turns = Turns::Asked(Some(asker));
        if std::mem::take(&mut self.is_held) {
            self.next_iteration();
        } else {
            self.begin_first_iteration();
        }
    }
}
