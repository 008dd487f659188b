//! Places of an environment's errors: the parts that name a lane or a step.

use super::{EnvError, Moment};
use crate::prelude::*;

impl EnvError {
    /// Returns this error of a step that was replayed.
    #[must_use]
    pub fn in_replay(self, at: Moment) -> Self {
        Self::InReplay { at, source: Box::new(self) }
    }

    /// Returns the message without lane and step, for a failure whose slot, episode and step are known.
    pub(crate) fn at_place(&self) -> String {
        match self {
            Self::InLane { source, .. } => source.at_place(),
            Self::InReplay { source, .. } => format!("while its open episode was replayed: {}", source.at_place()),
            Self::NotFinite { what, value, .. } => {
                format!("the {what} is {value} as a column holds it; see what the environment computes there")
            }
            error => error.to_string(),
        }
    }

    /// Splits the error into the lane or sub-environment that failed, if known, and the failure itself.
    pub(crate) fn split_lane(self) -> (Option<usize>, Self) {
        match self {
            Self::InLane { lane, source } => (Some(lane), *source),
            Self::NotFinite { lane, .. } => (Some(lane), self),
            Self::BadObservation { env, .. } | Self::BadReward { env, .. } | Self::Process { env, .. } => {
                (Some(env), self)
            }
            other => (None, other),
        }
    }
}
