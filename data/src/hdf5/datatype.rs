//! Reads the types of elements.

use rollmesh_core::column::DType;

use super::{Hdf5Error, cursor::Cursor};

/// The storage format of the elements of a data set or an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datatype {
    pub(super) class: Class,
    /// Bytes of one element.
    pub(super) size: usize,
    pub(super) big_endian: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Signed,
    Unsigned,
    Float,
    /// An enumeration of FALSE and TRUE, as h5py stores booleans.
    Bool,
    /// Text of fixed size.
    Text,
    /// Text or bytes of any length, in a heap.
    Heap,
}

impl Datatype {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Hdf5Error> {
        let head = cursor.u8()?;
        let (class, version) = (head & 15, head >> 4);
        let flags = cursor.uint(3)?;
        let size = cursor.u32()? as usize;
        let big_endian = flags & 1 != 0;
        let class = match class {
            0 => {
                cursor.skip(4)?;
                if flags & 8 != 0 { Class::Signed } else { Class::Unsigned }
            }
            1 => {
                cursor.skip(12)?;
                Class::Float
            }
            3 => Class::Text,
            8 => return Self::enumeration(cursor, version, (flags & 0xffff) as usize, size),
            9 => {
                let base = Self::parse(cursor)?;
                let bytes = base.size == 1 && matches!(base.class, Class::Unsigned | Class::Signed | Class::Text);
                if !bytes {
                    return Err(Hdf5Error::Unsupported("a variable-length array of numbers".to_string()));
                }
                Class::Heap
            }
            class => return Err(Hdf5Error::Unsupported(format!("type class {class} (compound, opaque or such)"))),
        };
        let sizes: &[usize] = match class {
            Class::Float => &[2, 4, 8],
            Class::Signed | Class::Unsigned => &[1, 2, 4, 8],
            _ => return Ok(Self { class, size, big_endian: false }),
        };
        if !sizes.contains(&size) || (class == Class::Float && flags & 0x40 != 0) {
            return Err(Hdf5Error::Unsupported(format!("a number of {size} bytes")));
        }
        Ok(Self { class, size, big_endian })
    }

    fn enumeration(cursor: &mut Cursor<'_>, version: u8, members: usize, size: usize) -> Result<Self, Hdf5Error> {
        let base = Self::parse(cursor)?;
        if base.size != size || !matches!(base.class, Class::Signed | Class::Unsigned) {
            return Err(Hdf5Error::Corrupt("an enumeration of no integers"));
        }
        let mut truth = members == 2 && size == 1;
        for wanted in [&b"FALSE"[..], b"TRUE"].into_iter().take(members) {
            let len = cursor.rest().iter().position(|byte| *byte == 0);
            let len = len.ok_or(Hdf5Error::Corrupt("a name without end"))?;
            truth &= cursor.take(len)? == wanted;
            // Older versions pad names to a multiple of 8 bytes.
            cursor.skip(if version < 3 { 8 - len % 8 } else { 1 })?;
        }
        truth = truth && cursor.take(2)? == [0, 1];
        Ok(if truth { Self { class: Class::Bool, ..base } } else { base })
    }

    /// Returns the type of the column that holds the elements; none for text.
    pub(super) fn dtype(&self) -> Option<DType> {
        match (&self.class, self.size) {
            (Class::Text | Class::Heap, _) => None,
            (Class::Bool, _) => Some(DType::Bool),
            (Class::Float, 8) => Some(DType::F64),
            (Class::Float, _) => Some(DType::F32),
            (Class::Unsigned, 1) => Some(DType::U8),
            (Class::Unsigned, 4 | 8) | (Class::Signed, 8) => Some(DType::I64),
            (Class::Unsigned | Class::Signed, _) => Some(DType::I32),
        }
    }
}
