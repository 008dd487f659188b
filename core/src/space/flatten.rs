//! Converts points to flat vectors of numbers, and back.

use super::{Point, PointError, Space};
use crate::{
    column::{DType, Element, by_type},
    prelude::*,
};

impl Space {
    /// Returns the length of a flattened point: the components of a box or multi-binary space, the values of a discrete
    /// space, the values of all components of a multi-discrete space, and the sum over the parts of tuples and dicts.
    #[doc(alias = "flatdim")]
    #[must_use]
    pub fn flat_dim(&self) -> u64 {
        match self {
            Self::Box(space) => space.elements() as u64,
            Self::Discrete { n } | Self::MultiBinary { n } => u64::from(*n),
            Self::MultiDiscrete { nvec } => nvec.iter().map(|n| u64::from(*n)).sum(),
            Self::Tuple(parts) => parts.iter().fold(0, |sum, part| part.flat_dim().saturating_add(sum)),
            Self::Dict(parts) => parts.values().fold(0, |sum, part| part.flat_dim().saturating_add(sum)),
        }
    }

    /// Writes a point as [`flat_dim`](Self::flat_dim) numbers: boxes and multi-binaries unchanged, discrete components
    /// one-hot, and parts in order, those of a dict sorted by name.
    ///
    /// # Errors
    /// [`PointError::WrongLength`] for the buffer, [`PointError::Outside`] for a point that is not in the space.
    pub fn flatten<T: Element>(&self, point: &Point, out: &mut [T]) -> Result<(), PointError> {
        self.check_flat(out.len())?;
        if !self.contains(point) {
            return Err(PointError::outside(self, point));
        }
        self.write_flat(point, out);
        Ok(())
    }

    /// Returns the point that [`flatten`](Self::flatten) gave. In a one-hot vector, the first nonzero number counts.
    ///
    /// # Errors
    /// [`PointError::WrongLength`], and [`PointError::Outside`] when the numbers do not encode a point of the space.
    pub fn unflatten<T: Element>(&self, flat: &[T]) -> Result<Point, PointError> {
        self.check_flat(flat.len())?;
        let outside = || PointError::Outside { space: self.to_string(), found: format!("{flat:?}") };
        self.read_flat(flat).filter(|point| self.contains(point)).ok_or_else(outside)
    }

    fn check_flat(&self, found: usize) -> Result<(), PointError> {
        let wanted = self.flat_dim();
        if found as u64 == wanted {
            return Ok(());
        }
        Err(PointError::WrongLength { space: self.to_string(), wanted, found })
    }

    /// Writes a flattened point. The caller has checked it.
    fn write_flat<T: Element>(&self, point: &Point, out: &mut [T]) {
        match (self, point) {
            (Self::Tuple(spaces), Point::Tuple(parts)) => write_parts(spaces.iter().zip(parts), out),
            (Self::Dict(spaces), Point::Dict(parts)) => write_parts(spaces.values().zip(parts.values()), out),
            _ => by_type!(Point, point, values => self.flatten_row(values, out), _ => ()),
        }
    }

    /// Works as [`flatten`](Self::flatten), for a row of a fundamental space that is known to be in it.
    pub(crate) fn flatten_row<S: Element, T: Element>(&self, row: &[S], out: &mut [T]) {
        match self {
            Self::Discrete { n } => one_hots(row, &[*n], out),
            Self::MultiDiscrete { nvec } => one_hots(row, nvec, out),
            _ => out.iter_mut().zip(row).for_each(|(out, x)| *out = T::from_f64(x.to_f64())),
        }
    }

    fn read_flat<T: Element>(&self, flat: &[T]) -> Option<Point> {
        Some(match self {
            Self::Box(space) => Point::cast(flat, space.dtype()),
            Self::MultiBinary { .. } => Point::cast(flat, DType::U8),
            Self::Discrete { n } => Point::I64(hot_indices(&[*n], flat)?),
            Self::MultiDiscrete { nvec } => Point::I64(hot_indices(nvec, flat)?),
            Self::Tuple(parts) => {
                let mut rest = flat;
                let read = parts.iter().map(|part| part.read_flat(split_off(&mut rest, part)?));
                Point::Tuple(read.collect::<Option<_>>()?)
            }
            Self::Dict(parts) => {
                let mut rest = flat;
                let read =
                    parts.iter().map(|(name, part)| Some((name.clone(), part.read_flat(split_off(&mut rest, part)?)?)));
                Point::Dict(read.collect::<Option<_>>()?)
            }
        })
    }
}

fn write_parts<'a, T: Element>(parts: impl Iterator<Item = (&'a Space, &'a Point)>, mut out: &mut [T]) {
    for (space, point) in parts {
        let Some((own, rest)) = out.split_at_mut_checked(space.flat_dim() as usize) else { return };
        space.write_flat(point, own);
        out = rest;
    }
}

fn split_off<'a, T>(rest: &mut &'a [T], space: &Space) -> Option<&'a [T]> {
    let (own, others) = rest.split_at_checked(usize::try_from(space.flat_dim()).ok()?)?;
    *rest = others;
    Some(own)
}

fn one_hots<S: Element, T: Element>(row: &[S], nvec: &[u32], mut out: &mut [T]) {
    out.fill(T::from_f64(0.0));
    for (x, n) in row.iter().zip(nvec) {
        let Some((own, rest)) = out.split_at_mut_checked(*n as usize) else { return };
        if let Some(hot) = own.get_mut(x.to_f64() as usize) {
            *hot = T::from_f64(1.0);
        }
        out = rest;
    }
}

fn hot_indices<T: Element>(nvec: &[u32], mut flat: &[T]) -> Option<Vec<i64>> {
    let index = |n: &u32| {
        let (own, rest) = flat.split_at_checked(*n as usize)?;
        flat = rest;
        own.iter().position(|x| x.to_f64() != 0.0).map(|index| index as i64)
    };
    nvec.iter().map(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_become_numbers_and_back() {
        let space = Space::dict([
            ("b", Space::tuple([Space::Discrete { n: 3 }, Space::vector(&[0.0; 2], &[9.0; 2])]).unwrap()),
            ("a", Space::multi_discrete([2, 2]).unwrap()),
            ("c", Space::multi_binary(2).unwrap()),
        ])
        .unwrap();
        let point = Point::dict([
            ("b", Point::Tuple(vec![2.into(), vec![4.5f32, 5.5].into()])),
            ("a", vec![1i64, 0].into()),
            ("c", vec![0u8, 1].into()),
        ]);
        let mut flat = [9.0f64; 11];
        space.flatten(&point, &mut flat).unwrap();
        assert_eq!(flat, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 4.5, 5.5, 0.0, 1.0]);
        assert_eq!(space.unflatten(&flat).unwrap(), point);
    }

    #[test]
    fn points_and_buffers_of_another_size_are_refused() {
        let space = Space::Discrete { n: 3 };
        let error = space.flatten(&3.into(), &mut [0.0f32; 3]).unwrap_err();
        assert_eq!(error.to_string(), "1 values of int64 is no point of Discrete(3)");
        let error = space.flatten(&2.into(), &mut [0.0f32; 2]).unwrap_err();
        assert_eq!(error.to_string(), "Discrete(3) needs 3 elements, here are 2");
        assert!(matches!(space.unflatten(&[0.0f32; 3]), Err(PointError::Outside { .. })));
        assert!(Space::vector(&[0.0], &[1.0]).unflatten(&[2.0f64]).is_err());
    }
}
