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
        if row > 0 {
            out.extend_from_slice(b", ");
        }
        nested(data.row(row).unwrap_or_default(), shape.dims(), out);
    }
    out.push(b']');
}

fn nested<T: Written>(values: &[T], dims: &[u32], out: &mut Vec<u8>) {
    let [_, inner @ ..] = dims else { return };
    if inner.is_empty() {
        return flat(values, out);
    }
    let width: usize = inner.iter().map(|dim| *dim as usize).product();
    out.push(b'[');
    for (i, part) in values.chunks(width.max(1)).enumerate() {
        if i > 0 {
            out.extend_from_slice(b", ");
        }
        nested(part, inner, out);
    }
    out.push(b']');
}

fn flat<T: Written>(values: &[T], out: &mut Vec<u8>) {
    out.push(b'[');
    let Some((first, rest)) = values.split_first() else { return out.push(b']') };
    first.write(out);
    // What is the same again, as in many columns, is copied.
    let (mut last, mut text) = (*first, 0..0);
    for value in rest {
        if value.is_same(last) && !text.is_empty() {
            out.extend_from_within(text.clone());
            continue;
        }
        let start = out.len();
        out.extend_from_slice(b", ");
        value.write(out);
        (last, text) = (*value, start..out.len());
    }
    out.push(b']');
}

/// An element in JSON, as Python writes it.
trait Written: Element {
    /// Bytes that one of them takes at most times, with comma and space.
    const LEN: usize;

    fn write(self, out: &mut Vec<u8>);

    /// Whether both are written alike.
    fn is_same(self, other: Self) -> bool;
}

impl Written for f64 {
    const LEN: usize = 22;

    fn write(self, out: &mut Vec<u8>) {
        if self.is_finite() {
            out.extend_from_slice(zmij::Buffer::new().format_finite(self).as_bytes());
        } else if self.is_nan() {
            out.extend_from_slice(b"NaN");
        } else {
            out.extend_from_slice(if self > 0.0 { b"Infinity" } else { b"-Infinity" });
        }
    }

    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl Written for f32 {
    const LEN: usize = 22;

    /// With the digits of 64 bits: who reads them as such has the same number.
    fn write(self, out: &mut Vec<u8>) {
        f64::from(self).write(out);
    }

    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl Written for bool {
    const LEN: usize = 7;

    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self { b"true" } else { b"false" });
    }

    fn is_same(self, other: Self) -> bool {
        self == other
    }
}

macro_rules! written {
    ($($ty:ty: $len:literal),+) => {
        $(impl Written for $ty {
            const LEN: usize = $len;

            fn write(self, out: &mut Vec<u8>) {
                whole(self.into(), out);
            }

            fn is_same(self, other: Self) -> bool {
                self == other
            }
        })+
    };
}

written!(u8: 5, i32: 6, i64: 8);

fn whole(number: i64, out: &mut Vec<u8>) {
    if let 0..=9 = number {
        return out.push(b'0' + number as u8);
    }
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn string(text: &str, out: &mut Vec<u8>) {
    // A text always has a form in JSON.
    out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
}
