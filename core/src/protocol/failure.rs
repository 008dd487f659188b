//! Failures of fragments.

use core::fmt;

use super::{
    message::{FailedFragment, LeaseRefused},
    printable,
    wire_enum::wire_enum,
};
use crate::{
    ids::{LeaseId, SlotId},
    lease::FailedStep,
    prelude::*,
    run::RolloutConfig,
};

/// Most consecutive failed attempts at one fragment, whatever their failures are.
pub(crate) const MAX_ATTEMPTS: u32 = 5;

wire_enum! {
    /// The part that failed while a fragment was made.
    "kind of failure" pub FailureKind {
        /// The environment returned an error, or its process ended.
        Env = 1,
        /// User code panicked.
        Panic = 2,
        /// The environment returned something invalid: NaN, an infinite reward, a point outside its space, a wrong length.
        /// Or sums of its rewards are too large.
        Invalid = 3,
        /// The environment refused the state to resume from.
        Restore = 4,
        /// The environment missed its deadline, or its worker reported no progress.
        Hang = 5,
        /// A policy failed, or it or a callback computed a number that is not finite.
        Policy = 6,
        /// A callback, an observation function or a mapping function failed.
        Callback = 7,
        /// The fragment cannot be completed, or not be uploaded.
        Fragment = 8,
    }
}

impl FailureKind {
    /// Returns its name in machine-readable output, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Env => "error",
            Self::Panic => "panic",
            Self::Invalid => "invalid",
            Self::Restore => "restore",
            Self::Hang => "hang",
            Self::Policy => "policy",
            Self::Callback => "callback",
            Self::Fragment => "fragment",
        }
    }

    /// Returns true for failures that an environment may have caused, and that its restart may end.
    pub(crate) fn is_of_env(self) -> bool {
        matches!(self, Self::Env | Self::Panic | Self::Invalid | Self::Hang)
    }
}

/// A failed fragment: its kind and place, and a printable message of at most 512 characters.
///
/// ```
/// use rollmesh_core::{
///     ids::SlotId,
///     protocol::{FailureKind, FragmentFailure},
/// };
///
/// let failure = FragmentFailure::new(FailureKind::Env, Some(SlotId(3)), (2, 17), "the environment failed: on fire");
/// assert_eq!(failure.to_string(), "slot 3, episode 2, step 17: the environment failed: on fire");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentFailure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The slot; `None` if slots failed that were stepped together, and which of them is unknown.
    pub slot: Option<SlotId>,
    /// The episode's number within the slot.
    pub episode: u32,
    /// The step of the episode that failed, counted from 0.
    pub t: u32,
    is_together: bool,
    message: String,
}

impl FragmentFailure {
    /// Creates a failure; the message may come from a peer and is made [`printable`].
    #[must_use]
    pub fn new(kind: FailureKind, slot: Option<SlotId>, (episode, t): (u32, u32), message: &str) -> Self {
        Self { kind, slot, episode, t, is_together: slot.is_none(), message: printable(message) }
    }

    /// Creates a failure of slots that were stepped together, of which none failed when it was stepped alone; with the slot,
    /// episode and step that failed first, if they are known.
    #[must_use]
    pub fn of_slots(kind: FailureKind, place: Option<(SlotId, (u32, u32))>, message: &str) -> Self {
        let (slot, at) = place.unzip();
        Self { is_together: true, ..Self::new(kind, slot, at.unwrap_or_default(), message) }
    }

    /// Returns the failure as the environment's own, which is restarted where it failed.
    pub(crate) fn restarted(&self) -> Self {
        let Self { kind, slot, episode, t, message, .. } = self;
        let message = format!("restarted, since it has failed twice here: {message}");
        Self::new(*kind, *slot, (*episode, *t), &message)
    }

    /// Returns the step at which it failed.
    pub(crate) fn step(&self) -> FailedStep {
        FailedStep { episode: self.episode, t: self.t }
    }

    /// Returns true if slots failed that were stepped together, so that no fragment of its slot is missing.
    #[must_use]
    pub fn is_together(&self) -> bool {
        self.is_together
    }

    /// Returns the message of the user code or the worker.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for FragmentFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, slot, episode, t, is_together, message } = self;
        if *is_together {
            f.write_str("slots that were stepped together: ")?;
        }
        match (slot, kind) {
            (None, _) => f.write_str(message),
            (Some(slot), FailureKind::Restore) => {
                write!(f, "slot {slot}, episode {episode}, step {t}: the state was not restored: {message}")
            }
            (Some(slot), _) => write!(f, "slot {slot}, episode {episode}, step {t}: {message}"),
        }
    }
}

/// A failure after which the run cannot continue. `Display` gives its place, and the reason why the fragment is not
/// retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatalFailure {
    /// The last failure.
    pub failure: FragmentFailure,
    /// Consecutive failed attempts.
    pub attempts: u32,
    /// True if the previous attempt failed in the same way at the same step.
    pub is_repeated: bool,
}

impl fmt::Display for FatalFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, attempts, is_repeated } = self;
        match is_repeated {
            true => write!(f, "{failure}; it failed again in the same way when it was tried again"),
            false if *attempts == 1 => write!(f, "{failure}"),
            false => write!(f, "{failure}; {attempts} attempts at this fragment have failed in a row"),
        }
    }
}

impl core::error::Error for FatalFailure {}

impl FatalFailure {
    /// Returns the text for the user of a run with these settings: the environment, the failure, and what to do.
    #[must_use]
    pub fn explain(&self, rollout: &RolloutConfig) -> String {
        // Only an environment in a process of its own can be stopped in the middle of a step.
        let advice = if self.failure.kind == FailureKind::Hang && !rollout.remote_worker_envs {
            "; fix the environment, or set remote_worker_envs and restart_failed_sub_environments to drop such episodes"
        } else if self.failure.kind.is_of_env() && !rollout.restart_failed_sub_environments {
            "; fix the environment, or set restart_failed_sub_environments to drop such episodes"
        } else {
            ""
        };
        format!("{}, {self}{advice}", rollout.env.as_deref().unwrap_or_default())
    }
}

impl LeaseRefused {
    /// Refuses a lease as a whole.
    #[must_use]
    pub fn whole(lease: LeaseId, reason: &str) -> Self {
        Self { lease: lease.0, reason: printable(reason), failed: None }
    }

    /// Reports one failed fragment of a lease.
    #[must_use]
    pub fn one(lease: LeaseId, failure: &FragmentFailure) -> Self {
        let FragmentFailure { kind, slot, episode, t, is_together, message } = failure;
        // Without a slot it follows.
        let together = if *is_together && slot.is_some() { FailedFragment::TOGETHER } else { 0 };
        let (kind, slot) = (kind.to_wire() | together, slot.map(|slot| slot.0));
        let failed = FailedFragment { kind, slot, episode: *episode, t: *t };
        Self { lease: lease.0, reason: message.clone(), failed: Some(failed) }
    }

    /// Returns the failed fragment; `None` if the lease was refused as a whole. A kind unknown to this version is
    /// [`FailureKind::Fragment`].
    #[must_use]
    pub fn failure(&self) -> Option<FragmentFailure> {
        let FailedFragment { kind, slot, episode, t } = self.failed?;
        let is_together = slot.is_none() || kind & FailedFragment::TOGETHER != 0;
        let kind = FailureKind::try_from(kind & !FailedFragment::TOGETHER).unwrap_or(FailureKind::Fragment);
        let failure = FragmentFailure::new(kind, slot.map(SlotId), (episode, t), &self.reason);
        Some(FragmentFailure { is_together, ..failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_wire() {
        for &kind in FailureKind::ALL {
            for slot in [None, Some(SlotId(7))] {
                let failure = FragmentFailure::new(kind, slot, (2, 30), "no");
                assert_eq!(LeaseRefused::one(LeaseId(1), &failure).failure(), Some(failure));
            }
            for place in [None, Some((SlotId(7), (2, 30)))] {
                let failure = FragmentFailure::of_slots(kind, place, "no");
                assert_eq!(LeaseRefused::one(LeaseId(1), &failure).failure(), Some(failure));
            }
        }
        assert_eq!(LeaseRefused::whole(LeaseId(1), "no").failure(), None);
        let newer = FailedFragment { kind: 200, slot: None, episode: 0, t: 0 };
        let refused = LeaseRefused { lease: 1, reason: "\x1b[2J".into(), failed: Some(newer) };
        let failure = refused.failure().unwrap();
        assert_eq!((failure.kind, failure.message()), (FailureKind::Fragment, " [2J"));
    }
}
