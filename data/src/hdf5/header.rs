//! Reads object headers: the messages that describe a node.

use super::{Context, Hdf5Error};

pub(super) const DATASPACE: u16 = 0x01;
pub(super) const LINK_INFO: u16 = 0x02;
pub(super) const DATATYPE: u16 = 0x03;
pub(super) const FILL_VALUE: u16 = 0x05;
pub(super) const LINK: u16 = 0x06;
pub(super) const LAYOUT: u16 = 0x08;
pub(super) const FILTERS: u16 = 0x0b;
pub(super) const ATTRIBUTE: u16 = 0x0c;
const CONTINUATION: u16 = 0x10;
pub(super) const SYMBOL_TABLE: u16 = 0x11;

/// Maximum number of blocks of one header; writers use a few.
const MAX_BLOCKS: usize = 256;

/// One message of a header.
pub(super) struct Message {
    pub(super) kind: u16,
    /// Whether the body is stored elsewhere, shared by several nodes.
    pub(super) shared: bool,
    pub(super) body: Vec<u8>,
}

/// Reads all messages of the header at this address, including those in continuations.
pub(super) fn read(context: &Context, address: u64) -> Result<Vec<Message>, Hdf5Error> {
    let start = context.up_to(address, 64, "an object header")?;
    let mut cursor = context.cursor(&start);
    let modern = start.starts_with(b"OHDR");
    let (first, size, ordered) = if modern {
        cursor.skip(5)?;
        let flags = cursor.u8()?;
        cursor.skip(if flags & 0x20 != 0 { 16 } else { 0 })?;
        cursor.skip(if flags & 0x10 != 0 { 4 } else { 0 })?;
        let size = cursor.uint(1 << (flags & 3))?;
        ((start.len() - cursor.remaining()) as u64, size, flags & 4 != 0)
    } else {
        if cursor.u8()? != 1 {
            return Err(Hdf5Error::Corrupt("an object header of unknown version"));
        }
        cursor.skip(7)?;
        (16, u64::from(cursor.u32()?), false)
    };
    let mut blocks = vec![(address.saturating_add(first), size, false)];
    let mut messages = Vec::new();
    let (mut next, mut total) = (0, 0);
    while let Some(&(address, size, continued)) = blocks.get(next) {
        next += 1;
        total += size;
        if next > MAX_BLOCKS || total > context.source.size() {
            return Err(Hdf5Error::Corrupt("an object header without end"));
        }
        let bytes = context.bytes(address, size, "an object header")?;
        // Continuation blocks of newer headers have a signature; all blocks end with a checksum, which the first block's
        // size excludes.
        let bytes = match (modern && continued, bytes.len().checked_sub(4)) {
            (false, _) => bytes.as_slice(),
            (true, Some(end)) => bytes.get(4..end).ok_or(Hdf5Error::Corrupt("a short continuation"))?,
            (true, None) => return Err(Hdf5Error::Corrupt("a short continuation")),
        };
        let mut cursor = context.cursor(bytes);
        let prefix = if modern { 4 + 2 * usize::from(ordered) } else { 8 };
        while cursor.remaining() >= prefix {
            let kind = if modern { u16::from(cursor.u8()?) } else { cursor.u16()? };
            let size = cursor.u16()?;
            let flags = cursor.u8()?;
            cursor.skip(if modern { prefix - 4 } else { 3 })?;
            let body = cursor.take(usize::from(size))?;
            if kind == CONTINUATION {
                let mut cursor = cursor.over(body);
                blocks.push((cursor.offset()?, cursor.length()?, true));
            } else if kind != 0 {
                messages.push(Message { kind, shared: flags & 2 != 0, body: body.to_vec() });
            }
        }
    }
    Ok(messages)
}
