//! A batch becomes a line.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::EncodeError;
use crate::{
    batch::{AnyBatch, BatchError, SampleBatch},
    column::{BytesKind, Column, ColumnData, Element},
    offline::{lz4, pickle::Pickle},
    prelude::*,
};

/// The columns that RLlib compresses if nobody says otherwise.
pub const COMPRESS_COLUMNS: [&str; 2] = ["obs", "new_obs"];

/// Appends a batch as one record, without the end of the line. Columns of these names are compressed; the rest is
/// written out, floats with so many digits that they are the same numbers again. Parts of nested columns go together.
///
/// A record holds columns and sequences only: what a batch says of its updates is lost, and so is whether columns that
/// are written out had 32 or 64 bits.
///
/// # Errors
/// [`EncodeError`]; what was appended then makes no sense.
#[doc(alias = "_to_json")]
pub fn encode_record(batch: &AnyBatch, compress: &[&str], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match batch {
        AnyBatch::Single(batch) => {
            out.extend_from_slice(b"{\"type\": \"SampleBatch\"");
            columns(batch, compress, true, out)?;
        }
        AnyBatch::Multi(multi) => {
            out.extend_from_slice(b"{\"type\": \"MultiAgentBatch\", \"count\": ");
            whole(multi.env_steps() as i64, out);
            out.extend_from_slice(b", \"policy_batches\": {");
            for (i, (id, batch)) in multi.policy_batches.iter().enumerate() {
                if i > 0 {
                    out.extend_from_slice(b", ");
                }
                string(id.as_str(), out);
                out.extend_from_slice(b": {");
                columns(batch, compress, false, out)?;
                out.push(b'}');
            }
            out.push(b'}');
        }
    }
    out.push(b'}');
    Ok(())
}

/// A column, or the parts of a nested one, by what is left of their names.
enum Tree<'a> {
    Column(Cow<'a, Column>),
    Parts(Vec<(&'a str, Self)>),
}

fn columns(batch: &SampleBatch, compress: &[&str], mut comma: bool, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if batch.time_major() || batch.zero_padded() {
        return Err(EncodeError::Layout(if batch.time_major() { "time-major" } else { "zero-padded" }));
    }
    let mut tree = Vec::new();
    for (name, column) in batch.iter() {
        let failed = |source| BatchError::Column { name: name.to_string(), source };
        let column = if column.is_compressed() {
            Cow::Owned(column.decompress().map_err(failed)?)
        } else {
            Cow::Borrowed(column)
        };
        if matches!(&*column, Column::Bytes(bytes) if bytes.kind() == BytesKind::Bytes) {
            return Err(EncodeError::Bytes(name.to_string()));
        }
        insert(&mut tree, name, column);
    }
    for (name, tree) in &tree {
        begin(name, &mut comma, out);
        if compress.contains(name) && tree.is_numbers() {
            packed(tree, out);
        } else {
            tree.write(out);
        }
    }
    if let Some(lens) = batch.seq_lens() {
        begin("seq_lens", &mut comma, out);
        list(&ColumnData::scalars(lens.to_vec()), out);
    }
    Ok(())
}

fn begin(name: &str, comma: &mut bool, out: &mut Vec<u8>) {
    if core::mem::replace(comma, true) {
        out.extend_from_slice(b", ");
    }
    string(name, out);
    out.extend_from_slice(b": ");
}

/// Puts a column where its name says. One whose name goes on from another column's keeps its dots.
fn insert<'a>(tree: &mut Vec<(&'a str, Tree<'a>)>, name: &'a str, column: Cow<'a, Column>) {
    if let Some((part, rest)) = name.split_once('.') {
        match tree.iter_mut().find(|(other, _)| *other == part) {
            Some((_, Tree::Parts(parts))) => return insert(parts, rest, column),
            Some((_, Tree::Column(_))) => {}
            None => {
                let mut parts = Vec::new();
                insert(&mut parts, rest, column);
                tree.push((part, Tree::Parts(parts)));
                return;
            }
        }
    }
    tree.push((name, Tree::Column(column)));
}

impl Tree<'_> {
    /// Whether there are arrays only, which can be pickled.
    fn is_numbers(&self) -> bool {
        match self {
            Self::Column(column) => column.dtype().is_some(),
            Self::Parts(parts) => parts.iter().all(|(_, part)| part.is_numbers()),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Column(column) => written_out(column, out),
            Self::Parts(parts) => {
                out.push(b'{');
                let mut comma = false;
                for (name, part) in parts {
                    begin(name, &mut comma, out);
                    part.write(out);
                }
                out.push(b'}');
            }
        }
    }

    fn pickle(&self, pickle: &mut Pickle) {
        match self {
            Self::Column(column) => match &**column {
                Column::F32(data) => pickle.array(data),
                Column::F64(data) => pickle.array(data),
                Column::I32(data) => pickle.array(data),
                Column::I64(data) => pickle.array(data),
                Column::U8(data) => pickle.array(data),
                Column::Bool(data) => pickle.array(data),
                // Not asked for: see `is_numbers`.
                Column::Bytes(_) | Column::Compressed(_) => {}
            },
            // Parts that are numbered from 0 are a tuple's.
            Self::Parts(parts) if parts.iter().enumerate().all(|(i, (name, _))| name.parse() == Ok(i)) => {
                pickle.open_tuple();
                parts.iter().for_each(|(_, part)| part.pickle(pickle));
                pickle.close_tuple();
            }
            Self::Parts(parts) => {
                pickle.open_dict();
                for (name, part) in parts {
                    pickle.key(name);
                    part.pickle(pickle);
                }
                pickle.close_dict();
            }
        }
    }
}

fn packed(tree: &Tree<'_>, out: &mut Vec<u8>) {
    let mut pickle = Pickle::new();
    tree.pickle(&mut pickle);
    let mut frame = Vec::new();
    lz4::compress(&pickle.finish(), &mut frame);
    out.push(b'"');
    let start = out.len();
    out.resize(start + frame.len().div_ceil(3) * 4, 0);
    // There is room for it.
    let written = STANDARD.encode_slice(&frame, out.get_mut(start..).unwrap_or_default()).unwrap_or_default();
    out.truncate(start + written);
    out.push(b'"');
}

fn written_out(column: &Column, out: &mut Vec<u8>) {
    match column {
        Column::F32(data) => list(data, out),
        Column::F64(data) => list(data, out),
        Column::I32(data) => list(data, out),
        Column::I64(data) => list(data, out),
        Column::U8(data) => list(data, out),
        Column::Bool(data) => list(data, out),
        Column::Bytes(texts) => {
            out.push(b'[');
            for (i, text) in texts.iter().enumerate() {
                if i > 0 {
                    out.extend_from_slice(b", ");
                }
                out.extend_from_slice(if text.is_empty() { b"null" } else { text });
            }
            out.push(b']');
        }
        Column::Compressed(_) => out.extend_from_slice(b"[]"),
    }
}

/// Rows as lists within lists.
fn list<T: Written>(data: &ColumnData<T>, out: &mut Vec<u8>) {
    let (values, shape) = (data.values(), data.shape());
    out.reserve(values.len() * T::LEN);
    if shape.dims().is_empty() {
        return flat(values, out);
    }
    out.push(b'[');
    for row in 0..data.rows() {
        nested(data.row(row).unwrap_or_default(), shape.dims(), out);
        out.extend_from_slice(b", ");
    }
    end(data.rows(), out);
}

fn nested<T: Written>(values: &[T], dims: &[u32], out: &mut Vec<u8>) {
    let [_, inner @ ..] = dims else { return };
    if inner.is_empty() {
        return flat(values, out);
    }
    let width: usize = inner.iter().map(|dim| *dim as usize).product();
    let parts = values.chunks(width.max(1));
    let n = parts.len();
    out.push(b'[');
    for part in parts {
        nested(part, inner, out);
        out.extend_from_slice(b", ");
    }
    end(n, out);
}

/// The end of a list of so many items, each with the comma and the space that the last one has not.
fn end(items: usize, out: &mut Vec<u8>) {
    out.truncate(out.len() - if items > 0 { 2 } else { 0 });
    out.push(b']');
}

/// Bytes that a value must have taken again before more of it are looked for.
const REPEATED: usize = 16;

fn flat<T: Written>(values: &[T], out: &mut Vec<u8>) {
    out.push(b'[');
    let (mut rest, mut last, mut same) = (values, None, 0);
    while let [value, after @ ..] = rest {
        let start = out.len();
        value.write(out);
        let len = out.len() - start;
        same = if last == Some(value.bits()) { same + len } else { 0 };
        (last, rest) = (Some(value.bits()), after);
        if same >= REPEATED {
            // What is the same again and again, as in many columns, is copied.
            let more = after.iter().take_while(|next| Some(next.bits()) == last).count();
            again(start, more, out);
            (rest, same) = (after.get(more..).unwrap_or_default(), 0);
        }
    }
    end(values.len(), out);
}

/// Appends what there is from `start` on so many times more, each time twice as much.
fn again(start: usize, more: usize, out: &mut Vec<u8>) {
    let mut left = (out.len() - start) * more;
    while left > 0 {
        let piece = left.min(out.len() - start);
        out.extend_from_within(start..start + piece);
        left -= piece;
    }
}

/// An element in JSON, as Python writes it.
trait Written: Element {
    /// Bytes that one of them takes at most times, with comma and space.
    const LEN: usize;

    /// With comma and space.
    fn write(self, out: &mut Vec<u8>);

    /// Who has the same is written alike.
    fn bits(self) -> u64;
}

impl Written for f64 {
    const LEN: usize = 22;

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        if self.is_finite() {
            short(zmij::Buffer::new().format_finite(self).as_bytes(), out);
        } else if self.is_nan() {
            out.extend_from_slice(b"NaN");
        } else {
            out.extend_from_slice(if self > 0.0 { b"Infinity" } else { b"-Infinity" });
        }
        out.extend_from_slice(b", ");
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// Appends a text, most of which have 16 bytes and not many more: its front and its back, whose
/// lengths are known.
#[inline]
fn short(text: &[u8], out: &mut Vec<u8>) {
    let (Some(front), Some(back)) = (text.first_chunk::<16>(), text.last_chunk::<8>()) else {
        return out.extend_from_slice(text);
    };
    if text.len() > 24 {
        return out.extend_from_slice(text);
    }
    out.extend_from_slice(front);
    out.truncate(out.len() - (24 - text.len()));
    out.extend_from_slice(back);
}

impl Written for f32 {
    const LEN: usize = 22;

    /// With the digits of 64 bits: who reads them as such has the same number.
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        f64::from(self).write(out);
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Written for bool {
    const LEN: usize = 7;

    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self { b"true, " } else { b"false, " });
    }

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
                whole(self.into(), out);
                out.extend_from_slice(b", ");
            }

            fn bits(self) -> u64 {
                i64::from(self) as u64
            }
        })+
    };
}

written!(u8: 5, i32: 6, i64: 8);

fn whole(number: i64, out: &mut Vec<u8>) {
    match number {
        0..=9 => out.push(b'0' + number as u8),
        10..=99 => out.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]),
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

fn string(text: &str, out: &mut Vec<u8>) {
    // A text always has a form in JSON.
    out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
}
