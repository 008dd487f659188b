//! Type-erased environments, as samplers see them: one match per batch.

use core::ops::Range;

use super::{EnvError, EnvState, Frame, Moments, Rng, StepOut, VectorEnv};
use crate::{
    column::{DType, Element},
    prelude::*,
    space::{Scalar, Space},
};

macro_rules! rows {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// Borrowed rows of some element type.
        #[derive(Clone, Copy, Debug)]
        pub enum RowsRef<'a> {
            $(#[doc = concat!("Rows of `", stringify!($ty), "`.")] $variant(&'a [$ty])),+
        }

        /// Mutably borrowed rows of some element type.
        #[derive(Debug)]
        pub enum RowsMut<'a> {
            $(#[doc = concat!("Rows of `", stringify!($ty), "`.")] $variant(&'a mut [$ty])),+
        }

        #[allow(clippy::len_without_is_empty)]
        impl RowsRef<'_> {
            /// Returns the element type.
            #[must_use]
            pub fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),+ }
            }

            /// Returns the number of elements, not of rows.
            #[must_use]
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(values) => values.len()),+ }
            }

            /// Returns a range of the elements, empty if out of range.
            #[must_use]
            pub fn part(self, range: Range<usize>) -> Self {
                match self { $(Self::$variant(values) => Self::$variant(values.get(range).unwrap_or_default())),+ }
            }
        }

        #[allow(clippy::len_without_is_empty)]
        impl RowsMut<'_> {
            /// Returns the rows as they are now.
            #[must_use]
            pub fn as_rows(&self) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowsRef::$variant(values)),+ }
            }

            /// Returns the element type.
            #[must_use]
            pub fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),+ }
            }

            /// Returns the number of elements, not of rows.
            #[must_use]
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(values) => values.len()),+ }
            }
        }

        $(
            impl RowElement for $ty {
                fn rows<'a>(rows: RowsRef<'a>) -> Option<&'a [Self]> {
                    if let RowsRef::$variant(values) = rows { Some(values) } else { None }
                }
                fn rows_mut<'a>(rows: RowsMut<'a>) -> Option<&'a mut [Self]> {
                    if let RowsMut::$variant(values) = rows { Some(values) } else { None }
                }
                fn erase_rows(values: &[Self]) -> RowsRef<'_> {
                    RowsRef::$variant(values)
                }
                fn erase_rows_mut(values: &mut [Self]) -> RowsMut<'_> {
                    RowsMut::$variant(values)
                }
            }
        )+
    };
}

/// A NaN payload that no environment computes.
const POISON_F32: f32 = f32::from_bits(0x7fe5_a5a5);
const POISON_F64: f64 = f64::from_bits(0x7ffc_a5a5_a5a5_a5a5);

impl RowsMut<'_> {
    /// Poisons the rows, so that [`first_poisoned`](Self::first_poisoned) finds elements that are not written later.
    /// Integers and flags, of which every value is valid, stay.
    pub(crate) fn poison(&mut self) {
        match self {
            Self::F32(values) => values.fill(POISON_F32),
            Self::F64(values) => values.fill(POISON_F64),
            _ => {}
        }
    }

    /// Returns the index of the first element that is still [poisoned](Self::poison).
    pub(crate) fn first_poisoned(&self) -> Option<usize> {
        match self {
            Self::F32(values) => values.iter().position(|value| value.to_bits() == POISON_F32.to_bits()),
            Self::F64(values) => values.iter().position(|value| value.to_bits() == POISON_F64.to_bits()),
            _ => None,
        }
    }
}

impl RowsRef<'_> {
    /// Returns the index of the first element that is infinite or NaN; `None` for integers.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<usize> {
        // First one pass over all without branches.
        match self {
            Self::F32(values) if !values.iter().fold(true, |all, x| all & x.is_finite()) => {
                values.iter().position(|x| !x.is_finite())
            }
            Self::F64(values) if !values.iter().fold(true, |all, x| all & x.is_finite()) => {
                values.iter().position(|x| !x.is_finite())
            }
            _ => None,
        }
    }
}

/// Element types whose rows can be erased and recovered: all of them.
pub trait RowElement: Scalar {
    /// Returns the rows, if they have this type.
    fn rows(rows: RowsRef<'_>) -> Option<&[Self]>;

    /// Returns the rows mutably, if they have this type.
    fn rows_mut(rows: RowsMut<'_>) -> Option<&mut [Self]>;

    /// Erases the type of rows.
    fn erase_rows(values: &[Self]) -> RowsRef<'_>;

    /// Erases the type of mutable rows.
    fn erase_rows_mut(values: &mut [Self]) -> RowsMut<'_>;
}

rows!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

/// A type-erased [`VectorEnv`], as samplers use it. Implemented for all of them.
pub trait AnyVectorEnv: Send {
    /// See [`VectorEnv::num_envs`].
    fn num_envs(&self) -> usize;

    /// See [`VectorEnv::observation_space`].
    fn observation_space(&self) -> Space;

    /// See [`VectorEnv::action_space`].
    fn action_space(&self) -> Space;

    /// Returns the element types of observations and actions.
    fn dtypes(&self) -> (DType, DType);

    /// See [`VectorEnv::reset_at`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: RowsMut<'_>) -> Result<(), EnvError>;

    /// See [`VectorEnv::step`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError>;

    /// See [`VectorEnv::render_at`].
    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool;

    /// See [`VectorEnv::info_at`].
    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool;

    /// Returns the environment itself, for functions that know its type.
    fn as_any(&mut self) -> &mut dyn core::any::Any;

    /// See [`VectorEnv::snapshot_at`].
    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState;

    /// See [`VectorEnv::replay_at`].
    ///
    /// # Errors
    /// As there.
    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError>;

    /// See [`VectorEnv::restore_at`].
    ///
    /// # Errors
    /// As there, and [`EnvError::WrongType`].
    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError>;
}

impl<E> AnyVectorEnv for E
where
    E: VectorEnv + 'static,
    E::Obs: RowElement,
    E::Act: RowElement,
{
    fn num_envs(&self) -> usize {
        VectorEnv::num_envs(self)
    }

    fn observation_space(&self) -> Space {
        VectorEnv::observation_space(self)
    }

    fn action_space(&self) -> Space {
        VectorEnv::action_space(self)
    }

    fn dtypes(&self) -> (DType, DType) {
        (E::Obs::DTYPE, E::Act::DTYPE)
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: RowsMut<'_>) -> Result<(), EnvError> {
        VectorEnv::reset_at(self, lane, rng, observations(obs)?)
    }

    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let wanted = actions.dtype().name();
        let actions = E::Act::rows(actions).ok_or(EnvError::WrongType {
            what: "actions",
            found: E::Act::DTYPE.name(),
            wanted,
        })?;
        VectorEnv::step(self, actions, moments, observations(obs)?, out)
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        VectorEnv::render_at(self, lane, frame)
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        VectorEnv::info_at(self, lane, out)
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        VectorEnv::snapshot_at(self, lane, out)
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        VectorEnv::replay_at(self, lane, snapshot, max_steps)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        VectorEnv::restore_at(self, lane, snapshot, observations(obs)?)
    }
}

fn observations<T: RowElement>(rows: RowsMut<'_>) -> Result<&mut [T], EnvError> {
    let wanted = rows.dtype().name();
    T::rows_mut(rows).ok_or(EnvError::WrongType { what: "observations", found: T::DTYPE.name(), wanted })
}
