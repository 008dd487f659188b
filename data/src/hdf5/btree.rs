//! Reads B-trees of version 2, which list the links of newer groups with many of them.

use super::{Context, Hdf5Error, UNDEFINED};

/// Returns the size in bytes of a number up to `limit`.
fn bytes_for(limit: u64) -> usize {
    (limit.max(1).ilog2() / 8 + 1) as usize
}

struct Tree<'a> {
    context: &'a Context,
    node_size: u64,
    record_size: usize,
    /// For each depth, the size of a child's total number of records; leaves have none.
    totals: Vec<usize>,
    count_size: usize,
    /// Number of nodes that may still be visited.
    left: u64,
}

/// Returns all records of a tree, in order.
pub(super) fn records(context: &Context, address: u64) -> Result<Vec<Vec<u8>>, Hdf5Error> {
    let head = context.up_to(address, 64, "a table of links")?;
    let mut cursor = context.cursor(&head);
    cursor.signature(b"BTHD")?;
    cursor.skip(2)?;
    let node_size = u64::from(cursor.u32()?);
    let record_size = usize::from(cursor.u16()?);
    let depth = usize::from(cursor.u16()?);
    cursor.skip(2)?;
    let root = cursor.offset()?;
    let count = usize::from(cursor.u16()?);
    if root == UNDEFINED {
        return Ok(Vec::new());
    }
    let leaf = node_size.saturating_sub(10) / (record_size as u64).max(1);
    if record_size == 0 || depth > 8 || leaf == 0 {
        return Err(Hdf5Error::Corrupt("a table of links"));
    }
    let (count_size, mut most, mut totals) = (bytes_for(leaf), leaf, vec![0]);
    for _ in 0..depth {
        let pointer = (usize::from(context.offset_size) + count_size + totals.last().unwrap_or(&0)) as u64;
        let here = node_size.saturating_sub(10 + pointer) / (record_size as u64 + pointer);
        most = here.saturating_add(1).saturating_mul(most).saturating_add(here);
        totals.push(bytes_for(most));
    }
    let left = context.most(10);
    let mut tree = Tree { context, node_size, record_size, totals, count_size, left };
    let mut records = Vec::new();
    tree.walk(root, count, depth, &mut records)?;
    Ok(records)
}

impl Tree<'_> {
    fn walk(&mut self, address: u64, count: usize, depth: usize, out: &mut Vec<Vec<u8>>) -> Result<(), Hdf5Error> {
        self.left = self.left.checked_sub(1).ok_or(Hdf5Error::Corrupt("a table of links without end"))?;
        let bytes = self.context.bytes(address, self.node_size, "a table of links")?;
        let mut cursor = self.context.cursor(&bytes);
        cursor.signature(if depth == 0 { b"BTLF" } else { b"BTIN" })?;
        cursor.skip(2)?;
        let records = cursor.take(count * self.record_size)?;
        let mut records = cursor.over(records);
        for place in 0..=count {
            if depth > 0 {
                let child = cursor.offset()?;
                let count = cursor.uint(self.count_size)? as usize;
                cursor.skip(self.totals.get(depth - 1).copied().unwrap_or(0))?;
                self.walk(child, count, depth - 1, out)?;
            }
            if place < count {
                out.push(records.take(self.record_size)?.to_vec());
            }
        }
        Ok(())
    }
}
