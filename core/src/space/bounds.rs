//! Implements arrays between bounds.

use super::{Space, SpaceError};
use crate::{
    column::{DType, RowShape},
    prelude::*,
};

/// Arrays of one element type, each component between its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxSpace {
    dtype: DType,
    shape: RowShape,
    low: Bounds,
    high: Bounds,
}

/// One bound for all components, or one for each. With one for each, an image's bounds would need more memory than the
/// image.
#[derive(Clone, Debug, PartialEq)]
enum Bounds {
    Uniform(f64),
    Each(Vec<f64>),
}

impl Bounds {
    fn new(bounds: Vec<f64>) -> Self {
        match bounds.first() {
            Some(first) if bounds.iter().all(|x| x == first) => Self::Uniform(*first),
            _ => Self::Each(bounds),
        }
    }

    fn at(&self, component: usize) -> f64 {
        match self {
            Self::Uniform(bound) => *bound,
            Self::Each(bounds) => bounds.get(component).copied().unwrap_or(f64::NAN),
        }
    }
}

impl BoxSpace {
    /// Creates arrays with bounds for each component, row-major. Bounds may be infinite, except for bytes and booleans.
    ///
    /// # Errors
    /// [`SpaceError::BoundsLength`] unless there is one bound per component; the errors of [`Space::validate`].
    pub fn new(dtype: DType, shape: RowShape, low: Vec<f64>, high: Vec<f64>) -> Result<Self, SpaceError> {
        if (low.len(), high.len()) != (shape.elements(), shape.elements()) {
            return Err(SpaceError::BoundsLength { shape, low: low.len(), high: high.len() });
        }
        Self::unchecked(dtype, shape, low, high).validated()
    }

    /// Creates arrays whose components all have the same bounds.
    ///
    /// # Errors
    /// The errors of [`Space::validate`].
    pub fn uniform(dtype: DType, shape: RowShape, low: f64, high: f64) -> Result<Self, SpaceError> {
        Self::unchecked_uniform(dtype, shape, low, high).validated()
    }

    pub(crate) fn unchecked(dtype: DType, shape: RowShape, low: Vec<f64>, high: Vec<f64>) -> Self {
        Self { dtype, shape, low: Bounds::new(low), high: Bounds::new(high) }
    }

    pub(super) const fn unchecked_uniform(dtype: DType, shape: RowShape, low: f64, high: f64) -> Self {
        Self { dtype, shape, low: Bounds::Uniform(low), high: Bounds::Uniform(high) }
    }

    /// Returns the type of the components.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape of one point.
    #[must_use]
    pub const fn shape(&self) -> RowShape {
        self.shape
    }

    /// Returns the number of components.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Iterates over the lower and upper bound of each component, row-major.
    pub fn bounds(&self) -> impl ExactSizeIterator<Item = (f64, f64)> + '_ {
        (0..self.elements()).map(|component| (self.low.at(component), self.high.at(component)))
    }

    /// Returns the bounds, if all components have the same.
    #[must_use]
    pub const fn uniform_bounds(&self) -> Option<(f64, f64)> {
        match (&self.low, &self.high) {
            (Bounds::Uniform(low), Bounds::Uniform(high)) => Some((*low, *high)),
            _ => None,
        }
    }

    /// Returns true when no bound is infinite.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.distinct_bounds().all(|(_, low, high)| low.is_finite() && high.is_finite())
    }

    fn validated(self) -> Result<Self, SpaceError> {
        self.validate().map(|()| self)
    }

    pub(super) fn validate(&self) -> Result<(), SpaceError> {
        let elements = self.elements();
        if elements == 0 {
            return Err(SpaceError::Empty(Space::Box(self.clone()).to_string()));
        }
        if elements as u64 > Space::MAX_ELEMENTS {
            return Err(SpaceError::TooLarge { elements: elements as u64 });
        }
        for (component, low, high) in self.distinct_bounds() {
            // This is true for NaN, too.
            if !(low <= high && low < f64::INFINITY && high > f64::NEG_INFINITY) {
                return Err(SpaceError::Unordered { component, low, high });
            }
            if let Some(bound) = [low, high].into_iter().find(|bound| !is_exact(*bound, self.dtype)) {
                return Err(SpaceError::Inexact { component, bound, dtype: self.dtype });
            }
        }
        Ok(())
    }

    /// Iterates over component, low and high; only over the first component when all have the same bounds.
    fn distinct_bounds(&self) -> impl Iterator<Item = (usize, f64, f64)> + '_ {
        let distinct = if self.uniform_bounds().is_some() { 1 } else { self.elements() };
        self.bounds().take(distinct).enumerate().map(|(component, (low, high))| (component, low, high))
    }

    /// Returns one side of the bounds, for [`Display`](core::fmt::Display): the uniform one or all.
    pub(super) fn side(&self, upper: bool) -> (Option<f64>, &[f64]) {
        match if upper { &self.high } else { &self.low } {
            Bounds::Uniform(bound) => (Some(*bound), &[]),
            Bounds::Each(bounds) => (None, bounds),
        }
    }
}

/// Returns true for bounds that the type can represent; infinity means no bound, where the type allows that.
fn is_exact(bound: f64, dtype: DType) -> bool {
    const INTEGERS: f64 = (1u64 << 53) as f64;
    match dtype {
        DType::F32 => bound.is_infinite() || f64::from(bound as f32) == bound,
        DType::F64 => true,
        DType::I32 => bound.is_infinite() || f64::from(bound as i32) == bound,
        // Larger integers are not distinct as doubles.
        DType::I64 => bound.is_infinite() || (bound.abs() <= INTEGERS && (bound as i64) as f64 == bound),
        DType::U8 => f64::from(bound as u8) == bound,
        DType::Bool => bound == 0.0 || bound == 1.0,
    }
}
