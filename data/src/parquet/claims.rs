//! Checks what a Parquet file claims of itself, before the parquet crate allocates memory for it or recurses into it: the
//! crate trusts the size of a decompressed page, and how a schema's groups are nested.

use parquet::basic::Compression;
use thrift::{
    TConfiguration,
    protocol::{TCompactInputProtocol, TInputProtocol, TType},
};

/// Maximum nesting of a schema's groups, since the crate reads them recursively.
const MAX_DEPTH: usize = 64;
/// Each column gets a copy of its path, with the names of all groups around it: all paths together may have this multiple of
/// the size of the table of contents.
const MAX_PATHS: u64 = 32;

/// What the header of a page claims; 0 for missing parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageClaim {
    /// Size of the decompressed page.
    pub(super) bytes: i32,
    /// Number of values of a dictionary.
    pub(super) dictionary_values: i32,
}

impl PageClaim {
    /// Reads the header of a page, as far as the bytes go: statistics, which may be long, come after the sizes.
    pub(super) fn new(header: &[u8]) -> Self {
        let mut claim = Self::default();
        let mut page = protocol(header);
        // The crate reports an invalid header.
        let _ = fields(&mut page, |page, field, kind| match (field, kind) {
            (2, TType::I32) => page.read_i32().map(|bytes| claim.bytes = bytes),
            (7, TType::Struct) => fields(page, |page, field, kind| match (field, kind) {
                (1, TType::I32) => page.read_i32().map(|values| claim.dictionary_values = values),
                _ => page.skip(kind),
            }),
            _ => page.skip(kind),
        });
        claim
    }
}

/// Returns whether a table of contents can be read, and the groups of its schema have the members that they claim and are not
/// nested too deeply.
pub(super) fn is_sound(contents: &[u8]) -> bool {
    let mut is_sound = true;
    let mut table = protocol(contents);
    let read = fields(&mut table, |table, field, kind| match (field, kind) {
        (2, TType::List) => schema(table, contents.len() as u64).map(|schema| is_sound &= schema),
        _ => table.skip(kind),
    });
    read.is_ok() && is_sound
}

type Protocol<'a> = TCompactInputProtocol<&'a [u8]>;

/// Returns a reader that allocates no more for a text than there is.
fn protocol(bytes: &[u8]) -> Protocol<'_> {
    let limits = TConfiguration::builder().max_string_size(Some(bytes.len())).build();
    TCompactInputProtocol::with_config(bytes, limits.unwrap_or_default())
}

/// Reads a struct: calls `read` for each field with its number and kind.
fn fields(
    protocol: &mut Protocol<'_>,
    mut read: impl FnMut(&mut Protocol<'_>, i16, TType) -> thrift::Result<()>,
) -> thrift::Result<()> {
    protocol.read_struct_begin()?;
    loop {
        let field = protocol.read_field_begin()?;
        if field.field_type == TType::Stop {
            return protocol.read_struct_end();
        }
        read(protocol, field.id.unwrap_or_default(), field.field_type)?;
    }
}

/// A group of a schema.
struct Open {
    /// Number of its unread members.
    left: i32,
    /// Length of its path.
    path: u64,
}

/// Reads the elements of a schema, in which each group is followed by its members, and checks them.
fn schema(table: &mut Protocol<'_>, contents: u64) -> thrift::Result<bool> {
    let list = table.read_list_begin()?;
    let mut is_sound = list.element_type == TType::Struct;
    let mut open: Vec<Open> = Vec::new();
    let (mut claimed, mut paths) = (0i32, 0u64);
    for _ in 0..list.size {
        let (mut members, mut path) = (0, 0);
        fields(table, |table, field, kind| match (field, kind) {
            (4, TType::String) => table.read_bytes().map(|name| path = name.len() as u64),
            (5, TType::I32) => table.read_i32().map(|number| members = number),
            _ => table.skip(kind),
        })?;
        while open.pop_if(|group| group.left == 0).is_some() {}
        if let Some(group) = open.last_mut() {
            group.left -= 1;
            path += group.path;
        }
        if members > 0 {
            open.push(Open { left: members, path });
        } else {
            paths += path;
        }
        claimed = claimed.saturating_add(members);
        // Each element except the first belongs to one group.
        is_sound &= members >= 0 && claimed < list.size && open.len() <= MAX_DEPTH;
    }
    Ok(is_sound && paths <= contents.saturating_mul(MAX_PATHS))
}

/// Returns whether this build lacks a page's decoder: Zstandard's C library needs a C compiler for the target.
pub(super) fn is_left_out(codec: Compression) -> bool {
    matches!(codec, Compression::ZSTD(_)) && !cfg!(feature = "zstd")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: u8 = 9;
    const STRUCT: u8 = 12;

    /// Returns a table of contents whose schema has groups with these numbers of members, and columns where they are 0.
    fn table(elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2 << 4 | LIST, 0xf0 | STRUCT];
        let len = elements.len();
        bytes.extend(if len < 128 { vec![len as u8] } else { vec![len as u8 | 128, (len >> 7) as u8] });
        for members in elements {
            // Field 4 is a name of one letter, field 5 a 32-bit number.
            bytes.extend([4 << 4 | 8, 1, b'a', 1 << 4 | 5, members << 1, 0]);
        }
        bytes.push(0);
        bytes
    }

    #[test]
    fn claimed_members_must_exist() {
        assert!(is_sound(&table(&[2, 0, 0])));
        for claim in [3, 60] {
            assert!(!is_sound(&table(&[claim, 0, 0])));
            assert!(!is_sound(&table(&[2, claim, 0])));
        }
        let mut negative = table(&[0]);
        let at = negative.len() - 3;
        negative[at] = 1;
        assert!(!is_sound(&negative));
        let whole = table(&[2, 0, 0]);
        assert!((0..whole.len()).all(|len| !is_sound(&whole[..len])));
    }

    #[test]
    fn groups_are_nested_to_a_limit() {
        let nested = |depth: usize| is_sound(&table(&[vec![1; depth], vec![0]].concat()));
        assert!(nested(MAX_DEPTH));
        assert!(!nested(MAX_DEPTH + 1));
    }

    #[test]
    fn headers_of_pages_are_read_as_far_as_they_go() {
        // Type 2, 64 bytes, compressed 32, a dictionary of 8 values.
        let header = [0x15, 4, 0x15, 128, 1, 0x15, 64, 0x4c, 0x15, 16, 0x15, 0, 0, 0];
        assert_eq!(PageClaim::new(&header), PageClaim { bytes: 64, dictionary_values: 8 });
        assert_eq!(PageClaim::new(&header[..6]), PageClaim { bytes: 64, dictionary_values: 0 });
        assert_eq!(PageClaim::new(&[]), PageClaim::default());
    }
}
