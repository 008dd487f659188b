//! Spaces of observations and actions.

use core::fmt;

use crate::{
    column::{DType, RowShape},
    prelude::*,
};

/// The set that observations or actions come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// Arrays between bounds.
    Box(BoxSpace),
    /// The integers `0..n`.
    Discrete {
        /// How many there are.
        n: u32,
    },
    /// Vectors of integers, component `i` in `0..nvec[i]`.
    MultiDiscrete {
        /// How many values each component has.
        nvec: Vec<u32>,
    },
    /// Vectors of `n` components that are 0 or 1.
    MultiBinary {
        /// Number of components.
        n: u32,
    },
    /// One point of each space, in order.
    Tuple(Vec<Self>),
    /// One point of each named space, sorted by name.
    Dict(BTreeMap<String, Self>),
}

/// Arrays of one element type, each component between its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxSpace {
    /// Type of the components.
    pub dtype: DType,
    /// Shape of one element of the space.
    pub shape: RowShape,
    /// Lower bound of each component, row-major; may be -infinity. Exact in `dtype`.
    pub low: Vec<f64>,
    /// Upper bound of each component, row-major; may be infinity. Exact in `dtype`.
    pub high: Vec<f64>,
}

impl Space {
    /// Vectors of 32-bit floats with these bounds.
    ///
    /// Surplus entries of the longer bound are ignored.
    #[must_use]
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        let len = low.len().min(high.len());
        let exact = |bounds: &[f32]| bounds[..len].iter().copied().map(f64::from).collect();
        Self::Box(BoxSpace {
            dtype: DType::F32,
            shape: RowShape::vector(len as u32),
            low: exact(low),
            high: exact(high),
        })
    }

    /// Arrays whose components all have the same bounds.
    #[must_use]
    pub fn uniform(dtype: DType, shape: RowShape, low: f64, high: f64) -> Self {
        let components = shape.elements();
        Self::Box(BoxSpace { dtype, shape, low: vec![low; components], high: vec![high; components] })
    }

    /// Shape of one row of the space.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        match self {
            Self::Box(space) => space.shape,
            Self::Discrete { .. } => RowShape::SCALAR,
            Self::MultiDiscrete { nvec } => RowShape::vector(nvec.len() as u32),
            Self::MultiBinary { n } => RowShape::vector(*n),
            // Rows of compound spaces are flat.
            Self::Tuple(parts) => flat(parts.iter()),
            Self::Dict(parts) => flat(parts.values()),
        }
    }

    /// True for a row of floats within the bounds.
    #[must_use]
    pub fn contains_floats(&self, row: &[f32]) -> bool {
        let Self::Box(BoxSpace { low, high, .. }) = self else { return false };
        let row = row.iter().copied().map(f64::from);
        row.len() == low.len() && row.zip(low.iter().zip(high)).all(|(x, (l, h))| *l <= x && x <= *h)
    }

    /// True for an integer of a discrete space.
    #[must_use]
    pub fn contains_integer(&self, value: i64) -> bool {
        matches!(self, Self::Discrete { n } if (0..i64::from(*n)).contains(&value))
    }
}

/// As Gymnasium writes it, without the bounds.
impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Box(space) => write!(f, "Box({}, {})", space.shape, space.dtype),
            Self::Discrete { n } => write!(f, "Discrete({n})"),
            Self::MultiDiscrete { nvec } => write!(f, "MultiDiscrete({nvec:?})"),
            Self::MultiBinary { n } => write!(f, "MultiBinary({n})"),
            Self::Tuple(parts) => {
                f.write_str("Tuple(")?;
                for (i, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
            Self::Dict(parts) => {
                f.write_str("Dict(")?;
                for (i, (name, part)) in parts.iter().enumerate() {
                    write!(f, "{}{name}: {part}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

fn flat<'a>(parts: impl Iterator<Item = &'a Space>) -> RowShape {
    RowShape::vector(parts.map(|part| part.shape().elements() as u32).sum())
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
