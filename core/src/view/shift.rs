//! Defines which steps a view includes, relative to its own step.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Offsets in steps: 0 is the step itself, negative ones are earlier steps.
///
/// A single number, a list, or an inclusive range with a step, written `from:to` or `from:to:step`. In JSON, a number, an
/// array or a string, as in RLlib.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ShiftForm", into = "ShiftForm")]
pub struct Shift(ShiftKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ShiftKind {
    Single(i32),
    List(Vec<i32>),
    Range { from: i32, to: i32, step: u32 },
}

/// The reason why a shift is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShiftError {
    /// The text is neither `from:to` nor `from:to:step`.
    #[error("'{0}' is no shift; write a number, a list, \"from:to\" or \"from:to:step\"")]
    Unreadable(String),
    /// The range ends before it begins.
    #[error("the range {from}:{to} is empty; the smaller offset comes first")]
    Backwards {
        /// First offset.
        from: i32,
        /// Last offset.
        to: i32,
    },
    /// The step of a range is zero.
    #[error("the step of a range must be at least 1")]
    ZeroStep,
    /// The list has no offsets.
    #[error("a list of offsets must not be empty")]
    Empty,
    /// An offset is too far away.
    #[error("offset {0} is further than {max} steps away", max = Shift::MAX_DISTANCE)]
    TooFar(i32),
    /// There are too many offsets.
    #[error("{0} offsets are more than {max}", max = Shift::MAX_OFFSETS)]
    TooMany(usize),
}

impl Shift {
    /// Maximum distance of an offset, in steps.
    pub const MAX_DISTANCE: u32 = 1 << 20;
    /// Maximum number of offsets of a view.
    pub const MAX_OFFSETS: usize = 1 << 16;
    /// The step itself.
    pub const NONE: Self = Self(ShiftKind::Single(0));

    /// Creates a shift of one offset.
    ///
    /// # Errors
    /// [`ShiftError::TooFar`].
    pub fn single(offset: i32) -> Result<Self, ShiftError> {
        near(offset).map(ShiftKind::Single).map(Self)
    }

    /// Creates a shift of several offsets, in this order.
    ///
    /// # Errors
    /// [`ShiftError::Empty`], [`ShiftError::TooMany`], [`ShiftError::TooFar`].
    pub fn list(offsets: Vec<i32>) -> Result<Self, ShiftError> {
        if offsets.is_empty() {
            return Err(ShiftError::Empty);
        }
        if offsets.len() > Self::MAX_OFFSETS {
            return Err(ShiftError::TooMany(offsets.len()));
        }
        offsets.iter().try_for_each(|&offset| near(offset).map(drop))?;
        Ok(Self(ShiftKind::List(offsets)))
    }

    /// Creates a shift of the offsets `from`, `from + step`, … up to `to`, including it if it is reached.
    ///
    /// # Errors
    /// [`ShiftError::Backwards`], [`ShiftError::ZeroStep`], [`ShiftError::TooMany`], [`ShiftError::TooFar`].
    pub fn range(from: i32, to: i32, step: u32) -> Result<Self, ShiftError> {
        let (from, to) = (near(from)?, near(to)?);
        if from > to {
            return Err(ShiftError::Backwards { from, to });
        }
        let Some(steps) = to.abs_diff(from).checked_div(step) else { return Err(ShiftError::ZeroStep) };
        if steps as usize >= Self::MAX_OFFSETS {
            return Err(ShiftError::TooMany(steps as usize + 1));
        }
        Ok(Self(ShiftKind::Range { from, to, step }))
    }

    /// Iterates over the offsets in order; there is at least one.
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = i32> + Clone + '_ {
        (0..self.len()).map(|i| match &self.0 {
            ShiftKind::Single(offset) => *offset,
            ShiftKind::List(offsets) => offsets.get(i).copied().unwrap_or(0),
            // Within the range, so neither operation overflows.
            ShiftKind::Range { from, step, .. } => from.saturating_add_unsigned(step.saturating_mul(i as u32)),
        })
    }

    /// Returns the number of offsets. With more than one, each view is a window: it has one more dimension in front of the
    /// data's.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        match &self.0 {
            ShiftKind::Single(_) => 1,
            ShiftKind::List(offsets) => offsets.len(),
            ShiftKind::Range { from, to, step } => (to.abs_diff(*from) / (*step).max(1)) as usize + 1,
        }
    }

    /// Returns the same steps, relative to the previous step.
    pub(super) fn later(&self) -> Self {
        Self(match &self.0 {
            ShiftKind::Single(offset) => ShiftKind::Single(offset.saturating_add(1)),
            ShiftKind::List(offsets) => {
                ShiftKind::List(offsets.iter().map(|offset| offset.saturating_add(1)).collect())
            }
            ShiftKind::Range { from, to, step } => {
                ShiftKind::Range { from: from.saturating_add(1), to: to.saturating_add(1), step: *step }
            }
        })
    }

    /// Returns how many steps back the view reaches.
    #[must_use]
    pub fn before(&self) -> usize {
        self.offsets().min().map_or(0, |offset| offset.min(0).unsigned_abs() as usize)
    }

    /// Returns the latest offset.
    #[must_use]
    pub fn latest(&self) -> i32 {
        self.offsets().max().unwrap_or(0)
    }
}

fn near(offset: i32) -> Result<i32, ShiftError> {
    if offset.unsigned_abs() > Shift::MAX_DISTANCE { Err(ShiftError::TooFar(offset)) } else { Ok(offset) }
}

impl Default for Shift {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Shift {
    type Err = ShiftError;

    fn from_str(text: &str) -> Result<Self, ShiftError> {
        let unreadable = || ShiftError::Unreadable(text.to_string());
        let mut parts = text.split(':').map(|part| part.trim().parse::<i32>().map_err(|_| unreadable()));
        let from = parts.next().ok_or_else(unreadable)??;
        let Some(to) = parts.next().transpose()? else { return Self::single(from) };
        let step = parts.next().transpose()?.unwrap_or(1);
        if parts.next().is_some() {
            return Err(unreadable());
        }
        Self::range(from, to, u32::try_from(step).map_err(|_| ShiftError::ZeroStep)?)
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ShiftKind::Single(offset) => write!(f, "{offset}"),
            ShiftKind::List(offsets) => write!(f, "{offsets:?}"),
            ShiftKind::Range { from, to, step: 1 } => write!(f, "{from}:{to}"),
            ShiftKind::Range { from, to, step } => write!(f, "{from}:{to}:{step}"),
        }
    }
}

/// The form in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a shift is a whole number, a list of them, or a range such as -3:0")]
enum ShiftForm {
    Single(i32),
    List(Vec<i32>),
    Range(String),
}

impl TryFrom<ShiftForm> for Shift {
    type Error = ShiftError;

    fn try_from(form: ShiftForm) -> Result<Self, ShiftError> {
        match form {
            ShiftForm::Single(offset) => Self::single(offset),
            ShiftForm::List(offsets) => Self::list(offsets),
            ShiftForm::Range(text) => text.parse(),
        }
    }
}

impl From<Shift> for ShiftForm {
    fn from(shift: Shift) -> Self {
        match shift.0 {
            ShiftKind::Single(offset) => Self::Single(offset),
            ShiftKind::List(offsets) => Self::List(offsets),
            ShiftKind::Range { .. } => Self::Range(shift.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offsets(text: &str) -> Result<Vec<i32>, ShiftError> {
        text.parse::<Shift>().map(|shift| shift.offsets().collect())
    }

    #[test]
    fn ranges_are_inclusive() {
        assert_eq!(offsets("-2:2").unwrap(), [-2, -1, 0, 1, 2]);
        assert_eq!(offsets("-5:-1:2").unwrap(), [-5, -3, -1]);
        assert_eq!(offsets("0:2").unwrap(), [0, 1, 2]);
        assert_eq!(offsets("-5:0:2").unwrap(), [-5, -3, -1]);
        assert_eq!(offsets("3:3").unwrap(), [3]);
        assert_eq!(offsets("-1").unwrap(), [-1]);
    }

    #[test]
    fn reach() {
        let shift: Shift = "-5:2".parse().unwrap();
        assert_eq!((shift.before(), shift.latest(), shift.len()), (5, 2, 8));
        let shift = Shift::list(vec![3, 1]).unwrap();
        assert_eq!((shift.before(), shift.latest(), shift.len()), (0, 3, 2));
    }

    #[test]
    fn malformed_shifts_are_refused() {
        for text in ["", ":", "1:", "a:b", "1:2:3:4", "0:99999999999"] {
            assert_eq!(offsets(text).unwrap_err(), ShiftError::Unreadable(text.into()));
        }
        assert_eq!(offsets("2:0").unwrap_err(), ShiftError::Backwards { from: 2, to: 0 });
        assert_eq!(offsets("0:2:0").unwrap_err(), ShiftError::ZeroStep);
        assert_eq!(offsets("0:2:-1").unwrap_err(), ShiftError::ZeroStep);
        assert_eq!(offsets("-2147483648").unwrap_err(), ShiftError::TooFar(i32::MIN));
        assert_eq!(offsets("-1000000:0").unwrap_err(), ShiftError::TooMany(1_000_001));
        assert_eq!(Shift::list(vec![]).unwrap_err(), ShiftError::Empty);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_shift_or_an_error(text in "[-0-9: ]{0,12}") {
            if let Ok(shift) = text.parse::<Shift>() {
                prop_assert_eq!(shift.to_string().parse::<Shift>(), Ok(shift));
            }
        }
    }
}
