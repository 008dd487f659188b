//! As much of Thrift's compact protocol as it takes to see what a page says of itself.

/// What the header of a page says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Bytes of the header itself.
    pub(super) bytes: usize,
    /// Bytes of the page when it is decompressed.
    pub(super) uncompressed: i64,
    /// Bytes of the page as it is.
    pub(super) compressed: i64,
    /// Values of a dictionary; 0 for other pages.
    pub(super) dictionary_values: i64,
}

/// Reads a header; none if the bytes end before, or if it is none.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut reader = Reader { rest: bytes };
    let mut header = PageHeader::default();
    let mut id = 0i64;
    while let Some((kind, field)) = reader.field(id)? {
        id = field;
        match (field, kind) {
            (2, 5) => header.uncompressed = reader.zigzag()?,
            (3, 5) => header.compressed = reader.zigzag()?,
            (7, 12) => {
                let mut id = 0i64;
                while let Some((kind, field)) = reader.field(id)? {
                    id = field;
                    match (field, kind) {
                        (1, 5) => header.dictionary_values = reader.zigzag()?,
                        _ => reader.skip(kind, 0)?,
                    }
                }
            }
            _ => reader.skip(kind, 0)?,
        }
    }
    header.bytes = bytes.len() - reader.rest.len();
    Some(header)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
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

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Kind and number of the next field, the inner none at the end of the struct.
    fn field(&mut self, before: i64) -> Option<Option<(u8, i64)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        let id = if head >> 4 == 0 { self.zigzag()? } else { before.checked_add(i64::from(head >> 4))? };
        Some(Some((head & 15, id)))
    }

    fn skip(&mut self, kind: u8, depth: u8) -> Option<()> {
        if depth > 8 {
            return None;
        }
        match kind {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.rest = self.rest.get(8..)?,
            8 => {
                let len = usize::try_from(self.varint()?).ok()?;
                self.rest = self.rest.get(len..)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Elements take bytes, truth values too.
                if len > self.rest.len() as u64 {
                    return None;
                }
                for _ in 0..len {
                    match head & 15 {
                        1 | 2 => drop(self.byte()?),
                        kind => self.skip(kind, depth + 1)?,
                    }
                }
            }
            12 => {
                let mut id = 0;
                while let Some((kind, field)) = self.field(id)? {
                    id = field;
                    self.skip(kind, depth + 1)?;
                }
            }
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
        let header = PageHeader { bytes: bytes.len(), uncompressed: 64, compressed: 32, dictionary_values: 8 };
        assert_eq!(page_header(&bytes), Some(header));
        for len in 0..bytes.len() {
            assert_eq!(page_header(&bytes[..len]), None);
        }
    }
}
