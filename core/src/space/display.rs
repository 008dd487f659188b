//! Formats spaces as Gymnasium does.

use core::fmt;

use super::{BoxSpace, Space};
use crate::column::{DType, RowShape};

/// Maximum number of bounds that are written in full; for more, only the first and last three are.
const SHORT: usize = 8;

/// Formats the space as Gymnasium does: `Box(-1.0, 1.0, (3,), float32)`.
impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Box(space) => {
                f.write_str("Box(")?;
                side(f, space, false)?;
                f.write_str(", ")?;
                side(f, space, true)?;
                write!(f, ", {}, {})", PyTuple(space.shape()), space.dtype())
            }
            Self::Discrete { n } => write!(f, "Discrete({n})"),
            Self::MultiDiscrete { nvec } => {
                f.write_str("MultiDiscrete(")?;
                array(f, nvec, |f, n| write!(f, "{n}"))?;
                f.write_str(")")
            }
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
                    write!(f, "{}'{name}': {part}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

fn side(f: &mut fmt::Formatter<'_>, space: &BoxSpace, upper: bool) -> fmt::Result {
    match space.side(upper) {
        (Some(bound), _) => number(f, bound, space.dtype()),
        (None, bounds) => array(f, bounds, |f, bound| number(f, *bound, space.dtype())),
    }
}

fn number(f: &mut fmt::Formatter<'_>, x: f64, dtype: DType) -> fmt::Result {
    match dtype {
        DType::F32 => write!(f, "{:?}", x as f32),
        DType::F64 => write!(f, "{x:?}"),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => write!(f, "{x}"),
    }
}

fn array<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    item: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (i, x) in items.iter().enumerate() {
        if items.len() <= SHORT || i < 3 || i + 3 >= items.len() {
            f.write_str(if i > 0 { " " } else { "" })?;
            item(f, x)?;
        } else if i == 3 {
            f.write_str(" ...")?;
        }
    }
    f.write_str("]")
}

/// Formats a shape as `(3,)`, unlike a [`RowShape`] in this crate's own messages.
struct PyTuple(RowShape);

impl fmt::Display for PyTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.dims() {
            [n] => write!(f, "({n},)"),
            _ => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn spaces_look_like_gymnasiums() {
        let image = Space::uniform(DType::U8, RowShape::new(&[210, 160, 3]).unwrap(), 0.0, 255.0);
        assert_eq!(image.to_string(), "Box(0, 255, (210, 160, 3), uint8)");
        let cart = Space::vector(&[-4.8, f32::NEG_INFINITY], &[4.8, f32::INFINITY]);
        assert_eq!(cart.to_string(), "Box([-4.8 -inf], [4.8 inf], (2,), float32)");
        let scalar = Space::uniform(DType::F64, RowShape::SCALAR, -1.0, 1e300);
        assert_eq!(scalar.to_string(), "Box(-1.0, 1e300, (), float64)");
        let nvec: Vec<u32> = (1..=9).collect();
        let parts = [Space::Discrete { n: 2 }, Space::MultiDiscrete { nvec }, Space::MultiBinary { n: 4 }];
        let tuple = Space::tuple(parts).unwrap();
        assert_eq!(tuple.to_string(), "Tuple(Discrete(2), MultiDiscrete([1 2 3 ... 7 8 9]), MultiBinary(4))");
        let dict = Space::dict([("b", tuple), ("a", Space::MultiDiscrete { nvec: vec![5, 2] })]).unwrap();
        assert!(dict.to_string().starts_with("Dict('a': MultiDiscrete([5 2]), 'b': Tuple("));
    }
}
