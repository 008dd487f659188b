//! Runs whose iterations a program asks for, one at a time.

use tokio::sync::oneshot;

use super::actor::Actor;
use crate::train::IterationMetrics;

/// When the iterations of a run begin.
#[derive(Debug, Default)]
pub(super) enum Turns {
    /// By themselves.
    #[default]
    Free,
    /// Each when the program asks for it, which waits here for what comes of it.
    Asked(Option<oneshot::Sender<IterationMetrics>>),
}

impl Turns {
    pub(super) fn of(stepwise: bool) -> Self {
        if stepwise { Self::Asked(None) } else { Self::Free }
    }

    pub(super) fn may_begin(&self) -> bool {
        !matches!(self, Self::Asked(None))
    }

    /// An iteration is over.
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
    /// True while the run is one whose iterations a program asks for.
    pub(super) fn has_stepwise_run(&self) -> bool {
        matches!(self.turns, Turns::Asked(_)) && self.run.as_ref().is_some_and(|run| !run.is_over())
    }

    /// The program asks for the next iteration. It gets no answer if its run is over.
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
