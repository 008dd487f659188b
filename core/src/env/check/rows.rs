//! Rows of an element type known at run time only, and their spaces.

use crate::{
    column::{Element, RowsMut, RowsRef, by_type},
    prelude::*,
    rng::Rng,
    space::{PointError, Space},
};

/// Overwrites rows with zeros or ones, as the previous content.
pub(super) fn soil(rows: RowsMut<'_>, ones: bool) {
    by_type!(RowsMut, rows, values => values.fill(Element::from_f64(f64::from(u8::from(ones)))));
}

pub(in crate::env) fn contains(space: &Space, row: RowsRef<'_>) -> Result<bool, PointError> {
    by_type!(RowsRef, row, row => space.contains_row(row))
}

pub(in crate::env) fn contains_beyond_bounds(space: &Space, row: RowsRef<'_>) -> bool {
    by_type!(RowsRef, row, row => space.contains_beyond_bounds(row))
}

pub(super) fn sample(space: &Space, rng: &mut Rng, row: RowsMut<'_>) -> Result<(), PointError> {
    by_type!(RowsMut, row, row => space.sample_row(rng, row))
}

/// Returns true without a NaN.
pub(in crate::env) fn is_numbers(row: RowsRef<'_>) -> bool {
    by_type!(RowsRef, row, row => row.iter().all(|x| !x.to_f64().is_nan()))
}

/// Sets the first element of a row; returns false if the element type cannot represent the number.
pub(super) fn put_first(row: RowsMut<'_>, value: f64) -> bool {
    by_type!(RowsMut, row, row => row.first_mut().is_some_and(|first| {
        *first = Element::from_f64(value);
        let kept = first.to_f64();
        kept == value || (kept.is_nan() && value.is_nan())
    }))
}

/// Formats the row for display, truncated if it is long.
pub(in crate::env) fn describe(row: RowsRef<'_>) -> String {
    const SHOWN: usize = 8;
    let more = if row.len() > SHOWN { ", …" } else { "" };
    let shown: Vec<String> = by_type!(RowsRef, row, row => row.iter().take(SHOWN).map(|x| format!("{x:?}")).collect());
    format!("[{}{more}]", shown.join(", "))
}
