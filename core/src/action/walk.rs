//! Traverses spaces and rows down to single components.

use super::ActionMap;
use crate::{
    column::{DType, Element, by_type},
    prelude::*,
    space::{BoxSpace, Point, PointError, Space},
};

pub(super) fn point(space: &Space, action: &mut Point, map: ActionMap) -> Result<(), PointError> {
    match (space, action) {
        (Space::Tuple(spaces), Point::Tuple(parts)) if spaces.len() == parts.len() => {
            spaces.iter().zip(parts).try_for_each(|(space, part)| point(space, part, map))
        }
        (Space::Dict(spaces), Point::Dict(parts)) if spaces.keys().eq(parts.keys()) => {
            spaces.values().zip(parts.values_mut()).try_for_each(|(space, part)| point(space, part, map))
        }
        (Space::Tuple(_) | Space::Dict(_), action) | (_, action @ (Point::Tuple(_) | Point::Dict(_))) => {
            Err(PointError::outside(space, action))
        }
        (_, action) => by_type!(Point, action, values => one_row(space, values, map), _ => Ok(())),
    }
}

fn one_row<T: Element>(space: &Space, row: &mut [T], map: ActionMap) -> Result<(), PointError> {
    let wanted = space.shape().elements();
    if row.len() != wanted {
        return Err(PointError::WrongLength { space: space.to_string(), wanted: wanted as u64, found: row.len() });
    }
    rows(space, row, map)
}

pub(super) fn rows<T: Element>(space: &Space, rows: &mut [T], map: ActionMap) -> Result<(), PointError> {
    space.check_type(T::DTYPE)?;
    let wanted = space.shape().elements();
    if wanted == 0 || !rows.len().is_multiple_of(wanted) {
        return Err(PointError::WrongLength { space: space.to_string(), wanted: wanted as u64, found: rows.len() });
    }
    checked(space, rows, map);
    Ok(())
}

/// Maps rows whose type and length were checked. A row of a tuple or dict joins those of its parts.
fn checked<T: Element>(space: &Space, rows: &mut [T], map: ActionMap) {
    match space {
        Space::Box(space) => numbers(space, rows, map),
        Space::Tuple(parts) => rows.chunks_exact_mut(space.shape().elements()).for_each(|row| {
            joined(parts.iter(), row, map);
        }),
        Space::Dict(parts) => rows.chunks_exact_mut(space.shape().elements()).for_each(|row| {
            joined(parts.values(), row, map);
        }),
        _ => {}
    }
}

fn joined<'a, T: Element>(parts: impl Iterator<Item = &'a Space>, mut row: &mut [T], map: ActionMap) {
    for part in parts {
        let Some(own) = row.split_off_mut(..part.shape().elements()) else { return };
        checked(part, own, map);
    }
}

fn numbers<T: Element>(space: &BoxSpace, rows: &mut [T], map: ActionMap) {
    let floats = matches!(space.dtype(), DType::F32 | DType::F64);
    match map {
        ActionMap::Clip => each(space, rows, clip),
        ActionMap::Unsquash if !space.is_bounded() => {}
        ActionMap::Unsquash if floats => each(space, rows, unsquash),
        ActionMap::Unsquash => each(space, rows, |x: T, low, _| T::from_f64(low + x.to_f64())),
        ActionMap::Normalize | ActionMap::Squash if floats && space.is_bounded() => each(space, rows, normalize),
        ActionMap::Squash if space.is_bounded() => each(space, rows, |x: T, low, _| T::from_f64(x.to_f64() - low)),
        ActionMap::Normalize | ActionMap::Squash => {}
    }
}

#[inline]
fn each<T: Element>(space: &BoxSpace, rows: &mut [T], map: impl Fn(T, f64, f64) -> T) {
    if let Some((low, high)) = space.uniform_bounds() {
        rows.iter_mut().for_each(|x| *x = map(*x, low, high));
        return;
    }
    for row in rows.chunks_exact_mut(space.elements()) {
        row.iter_mut().zip(space.bounds()).for_each(|(x, (low, high))| *x = map(*x, low, high));
    }
}

#[inline]
fn clip<T: Element>(x: T, low: f64, high: f64) -> T {
    let number = x.to_f64();
    if x.within(low, high) || number.is_nan() {
        x
    } else {
        // The number is out of bounds: a long integer beyond the upper bound may have been rounded to it, but is still above
        // the lower one.
        T::from_f64(if number <= low { low } else { high })
    }
}

#[inline]
fn unsquash<T: Element>(x: T, low: f64, high: f64) -> T {
    // Uses halves, since the difference of large bounds overflows.
    let (x, half) = (x.to_f64(), high * 0.5 - low * 0.5);
    // Infinity times 0 would be NaN.
    let y = if half > 0.0 || x.is_nan() { low + (x + 1.0) * half } else { low };
    T::from_f64(if y < low {
        low
    } else if y > high {
        high
    } else {
        y
    })
}

#[inline]
fn normalize<T: Element>(x: T, low: f64, high: f64) -> T {
    let half = high * 0.5 - low * 0.5;
    T::from_f64(if half > 0.0 { (x.to_f64() - low) / half - 1.0 } else { 0.0 })
}
