//! Writes lists of values as text.

use rollmesh_core::column::{ColumnData, Element};

/// Writes rows as nested lists.
pub(super) fn list<T: Written>(data: &ColumnData<T>, out: &mut Vec<u8>) {
    let (values, shape) = (data.values(), data.shape());
    out.reserve(values.len() * T::LEN);
    match shape.dims() {
        [] => flat(values, out),
        dims => listed(0..data.rows(), out, |row, out| nested(data.row(row).unwrap_or_default(), dims, out)),
    }
}

fn nested<T: Written>(values: &[T], dims: &[u32], out: &mut Vec<u8>) {
    match dims {
        [] | [_] => flat(values, out),
        [_, inner @ ..] => {
            let width: usize = inner.iter().map(|dim| *dim as usize).product();
            listed(values.chunks(width.max(1)), out, |part, out| nested(part, inner, out));
        }
    }
}

/// Writes a list of items, separated by a comma and a space.
fn listed<I>(items: impl Iterator<Item = I>, out: &mut Vec<u8>, write: impl Fn(I, &mut Vec<u8>)) {
    out.push(b'[');
    for (place, item) in items.enumerate() {
        if place > 0 {
            out.extend_from_slice(b", ");
        }
        write(item, out);
    }
    out.push(b']');
}

fn flat<T: Written>(values: &[T], out: &mut Vec<u8>) {
    listed(values.iter(), out, |value, out| value.write(out));
}

/// An element that is written to JSON in Python's format.
pub(super) trait Written: Element {
    /// Usual size of an element in bytes, with comma and space.
    const LEN: usize;

    /// Appends the element.
    fn write(self, out: &mut Vec<u8>);
}

impl Written for f64 {
    const LEN: usize = 22;

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        if self.is_finite() {
            out.extend_from_slice(zmij::Buffer::new().format_finite(self).as_bytes());
        } else {
            out.extend_from_slice(match self {
                Self::INFINITY => b"Infinity",
                Self::NEG_INFINITY => b"-Infinity",
                _ => b"NaN",
            });
        }
    }
}

impl Written for f32 {
    const LEN: usize = 22;

    /// Writes the digits of 64 bits, so that a reader of 64-bit floats gets the same number.
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        f64::from(self).write(out);
    }
}

impl Written for bool {
    const LEN: usize = 7;

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self { b"true" } else { b"false" });
    }
}

macro_rules! written {
    ($($ty:ty: $len:literal),+) => {
        $(impl Written for $ty {
            const LEN: usize = $len;

            #[inline]
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(itoa::Buffer::new().format(self).as_bytes());
            }
        })+
    };
}

written!(u8: 5, i32: 6, i64: 8);
