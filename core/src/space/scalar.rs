//! Defines the elements of points: numbers that can be compared with bounds.

use super::Point;
use crate::{column::Element, prelude::*};

/// An [`Element`] that can be compared with bounds and converted from numbers: every type is one.
pub trait Scalar: Element + PartialOrd {
    /// Returns the element as a number; rounds integers beyond 2^53, and converts true to 1.
    fn to_f64(self) -> f64;

    /// Returns the nearest element towards zero: truncates fractions, clamps numbers out of range, and converts NaN to an
    /// integer 0. Any number except 0 is true.
    fn from_f64(x: f64) -> Self;

    /// Returns true between the bounds, exactly. The bounds are exact in this type, or infinite.
    fn within(self, low: f64, high: f64) -> bool;

    /// Converts the elements to a point.
    fn into_point(values: Vec<Self>) -> Point;

    /// Returns the elements, if they are bytes.
    fn bytes(_values: &[Self]) -> Option<&[u8]> {
        None
    }

    /// Returns the elements of a point, if they have this type.
    fn of_point(point: &Point) -> Option<&[Self]>;
}

macro_rules! scalar {
    ($($variant:ident($ty:ty): $to:expr, $from:expr, $within:expr $(, $bytes:item)?;)+) => {
        $(
            impl Scalar for $ty {
                #[inline]
                fn to_f64(self) -> f64 {
                    $to(self)
                }
                #[inline]
                fn from_f64(x: f64) -> Self {
                    $from(x)
                }
                #[inline]
                fn within(self, low: f64, high: f64) -> bool {
                    $within(self, low, high)
                }
                $($bytes)?
                fn into_point(values: Vec<Self>) -> Point {
                    Point::$variant(values)
                }
                fn of_point(point: &Point) -> Option<&[Self]> {
                    if let Point::$variant(values) = point { Some(values) } else { None }
                }
            }

            impl From<Vec<$ty>> for Point {
                fn from(values: Vec<$ty>) -> Self {
                    Self::$variant(values)
                }
            }
        )+
    };
}

scalar! {
    F32(f32): f64::from, |x| x as f32, between;
    F64(f64): |x| x, |x| x, between;
    I32(i32): f64::from, |x| x as i32, between;
    // Not compared as floats: 2^53 + 1 would be rounded to a bound of 2^53. The cast converts infinities to the limits.
    I64(i64): |x| x as f64, |x| x as i64, |x, low, high| low as i64 <= x && x <= high as i64;
    U8(u8): f64::from, |x| x as u8, between, fn bytes(values: &[Self]) -> Option<&[u8]> { Some(values) };
    Bool(bool): |x| f64::from(u8::from(x)), |x| x != 0.0, |x, low, high| between(u8::from(x), low, high);
}

#[inline]
fn between(x: impl Into<f64>, low: f64, high: f64) -> bool {
    let x = x.into();
    low <= x && x <= high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_are_compared_exactly() {
        let limit = (1i64 << 53) as f64;
        assert!((1i64 << 53).within(-limit, limit) && !((1i64 << 53) + 1).within(-limit, limit));
        assert!(i64::MAX.within(0.0, f64::INFINITY) && i64::MIN.within(f64::NEG_INFINITY, 0.0));
    }

    #[test]
    fn numbers_saturate() {
        assert_eq!((u8::from_f64(-1.0), u8::from_f64(300.0), i32::from_f64(-2.7)), (0, 255, -2));
        assert_eq!((i64::from_f64(f64::NAN), bool::from_f64(0.0), bool::from_f64(1.0)), (0, false, true));
        assert!(!f32::NAN.within(f64::NEG_INFINITY, f64::INFINITY));
    }
}
