//! Reads nodes: groups with their members, and the attributes of both groups and data sets.

use std::sync::Arc;

use super::{
    Context, Dataset, Hdf5Error, UNDEFINED, btree,
    cursor::Cursor,
    dataset::dimensions,
    datatype::{Class, Datatype},
    header::{self, Message},
    heap::{FractalHeap, global_object},
    lookup,
};

/// An attribute of a node with a single value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// An integer or a boolean.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
}

/// A group or a data set.
pub struct Node {
    context: Arc<Context>,
    messages: Vec<Message>,
}

impl Node {
    pub(super) fn open(context: &Arc<Context>, address: u64) -> Result<Self, Hdf5Error> {
        Ok(Self { context: context.clone(), messages: header::read(context, address)? })
    }

    fn message(&self, kind: u16) -> Option<Cursor<'_>> {
        let message = self.messages.iter().find(|message| message.kind == kind)?;
        Some(self.context.cursor(&message.body))
    }

    /// Returns true for a data set, false for a group.
    #[must_use]
    pub fn is_dataset(&self) -> bool {
        self.message(header::LAYOUT).is_some()
    }

    /// Returns the names of a group's members, in the file's order, with a handle to open each.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn links(&self) -> Result<Vec<(String, Link)>, Hdf5Error> {
        let mut links = Vec::new();
        if let Some(mut table) = self.message(header::SYMBOL_TABLE) {
            links = lookup::symbol_table(&self.context, table.offset()?, table.offset()?)?;
        }
        for message in self.messages.iter().filter(|message| message.kind == header::LINK) {
            links.extend(link(self.context.cursor(&message.body))?);
        }
        if let Some(mut info) = self.message(header::LINK_INFO) {
            info.skip(1)?;
            let flags = info.u8()?;
            info.skip(if flags & 1 != 0 { 8 } else { 0 })?;
            let (heap, by_name) = (info.offset()?, info.offset()?);
            if heap != UNDEFINED && by_name != UNDEFINED {
                let heap = FractalHeap::open(&self.context, heap)?;
                for record in btree::records(&self.context, by_name)? {
                    // The hash of the name, then the id.
                    let object = heap.object(&self.context, record.get(4..).unwrap_or_default())?;
                    links.extend(link(self.context.cursor(&object))?);
                }
            }
        }
        let handle = |(name, address)| (name, Link { context: self.context.clone(), address });
        Ok(links.into_iter().map(handle).collect())
    }

    /// Returns the member of a group with this name.
    ///
    /// # Errors
    /// [`Hdf5Error::Missing`], and others.
    pub fn child(&self, name: &str) -> Result<Self, Hdf5Error> {
        let link = self.links()?.into_iter().find(|(link, _)| link == name);
        link.ok_or_else(|| Hdf5Error::Missing(name.to_string()))?.1.open()
    }

    /// Returns the node as a data set; `name` is for messages.
    ///
    /// # Errors
    /// [`Hdf5Error::NotA`] for a group, and others.
    pub fn dataset(&self, name: &str) -> Result<Dataset, Hdf5Error> {
        if !self.is_dataset() {
            return Err(Hdf5Error::NotA { name: name.to_string(), wanted: "data set" });
        }
        Dataset::open(&self.context, &self.messages)
    }

    /// Returns attributes with a single value, by name. Other attributes, and those in separate tables, are left out.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn attributes(&self) -> Result<Vec<(String, Attribute)>, Hdf5Error> {
        let attributes = self.messages.iter().filter(|message| message.kind == header::ATTRIBUTE && !message.shared);
        let mut values = Vec::new();
        for message in attributes {
            match attribute(&self.context, self.context.cursor(&message.body)) {
                Ok(value) => values.extend(value),
                Err(Hdf5Error::Unsupported(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(values)
    }
}

/// The position of a node.
pub struct Link {
    context: Arc<Context>,
    address: u64,
}

impl Link {
    /// Opens the node.
    ///
    /// # Errors
    /// [`Hdf5Error`].
    pub fn open(&self) -> Result<Node, Hdf5Error> {
        Node::open(&self.context, self.address)
    }
}

/// Reads a link's name and address; none for a link to another file or path.
fn link(mut cursor: Cursor<'_>) -> Result<Option<(String, u64)>, Hdf5Error> {
    if cursor.u8()? != 1 {
        return Err(Hdf5Error::Corrupt("a link of unknown version"));
    }
    let flags = cursor.u8()?;
    let kind = if flags & 8 != 0 { cursor.u8()? } else { 0 };
    cursor.skip(if flags & 4 != 0 { 8 } else { 0 } + if flags & 16 != 0 { 1 } else { 0 })?;
    let len = cursor.uint(1 << (flags & 3))?;
    let name = cursor.take(usize::try_from(len).unwrap_or(usize::MAX))?;
    let name = std::str::from_utf8(name).map_err(|_| Hdf5Error::Corrupt("a name that is no text"))?;
    if kind != 0 {
        return Ok(None);
    }
    Ok(Some((name.to_string(), cursor.offset()?)))
}

/// Reads an attribute's name and value; none if it has several values.
fn attribute(context: &Context, mut cursor: Cursor<'_>) -> Result<Option<(String, Attribute)>, Hdf5Error> {
    let version = cursor.u8()?;
    cursor.skip(1)?;
    let sizes = [cursor.u16()?, cursor.u16()?, cursor.u16()?].map(usize::from);
    cursor.skip(if version >= 3 { 1 } else { 0 })?;
    let mut part = |size: usize| {
        let padding = if version == 1 { size.next_multiple_of(8) - size } else { 0 };
        let part = cursor.take(size)?;
        cursor.skip(padding.min(cursor.remaining()))?;
        Ok::<_, Hdf5Error>(part)
    };
    let (name, datatype, dataspace) = (part(sizes[0])?, part(sizes[1])?, part(sizes[2])?);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let datatype = Datatype::parse(&mut cursor.over(datatype))?;
    let dims = dimensions(&mut cursor.over(dataspace))?;
    if dims.iter().any(|dim| *dim != 1) {
        return Ok(None);
    }
    let mut bytes = cursor.take(datatype.size)?.to_vec();
    if datatype.big_endian {
        bytes.reverse();
    }
    let mut number = context.cursor(&bytes);
    let value = match datatype.class {
        Class::Signed => {
            let shift = 64 - 8 * datatype.size as u32;
            Attribute::Int((number.uint(datatype.size)? << shift) as i64 >> shift)
        }
        Class::Unsigned | Class::Bool => Attribute::Int(number.uint(datatype.size)? as i64),
        Class::Float if datatype.size == 8 => Attribute::Float(f64::from_bits(number.uint(8)?)),
        Class::Float if datatype.size == 4 => Attribute::Float(f32::from_bits(number.u32()?).into()),
        Class::Float => return Ok(None),
        Class::Text => Attribute::Text(text(&bytes)),
        Class::Heap => {
            let _len = number.u32()?;
            let (address, index) = (number.offset()?, number.u32()?);
            Attribute::Text(text(&global_object(context, address, index.into())?))
        }
    };
    Ok(Some((name, value)))
}

/// Returns text up to its terminator or padding.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).trim_end().to_string()
}
