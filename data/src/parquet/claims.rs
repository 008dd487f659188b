//! Checks the sizes that a Parquet file declares, before the parquet crate allocates memory for it or recurses into it:
//! the crate trusts the size of a decompressed page, and how a schema's groups are nested.

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

/// The sizes in the header of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageClaim {
    pub(super) is_dictionary: bool,
    /// Size of the decompressed page.
    pub(super) bytes: i32,
    /// Size of the page in the file.
    pub(super) stored: i32,
    /// Number of values of a dictionary.
    pub(super) dictionary_values: i32,
    /// Size of the part before the compressed one, which exists only in the second version.
    pub(super) levels: i32,
    pub(super) is_plain: bool,
}

impl PageClaim {
    /// Reads the header of a page, to its end: the last value of a field counts. Returns its length, too. The crate
    /// trusts the types of the fields that it knows, so another type is an error, and so is a list, which it reads in
    /// its own way.
    pub(super) fn new(header: &[u8]) -> Option<(Self, usize)> {
        let mut rest = header;
        let mut claim = Self::default();
        fields(&mut protocol(&mut rest, header.len()), |page, field, kind| match field {
            1 => number(page, kind).map(|kind| claim.is_dictionary = kind == 2),
            2 => number(page, kind).map(|bytes| claim.bytes = bytes),
            3 => number(page, kind).map(|stored| claim.stored = stored),
            4 => number(page, kind).map(drop),
            5 => inner(page, kind, |page, field, kind| match field {
                1..=4 => number(page, kind).map(drop),
                _ => skip(page, kind, 0),
            }),
            7 => inner(page, kind, |page, field, kind| match field {
                1 => number(page, kind).map(|values| claim.dictionary_values = values),
                2 => number(page, kind).map(drop),
                3 => flag(page, kind).map(drop),
                _ => skip(page, kind, 0),
            }),
            8 => {
                let mut lengths = [0; 2];
                claim.is_plain = false;
                inner(page, kind, |page, field, kind| match field {
                    5 | 6 => number(page, kind).map(|length| lengths[usize::from(field == 6)] = length),
                    1..=4 => number(page, kind).map(drop),
                    7 => flag(page, kind).map(|is_compressed| claim.is_plain = !is_compressed),
                    _ => skip(page, kind, 0),
                })?;
                claim.levels = lengths.iter().fold(0, |sum, length| sum.saturating_add(*length));
                Ok(())
            }
            _ => skip(page, kind, 0),
        })
        .ok()?;
        let is_sound = [claim.bytes, claim.stored, claim.dictionary_values, claim.levels].iter().all(|size| *size >= 0)
            // Every value of a dictionary has at least one byte.
            && claim.dictionary_values <= claim.bytes
            && claim.levels <= claim.bytes;
        is_sound.then_some((claim, header.len() - rest.len()))
    }
}

fn number(protocol: &mut Protocol<'_, '_>, kind: TType) -> thrift::Result<i32> {
    if kind == TType::I32 { protocol.read_i32() } else { Err("a field of another type".into()) }
}

fn flag(protocol: &mut Protocol<'_, '_>, kind: TType) -> thrift::Result<bool> {
    if kind == TType::Bool { protocol.read_bool() } else { Err("a field of another type".into()) }
}

fn inner(
    protocol: &mut Protocol<'_, '_>,
    kind: TType,
    read: impl FnMut(&mut Protocol<'_, '_>, i16, TType) -> thrift::Result<()>,
) -> thrift::Result<()> {
    if kind == TType::Struct { fields(protocol, read) } else { Err("a field of another type".into()) }
}

/// Skips a field of a page's header that the crate skips, too.
fn skip(protocol: &mut Protocol<'_, '_>, kind: TType, depth: usize) -> thrift::Result<()> {
    match kind {
        TType::Struct if depth < MAX_DEPTH => fields(protocol, |page, _, kind| skip(page, kind, depth + 1)),
        TType::Struct | TType::List | TType::Set | TType::Map => Err("a field without end".into()),
        kind => protocol.skip(kind),
    }
}

/// Returns whether a table of contents can be read, and the groups of its schema have the members that they claim and are not
/// nested too deeply.
pub(super) fn is_sound(contents: &[u8]) -> bool {
    let mut is_sound = true;
    let mut rest = contents;
    let mut table = protocol(&mut rest, contents.len());
    let read = fields(&mut table, |table, field, kind| match (field, kind) {
        (2, TType::List) => schema(table, contents.len() as u64).map(|schema| is_sound &= schema),
        _ => table.skip(kind),
    });
    read.is_ok() && is_sound
}

type Protocol<'a, 'b> = TCompactInputProtocol<&'a mut &'b [u8]>;

/// Returns a reader that allocates no more for a text than there is.
fn protocol<'a, 'b>(bytes: &'a mut &'b [u8], len: usize) -> Protocol<'a, 'b> {
    let limits = TConfiguration::builder().max_string_size(Some(len)).build();
    TCompactInputProtocol::with_config(bytes, limits.unwrap_or_default())
}

/// Reads a struct: calls `read` for each field with its number and kind.
fn fields(
    protocol: &mut Protocol<'_, '_>,
    mut read: impl FnMut(&mut Protocol<'_, '_>, i16, TType) -> thrift::Result<()>,
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
struct OpenStruct {
    /// Number of its unread members.
    left: i32,
    /// Length of its path.
    path: u64,
}

/// Reads the elements of a schema, in which each group is followed by its members, and checks them.
fn schema(table: &mut Protocol<'_, '_>, contents: u64) -> thrift::Result<bool> {
    let list = table.read_list_begin()?;
    let mut is_sound = list.element_type == TType::Struct;
    let mut open: Vec<OpenStruct> = Vec::new();
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
            open.push(OpenStruct { left: members, path });
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
pub(super) fn lacks_decoder(codec: Compression) -> bool {
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
    fn headers_of_pages_are_read_to_their_end() {
        // Type 2, 64 bytes, compressed 32, a dictionary of 8 values.
        let header = [0x15, 4, 0x15, 128, 1, 0x15, 64, 0x4c, 0x15, 16, 0x15, 0, 0, 0];
        let claim =
            PageClaim { is_dictionary: true, bytes: 64, stored: 32, dictionary_values: 8, ..PageClaim::default() };
        let with = |fields: &[u8]| PageClaim::new(&[&header[..13], fields, &[0, 9, 9]].concat());
        assert_eq!(with(&[]), Some((claim, 14)));
        assert!((0..14).all(|len| PageClaim::new(&header[..len]).is_none()));
        // An unknown text, and the second field again: it has the long form of a number.
        assert_eq!(with(&[0x28, 3, b'a', b'b', b'c']), Some((claim, 19)));
        assert_eq!(with(&[0x05, 4, 128, 2]), Some((PageClaim { bytes: 128, ..claim }, 18)));
        // The second field as a number of 64 bits, a list, fewer bytes than values, fewer than none.
        for fields in [&[0x06, 4, 128, 2][..], &[0x29, 0x11, 1], &[0x05, 4, 14], &[0x05, 4, 1]] {
            assert_eq!(with(fields), None, "{fields:?}");
        }
    }

    #[test]
    fn the_second_version_has_levels_and_may_be_plain() {
        // Type 3, 64 bytes, compressed 32; lengths of levels 3 and 4, not compressed.
        let head = [0x15, 6, 0x15, 128, 1, 0x15, 64, 0x5c];
        let claim = PageClaim { bytes: 64, stored: 32, levels: 7, ..PageClaim::default() };
        let with = |fields: &[u8]| PageClaim::new(&[&head[..], fields, &[0, 0]].concat()).map(|(claim, _)| claim);
        assert_eq!(with(&[0x55, 6, 0x15, 8, 0x12]), Some(PageClaim { is_plain: true, ..claim }));
        assert_eq!(with(&[0x55, 6, 0x15, 8, 0x11]), Some(claim));
        // The same struct again, without the field of compression.
        let again = [&[0x55, 6, 0x15, 8, 0x12, 0, 0x0c, 16][..], &[0x55, 6, 0x15, 8]].concat();
        assert_eq!(with(&again), Some(claim));
        assert_eq!(with(&[0x55, 126, 0x15, 8]), None, "levels larger than the page");
    }
}
