//! Lists of values as text.

use rollmesh_core::column::{ColumnData, Element};

/// Bytes that a value must have taken again before more of it are looked for.
const REPEATED: usize = 16;

/// Rows as lists within lists.
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

/// A list of items, with a comma and a space between two of them.
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
    out.push(b'[');
    let (mut rest, mut last, mut same) = (values, None, 0);
    while let [value, after @ ..] = rest {
        let start = out.len();
        value.write(out);
        out.extend_from_slice(b", ");
        same = if last == Some(value.bits()) { same + out.len() - start } else { 0 };
        (last, rest) = (Some(value.bits()), after);
        if same >= REPEATED {
            // What is the same again and again, as in many columns, is copied.
            let more = after.iter().take_while(|next| Some(next.bits()) == last).count();
            let again = out.get(start..).unwrap_or_default().repeat(more);
            out.extend_from_slice(&again);
            (rest, same) = (after.get(more..).unwrap_or_default(), 0);
        }
    }
    // The last value has no comma and space behind it.
    out.truncate(out.len() - if values.is_empty() { 0 } else { 2 });
    out.push(b']');
}

/// An element in JSON, as Python writes it.
pub(super) trait Written: Element {
    /// Bytes that one of them takes at most times, with comma and space.
    const LEN: usize;

    /// Appends it.
    fn write(self, out: &mut Vec<u8>);

    /// Elements of the same bits are written alike.
    fn bits(self) -> u64;
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

    #[inline]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Written for f32 {
    const LEN: usize = 22;

    /// With the digits of 64 bits: a reader that takes them as such has the same number.
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        f64::from(self).write(out);
    }

    #[inline]
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Written for bool {
    const LEN: usize = 7;

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self { b"true" } else { b"false" });
    }

    #[inline]
    fn bits(self) -> u64 {
        self.into()
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

            #[inline]
            fn bits(self) -> u64 {
                i64::from(self) as u64
            }
        })+
    };
}

written!(u8: 5, i32: 6, i64: 8);
