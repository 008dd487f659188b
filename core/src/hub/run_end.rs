//! The end of a run.

use crate::{group::UnbalancedLedger, prelude::*, protocol::Phase};

/// The reason why a run is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The mean return of the last 100 finished episodes reached the stop return.
    Solved,
    /// All env steps, or all of the time, are used up.
    Finished,
    /// A user or the program stopped it.
    Stopped,
    /// It was drained: its leases ended first, and all their rows are part of it.
    Drained,
    /// The learner could not continue, or user code fails repeatedly on workers.
    Failed(String),
    /// Env steps were lost or counted twice. The run is not saved in that state.
    Unbalanced(UnbalancedLedger),
}

impl RunEnd {
    /// Returns its name for programs, in lower case.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Solved => "solved",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Drained => "drained",
            Self::Failed(_) | Self::Unbalanced(_) => "failed",
        }
    }

    /// Returns what went wrong, `None` if nothing did.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Solved | Self::Finished | Self::Stopped | Self::Drained => None,
            Self::Failed(error) => Some(error.clone()),
            Self::Unbalanced(error) => Some(error.to_string()),
        }
    }

    /// Returns the phase of a run that has ended so.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self {
            Self::Solved => Phase::Solved,
            Self::Finished => Phase::Finished,
            Self::Stopped => Phase::Stopped,
            Self::Drained => Phase::Drained,
            Self::Failed(_) | Self::Unbalanced(_) => Phase::Failed,
        }
    }
}
