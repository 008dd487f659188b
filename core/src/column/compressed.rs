//! Stores columns as compressed blocks of rows.

use core::{fmt, ops::Range};

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::{BytesColumn, Column, ColumnError, ColumnType, DType, RowShape, Segment, shape::clamp};
use crate::prelude::*;

/// The number of rows per compressed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// One block for the whole column, or several if it has more than 32 MiB: the smallest form.
    Bulk,
    /// One block per row: rows can be shuffled without decompressing them.
    Rows,
}

/// Rows in blocks compressed with LZ4: raw blocks, not frames. Type, row shape and number of rows stay uncompressed.
///
/// A block holds the plain column's memory, with little-endian elements; ragged rows start with all lengths as 32-bit
/// numbers. A slice keeps the blocks and records which of their rows it uses.
#[derive(Clone)]
pub struct CompressedColumn {
    column_type: ColumnType,
    shape: RowShape,
    blocks: Arc<Vec<Block>>,
    /// First row of this column, counted over all used rows of the blocks.
    start: usize,
    rows: usize,
}

/// A block and its used rows.
#[derive(Clone)]
pub(crate) struct Block {
    buffer: Arc<Vec<u8>>,
    /// Position of the compressed bytes in the buffer.
    range: Range<usize>,
    /// Decompressed size in bytes.
    raw: usize,
    /// Number of rows when decompressed.
    rows: usize,
    /// First used row.
    skip: usize,
    /// Number of used rows of this block and all before it.
    end: usize,
}

/// Maximum decompressed size of a block. Above it the compressor's arithmetic could overflow on 32-bit machines.
const MAX_BLOCK: usize = 1 << 25;

/// Maximum decompressed bytes per byte of LZ4, which bounds the size that a block can claim.
const MAX_RATIO: usize = 255;

impl Block {
    /// Returns the compressed bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns decompressed size and number of rows.
    pub(crate) fn raw_and_rows(&self) -> (usize, usize) {
        (self.raw, self.rows)
    }

    fn same_bytes(&self, other: &Self) -> bool {
        (self.raw, self.rows) == (other.raw, other.rows) && self.bytes() == other.bytes()
    }

    /// Decompresses into exactly the number of bytes that the block declares.
    fn decompress(&self, out: &mut [u8]) -> Result<(), ColumnError> {
        match decompress_into(self.bytes(), out) {
            Ok(written) if written == out.len() => Ok(()),
            _ => Err(ColumnError::Corrupt),
        }
    }
}

impl CompressedColumn {
    /// Returns the type of the decompressed rows.
    #[must_use]
    pub fn column_type(&self) -> ColumnType {
        self.column_type
    }

    /// Returns the shape of a decompressed row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the compressed size of all used blocks.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.used().map(|(block, _)| block.range.len()).sum()
    }

    /// Returns the rows in `range`, sharing the blocks. A range beyond the end stops there.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let range = clamp(range, self.rows);
        Self { start: self.start + range.start, rows: range.len(), ..self.clone() }
    }

    /// Returns the same rows in new buffers.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut blocks = Blocks::default();
        let bytes = self.size_bytes();
        let mut buffer = Vec::with_capacity(bytes);
        self.used().for_each(|(block, _)| buffer.extend_from_slice(block.bytes()));
        let buffer = Arc::new(buffer);
        let mut place = 0;
        for (block, used) in self.used() {
            let range = place..place + block.range.len();
            place = range.end;
            blocks.push(Block { buffer: buffer.clone(), range, ..block.clone() }, used);
        }
        self.with_blocks(blocks)
    }

    /// Iterates over the used blocks and their used rows.
    pub(crate) fn used(&self) -> impl Iterator<Item = (&Block, Range<usize>)> {
        let end = self.start + self.rows;
        let first = self.blocks.partition_point(|block| block.end <= self.start);
        let before = first.checked_sub(1).and_then(|i| self.blocks.get(i)).map_or(0, |block| block.end);
        let blocks = self.blocks.get(first..).unwrap_or_default().iter();
        blocks
            .scan(before, move |block_start, block| {
                let from = (*block_start).max(self.start);
                let used = block.skip + from - *block_start..block.skip + block.end.min(end).max(from) - *block_start;
                *block_start = block.end;
                Some((block, used))
            })
            .take_while(|(_, used)| !used.is_empty())
    }

    /// Compresses a column; a compressed one stays as it is.
    pub(super) fn compress(column: &Column, granularity: Granularity) -> Result<Self, ColumnError> {
        if let Column::Compressed(compressed) = column {
            return Ok(compressed.clone());
        }
        let mut buffer = Vec::new();
        let mut parts: Vec<(Range<usize>, usize, usize)> = Vec::new();
        let (mut raw, mut scratch) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < column.rows() {
            let rows = match granularity {
                Granularity::Bulk => rows_of_a_block(column, start),
                Granularity::Rows => 1,
            };
            raw.clear();
            column.slice(start..start + rows).append_raw(&mut raw);
            if raw.len() > MAX_BLOCK {
                return Err(ColumnError::LongRow { row: start, bytes: raw.len() });
            }
            scratch.resize(scratch.len().max(get_maximum_output_size(raw.len())), 0);
            let len = compress_into(&raw, &mut scratch).map_err(|_| ColumnError::Corrupt)?;
            parts.push((buffer.len()..buffer.len() + len, raw.len(), rows));
            buffer.extend_from_slice(scratch.get(..len).unwrap_or_default());
            start += rows;
        }
        let buffer = Arc::new(buffer);
        let mut blocks = Blocks::default();
        for (range, raw, rows) in parts {
            blocks.push(Block { buffer: buffer.clone(), range, raw, rows, skip: 0, end: 0 }, 0..rows);
        }
        let (column_type, shape) = (column.column_type(), column.shape());
        Ok(Self { column_type, shape, rows: blocks.rows(), start: 0, blocks: Arc::new(blocks.0) })
    }

    /// Creates a column from blocks of another source: checks everything that does not require decompression.
    pub(crate) fn from_blocks(
        column_type: ColumnType,
        shape: RowShape,
        buffer: Vec<u8>,
        table: &[BlockEntry],
    ) -> Result<Self, ColumnError> {
        if shape.elements() == 0 {
            return Err(ColumnError::RaggedRows { values: 0, shape });
        }
        let buffer = Arc::new(buffer);
        let mut blocks = Blocks::default();
        let mut place = 0usize;
        for entry in table {
            let range = place..place.saturating_add(entry.bytes);
            place = range.end;
            let fits = match column_type {
                ColumnType::Array(dtype) => row_bytes(dtype, shape).checked_mul(entry.rows) == Some(entry.raw),
                ColumnType::Ragged(_) => entry.rows.checked_mul(4).is_some_and(|lengths| lengths <= entry.raw),
            };
            let possible = entry.raw <= entry.bytes.saturating_mul(MAX_RATIO);
            let used = entry.used.start <= entry.used.end && entry.used.end <= entry.rows && !entry.used.is_empty();
            if !fits || !possible || !used || range.end > buffer.len() {
                return Err(ColumnError::Corrupt);
            }
            let (raw, rows) = (entry.raw, entry.rows);
            blocks.push(Block { buffer: buffer.clone(), range, raw, rows, skip: 0, end: 0 }, entry.used.clone());
        }
        if place != buffer.len() {
            return Err(ColumnError::Corrupt);
        }
        Ok(Self { column_type, shape, rows: blocks.rows(), start: 0, blocks: Arc::new(blocks.0) })
    }

    /// Returns the decompressed column.
    ///
    /// # Errors
    /// [`ColumnError::Corrupt`] for blocks from another source that do not hold what they declare.
    pub fn decompress(&self) -> Result<Column, ColumnError> {
        match self.column_type {
            ColumnType::Array(dtype) => self.decompress_array(dtype),
            ColumnType::Ragged(kind) => {
                let (mut lengths, mut bytes) = (Vec::with_capacity(self.rows), Vec::new());
                for (block, used) in self.used() {
                    let mut raw = vec![0; block.raw];
                    block.decompress(&mut raw)?;
                    let (table, rows) = raw.split_at_checked(4 * block.rows).ok_or(ColumnError::Corrupt)?;
                    let table: Vec<u32> = super::little_endian::LittleEndian::read_le(table);
                    let rows = BytesColumn::from_lengths(kind, rows.to_vec(), &table)?.slice(used);
                    lengths.extend(rows.lengths());
                    bytes.extend_from_slice(rows.contiguous());
                }
                Ok(Column::Bytes(BytesColumn::from_lengths(kind, bytes, &lengths)?))
            }
        }
    }

    fn decompress_array(&self, dtype: DType) -> Result<Column, ColumnError> {
        let row = row_bytes(dtype, self.shape);
        let mut raw = vec![0; self.rows.checked_mul(row).ok_or(ColumnError::Corrupt)?];
        let mut rest = &mut raw[..];
        let mut scratch = Vec::new();
        for (block, used) in self.used() {
            let out = rest.split_off_mut(..used.len() * row).ok_or(ColumnError::Corrupt)?;
            if out.len() == block.raw {
                block.decompress(out)?;
            } else {
                scratch.resize(block.raw, 0);
                block.decompress(&mut scratch)?;
                out.copy_from_slice(scratch.get(used.start * row..used.end * row).ok_or(ColumnError::Corrupt)?);
            }
        }
        Column::from_raw(dtype, self.shape, &raw)
    }

    /// Joins the blocks of all parts in order.
    pub(super) fn concat(parts: &[&Self]) -> Option<Self> {
        let mut blocks = Blocks::default();
        parts.iter().flat_map(|part| part.used()).for_each(|(block, used)| blocks.push(block.clone(), used));
        parts.first().map(|first| first.with_blocks(blocks))
    }

    /// Returns these rows in this order. Reorders blocks of single rows; decompresses others and compresses the rows into
    /// one new block.
    pub(super) fn gather(&self, rows: &[u32]) -> Result<Self, ColumnError> {
        if self.blocks.iter().any(|block| block.rows != 1) {
            return Self::compress(&self.decompress()?.gather_rows(rows)?, Granularity::Bulk);
        }
        let mut blocks = Blocks::default();
        for &row in rows {
            // Every block has one row, so the row number is the block number.
            let block = self.blocks.get(self.start + row as usize).ok_or(ColumnError::NoRow(row as usize))?;
            blocks.push(block.clone(), 0..1);
        }
        Ok(self.with_blocks(blocks))
    }

    /// Assembles ranges of rows and zero rows, which get blocks of their own; blocks of several rows are compressed
    /// again.
    pub(super) fn assemble(&self, segments: &[Segment]) -> Result<Self, ColumnError> {
        if self.blocks.iter().any(|block| block.rows > 1) && segments.len() > 1 {
            return Self::compress(&self.decompress()?.assemble(segments)?, Granularity::Bulk);
        }
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            parts.push(match segment {
                Segment::Rows(range) => self.slice(range.clone()),
                Segment::Zeros(rows) => {
                    Self::compress(&Column::zeros(self.column_type, self.shape, *rows)?, Granularity::Bulk)?
                }
            });
        }
        Ok(Self::concat(&parts.iter().collect::<Vec<_>>()).unwrap_or_else(|| self.slice(0..0)))
    }

    fn with_blocks(&self, blocks: Blocks) -> Self {
        let (column_type, shape) = (self.column_type, self.shape);
        Self { column_type, shape, rows: blocks.rows(), start: 0, blocks: Arc::new(blocks.0) }
    }
}

/// An entry of a table of blocks.
pub(crate) struct BlockEntry {
    /// Compressed size in bytes.
    pub(crate) bytes: usize,
    /// Decompressed size in bytes.
    pub(crate) raw: usize,
    /// Number of rows when decompressed.
    pub(crate) rows: usize,
    /// The used rows.
    pub(crate) used: Range<usize>,
}

/// Blocks with their running ends.
#[derive(Default)]
struct Blocks(Vec<Block>);

impl Blocks {
    fn rows(&self) -> usize {
        self.0.last().map_or(0, |block| block.end)
    }

    fn push(&mut self, block: Block, used: Range<usize>) {
        let before = self.0.len().checked_sub(2).and_then(|i| self.0.get(i)).map_or(0, |block| block.end);
        // Rows that continue the previous block extend it.
        if let Some(last) = self.0.last_mut()
            && Arc::ptr_eq(&last.buffer, &block.buffer)
            && last.range == block.range
            && last.skip + (last.end - before) == used.start
        {
            last.end = last.end.saturating_add(used.len());
            return;
        }
        let end = self.rows().saturating_add(used.len());
        self.0.push(Block { skip: used.start, end, ..block });
    }
}

/// Returns the bytes of a row of an array. Saturates, because a shape may have more elements than memory has bytes.
fn row_bytes(dtype: DType, shape: RowShape) -> usize {
    shape.elements().saturating_mul(dtype.size())
}

/// Returns how many rows from `start` on fit into the largest block, but at least one.
fn rows_of_a_block(column: &Column, start: usize) -> usize {
    let left = column.rows() - start;
    let fitting = match column {
        Column::Bytes(data) => {
            let mut bytes = 0usize;
            let rows = data.slice(start..data.rows());
            rows.iter()
                .take_while(|row| {
                    bytes = bytes.saturating_add(4 + row.len());
                    bytes <= MAX_BLOCK
                })
                .count()
        }
        _ => MAX_BLOCK / (column.size_bytes() / column.rows().max(1)).max(1),
    };
    fitting.clamp(1, left.max(1))
}

impl PartialEq for CompressedColumn {
    /// Compares blocks and their used rows. Equal rows in different blocks count as different until they are decompressed.
    fn eq(&self, other: &Self) -> bool {
        let same_rows = || self.used().map(|(_, used)| used).eq(other.used().map(|(_, used)| used));
        let same_bytes = || self.used().zip(other.used()).all(|((a, _), (b, _))| a.same_bytes(b));
        (self.column_type, self.shape, self.rows) == (other.column_type, other.shape, other.rows)
            && same_rows()
            && same_bytes()
    }
}

impl fmt::Debug for CompressedColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.used().count();
        write!(f, "{} rows of {}{} in {blocks} compressed blocks", self.rows, self.column_type, self.shape)
    }
}
