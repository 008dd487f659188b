//! Owned rows of an element type known at run time only.

use core::ops::Range;

use crate::{
    column::DType,
    env::{RowsMut, RowsRef},
    prelude::*,
    rng::Rng,
    space::{PointError, Scalar, Space},
};

macro_rules! rows {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// Rows of observations or actions, one after the other.
        pub(super) enum Rows {
            $($variant(Vec<$ty>)),+
        }

        impl Rows {
            pub(super) fn new(dtype: DType, len: usize) -> Self {
                match dtype { $(DType::$variant => Self::$variant(vec![<$ty>::default(); len])),+ }
            }

            /// Overwrites a range with zeros or ones, as the previous content.
            pub(super) fn soil(&mut self, range: Range<usize>, ones: bool) {
                let value = f64::from(u8::from(ones));
                match self { $(Self::$variant(values) => values[range].fill(<$ty>::from_f64(value))),+ }
            }

            /// Returns the elements of a range, which must be in bounds.
            pub(super) fn part(&self, range: Range<usize>) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowsRef::$variant(&values[range])),+ }
            }

            pub(super) fn part_mut(&mut self, range: Range<usize>) -> RowsMut<'_> {
                match self { $(Self::$variant(values) => RowsMut::$variant(&mut values[range])),+ }
            }

            pub(super) fn all(&self) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowsRef::$variant(values)),+ }
            }

            pub(super) fn all_mut(&mut self) -> RowsMut<'_> {
                match self { $(Self::$variant(values) => RowsMut::$variant(values)),+ }
            }
        }

        pub(in crate::env) fn contains(space: &Space, row: RowsRef<'_>) -> Result<bool, PointError> {
            match row { $(RowsRef::$variant(row) => space.contains_row(row)),+ }
        }

        pub(in crate::env) fn contains_beyond_bounds(space: &Space, row: RowsRef<'_>) -> bool {
            match row { $(RowsRef::$variant(row) => space.contains_beyond_bounds(row)),+ }
        }

        pub(super) fn sample(space: &Space, rng: &mut Rng, row: RowsMut<'_>) -> Result<(), PointError> {
            match row { $(RowsMut::$variant(row) => space.sample_row(rng, row)),+ }
        }

        /// Returns true without a NaN.
        pub(in crate::env) fn is_numbers(row: RowsRef<'_>) -> bool {
            match row { $(RowsRef::$variant(row) => row.iter().all(|x| !x.to_f64().is_nan())),+ }
        }

        /// Returns true without a NaN or an infinite number.
        pub(in crate::env) fn is_finite(row: RowsRef<'_>) -> bool {
            match row { $(RowsRef::$variant(row) => row.iter().all(|x| x.to_f64().is_finite())),+ }
        }

        /// Sets the first element of a row; returns false if the element type cannot represent the number.
        pub(super) fn put_first(row: RowsMut<'_>, value: f64) -> bool {
            match row {
                $(RowsMut::$variant(row) => row.first_mut().is_some_and(|first| {
                    *first = <$ty>::from_f64(value);
                    let kept = first.to_f64();
                    kept == value || (kept.is_nan() && value.is_nan())
                })),+
            }
        }

        /// Formats the row for display, truncated if it is long.
        pub(in crate::env) fn describe(row: RowsRef<'_>) -> String {
            const SHOWN: usize = 8;
            let more = if row.len() > SHOWN { ", …" } else { "" };
            let shown = match row {
                $(RowsRef::$variant(row) => row.iter().take(SHOWN).map(|x| format!("{x:?}")).collect::<Vec<_>>()),+
            };
            format!("[{}{more}]", shown.join(", "))
        }
    };
}

rows!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));
