//! Errors of a lease on a worker.

use super::Start;
use crate::{
    batch::{ADVANTAGES, CutReason, EPS_ID, REWARDS, SampleBatch, SlotFragment, T, VALUE_TARGETS},
    env::{EnvError, ProcessEnd},
    ids::{LeaseId, PolicyId, SlotId, WeightsVersion},
    policy::PolicyError,
    prelude::*,
    protocol::{FailureKind, FragmentFailure},
    sampler::{SampleError, SlotState, StateError},
    weights::WeightsError,
    worker::command::PanicWords,
};

/// The reason why a lease or weights were refused, or a lease could not be completed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// Another lease is in progress.
    #[error("lease {0} is still running")]
    Busy(LeaseId),
    /// The lease requires other weights than the present ones.
    #[error("the lease wants weights {wanted}, here are {here}")]
    WrongWeights {
        /// The lease's version.
        wanted: WeightsVersion,
        /// The present version.
        here: WeightsVersion,
    },
    /// The lease names a slot that the run does not have.
    #[error("the run has {num_slots} slots, there is no slot {slot}")]
    NoSuchSlot {
        /// The slot.
        slot: SlotId,
        /// Slots of the run.
        num_slots: u32,
    },
    /// The lease has no slots, or not in ascending order.
    #[error("the slots of a lease must be ascending, and at least one")]
    BadSlots,
    /// The lease refers to a slot's state that the worker does not hold.
    #[error("the state of slot {0} is not here")]
    NotHeld(SlotId),
    /// A slot's state in the lease does not decode.
    #[error(transparent)]
    State(#[from] StateError),
    /// The environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy does not fit, or failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The weights are not those of the run's policies.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Sampling several agents, or user code, failed.
    #[error(transparent)]
    Sample(SampleError),
    /// The hub would refuse the fragment for a number that is infinite or NaN.
    #[error(
        "column '{column}' of policy '{policy}' holds a value that is not finite: {}",
        if is_of_rewards(column) { "the rewards are too large" } else { "the policy or a callback computed it" }
    )]
    NotFinite {
        /// The policy whose rows it is in.
        policy: PolicyId,
        /// The column; `bootstrap_value` for the value after a piece of an episode, `state_out` for the recurrent states
        /// after the fragment.
        column: String,
        /// The slot.
        slot: SlotId,
        /// Number of the row's episode and its step, counted from 0; `None` for rows that a policy or a callback has left
        /// without.
        at: Option<(u32, u32)>,
    },
    /// User code panicked with this message.
    #[error("{0}")]
    Panicked(String),
    /// A fragment failed while a lease was recomputed.
    #[error("{0}")]
    Failed(Box<FragmentFailure>),
}

impl From<SampleError> for RunnerError {
    /// Converts an error. The runner determines which environment failed itself.
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::Env(source) | SampleError::EnvAt { source, .. } => Self::Env(source),
            error => Self::Sample(error),
        }
    }
}

impl From<PanicWords> for RunnerError {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::Panicked(words)
    }
}

impl RunnerError {
    /// Returns true if the replay of an open episode ended in another state.
    pub(super) fn is_replay_mismatch(&self) -> bool {
        matches!(self, Self::Env(EnvError::NotReplayed { .. }))
    }

    /// Returns the slot, and the episode and step in it, that the error itself names.
    pub(in crate::worker) fn place(&self) -> Option<(SlotId, (u32, u32))> {
        match self {
            Self::Env(EnvError::InReplay { at, .. }) => Some((at.slot, (at.episode, at.t))),
            Self::NotFinite { slot, at, .. } => Some((*slot, (*at)?)),
            _ => None,
        }
    }

    /// Returns the episode and step that the error itself names.
    pub(super) fn position(&self) -> Option<(u32, u32)> {
        self.place().map(|(_, position)| position)
    }

    /// Returns the message for a failure whose slot, episode and step are known.
    pub(in crate::worker) fn at_place(&self) -> String {
        match self {
            Self::Env(error) => error.at_place(),
            error => error.to_string(),
        }
    }

    /// Returns the error of slots that were stepped together as a failure; `marked` is the step in progress, if one of them
    /// was stepped, and `place` returns the episode and step of a lane.
    pub(super) fn of_slots(
        self,
        starts: &[Start],
        marked: Option<(SlotId, (u32, u32))>,
        place: impl Fn(usize) -> Option<(u32, u32)>,
    ) -> FragmentFailure {
        let is_panic = matches!(self, Self::Panicked(_));
        let (kind, named) = (self.failure_kind(), self.place().or_else(|| marked.filter(|_| is_panic)));
        let (lane, error) = match self {
            Self::Env(error) => {
                let (lane, error) = error.split_lane();
                (lane, error.to_string())
            }
            error => (None, error.to_string()),
        };
        let known = named.or_else(|| lane.and_then(|lane| Some((starts.get(lane)?.slot, place(lane)?))));
        FragmentFailure::of_slots(kind, known, &format!("{error}, but none of them alone"))
    }

    /// Returns the kind of failure of a fragment.
    pub(in crate::worker) fn failure_kind(&self) -> FailureKind {
        match self {
            Self::State(_) => FailureKind::Restore,
            Self::Env(error) => kind_of(error),
            Self::NotFinite { column, .. } if is_of_rewards(column) => FailureKind::Invalid,
            Self::Panicked(_) => FailureKind::Panic,
            Self::Sample(SampleError::Callback(_) | SampleError::UnknownPolicy { .. }) => FailureKind::Callback,
            Self::NotFinite { .. }
            | Self::Policy(_)
            | Self::Weights(_)
            | Self::Sample(
                SampleError::Policy { .. }
                | SampleError::PolicyMap(_)
                | SampleError::Weights(_)
                | SampleError::Preprocess { .. }
                | SampleError::Filter(_),
            ) => FailureKind::Policy,
            _ => FailureKind::Fragment,
        }
    }
}

/// Returns whether a number in this column that is not finite follows from rewards: each of them is finite, and so are the
/// policy's values, whose column comes before those of advantages.
fn is_of_rewards(column: &str) -> bool {
    [REWARDS.name(), ADVANTAGES.name(), VALUE_TARGETS.name()].contains(&column)
}

/// Checks the numbers of a fragment as the hub does, which takes an upload with one that is not finite for a forged one.
pub(super) fn check_finite(fragment: &SlotFragment) -> Result<(), RunnerError> {
    let found = |policy: &PolicyId, column: &str, at| RunnerError::NotFinite {
        policy: policy.clone(),
        column: column.into(),
        slot: fragment.slot,
        at,
    };
    if let Some(agents) = &fragment.agents {
        let mut by_policy = agents.policy_batches.iter();
        let error = by_policy.find_map(|(policy, rows)| {
            let (column, row) = rows.first_not_finite()?;
            Some(found(policy, column, position_of(rows, row)))
        });
        return error.map_or(Ok(()), Err);
    }
    let (rows, cuts) = (&fragment.rows, &fragment.cuts);
    let in_values = || {
        let cut = cuts.iter().find(|cut| !cut.bootstrap_value.is_finite())?;
        Some(("bootstrap_value", (cut.end as usize).saturating_sub(1)))
    };
    let in_state = || {
        let is_finite = SlotState::has_finite_recurrent(&fragment.state);
        // The policy has computed it in the last step.
        (!is_finite).then(|| ("state_out", rows.len().saturating_sub(1)))
    };
    match rows.first_not_finite().or_else(in_values).or_else(in_state) {
        Some((column, row)) => Err(found(&PolicyId::DEFAULT, column, Some(position_in_fragment(fragment, row)))),
        None => Ok(()),
    }
}

/// Returns the number of the episode and the step of a row that has them in its columns.
fn position_of(rows: &SampleBatch, row: usize) -> Option<(u32, u32)> {
    let (episodes, steps) = (rows.get(EPS_ID).ok()?, rows.get(T).ok()?);
    // An id is the slot << 32 | the number.
    Some((*episodes.get(row)? as u32, u32::try_from(*steps.get(row)?).ok()?))
}

/// Returns the number of the episode and the step of a row, from the fragment's first position and its cuts.
fn position_in_fragment(fragment: &SlotFragment, row: usize) -> (u32, u32) {
    let is_end = |end: usize, reason: CutReason| reason != CutReason::FragmentEnd && end <= row;
    let ends = fragment.cuts.iter().filter(|cut| is_end(cut.end as usize, cut.reason));
    let (ended, last) = ends.fold((0_u32, None), |(ended, _), cut| (ended + 1, Some(cut.end)));
    let row = row as u32;
    let t = last.map_or_else(|| fragment.first_t.saturating_add(row), |end| row - end);
    (fragment.first_episode.wrapping_add(ended), t)
}

fn kind_of(error: &EnvError) -> FailureKind {
    match error {
        EnvError::InLane { source, .. } | EnvError::InReplay { source, .. } => kind_of(source),
        // The prefix with which shells report a panic.
        EnvError::Failed(reason) if reason.starts_with("panicked") => FailureKind::Panic,
        EnvError::WrongType { .. }
        | EnvError::WrongLength { .. }
        | EnvError::NotFinite { .. }
        | EnvError::BadObservation { .. }
        | EnvError::BadReward { .. }
        | EnvError::UnknownAgent { .. } => FailureKind::Invalid,
        EnvError::BadSnapshot(_) | EnvError::NotReplayed { .. } => FailureKind::Restore,
        EnvError::Process { end: ProcessEnd::Overdue { .. }, .. } => FailureKind::Hang,
        // No retry reconnects a client, and the environment has used up its restarts.
        EnvError::Undriven(_) | EnvError::GivenUp { .. } | EnvError::AllGivenUp { .. } => FailureKind::Fragment,
        _ => FailureKind::Env,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Moment;

    #[test]
    fn failure_of_a_replayed_step_is_described_without_lane_and_step() {
        let error = EnvError::NotFinite { what: "reward", lane: 3, step: 7, value: "NaN".into() };
        let message = RunnerError::Env(error.in_replay(Moment::default())).at_place();
        let expected = "while its open episode was replayed: the reward is NaN as a column holds it; ";
        assert!(message.starts_with(expected), "{message}");
    }
}
