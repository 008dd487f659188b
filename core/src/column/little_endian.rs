//! Encodes numbers as little-endian bytes, whole slices at a time: the loops have no branches, and compile to plain copies
//! on little-endian machines.

use crate::prelude::*;

/// A number with a fixed little-endian form.
pub trait LittleEndian: Copy {
    /// Bytes of one number.
    const BYTES: usize;

    /// Writes numbers up to the length of the shorter side.
    fn write_le(values: &[Self], out: &mut [u8]);

    /// Iterates over elements; ignores a remainder.
    fn iter_le(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self>;

    /// Reads elements; ignores a remainder.
    fn read_le(bytes: &[u8]) -> Vec<Self> {
        Self::iter_le(bytes).collect()
    }
}

macro_rules! little_endian {
    ($($ty:ty),+) => {
        $(impl LittleEndian for $ty {
            const BYTES: usize = size_of::<$ty>();

            fn write_le(values: &[Self], out: &mut [u8]) {
                for (to, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *to = value.to_le_bytes();
                }
            }

            fn iter_le(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> {
                bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes))
            }
        })+
    };
}

little_endian!(f32, f64, u8, u16, u32, u64, i16, i32, i64);

/// Booleans are the bytes 0 and 1. Any other byte reads as true, so check the bytes first.
impl LittleEndian for bool {
    const BYTES: usize = 1;

    fn write_le(values: &[Self], out: &mut [u8]) {
        for (to, value) in out.iter_mut().zip(values) {
            *to = u8::from(*value);
        }
    }

    fn iter_le(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> {
        bytes.iter().map(|byte| *byte != 0)
    }
}

/// Appends numbers to a buffer that grows once.
pub fn append_le<T: LittleEndian>(out: &mut Vec<u8>, values: &[T]) {
    const PIECE: usize = 512;
    out.reserve(values.len() * T::BYTES);
    // Uses a small buffer: zeroing the new memory first would write all of it twice.
    let mut buffer = [0; PIECE];
    for piece in values.chunks(PIECE / T::BYTES.max(1)) {
        T::write_le(piece, &mut buffer);
        out.extend_from_slice(buffer.get(..piece.len() * T::BYTES).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bits() {
        let many: Vec<u16> = (0..1_000).collect();
        let mut bytes = vec![];
        append_le(&mut bytes, &many);
        assert_eq!(u16::read_le(&bytes), many);
        let mut bytes = vec![9];
        append_le(&mut bytes, &[1i32, -2]);
        assert_eq!(bytes, [9, 1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(i32::read_le(&bytes[1..]), [1, -2]);
        let nan = f32::from_bits(0x7fa0_0001);
        let mut bytes = [0; 4];
        f32::write_le(&[nan], &mut bytes);
        assert_eq!(f32::read_le(&bytes)[0].to_bits(), nan.to_bits());
        assert_eq!(bool::read_le(&[0, 1]), [false, true]);
    }
}
