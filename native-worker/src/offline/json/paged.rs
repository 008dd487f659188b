//! Page-aligned copies for faster writes.

/// Size of a page in bytes.
const PAGE: usize = 4096;

/// A copy of the bytes to write, with the same offset within a page as in the file.
///
/// The operating system copies from the program's pages to the file's page cache. If the two offsets differ by a few bytes,
/// the copy instruction of some processors (`rep movsb`) takes many times as long; an additional copy costs next to nothing.
#[derive(Default)]
pub(super) struct Paged {
    bytes: Vec<u8>,
}

impl Paged {
    /// Returns a copy of the bytes, aligned for this offset in a file.
    pub(super) fn at(&mut self, offset: u64, bytes: &[u8]) -> &[u8] {
        self.bytes.clear();
        self.bytes.reserve(bytes.len() + PAGE);
        let before = ((offset % PAGE as u64) as usize).wrapping_sub(self.bytes.as_ptr().addr()) % PAGE;
        self.bytes.resize(before, 0);
        self.bytes.extend_from_slice(bytes);
        self.bytes.get(before..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_as_in_their_file() {
        let mut paged = Paged::default();
        for (offset, len) in [(0, 10), (1, 5_000), (4_095, 1), (u64::from(u32::MAX), 20_000), (12_345, 0)] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let copy = paged.at(offset, &bytes);
            assert_eq!(copy, bytes);
            assert_eq!(copy.as_ptr().addr() % PAGE, offset as usize % PAGE);
        }
    }
}
