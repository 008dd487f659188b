//! Reads the two older tables: B-trees of version 1, and the heap with the names of their groups.

use super::{Context, Hdf5Error, UNDEFINED};

/// A node of a tree: its level, and its encoded entries.
pub(super) struct TreeNode {
    pub(super) level: u8,
    body: Vec<u8>,
    key: usize,
    entry: usize,
}

impl TreeNode {
    /// Iterates over the entries, each a key, the address of a child and the key of the next entry. The last key has no
    /// child.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.body.windows(self.entry + self.key).step_by(self.entry)
    }
}

/// Reads a node; `kind` is 0 for groups and 1 for chunks.
pub(super) fn tree_node(context: &Context, address: u64, kind: u8, key: usize) -> Result<TreeNode, Hdf5Error> {
    let offset = usize::from(context.offset_size);
    let head = context.bytes(address, 8 + 2 * offset as u64, "a tree")?;
    let mut cursor = context.cursor(&head);
    cursor.signature(b"TREE")?;
    if cursor.u8()? != kind {
        return Err(Hdf5Error::Corrupt("a tree of another kind"));
    }
    let level = cursor.u8()?;
    let (entries, entry) = (usize::from(cursor.u16()?), key + offset);
    let body = (entries * entry + key) as u64;
    let body = context.bytes(address.saturating_add(8 + 2 * offset as u64), body, "a tree")?;
    Ok(TreeNode { level, body, key, entry })
}

/// Returns names and addresses of the members of an older group.
pub(super) fn symbol_table(context: &Context, tree: u64, heap: u64) -> Result<Vec<(String, u64)>, Hdf5Error> {
    let names = local_heap(context, heap)?;
    let mut links = Vec::new();
    let mut open = vec![(tree, None)];
    let mut left = context.most(24);
    while let Some((address, above)) = open.pop() {
        left = left.checked_sub(1).ok_or(Hdf5Error::Corrupt("a group without end"))?;
        if above == Some(0) {
            symbols(context, address, &names, &mut links)?;
            continue;
        }
        let key = usize::from(context.length_size);
        let node = tree_node(context, address, 0, key)?;
        if above.is_some_and(|above| node.level + 1 != above) {
            return Err(Hdf5Error::Corrupt("a tree with a wrong level"));
        }
        for entry in node.entries().rev() {
            let mut cursor = context.cursor(entry);
            cursor.skip(key)?;
            open.push((cursor.offset()?, Some(node.level)));
        }
    }
    Ok(links)
}

fn local_heap(context: &Context, address: u64) -> Result<Vec<u8>, Hdf5Error> {
    let head = context.up_to(address, 64, "a heap of names")?;
    let mut cursor = context.cursor(&head);
    cursor.signature(b"HEAP")?;
    cursor.skip(4)?;
    let size = cursor.length()?;
    let _free = cursor.length()?;
    let data = cursor.offset()?;
    context.bytes(data, size, "a heap of names")
}

fn symbols(context: &Context, address: u64, names: &[u8], links: &mut Vec<(String, u64)>) -> Result<(), Hdf5Error> {
    let head = context.bytes(address, 8, "a group")?;
    let mut cursor = context.cursor(&head);
    cursor.signature(b"SNOD")?;
    cursor.skip(2)?;
    let entry = 2 * u64::from(context.offset_size) + 24;
    let count = u64::from(cursor.u16()?);
    let body = context.bytes(address.saturating_add(8), count * entry, "a group")?;
    let mut cursor = context.cursor(&body);
    for _ in 0..count {
        let (name, node) = (cursor.offset()?, cursor.offset()?);
        let kind = cursor.u32()?;
        cursor.skip(20)?;
        let name = usize::try_from(name).ok().and_then(|start| names.get(start..));
        let name = name.ok_or(Hdf5Error::Corrupt("a name beyond the heap"))?;
        let len = name.iter().position(|byte| *byte == 0).ok_or(Hdf5Error::Corrupt("a name without end"))?;
        let name = std::str::from_utf8(name.get(..len).unwrap_or_default());
        let name = name.map_err(|_| Hdf5Error::Corrupt("a name that is no text"))?;
        // Skips soft links, kind 2, which refer to other objects by name.
        if kind != 2 && node != UNDEFINED {
            links.push((name.to_string(), node));
        }
    }
    Ok(())
}
