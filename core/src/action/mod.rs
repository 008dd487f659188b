//! Converts actions between policy and environment: clipping, unsquashing, normalising.
//!
//! A policy's actions may be outside the action space, or between -1 and 1 where the space has other bounds. An
//! [`ActionTransform`] converts them to actions that the environment accepts; batches keep the policy's own actions. The
//! functions change any number of rows in place, without allocation, and convert [points](Point) of tuples and dicts
//! component by component.
//! ```
//! use rollmesh_core::{action::ActionTransform, space::Space};
//!
//! let space = Space::vector(&[-2.0], &[1.0]);
//! let transform = ActionTransform::for_space(&space, true, false);
//! let mut rows = [-1.0f32, 0.0, 3.0];
//! transform.apply_rows(&space, &mut rows)?;
//! assert_eq!(rows, [-2.0, -0.5, 1.0]);
//! # Ok::<(), rollmesh_core::space::PointError>(())
//! ```

mod walk;

use crate::{
    column::Element,
    prelude::*,
    space::{BoxSpace, Point, PointError, Space},
};

/// The transformation of actions before the environment gets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActionTransform {
    /// Leaves actions unchanged.
    #[default]
    None,
    /// Clips actions: see [`clip`].
    Clip,
    /// Unsquashes actions: see [`unsquash`].
    Unsquash,
}

impl ActionTransform {
    /// Returns the transform of a space under RLlib's settings `normalize_actions` and `clip_actions`; the former takes
    /// precedence. Returns [`None`](Self::None) where the transform would have no effect.
    #[doc(alias("normalize_actions", "clip_actions"))]
    #[must_use]
    pub fn for_space(space: &Space, normalize_actions: bool, clip_actions: bool) -> Self {
        if normalize_actions && has_box(space, &BoxSpace::is_bounded) {
            Self::Unsquash
        } else if clip_actions && !normalize_actions && has_box(space, &|_| true) {
            Self::Clip
        } else {
            Self::None
        }
    }

    /// Returns the space of a policy's actions before the transform into this space. With unsquashing, bounded boxes of
    /// floats range from -1 to 1, and bounded boxes of integers start at 0.
    ///
    /// ```
    /// use rollmesh_core::{action::ActionTransform, space::Space};
    ///
    /// let space = Space::vector(&[-2.0], &[7.0]);
    /// let transform = ActionTransform::for_space(&space, true, false);
    /// assert_eq!(transform.policy_space(&space), Space::vector(&[-1.0], &[1.0]));
    /// assert_eq!(ActionTransform::Clip.policy_space(&space), space);
    /// ```
    #[must_use]
    pub fn policy_space(self, space: &Space) -> Space {
        match space {
            Space::Box(space) if self == Self::Unsquash && space.is_bounded() => before_unsquash(space),
            Space::Tuple(parts) => Space::Tuple(parts.iter().map(|part| self.policy_space(part)).collect()),
            Space::Dict(parts) => {
                Space::Dict(parts.iter().map(|(name, part)| (name.clone(), self.policy_space(part))).collect_ordered())
            }
            _ => space.clone(),
        }
    }

    /// Transforms consecutive rows of the space in place.
    ///
    /// # Errors
    /// [`PointError::WrongType`], [`PointError::WrongLength`] unless they are whole rows of the space.
    pub fn apply_rows<T: Element>(self, space: &Space, rows: &mut [T]) -> Result<(), PointError> {
        match self {
            Self::None => Ok(()),
            Self::Clip => clip_rows(space, rows),
            Self::Unsquash => unsquash_rows(space, rows),
        }
    }

    /// Turns rows that the environment takes into those of the policy, in place: the inverse of unsquashing. Clipped
    /// actions stay as they are.
    ///
    /// # Errors
    /// As [`apply_rows`](Self::apply_rows).
    pub fn undo_rows<T: Element>(self, space: &Space, rows: &mut [T]) -> Result<(), PointError> {
        match self {
            Self::None | Self::Clip => Ok(()),
            Self::Unsquash => walk::rows(space, rows, ActionMap::Squash),
        }
    }

    /// Transforms an action of any space in place.
    ///
    /// # Errors
    /// [`PointError`] when the action does not have the structure of the space's points.
    pub fn apply(self, space: &Space, action: &mut Point) -> Result<(), PointError> {
        match self {
            Self::None => Ok(()),
            Self::Clip => clip(space, action),
            Self::Unsquash => unsquash(space, action),
        }
    }
}

/// Clamps components of boxes to their bounds; NaN stays NaN. Other spaces' actions stay unchanged.
///
/// # Errors
/// [`PointError`] when the action does not have the structure of the space's points.
#[doc(alias = "clip_action")]
pub fn clip(space: &Space, action: &mut Point) -> Result<(), PointError> {
    walk::point(space, action, ActionMap::Clip)
}

/// Maps [-1, 1] to the bounds of a box of floats and clamps to them; adds the lower bound to components of a box of
/// integers, which count from 0. Boxes with an infinite bound and other spaces' actions stay unchanged.
///
/// # Errors
/// [`PointError`] when the action does not have the structure of the space's points.
#[doc(alias = "unsquash_action")]
pub fn unsquash(space: &Space, action: &mut Point) -> Result<(), PointError> {
    walk::point(space, action, ActionMap::Unsquash)
}

/// Maps the bounds of a box of floats to [-1, 1] without clamping, and a component with only one possible value to 0. Boxes
/// of integers, boxes with an infinite bound and other spaces' actions stay unchanged.
///
/// # Errors
/// [`PointError`] when the action does not have the structure of the space's points.
#[doc(alias = "normalize_action")]
pub fn normalize(space: &Space, action: &mut Point) -> Result<(), PointError> {
    walk::point(space, action, ActionMap::Normalize)
}

/// Applies [`clip`] to consecutive rows.
///
/// # Errors
/// [`PointError::WrongType`], [`PointError::WrongLength`] unless they are whole rows of the space.
pub fn clip_rows<T: Element>(space: &Space, rows: &mut [T]) -> Result<(), PointError> {
    walk::rows(space, rows, ActionMap::Clip)
}

/// Applies [`unsquash`] to consecutive rows.
///
/// # Errors
/// As [`clip_rows`].
pub fn unsquash_rows<T: Element>(space: &Space, rows: &mut [T]) -> Result<(), PointError> {
    walk::rows(space, rows, ActionMap::Unsquash)
}

/// Applies [`normalize`] to consecutive rows.
///
/// # Errors
/// As [`clip_rows`].
pub fn normalize_rows<T: Element>(space: &Space, rows: &mut [T]) -> Result<(), PointError> {
    walk::rows(space, rows, ActionMap::Normalize)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionMap {
    Clip,
    Unsquash,
    Normalize,
    /// The inverse of [`Unsquash`](Self::Unsquash).
    Squash,
}

/// Returns the space that [`unsquash`] maps to a bounded box.
fn before_unsquash(space: &BoxSpace) -> Space {
    let (dtype, shape) = (space.dtype(), space.shape());
    if dtype.is_float() {
        return Space::uniform(dtype, shape, -1.0, 1.0);
    }
    match space.uniform_bounds() {
        Some((low, high)) => Space::uniform(dtype, shape, 0.0, high - low),
        None => {
            let spans: Vec<f64> = space.bounds().map(|(low, high)| high - low).collect();
            BoxSpace::unchecked(dtype, shape, vec![0.0; spans.len()], spans).into()
        }
    }
}

fn has_box(space: &Space, wanted: &dyn Fn(&BoxSpace) -> bool) -> bool {
    match space {
        Space::Box(space) => wanted(space),
        Space::Discrete { .. } | Space::MultiDiscrete { .. } | Space::MultiBinary { .. } => false,
        Space::Tuple(parts) => parts.iter().any(|part| has_box(part, wanted)),
        Space::Dict(parts) => parts.values().any(|part| has_box(part, wanted)),
    }
}

#[cfg(test)]
mod tests;
