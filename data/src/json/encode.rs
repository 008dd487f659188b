//! Encodes a batch as a line.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rollmesh_core::{
    batch::{AnyBatch, BatchError, SampleBatch},
    by_type,
    column::{BytesKind, Column, ColumnData},
};

use super::{EncodeError, print::list};
use crate::{lz4, pickle::Pickle};

/// The columns that RLlib compresses by default.
pub const COMPRESS_COLUMNS: [&str; 2] = ["obs", "new_obs"];

/// Appends a batch as one record, without the end of the line. Columns with these names are compressed; others are written
/// as text, floats with enough digits to restore the same numbers. Parts of nested columns are combined.
///
/// A record holds only columns and sequences: the batch's number of updates is lost, as is the difference between 32 and 64
/// bits in uncompressed columns.
///
/// # Errors
/// [`EncodeError`]; the appended bytes are then invalid.
#[doc(alias = "_to_json")]
pub fn encode_record(batch: &AnyBatch, compress: &[&str], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match batch {
        AnyBatch::Single(batch) => {
            out.extend_from_slice(b"{\"type\": \"SampleBatch\"");
            columns(batch, compress, true, out)?;
        }
        AnyBatch::Multi(multi) => {
            out.extend_from_slice(b"{\"type\": \"MultiAgentBatch\", \"count\": ");
            out.extend_from_slice(itoa::Buffer::new().format(multi.env_steps()).as_bytes());
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

/// A column, or the parts of a nested one, by the remainder of their names.
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
    if std::mem::replace(comma, true) {
        out.extend_from_slice(b", ");
    }
    string(name, out);
    out.extend_from_slice(b": ");
}

/// Inserts a column at the place that its name gives. A name that extends another column's name keeps its dots.
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
    /// Returns whether it consists of arrays only, which can be pickled.
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
            // Bytes are unreachable: see `is_numbers`.
            Self::Column(column) => {
                by_type!(Column, &**column, data => pickle.array(data), Column::Bytes(_) | Column::Compressed(_) => {})
            }
            // Parts numbered from 0 form a tuple.
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
    // The capacity was reserved above.
    let written = STANDARD.encode_slice(&frame, out.get_mut(start..).unwrap_or_default()).unwrap_or_default();
    out.truncate(start + written);
    out.push(b'"');
}

fn written_out(column: &Column, out: &mut Vec<u8>) {
    by_type!(
        Column,
        column,
        data => list(data, out),
        Column::Bytes(texts) => {
            out.push(b'[');
            for (i, text) in texts.iter().enumerate() {
                if i > 0 {
                    out.extend_from_slice(b", ");
                }
                // Between values, a line break is ordinary white space.
                let text = if text.is_empty() { b"null" } else { text };
                out.extend(text.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
            }
            out.push(b']');
        },
        Column::Compressed(_) => out.extend_from_slice(b"[]"),
    );
}

fn string(text: &str, out: &mut Vec<u8>) {
    // Any text can be written as JSON.
    out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
}
