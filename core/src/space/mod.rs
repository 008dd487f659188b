//! Spaces of observations and actions, as in Gymnasium, and their points.
//!
//! A [`Space`] decides which points it [contains](Space::contains), [samples](Space::sample) random ones from the caller's
//! random numbers, and converts points to [flat](Space::flatten) vectors. A point is a [`Point`]; points of the fundamental
//! spaces, which are arrays of one element type, are also plain rows: the row-level functions allocate nothing.
//!
//! Checked constructors reject invalid spaces. The enum's variants, [`Space::vector`] and [`Space::uniform`] are for spaces
//! that are known to be valid; [`Space::validate`] checks any space. Operations on an invalid space give some result and
//! never panic; but a sample allocates memory for its elements, so check untrusted spaces first.
//!
//! ```
//! use rollmesh_core::{
//!     ids::SlotId,
//!     rng::{Purpose, Streams},
//!     space::{Point, Space},
//! };
//!
//! let space = Space::dict([("speed", Space::vector(&[0.0], &[9.0])), ("gear", Space::discrete(5)?)])?;
//! assert_eq!(space.to_string(), "Dict('gear': Discrete(5), 'speed': Box(0.0, 9.0, (1,), float32))");
//!
//! let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
//! assert!(space.contains(&space.sample(&mut rng)));
//!
//! let point = Point::dict([("speed", vec![4.5f32].into()), ("gear", Point::from(3))]);
//! let mut flat = [0.0f32; 6];
//! space.flatten(&point, &mut flat)?;
//! assert_eq!(flat, [0.0, 0.0, 0.0, 1.0, 0.0, 4.5]);
//! assert_eq!(space.unflatten(&flat)?, point);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounds;
mod display;
mod flatten;
mod form;
mod membership;
mod point;
mod sample;

pub use bounds::BoxSpace;
pub use point::{Point, PointError};

use crate::{
    column::{DType, RowShape},
    prelude::*,
};

/// A set of observations or actions.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// Arrays between bounds.
    Box(BoxSpace),
    /// The integers `0..n`.
    Discrete {
        /// Number of values.
        n: u32,
    },
    /// Vectors of integers, component `i` in `0..nvec[i]`.
    MultiDiscrete {
        /// Number of values of each component.
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

/// The reason why a space is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The number of bounds differs from the number of components.
    #[error("a box of shape {shape} has {low} lower and {high} upper bounds, not one for each component")]
    BoundsLength {
        /// Shape of the box.
        shape: RowShape,
        /// Number of lower bounds.
        low: usize,
        /// Number of upper bounds.
        high: usize,
    },
    /// There is no number between the bounds, or one of them is NaN.
    #[error("component {component}: no number lies between the bounds {low} and {high}")]
    Unordered {
        /// The component, row-major.
        component: usize,
        /// Its lower bound.
        low: f64,
        /// Its upper bound.
        high: f64,
    },
    /// The element type cannot represent the bound.
    #[error("component {component}: the bound {bound} cannot be written as {dtype}")]
    Inexact {
        /// The component, row-major.
        component: usize,
        /// The bound.
        bound: f64,
        /// The element type.
        dtype: DType,
    },
    /// The space has no points, or points without elements.
    #[error("{0} has no points or no elements")]
    Empty(String),
    /// A point has more than [`Space::MAX_ELEMENTS`] elements.
    #[error("points have {elements} elements, at most {} are possible", Space::MAX_ELEMENTS)]
    TooLarge {
        /// Elements of a point.
        elements: u64,
    },
    /// Spaces are nested deeper than [`Space::MAX_DEPTH`].
    #[error("spaces can be nested {} deep and not deeper", Space::MAX_DEPTH)]
    TooDeep,
    /// Two parts of a dict have the same name.
    #[error("two parts of the dict are called '{0}'")]
    DuplicateName(String),
    /// The name of a part is empty or contains a dot, which separates the names of nested columns.
    #[error("'{0}' cannot be the name of a part: it must not be empty and not have dots")]
    BadName(String),
}

impl Space {
    /// Maximum number of elements of a point.
    pub const MAX_ELEMENTS: u64 = 1 << 24;

    /// Maximum nesting depth of tuples and dicts.
    pub const MAX_DEPTH: usize = 8;

    /// Creates vectors of 32-bit floats with these bounds.
    ///
    /// Surplus entries of the longer bound are ignored.
    #[must_use]
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        let exact = |bounds: &[f32]| bounds.iter().take(low.len().min(high.len())).copied().map(f64::from).collect();
        let (low, high): (Vec<f64>, Vec<f64>) = (exact(low), exact(high));
        Self::Box(BoxSpace::unchecked(DType::F32, RowShape::vector(low.len() as u32), low, high))
    }

    /// Creates arrays whose components all have the same bounds.
    #[must_use]
    pub const fn uniform(dtype: DType, shape: RowShape, low: f64, high: f64) -> Self {
        Self::Box(BoxSpace::unchecked_uniform(dtype, shape, low, high))
    }

    /// Creates the integers `0..n`.
    ///
    /// # Errors
    /// [`SpaceError::Empty`] for 0.
    pub fn discrete(n: u32) -> Result<Self, SpaceError> {
        Self::Discrete { n }.validated()
    }

    /// Creates vectors of integers, component `i` in `0..nvec[i]`.
    ///
    /// # Errors
    /// [`SpaceError::Empty`] for no components or one without values, [`SpaceError::TooLarge`].
    pub fn multi_discrete(nvec: impl Into<Vec<u32>>) -> Result<Self, SpaceError> {
        Self::MultiDiscrete { nvec: nvec.into() }.validated()
    }

    /// Creates vectors of `n` components that are 0 or 1.
    ///
    /// # Errors
    /// [`SpaceError::Empty`] for 0, [`SpaceError::TooLarge`].
    pub fn multi_binary(n: u32) -> Result<Self, SpaceError> {
        Self::MultiBinary { n }.validated()
    }

    /// Creates a tuple: one point of each space.
    ///
    /// # Errors
    /// [`SpaceError::Empty`] for no parts, [`SpaceError::TooLarge`], [`SpaceError::TooDeep`], and the errors of the parts.
    pub fn tuple(parts: impl Into<Vec<Self>>) -> Result<Self, SpaceError> {
        Self::Tuple(parts.into()).validated()
    }

    /// Creates a dict: one point of each named space.
    ///
    /// # Errors
    /// The errors of [`tuple`](Self::tuple), and [`SpaceError::DuplicateName`], [`SpaceError::BadName`].
    pub fn dict<N: Into<String>>(parts: impl IntoIterator<Item = (N, Self)>) -> Result<Self, SpaceError> {
        let mut spaces = BTreeMap::new();
        for (name, space) in parts {
            let name = name.into();
            if spaces.contains_key(&name) {
                return Err(SpaceError::DuplicateName(name));
            }
            spaces.insert(name, space);
        }
        Self::Dict(spaces).validated()
    }

    /// Checks the space and all its parts: bounds in order and exact in the element type, names, depth, and that points
    /// have at least one and at most [`MAX_ELEMENTS`](Self::MAX_ELEMENTS) elements.
    ///
    /// # Errors
    /// The first [`SpaceError`] found.
    pub fn validate(&self) -> Result<(), SpaceError> {
        self.check_part(0).map(|_| ())
    }

    fn validated(self) -> Result<Self, SpaceError> {
        self.validate().map(|()| self)
    }

    /// Returns the number of elements of a point of this part at nesting depth `depth`.
    fn check_part(&self, depth: usize) -> Result<u64, SpaceError> {
        let empty = || Err(SpaceError::Empty(self.to_string()));
        let elements = match self {
            Self::Box(space) => {
                space.validate()?;
                space.elements() as u64
            }
            Self::Discrete { n: 0 } | Self::MultiBinary { n: 0 } => return empty(),
            Self::Discrete { .. } => 1,
            Self::MultiDiscrete { nvec } if nvec.is_empty() || nvec.contains(&0) => return empty(),
            Self::MultiDiscrete { nvec } => nvec.len() as u64,
            Self::MultiBinary { n } => u64::from(*n),
            Self::Tuple(_) | Self::Dict(_) if depth == Self::MAX_DEPTH => return Err(SpaceError::TooDeep),
            Self::Tuple(parts) if parts.is_empty() => return empty(),
            Self::Tuple(parts) => sum_parts(parts.iter(), depth)?,
            Self::Dict(parts) if parts.is_empty() => return empty(),
            Self::Dict(parts) => {
                if let Some(name) = parts.keys().find(|name| name.is_empty() || name.contains('.')) {
                    return Err(SpaceError::BadName(name.clone()));
                }
                sum_parts(parts.values(), depth)?
            }
        };
        if elements > Self::MAX_ELEMENTS { Err(SpaceError::TooLarge { elements }) } else { Ok(elements) }
    }

    /// Returns the shape of one row of the space.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        match self {
            Self::Box(space) => space.shape(),
            Self::Discrete { .. } => RowShape::SCALAR,
            Self::MultiDiscrete { nvec } => RowShape::vector(nvec.len() as u32),
            Self::MultiBinary { n } => RowShape::vector(*n),
            // Rows of compound spaces are flat.
            Self::Tuple(parts) => flat(parts.iter()),
            Self::Dict(parts) => flat(parts.values()),
        }
    }
}

impl From<BoxSpace> for Space {
    fn from(space: BoxSpace) -> Self {
        Self::Box(space)
    }
}

fn sum_parts<'a>(parts: impl Iterator<Item = &'a Space>, depth: usize) -> Result<u64, SpaceError> {
    // Each part has at most MAX_ELEMENTS, so the sum cannot overflow.
    parts.map(|part| part.check_part(depth + 1)).sum()
}

fn flat<'a>(parts: impl Iterator<Item = &'a Space>) -> RowShape {
    RowShape::vector(parts.fold(0, |sum, part| (part.shape().elements() as u32).saturating_add(sum)))
}

#[cfg(test)]
mod tests;
