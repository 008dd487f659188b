//! Lists of values as text.

use rollmesh_core::column::{ColumnData, Element};

use super::{
    digits::small,
    fixed::{ROOM, fixed},
};

/// Bytes by which there is more room each time.
const MORE: usize = 1 << 10;

/// Bytes that a value must have taken again before more of it are looked for.
const REPEATED: usize = 16;

/// Appends to a text with room behind it, which is known once per value.
struct Pen<'a> {
    out: &'a mut Vec<u8>,
    /// Where the text ends.
    at: usize,
}

impl<'a> Pen<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        Self { at: out.len(), out }
    }

    /// Appends what is written to the front of some room, as many bytes as `write` says.
    #[inline(always)]
    fn write(&mut self, write: impl FnOnce(&mut [u8; ROOM]) -> usize) {
        if self.out.len() < self.at + ROOM {
            self.grow();
        }
        if let Some(room) = self.out.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            self.at += write(room);
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.out.resize(self.at + ROOM + MORE, 0);
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, text: [u8; N]) {
        self.write(|room| text_of(room, text));
    }

    /// Appends what there is from `start` on so many times more, each time twice as much.
    fn again(&mut self, start: usize, more: usize) {
        self.out.truncate(self.at);
        let mut left = (self.at - start) * more;
        while left > 0 {
            let piece = left.min(self.out.len() - start);
            self.out.extend_from_within(start..start + piece);
            left -= piece;
        }
        self.at = self.out.len();
    }

    /// The end of a list of so many items, each with the comma and the space that the last one has not.
    #[inline(always)]
    fn end(&mut self, items: usize) {
        self.at -= if items > 0 { 2 } else { 0 };
        self.put([b']']);
    }
}

impl Drop for Pen<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.at);
    }
}

/// Rows as lists within lists.
pub(super) fn list<T: Written>(data: &ColumnData<T>, out: &mut Vec<u8>) {
    let (values, shape) = (data.values(), data.shape());
    out.reserve(values.len() * T::LEN);
    let mut pen = Pen::new(out);
    if shape.dims().is_empty() {
        return flat(values, &mut pen);
    }
    pen.put([b'[']);
    for row in 0..data.rows() {
        nested(data.row(row).unwrap_or_default(), shape.dims(), &mut pen);
        pen.put([b',', b' ']);
    }
    pen.end(data.rows());
}

fn nested<T: Written>(values: &[T], dims: &[u32], pen: &mut Pen<'_>) {
    let [_, inner @ ..] = dims else { return };
    if inner.is_empty() {
        return flat(values, pen);
    }
    let width: usize = inner.iter().map(|dim| *dim as usize).product();
    let parts = values.chunks(width.max(1));
    let n = parts.len();
    pen.put([b'[']);
    for part in parts {
        nested(part, inner, pen);
        pen.put([b',', b' ']);
    }
    pen.end(n);
}

fn flat<T: Written>(values: &[T], pen: &mut Pen<'_>) {
    pen.put([b'[']);
    let (mut rest, mut last, mut same) = (values, None, 0);
    while let [value, after @ ..] = rest {
        let start = pen.at;
        pen.write(|room| value.write(room));
        let len = pen.at - start;
        same = if last == Some(value.bits()) { same + len } else { 0 };
        (last, rest) = (Some(value.bits()), after);
        if same >= REPEATED {
            // What is the same again and again, as in many columns, is copied.
            let more = after.iter().take_while(|next| Some(next.bits()) == last).count();
            pen.again(start, more);
            (rest, same) = (after.get(more..).unwrap_or_default(), 0);
        }
    }
    pen.end(values.len());
}

/// Writes to the front; returns how many bytes.
#[inline(always)]
fn text_of<const N: usize>(room: &mut [u8; ROOM], text: [u8; N]) -> usize {
    room.first_chunk_mut().map_or(0, |front| {
        *front = text;
        N
    })
}

/// A text that is not known to be short, with a comma and a space.
#[inline]
fn any_text(room: &mut [u8; ROOM], text: &[u8]) -> usize {
    let Some(front) = room.get_mut(..text.len()) else { return 0 };
    front.copy_from_slice(text);
    comma(room, text.len())
}

/// Writes a comma and a space behind so many bytes; returns how many there are then.
#[inline(always)]
fn comma(room: &mut [u8; ROOM], len: usize) -> usize {
    match room.get_mut(len..).and_then(|rest| rest.first_chunk_mut()) {
        Some(place) => {
            *place = [b',', b' '];
            len + 2
        }
        None => len,
    }
}

/// An element in JSON, as Python writes it.
pub(super) trait Written: Element {
    /// Bytes that one of them takes at most times, with comma and space.
    const LEN: usize;

    /// Writes it with comma and space; returns how many bytes.
    fn write(self, room: &mut [u8; ROOM]) -> usize;

    /// Who has the same is written alike.
    fn bits(self) -> u64;
}

impl Written for f64 {
    const LEN: usize = 22;

    #[inline(always)]
    fn write(self, room: &mut [u8; ROOM]) -> usize {
        match fixed(self, room) {
            Some(len) => comma(room, len),
            None => any_float(self, room),
        }
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

#[inline(never)]
fn any_float(number: f64, room: &mut [u8; ROOM]) -> usize {
    if number.is_finite() {
        any_text(room, zmij::Buffer::new().format_finite(number).as_bytes())
    } else if number.is_nan() {
        any_text(room, b"NaN")
    } else {
        any_text(room, if number > 0.0 { b"Infinity" } else { b"-Infinity" })
    }
}

impl Written for f32 {
    const LEN: usize = 22;

    /// With the digits of 64 bits: who reads them as such has the same number.
    #[inline(always)]
    fn write(self, room: &mut [u8; ROOM]) -> usize {
        f64::from(self).write(room)
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Written for bool {
    const LEN: usize = 7;

    #[inline(always)]
    fn write(self, room: &mut [u8; ROOM]) -> usize {
        if self { text_of(room, *b"true, ") } else { text_of(room, *b"false, ") }
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.into()
    }
}

macro_rules! written {
    ($($ty:ty: $len:literal),+) => {
        $(impl Written for $ty {
            const LEN: usize = $len;

            #[inline(always)]
            fn write(self, room: &mut [u8; ROOM]) -> usize {
                whole(self.into(), room)
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                i64::from(self) as u64
            }
        })+
    };
}

written!(u8: 5, i32: 6, i64: 8);

#[inline(always)]
fn whole(number: i64, room: &mut [u8; ROOM]) -> usize {
    match number {
        0..=9 => text_of(room, [b'0' + number as u8, b',', b' ']),
        10..=99_999_999 => {
            let (text, len) = small(number as u64);
            text_of(room, text);
            comma(room, len)
        }
        _ => any_text(room, itoa::Buffer::new().format(number).as_bytes()),
    }
}
