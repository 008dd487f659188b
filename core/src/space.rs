//! Spaces of observations and actions.

use crate::{column::RowShape, prelude::*};

/// The set that observations or actions come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// Arrays of 32-bit floats between bounds.
    Box {
        /// Shape of one element of the space.
        shape: RowShape,
        /// Lower bound of each component, row-major; may be -infinity.
        low: Vec<f32>,
        /// Upper bound of each component, row-major; may be infinity.
        high: Vec<f32>,
    },
    /// The integers `0..n`.
    Discrete {
        /// How many there are.
        n: u32,
    },
}

impl Space {
    /// A box that is a vector with these bounds.
    ///
    /// Surplus entries of the longer bound are ignored.
    #[must_use]
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        let len = low.len().min(high.len());
        Self::Box { shape: RowShape::vector(len as u32), low: low[..len].to_vec(), high: high[..len].to_vec() }
    }

    /// Shape of one row of the space.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        match self {
            Self::Box { shape, .. } => *shape,
            Self::Discrete { .. } => RowShape::SCALAR,
        }
    }

    /// True for a row of floats within the bounds.
    #[must_use]
    pub fn contains_floats(&self, row: &[f32]) -> bool {
        match self {
            Self::Box { low, high, .. } => {
                row.len() == low.len() && row.iter().zip(low.iter().zip(high)).all(|(x, (l, h))| l <= x && x <= h)
            }
            Self::Discrete { .. } => false,
        }
    }

    /// True for an integer of a discrete space.
    #[must_use]
    pub fn contains_integer(&self, value: i64) -> bool {
        matches!(self, Self::Discrete { n } if (0..i64::from(*n)).contains(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership() {
        let space = Space::vector(&[-1.0, f32::NEG_INFINITY], &[1.0, f32::INFINITY]);
        assert!(space.contains_floats(&[1.0, -1e30]));
        assert!(!space.contains_floats(&[1.1, 0.0]));
        assert!(!space.contains_floats(&[f32::NAN, 0.0]));
        assert!(!space.contains_floats(&[0.0]));
        assert!(!space.contains_integer(0));
        let space = Space::Discrete { n: 2 };
        assert!(space.contains_integer(1) && !space.contains_integer(2) && !space.contains_integer(-1));
    }
}
