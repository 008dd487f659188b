//! Reads data in chunks: finds them in a tree, decodes them in order, and copies them row by row.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Context, Hdf5Error, UNDEFINED,
    cursor::Cursor,
    filters::{self, Filter},
    lookup::tree_node,
};

/// How to find and decode the chunks of a data set.
pub(super) struct Chunks {
    /// Number of elements of a chunk in every dimension.
    dims: Vec<u64>,
    element: usize,
    index: Index,
    filters: Vec<Filter>,
    /// Decoded chunks, the latest last: at most a quarter of the buffer.
    cache: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
}

enum Index {
    Tree(u64),
    /// The only chunk, and its size if it is filtered.
    Single(u64, Option<u64>, u32),
}

/// The position of a chunk.
struct Chunk {
    /// First element in every dimension.
    start: Vec<u64>,
    address: u64,
    bytes: u64,
    /// A set bit for every filter that was not applied.
    mask: u32,
}

impl Chunks {
    pub(super) fn parse(
        cursor: &mut Cursor<'_>,
        version: u8,
        dims: &[u64],
        element: usize,
        filters: Vec<Filter>,
    ) -> Result<Self, Hdf5Error> {
        let (rank, size, flags, mut address) = if version == 3 {
            (usize::from(cursor.u8()?), 4, 0, cursor.offset()?)
        } else {
            let flags = cursor.u8()?;
            (usize::from(cursor.u8()?), usize::from(cursor.u8()?), flags, UNDEFINED)
        };
        if !(1..=8).contains(&size) || rank != dims.len() + 1 {
            return Err(Hdf5Error::Corrupt("dimensions of chunks"));
        }
        let mut chunk: Vec<u64> = (0..rank).map(|_| cursor.uint(size)).collect::<Result<_, _>>()?;
        if chunk.pop() != Some(element as u64) || chunk.contains(&0) {
            return Err(Hdf5Error::Corrupt("dimensions of chunks"));
        }
        let mut index = Index::Tree(address);
        if version == 4 {
            let kind = cursor.u8()?;
            if kind != 1 {
                return Err(Hdf5Error::Unsupported(format!("index {kind} of chunks")));
            }
            let filtered = flags & 2 != 0;
            let bytes = if filtered { Some(cursor.length()?) } else { None };
            let mask = if filtered { cursor.u32()? } else { 0 };
            address = cursor.offset()?;
            index = Index::Single(address, bytes, mask);
        }
        Ok(Self { dims: chunk, element, index, filters, cache: Mutex::default() })
    }

    /// Returns the number of rows of a chunk.
    pub(super) fn rows(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Checks that the chunks with rows in `range` have this size, by decoding them in order.
    pub(super) fn check_holds(&self, context: &Context, range: &Range<u64>, bytes: u64) -> Result<(), Hdf5Error> {
        let chunk_bytes = self.bytes()?;
        let (mut held, mut seen) = (0u64, BTreeSet::new());
        for chunk in self.overlapping(context, range, chunk_bytes)? {
            // A chunk that the tree lists twice counts once.
            if seen.insert(chunk.address) {
                held = held.saturating_add(self.decoded(context, &chunk, chunk_bytes)?.len() as u64);
            }
        }
        if held < bytes { Err(Hdf5Error::Corrupt("a data set is larger than its chunks")) } else { Ok(()) }
    }

    /// Returns the size of a chunk in bytes.
    fn bytes(&self) -> Result<u64, Hdf5Error> {
        let bytes = self.dims.iter().try_fold(self.element as u64, |bytes, dim| bytes.checked_mul(*dim));
        bytes.ok_or(Hdf5Error::Corrupt("dimensions of chunks"))
    }

    /// Copies the rows in `range` of an array with these dimensions to `out`, which has exactly their size.
    pub(super) fn read(
        &self,
        context: &Context,
        dims: &[u64],
        range: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), Hdf5Error> {
        let chunk_bytes = self.bytes()?;
        for chunk in self.overlapping(context, &range, chunk_bytes)? {
            let data = self.decoded(context, &chunk, chunk_bytes)?;
            self.copy(&chunk, &data, dims, &range, out)?;
        }
        Ok(())
    }

    /// Returns the chunks with rows in `range`.
    fn overlapping(&self, context: &Context, range: &Range<u64>, bytes: u64) -> Result<Vec<Chunk>, Hdf5Error> {
        let rank = self.dims.len();
        let root = match self.index {
            Index::Tree(UNDEFINED) | Index::Single(UNDEFINED, ..) => return Ok(Vec::new()),
            Index::Single(address, filtered, mask) => {
                let chunk = Chunk { start: vec![0; rank], address, bytes: filtered.unwrap_or(bytes), mask };
                return Ok(vec![chunk]);
            }
            Index::Tree(root) => root,
        };
        let (mut chunks, mut open) = (Vec::new(), vec![(root, None)]);
        let key = 8 * (rank + 2);
        let mut left = context.most(key as u64 + u64::from(context.offset_size));
        while let Some((address, above)) = open.pop() {
            left = left.checked_sub(1).ok_or(Hdf5Error::Corrupt("a tree without end"))?;
            let node = tree_node(context, address, 1, key)?;
            if above.is_some_and(|above| node.level + 1 != above) {
                return Err(Hdf5Error::Corrupt("a tree with a wrong level"));
            }
            if node.level == 0 {
                chunks.reserve(node.entries().len());
            }
            for entry in node.entries() {
                let mut entry = context.cursor(entry);
                let (bytes, mask) = (entry.u32()?, entry.u32()?);
                let start: Vec<u64> = (0..rank).map(|_| entry.uint(8)).collect::<Result<_, _>>()?;
                let first = start.first().copied().unwrap_or(0);
                // The position within an element, which is always 0, ends the key; the next key begins with a size and a
                // mask.
                entry.skip(8)?;
                let child = entry.offset()?;
                entry.skip(8)?;
                let last = if node.level == 0 { first } else { entry.uint(8)?.max(first) };
                if first >= range.end || last.saturating_add(self.rows()) <= range.start {
                    continue;
                }
                if node.level > 0 {
                    open.push((child, Some(node.level)));
                    continue;
                }
                left = left.checked_sub(1).ok_or(Hdf5Error::Corrupt("a tree without end"))?;
                chunks.push(Chunk { start, address: child, bytes: bytes.into(), mask });
            }
        }
        Ok(chunks)
    }

    fn decoded(&self, context: &Context, chunk: &Chunk, bytes: u64) -> Result<Arc<Vec<u8>>, Hdf5Error> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, data)) = cache.iter().find(|(address, _)| *address == chunk.address) {
            return Ok(data.clone());
        }
        let bytes = context.fits(bytes, "a chunk")?;
        let stored = context.bytes(chunk.address, chunk.bytes, "a chunk")?;
        let data = filters::decode(&self.filters, chunk.mask, stored, bytes, self.element)?;
        if data.len() != bytes {
            return Err(Hdf5Error::Corrupt("a chunk of a wrong size"));
        }
        let data = Arc::new(data);
        let room = (context.buffer / 4 / bytes.max(1)).max(1);
        while cache.len() >= room {
            cache.pop_front();
        }
        cache.push_back((chunk.address, data.clone()));
        Ok(data)
    }

    /// Copies the part of a chunk that is within both the array and the range.
    fn copy(
        &self,
        chunk: &Chunk,
        data: &[u8],
        dims: &[u64],
        range: &Range<u64>,
        out: &mut [u8],
    ) -> Result<(), Hdf5Error> {
        let rank = dims.len();
        // In each dimension: the start of the part in the chunk and in the output, and its length.
        let mut part = Vec::with_capacity(rank);
        for (d, ((&start, &len), &dim)) in chunk.start.iter().zip(&self.dims).zip(dims).enumerate() {
            let within = if d == 0 { range.clone() } else { 0..dim };
            let (from, to) = (start.max(within.start), start.saturating_add(len).min(within.end));
            if from >= to {
                return Ok(());
            }
            part.push((from - start, from - within.start, to - from));
        }
        let Some((&(inner_from, inner_to, inner_len), outer)) = part.split_last() else { return Ok(()) };
        let inner_dim = if rank == 1 { range.end - range.start } else { dims.last().copied().unwrap_or(1) };
        let mut index = vec![0u64; outer.len()];
        let run = (inner_len * self.element as u64) as usize;
        loop {
            let (mut from, mut to) = (0u64, 0u64);
            for (d, (place, &(chunk_from, out_from, _))) in index.iter().zip(outer).enumerate() {
                let (chunk_dim, out_dim) = (self.dims.get(d), if d == 0 { None } else { dims.get(d) });
                from = from * chunk_dim.copied().unwrap_or(1) + chunk_from + place;
                to = to * out_dim.copied().unwrap_or(1) + out_from + place;
            }
            from = from * self.dims.last().copied().unwrap_or(1) + inner_from;
            to = to * inner_dim + inner_to;
            let (from, to) = (from as usize * self.element, to as usize * self.element);
            match (data.get(from..from + run), out.get_mut(to..to + run)) {
                (Some(from), Some(to)) => to.copy_from_slice(from),
                _ => return Err(Hdf5Error::Corrupt("a chunk beyond its data set")),
            }
            // The next row of the part, the last dimension fastest.
            let mut d = index.len();
            loop {
                let Some(above) = d.checked_sub(1) else { return Ok(()) };
                d = above;
                let (Some(place), Some(&(.., len))) = (index.get_mut(d), outer.get(d)) else { return Ok(()) };
                *place += 1;
                if *place < len {
                    break;
                }
                *place = 0;
            }
        }
    }
}
