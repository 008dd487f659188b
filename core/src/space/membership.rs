//! Decides which points are in a space.

use super::{Point, PointError, Space};
use crate::{
    column::{DType, Element, by_type},
    prelude::*,
};

impl Space {
    /// Returns true for a point of the space: the right kind and element type, the right length, and no component out of
    /// bounds.
    #[must_use]
    pub fn contains(&self, point: &Point) -> bool {
        match (self, point) {
            (Self::Tuple(spaces), Point::Tuple(parts)) => {
                spaces.len() == parts.len() && spaces.iter().zip(parts).all(|(space, part)| space.contains(part))
            }
            (Self::Dict(spaces), Point::Dict(parts)) => {
                spaces.len() == parts.len()
                    && spaces.iter().zip(parts).all(|((name, space), (key, part))| name == key && space.contains(part))
            }
            (Self::Tuple(_) | Self::Dict(_), _) => false,
            _ => by_type!(Point, point, values => self.contains_row(values).unwrap_or(false), _ => false),
        }
    }

    /// Returns true for a row of the space, false for one of another length or with an element that is out of bounds. A row
    /// of a tuple or dict joins those of its parts, the parts of a dict sorted by name.
    ///
    /// # Errors
    /// [`PointError::WrongType`] for rows of a type that the space does not [accept](Self::takes_rows_of).
    pub fn contains_row<T: Element>(&self, row: &[T]) -> Result<bool, PointError> {
        self.check_type(T::DTYPE)?;
        Ok(self.holds(row, true))
    }

    /// Returns true for a row of the space whose boxes may be out of their bounds, such as an action that the environment
    /// clips or the last observation of an episode.
    #[must_use]
    pub fn contains_beyond_bounds<T: Element>(&self, row: &[T]) -> bool {
        self.takes_rows_of(T::DTYPE) && self.holds(row, false)
    }

    /// Returns whether the space contains a row. `bounded` is false to ignore the bounds of boxes.
    fn holds<T: Element>(&self, row: &[T], bounded: bool) -> bool {
        match self {
            Self::Box(space) if !bounded => row.len() == space.elements(),
            Self::Box(space) => match space.uniform_bounds() {
                Some((low, high)) => row.len() == space.elements() && row.iter().all(|x| x.within(low, high)),
                None => {
                    row.len() == space.elements()
                        && row.iter().zip(space.bounds()).all(|(x, (low, high))| x.within(low, high))
                }
            },
            Self::Discrete { n } => matches!(row, [x] if below(*x, *n)),
            Self::MultiDiscrete { nvec } => row.len() == nvec.len() && row.iter().zip(nvec).all(|(x, n)| below(*x, *n)),
            Self::MultiBinary { n } => row.len() as u64 == u64::from(*n) && row.iter().all(|x| below(*x, 2)),
            Self::Tuple(parts) => hold_parts(parts.iter(), row, bounded),
            Self::Dict(parts) => hold_parts(parts.values(), row, bounded),
        }
    }

    /// Returns true for these elements of a joined row. The bounds of numbers are rounded like the numbers.
    fn holds_part<T: Element>(&self, part: &[T], bounded: bool) -> bool {
        let is_whole = || part.iter().all(|x| x.to_f64() as i64 as f64 == x.to_f64());
        match self {
            Self::Box(space) => {
                let within = |(x, (low, high)): (&T, _)| *x >= T::from_f64(low) && *x <= T::from_f64(high);
                (space.dtype().is_float() || is_whole()) && (!bounded || part.iter().zip(space.bounds()).all(within))
            }
            Self::Tuple(_) | Self::Dict(_) => self.holds(part, bounded),
            _ => self.holds(part, bounded) && is_whole(),
        }
    }

    /// Returns the first of many rows with an element that is out of bounds, if there is one. Ignores NaN.
    ///
    /// # Errors
    /// The errors of [`contains_row`](Self::contains_row).
    pub fn first_outside<T: Element>(&self, rows: &[T]) -> Result<Option<usize>, PointError> {
        self.check_type(T::DTYPE)?;
        let mut bounds: Vec<(T, T)> = Vec::with_capacity(self.shape().elements());
        self.extend_bounds(&mut bounds);
        // Does not stop early within a row, so that it compiles to a few vector instructions.
        let outside =
            |row: &[T]| row.iter().zip(&bounds).fold(false, |out, (x, (low, high))| out | (x < low) | (x > high));
        Ok(rows.chunks_exact(bounds.len().max(1)).position(outside))
    }

    fn extend_bounds<T: Element>(&self, bounds: &mut Vec<(T, T)>) {
        let counted = |n: u32| (T::from_f64(0.0), T::from_f64(f64::from(n.saturating_sub(1))));
        match self {
            Self::Box(space) => bounds.extend(space.bounds().map(|(low, high)| (T::from_f64(low), T::from_f64(high)))),
            Self::Discrete { n } => bounds.push(counted(*n)),
            Self::MultiDiscrete { nvec } => bounds.extend(nvec.iter().map(|n| counted(*n))),
            Self::MultiBinary { n } => bounds.resize(bounds.len() + *n as usize, counted(2)),
            Self::Tuple(parts) => parts.iter().for_each(|part| part.extend_bounds(bounds)),
            Self::Dict(parts) => parts.values().for_each(|part| part.extend_bounds(bounds)),
        }
    }

    /// Returns true for the element types that the space accepts for rows: a box's own; for discrete spaces, integers that
    /// can represent all their values; for multi-binary ones, booleans too; floats for tuples and dicts.
    #[must_use]
    pub fn takes_rows_of(&self, dtype: DType) -> bool {
        match self {
            Self::Box(space) => space.dtype() as u8 == dtype as u8,
            Self::Discrete { n } => counts_to(dtype, *n),
            Self::MultiDiscrete { nvec } => nvec.iter().all(|n| counts_to(dtype, *n)),
            Self::MultiBinary { .. } => matches!(dtype, DType::I32 | DType::I64 | DType::U8 | DType::Bool),
            Self::Tuple(_) | Self::Dict(_) => matches!(dtype, DType::F32 | DType::F64),
        }
    }

    pub(crate) fn check_type(&self, found: DType) -> Result<(), PointError> {
        match self {
            _ if self.takes_rows_of(found) => Ok(()),
            _ => Err(PointError::WrongType { space: self.to_string(), found }),
        }
    }
}

/// Returns true for integer types that can represent all of `0..n`.
const fn counts_to(dtype: DType, n: u32) -> bool {
    match dtype {
        DType::I64 => true,
        DType::I32 => n <= 1 << 31,
        DType::U8 => n <= 1 << 8,
        DType::F32 | DType::F64 | DType::Bool => false,
    }
}

fn hold_parts<'a, T: Element>(mut parts: impl Iterator<Item = &'a Space>, row: &[T], bounded: bool) -> bool {
    let mut rest = row;
    let all = parts.all(|part| {
        let own = rest.split_off(..part.shape().elements());
        own.is_some_and(|own| part.holds_part(own, bounded))
    });
    all && rest.is_empty()
}

fn below<T: Element>(x: T, n: u32) -> bool {
    x.within(0.0, f64::from(n) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{column::RowShape, space::BoxSpace};

    #[test]
    fn boxes_hold_what_is_within_their_bounds() {
        let space = Space::vector(&[-1.0, f32::NEG_INFINITY], &[1.0, f32::INFINITY]);
        assert_eq!(space.contains_row::<f32>(&[1.0, -1e30]), Ok(true));
        assert_eq!(space.contains_row::<f32>(&[1.1, 0.0]), Ok(false));
        assert_eq!(space.contains_row::<f32>(&[f32::NAN, 0.0]), Ok(false));
        assert_eq!(space.contains_row::<f32>(&[0.0]), Ok(false));
        assert!(space.contains(&Point::F32(vec![0.0, 0.0])) && !space.contains(&Point::F64(vec![0.0, 0.0])));
        let error = space.contains_row(&[0.0f64; 2]).unwrap_err();
        assert_eq!(error.to_string(), "Box([-1.0 -inf], [1.0 inf], (2,), float32) has no rows of float64");
        let image = Space::uniform(DType::U8, RowShape::vector(2), 3.0, 250.0);
        assert_eq!([[3u8, 250], [2, 9]].map(|row| image.contains_row(&row)), [Ok(true), Ok(false)]);
    }

    #[test]
    fn discrete_spaces_hold_small_integers() {
        let space = Space::Discrete { n: 2 };
        assert_eq!([1i64, 2, -1].map(|x| space.contains_row(&[x])), [Ok(true), Ok(false), Ok(false)]);
        assert!(space.contains(&Point::from(1)) && space.contains(&Point::U8(vec![0])));
        assert!(!space.contains(&Point::I64(vec![0, 0])) && !space.contains(&Point::F32(vec![0.0])));
        let space = Space::multi_discrete([3, 1]).unwrap();
        assert_eq!([[2i64, 0], [2, 1], [-1, 0]].map(|row| space.contains_row(&row).unwrap()), [true, false, false]);
        let space = Space::multi_binary(2).unwrap();
        assert_eq!(space.contains_row(&[true, false]), Ok(true));
        assert_eq!(space.contains_row(&[1u8, 2]), Ok(false));
        assert_eq!(space.contains_row(&[1i64]), Ok(false));
        assert!(space.contains_row(&[1.0f32, 0.0]).is_err());
        // Bytes cannot represent 257 values.
        assert!(Space::Discrete { n: 256 }.takes_rows_of(DType::U8));
        let space = Space::Discrete { n: 257 };
        assert!(!space.takes_rows_of(DType::U8) && space.contains_row(&[0u8]).is_err());
        assert!(Space::Discrete { n: 1 << 31 }.takes_rows_of(DType::I32));
        assert!(!Space::MultiDiscrete { nvec: vec![2, u32::MAX] }.takes_rows_of(DType::I32));
        // An empty space contains no points.
        assert_eq!(Space::Discrete { n: 0 }.contains_row(&[0i64]), Ok(false));
    }

    #[test]
    fn compound_spaces_hold_parts() {
        let inner = Space::tuple([Space::Discrete { n: 3 }, Space::vector(&[0.0], &[1.0])]).unwrap();
        let space = Space::dict([("x", inner), ("y", Space::MultiBinary { n: 1 })]).unwrap();
        let point = |i: i64, y: &str| {
            Point::dict([("x", Point::Tuple(vec![i.into(), vec![0.5f32].into()])), (y, vec![1u8].into())])
        };
        assert!(space.contains(&point(2, "y")));
        assert!(!space.contains(&point(3, "y")) && !space.contains(&point(2, "z")));
        assert!(!space.contains(&Point::Tuple(vec![])));
        assert!(!space.contains(&vec![2.0f32, 0.5, 1.0].into()), "a row is no point");
        for (row, is_in) in [
            (&[2.0f32, 0.5, 1.0][..], true),
            (&[1.5, 0.5, 1.0], false),
            (&[2.0, 0.5], false),
            (&[2.0, 0.5, 1.0, 0.0], false),
        ] {
            assert_eq!(space.contains_row(row), Ok(is_in), "{row:?}");
        }
        assert!(
            space.contains_beyond_bounds(&[2.0f32, 1.5, 1.0]) && !space.contains_beyond_bounds(&[3.0f32, 0.5, 1.0])
        );
        assert_eq!(space.first_outside(&[2.0f32, 0.5, 1.0, 2.0, 1.5, 1.0]), Ok(Some(1)));
        assert!(matches!(space.contains_row(&[0i64, 0, 0]), Err(PointError::WrongType { .. })));
        // A float32 may exceed the bound that it was rounded from.
        let tenth = BoxSpace::new(DType::F64, RowShape::vector(1), vec![0.0], vec![0.1]).unwrap();
        assert_eq!(Space::tuple([Space::Box(tenth)]).unwrap().contains_row(&[0.1f32]), Ok(true));
    }
}
