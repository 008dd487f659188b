//! A 128-bit XXH3 whose state can be saved, which the crate's hashers do not offer.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::Hash128;
use crate::prelude::*;

const STRIPE: usize = 64;
/// The input is hashed in blocks of as many stripes as there are positions of a stripe's secret, less one.
const STRIPES_PER_BLOCK: u64 = 16;
/// Longer inputs are hashed by stripes.
const LONGEST_SHORT: u64 = 240;
/// The longest part of the input that is added in one call, in bytes: it bounds the memory of the hash.
const LONGEST_PART: usize = 1_024;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const INITIAL: [u64; 8] = [
    0xC2B2_AE3D,
    PRIME64_1,
    PRIME64_2,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x85EB_CA77,
    0x27D4_EB2F_1656_67C5,
    PRIME32_1,
];
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
    0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
    0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
    0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
    0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
    0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
    0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
    0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
    0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
    0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
    0x40, 0x7e,
];

/// The hash of a stream of bytes, equal to that of the whole input by any XXH3. The algorithm is that of
/// <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>, with the default secret and seed 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StreamHasher {
    /// Length of the input in bytes.
    length: u64,
    lanes: [u64; 8],
    /// The input that is not in the lanes yet, at least one byte of a long input, after the last stripe that is: the end of
    /// the input is hashed a second time, as its last 64 bytes.
    tail: Vec<u8>,
}

impl Default for StreamHasher {
    fn default() -> Self {
        Self { length: 0, lanes: INITIAL, tail: Vec::new() }
    }
}

impl StreamHasher {
    /// Adds bytes to the input.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        bytes.chunks(LONGEST_PART).for_each(|part| self.write_part(part));
    }

    fn write_part(&mut self, bytes: &[u8]) {
        let is_kept = if self.length > LONGEST_SHORT { STRIPE } else { 0 };
        let hashed = self.length.saturating_sub((self.tail.len().saturating_sub(is_kept)) as u64);
        self.length += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        if self.length <= LONGEST_SHORT {
            return;
        }
        let new = self.tail.get(is_kept..).unwrap_or_default();
        let stripes = new.len().saturating_sub(1) / STRIPE;
        for (number, stripe) in (hashed / STRIPE as u64..).zip(new.as_chunks::<STRIPE>().0.iter().take(stripes)) {
            let place = number % STRIPES_PER_BLOCK;
            accumulate(&mut self.lanes, stripe, secret(8 * place as usize));
            if place + 1 == STRIPES_PER_BLOCK {
                scramble(&mut self.lanes);
            }
        }
        if stripes > 0 {
            self.tail.drain(..is_kept + (stripes - 1) * STRIPE);
        }
    }

    /// Returns the hash so far.
    pub(super) fn finish(&self) -> Hash128 {
        let hash = match self.tail.last_chunk::<STRIPE>() {
            Some(last) if self.length > LONGEST_SHORT => {
                let mut lanes = self.lanes;
                accumulate(&mut lanes, last, secret(SECRET.len() - STRIPE - 7));
                let low = merge(&lanes, secret(11), self.length.wrapping_mul(PRIME64_1));
                let high = merge(&lanes, secret(SECRET.len() - STRIPE - 11), !self.length.wrapping_mul(PRIME64_2));
                u128::from(high) << 64 | u128::from(low)
            }
            _ => XxHash3_128::oneshot(&self.tail),
        };
        Hash128(hash.to_be_bytes())
    }
}

/// Returns the secret's bytes from this one on.
fn secret<const N: usize>(from: usize) -> &'static [u8; N] {
    SECRET.get(from..).and_then(<[u8]>::first_chunk).expect("all positions are within the secret")
}

fn words<const N: usize>(bytes: &[u8; N]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

fn accumulate(lanes: &mut [u64; 8], stripe: &[u8; STRIPE], secret: &[u8; STRIPE]) {
    for (i, (word, secret)) in words(stripe).zip(words(secret)).enumerate() {
        let key = word ^ secret;
        lanes[i ^ 1] = lanes[i ^ 1].wrapping_add(word);
        lanes[i] = lanes[i].wrapping_add((key & 0xFFFF_FFFF).wrapping_mul(key >> 32));
    }
}

fn scramble(lanes: &mut [u64; 8]) {
    for (lane, secret) in lanes.iter_mut().zip(words::<STRIPE>(secret(SECRET.len() - STRIPE))) {
        *lane = (*lane ^ *lane >> 47 ^ secret).wrapping_mul(PRIME32_1);
    }
}

fn merge(lanes: &[u64; 8], secret: &[u8; STRIPE], start: u64) -> u64 {
    let mut keys = lanes.iter().zip(words(secret)).map(|(lane, secret)| lane ^ secret);
    let mut sum = start;
    while let (Some(a), Some(b)) = (keys.next(), keys.next()) {
        let product = u128::from(a) * u128::from(b);
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    let mixed = (sum ^ sum >> 37).wrapping_mul(0x1656_6791_9E37_79F9);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::{super::bytes_hash, *};

    fn input(length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| (i.wrapping_mul(PRIME64_1) >> 56) as u8).collect()
    }

    #[test]
    fn hash_of_any_length_is_that_of_xxh3() {
        let input = input(3_300);
        for length in (0..=input.len()).filter(|length| *length < 700 || length % 64 < 2 || length % 1024 > 1_000) {
            let mut hasher = StreamHasher::default();
            hasher.write(&input[..length]);
            assert_eq!(hasher.finish(), bytes_hash(&input[..length]), "{length}");
        }
    }

    #[test]
    fn hash_depends_neither_on_cuts_nor_on_saving() {
        let input = input(5_000);
        let whole = bytes_hash(&input);
        for piece in [1, 7, 63, 64, 65, 240, 241, 999, 1_024, 4_000] {
            let mut hasher = StreamHasher::default();
            for bytes in input.chunks(piece) {
                hasher.write(bytes);
                let saved = postcard::to_allocvec(&hasher).unwrap();
                assert!(saved.len() < 400, "{}", saved.len());
                hasher = postcard::from_bytes(&saved).unwrap();
            }
            assert_eq!(hasher.finish(), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn memory_does_not_grow_with_input() {
        let mut hasher = StreamHasher::default();
        for length in [1, 100, 5_000, 1_000_000] {
            hasher.write(&input(length));
            let longest = LONGEST_SHORT as usize + LONGEST_PART;
            // A vector that grows has at most twice the capacity that it needs.
            assert!(hasher.tail.capacity() <= 2 * longest, "{length}: {}", hasher.tail.capacity());
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_state_does_not_panic(length: u64, lanes: [u64; 8], tail: Vec<u8>, more: Vec<u8>) {
            let mut hasher = StreamHasher { length: length / 2, lanes, tail };
            hasher.write(&more);
            hasher.finish();
        }
    }
}
