//! Reads heaps: the fractal one, which holds the links of newer groups, and the global one, which holds text of any length.

use super::{Context, Hdf5Error, UNDEFINED};

/// A fractal heap: objects in blocks whose size doubles from row to row.
pub(super) struct FractalHeap {
    offset_size: usize,
    length_size: usize,
    width: u64,
    start: u64,
    max_direct: u64,
    root: u64,
    /// Number of rows of the root block; 0 if it holds objects directly.
    rows: u16,
}

impl FractalHeap {
    pub(super) fn open(context: &Context, address: u64) -> Result<Self, Hdf5Error> {
        let head = context.up_to(address, 256, "a heap")?;
        let mut cursor = context.cursor(&head);
        cursor.signature(b"FRHP")?;
        cursor.skip(3)?;
        if cursor.u16()? != 0 {
            return Err(Hdf5Error::Unsupported("a filtered heap".to_string()));
        }
        cursor.skip(1)?;
        let max_managed = u64::from(cursor.u32()?);
        let (offset, length) = (cursor.offset_size(), cursor.length_size());
        cursor.skip(2 * offset + 10 * length)?;
        let width = u64::from(cursor.u16()?);
        let (start, max_direct) = (cursor.length()?, cursor.length()?);
        let max_heap = usize::from(cursor.u16()?);
        cursor.skip(2)?;
        let (root, rows) = (cursor.offset()?, cursor.u16()?);
        let sane = width > 0 && start.is_power_of_two() && max_direct.is_power_of_two();
        if !sane || start > max_direct || max_heap == 0 || max_heap > 64 || max_managed == 0 {
            return Err(Hdf5Error::Corrupt("the sizes of a heap"));
        }
        let by_block = max_direct.ilog2().div_ceil(8) as usize;
        let by_object = (max_managed.ilog2() / 8 + 1) as usize;
        let (offset_size, length_size) = (max_heap.div_ceil(8), by_block.min(by_object).max(1));
        Ok(Self { offset_size, length_size, width, start, max_direct, root, rows })
    }

    /// Returns the object with an id.
    pub(super) fn object(&self, context: &Context, id: &[u8]) -> Result<Vec<u8>, Hdf5Error> {
        let mut cursor = context.cursor(id);
        let kind = cursor.u8()? >> 4 & 3;
        if kind == 2 {
            let len = usize::from(id.first().copied().unwrap_or(0) & 15) + 1;
            return Ok(cursor.take(len)?.to_vec());
        }
        if kind != 0 {
            return Err(Hdf5Error::Unsupported("a huge object in a heap".to_string()));
        }
        let offset = cursor.uint(self.offset_size)?;
        let len = cursor.uint(self.length_size)?;
        let address = self.address(context, offset)?;
        context.bytes(address, len, "a link")
    }

    /// Returns the block size of a row.
    fn row_size(&self, row: u32) -> Result<u64, Hdf5Error> {
        let size = self.start.checked_shl(row.saturating_sub(1)).filter(|size| *size >= self.start);
        size.ok_or(Hdf5Error::Corrupt("a row beyond the heap"))
    }

    /// Returns the position in the file of the byte at `offset` of the heap.
    fn address(&self, context: &Context, mut offset: u64) -> Result<u64, Hdf5Error> {
        let mut block = self.root;
        let direct_rows = self.max_direct.ilog2() - self.start.ilog2() + 2;
        if self.rows == 0 {
            return Self::within(block, offset);
        }
        let mut rows = u32::from(self.rows);
        // Nested blocks have fewer rows, so there are few levels.
        for _ in 0..64 {
            let (mut row, mut before) = (0, 0u64);
            let size = loop {
                let size = self.row_size(row)?;
                let end = size.checked_mul(self.width).and_then(|all| before.checked_add(all));
                let end = end.ok_or(Hdf5Error::Corrupt("a row beyond the heap"))?;
                if row >= rows {
                    return Err(Hdf5Error::Corrupt("an object beyond its heap"));
                }
                if offset < end {
                    break size;
                }
                (row, before) = (row + 1, end);
            };
            let column = (offset - before) / size;
            let entry = u64::from(row) * self.width + column;
            let size_of_address = u64::from(context.offset_size);
            let head = 5 + size_of_address + self.offset_size as u64;
            let at = entry.checked_mul(size_of_address).and_then(|at| block.checked_add(head)?.checked_add(at));
            let at = at.ok_or(Hdf5Error::Corrupt("an object beyond its heap"))?;
            let child = context.bytes(at, size_of_address, "a heap")?;
            let child = context.cursor(&child).offset()?;
            let offset_in_child = offset - before - column * size;
            if row < direct_rows {
                return Self::within(child, offset_in_child);
            }
            rows = size.ilog2() - self.start.saturating_mul(self.width).max(1).ilog2().min(size.ilog2()) + 1;
            (block, offset) = (child, offset_in_child);
        }
        Err(Hdf5Error::Corrupt("a heap without end"))
    }

    fn within(block: u64, offset: u64) -> Result<u64, Hdf5Error> {
        if block == UNDEFINED {
            return Err(Hdf5Error::Corrupt("an object in a block that is not there"));
        }
        block.checked_add(offset).ok_or(Hdf5Error::Corrupt("an address beyond the end"))
    }
}

/// Returns one object of a global heap; `reference` is the collection's address and the object's number.
pub(super) fn global_object(context: &Context, address: u64, number: u64) -> Result<Vec<u8>, Hdf5Error> {
    let length = u64::from(context.length_size);
    let head = context.bytes(address, 8 + length, "a heap of text")?;
    let mut cursor = context.cursor(&head);
    cursor.signature(b"GCOL")?;
    cursor.skip(4)?;
    let size = cursor.length()?;
    let mut at = 8 + length;
    while at.checked_add(8 + length).is_some_and(|end| end <= size) {
        let head = context.bytes(address.saturating_add(at), 8 + length, "a heap of text")?;
        let mut cursor = context.cursor(&head);
        let index = u64::from(cursor.u16()?);
        cursor.skip(6)?;
        let bytes = cursor.length()?;
        at += 8 + length;
        if index == number {
            return context.bytes(address.saturating_add(at), bytes, "a text");
        }
        let padded = bytes.checked_next_multiple_of(8).and_then(|bytes| at.checked_add(bytes));
        match padded.filter(|_| index != 0) {
            Some(next) => at = next,
            None => break,
        }
    }
    Err(Hdf5Error::Corrupt("a text that is not in its heap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_all_numbers_are_damage() {
        let mut heap = b"GCOL\x01\0\0\0".to_vec();
        heap.extend(u64::MAX.to_le_bytes());
        // Object 5, after which the next one begins 8 bytes before the last address.
        heap.extend(5u64.to_le_bytes());
        heap.extend((u64::MAX - 39).to_le_bytes());
        let context = Context { source: Box::new(heap), base: 0, offset_size: 8, length_size: 8, buffer: 1024 };
        let error = global_object(&context, 0, 6).unwrap_err();
        assert_eq!(error.to_string(), "the file is damaged: a text that is not in its heap");
    }
}
