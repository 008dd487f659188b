//! Reads the part of Thrift's compact protocol that page headers and tables of contents need.

/// The header of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Size of the header itself.
    pub(super) bytes: usize,
    /// Size of the decompressed page.
    pub(super) uncompressed: i64,
    /// Size of the page in the file.
    pub(super) compressed: i64,
    /// Number of values of a dictionary; 0 for other pages.
    pub(super) dictionary_values: i64,
    /// Size of the levels outside the compressed data; 0 except for pages of the second version.
    pub(super) levels: i64,
    /// Whether it is uncompressed, regardless of its column's codec.
    pub(super) is_stored: bool,
}

/// Kinds of values. Kind 2 is a boolean that is false.
pub(super) const BOOL: u8 = 1;
pub(super) const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;
/// The kinds of the fields of headers, from field 1 on: of pages, and within them of data, of dictionaries, and of data of
/// the second version.
const PAGE: [u8; 8] = [I32, I32, I32, I32, STRUCT, STRUCT, STRUCT, STRUCT];
const DATA: [u8; 5] = [I32, I32, I32, I32, STRUCT];
const DICTIONARY: [u8; 3] = [I32, I32, BOOL];
const DATA_2: [u8; 8] = [I32, I32, I32, I32, I32, I32, BOOL, STRUCT];

/// Reads a header; none if it is incomplete or invalid.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut reader = Reader::new(bytes);
    let mut header = PageHeader::default();
    reader.fields(&PAGE, |reader, field, kind| match field {
        2 => reader.zigzag().map(|size| header.uncompressed = size),
        3 => reader.zigzag().map(|size| header.compressed = size),
        5 => reader.fields(&DATA, |reader, _, kind| reader.skip(kind, 0)),
        7 => reader.fields(&DICTIONARY, |reader, field, kind| match field {
            1 => reader.zigzag().map(|values| header.dictionary_values = values),
            _ => reader.skip(kind, 0),
        }),
        8 => reader.fields(&DATA_2, |reader, field, kind| match field {
            5 | 6 => {
                let len = reader.zigzag().filter(|len| *len >= 0)?;
                header.levels.checked_add(len).map(|levels| header.levels = levels)
            }
            7 => {
                header.is_stored = kind != BOOL;
                Some(())
            }
            _ => reader.skip(kind, 0),
        }),
        _ => reader.skip(kind, 0),
    })?;
    header.bytes = bytes.len() - reader.rest.len();
    Some(header)
}

/// Reads values in order; none for an incomplete value.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of unread bytes.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads bytes or a text.
    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (value, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(value)
    }

    /// Reads a list of structs: calls `read` for each of them with the list's length.
    pub(super) fn structs(&mut self, mut read: impl FnMut(&mut Self, u64) -> Option<()>) -> Option<()> {
        let (kind, len) = self.list()?;
        if kind != STRUCT && len > 0 {
            return None;
        }
        (0..len).try_for_each(|_| read(self, len))
    }

    /// Reads the kind and number of the following elements.
    fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Every element has at least one byte, booleans too.
        (len <= self.rest.len() as u64).then_some((head & 15, len))
    }

    /// Reads the kind and number of the next field; the inner option is none at the end of the struct.
    fn field(&mut self, before: i64) -> Option<Option<(u8, i64)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        let id = if head >> 4 == 0 { self.zigzag()? } else { before.checked_add(i64::from(head >> 4))? };
        i16::try_from(id).ok()?;
        Some(Some((head & 15, id)))
    }

    /// Reads a struct: calls `read` for each field with its number and kind. The first fields must have these kinds and
    /// occur only once: other readers do not check this, and would interpret the bytes differently.
    pub(super) fn fields(
        &mut self,
        kinds: &[u8],
        mut read: impl FnMut(&mut Self, i64, u8) -> Option<()>,
    ) -> Option<()> {
        let (mut id, mut seen) = (0, 0u32);
        while let Some((kind, field)) = self.field(id)? {
            id = field;
            let place = usize::try_from(field).ok()?.checked_sub(1)?;
            if let Some(expected) = kinds.get(place) {
                let general = if kind == 2 { BOOL } else { kind };
                if *expected != general || seen & 1 << place != 0 {
                    return None;
                }
                seen |= 1 << place;
            }
            read(self, field, kind)?;
        }
        Some(())
    }

    pub(super) fn skip(&mut self, kind: u8, depth: u8) -> Option<()> {
        if depth > 16 {
            return None;
        }
        match kind {
            BOOL | 2 => {}
            3 => drop(self.byte()?),
            I16..=I64 => drop(self.varint()?),
            7 => self.rest = self.rest.get(8..)?,
            BINARY => drop(self.binary()?),
            LIST | 10 => {
                let (kind, len) = self.list()?;
                for _ in 0..len {
                    match kind {
                        BOOL | 2 => drop(self.byte()?),
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
            }
            STRUCT => self.fields(&[], |reader, _, kind| reader.skip(kind, depth + 1))?,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_page() {
        // type 2, uncompressed 64, compressed 32, dictionary (8 values, encoding 0).
        let bytes = [0x15, 4, 0x15, 128, 1, 0x15, 64, 0x4c, 0x15, 16, 0x15, 0, 0, 0];
        let header = PageHeader {
            bytes: bytes.len(),
            uncompressed: 64,
            compressed: 32,
            dictionary_values: 8,
            ..PageHeader::default()
        };
        assert_eq!(page_header(&bytes), Some(header));
        for len in 0..bytes.len() {
            assert_eq!(page_header(&bytes[..len]), None);
        }
    }

    #[test]
    fn a_page_of_the_second_version() {
        // type 3, uncompressed 64, compressed 32, a header with levels of 3 and 4 bytes, not compressed.
        let bytes = [0x15, 6, 0x15, 128, 1, 0x15, 64, 0x5c, 0x55, 6, 0x15, 8, 0x12, 0, 0];
        let header = page_header(&bytes).unwrap();
        assert_eq!((header.uncompressed, header.levels, header.is_stored), (64, 7, true));
        let mut negative = bytes;
        negative[9] = 5;
        assert_eq!(page_header(&negative), None);
    }

    #[test]
    fn lists_have_what_they_say() {
        // Field 1 is a list of three structs, each with a whole number.
        let mut bytes = [0x19, 0x3c, 0x15, 2, 0, 0x15, 4, 0, 0x15, 6, 0, 0];
        let skip = |bytes: &[u8]| Reader::new(bytes).skip(STRUCT, 0);
        assert!(skip(&bytes).is_some());
        bytes[1] = 0x4c;
        assert!(skip(&bytes).is_none());
    }

    #[test]
    fn sizes_of_another_type_are_none() {
        // The uncompressed size as a 64-bit whole number.
        assert_eq!(page_header(&[0x15, 0, 0x16, 128, 1, 0x15, 64, 0]), None);
        // A field that occurs twice.
        assert_eq!(page_header(&[0x15, 0, 0x15, 2, 0x05, 4, 4, 0x15, 64, 0]), None);
    }
}
