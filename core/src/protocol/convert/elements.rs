//! Encoding of column elements: little-endian bytes, integers in the narrowest type that holds them all.

use core::ops::Range;

use crate::{
    column::{Column, ColumnData, ColumnError, DType, Element, LittleEndian, RowShape, append_le},
    env::put_rows,
    prelude::*,
    protocol::wire_enum::wire_enum,
};

wire_enum! {
    /// Wire encoding of a column's elements.
    "wire type of a column" pub(super) WireType {
        /// 32-bit floats.
        F32 = 1,
        /// 64-bit floats.
        F64 = 2,
        /// 32-bit integers.
        I32 = 3,
        /// 64-bit integers.
        I64 = 4,
        /// Bytes.
        U8 = 5,
        /// Booleans, 0 or 1.
        Bool = 6,
        /// 64-bit integers, all from 0 to 255.
        I64AsU8 = 7,
        /// 64-bit integers that fit into 16 bits.
        I64AsI16 = 8,
        /// 64-bit integers that fit into 32 bits.
        I64AsI32 = 9,
        /// 32-bit floats that are the same in all rows: one of them.
        F32Same = 12,
    }
}

/// The reason why an element is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueFault {
    /// Infinite or not a number.
    #[error("a value that is not finite")]
    NotFinite,
    /// A boolean that is neither 0 nor 1.
    #[error("a truth value {0}")]
    NotBool(u8),
    /// An integer outside of its space.
    #[error("{0}, which is outside of its space")]
    OutOfRange(i64),
}

impl WireType {
    /// Returns the type of the decoded column's elements.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Self::F32 | Self::F32Same => DType::F32,
            Self::F64 => DType::F64,
            Self::I32 => DType::I32,
            Self::I64 | Self::I64AsU8 | Self::I64AsI16 | Self::I64AsI32 => DType::I64,
            Self::U8 => DType::U8,
            Self::Bool => DType::Bool,
        }
    }

    /// Returns the bytes of one encoded element.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::U8 | Self::Bool | Self::I64AsU8 => 1,
            Self::I64AsI16 => 2,
            Self::F32 | Self::F32Same | Self::I32 | Self::I64AsI32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Returns the bytes of this many encoded elements. Saturates, because a shape may claim more elements than there could
    /// be bytes.
    pub(super) const fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32Same if elements > 0 => self.size() as u64,
            _ => elements.saturating_mul(self.size() as u64),
        }
    }

    /// Returns the [`narrowest`](Self::narrowest) type for a column with one element per row, whose rows may all be the
    /// same.
    pub(super) fn narrowest_scalar(dtype: DType, columns: &[&Column]) -> Self {
        if let Some(Column::F32(first)) = columns.first()
            && let Some(first) = first.values().first().map(|value| value.to_bits())
        {
            // No early exit within a column: a few vectorised instructions check many rows.
            let is_same = |column: &&Column| match column {
                Column::F32(data) => data.values().iter().fold(0, |odd, value| odd | (value.to_bits() ^ first)) == 0,
                _ => false,
            };
            if columns.iter().all(is_same) {
                return Self::F32Same;
            }
        }
        Self::narrowest(dtype, columns)
    }

    /// Returns the most compact type for all these columns, which have one type.
    pub(super) fn narrowest(dtype: DType, columns: &[&Column]) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
            DType::I32 => Self::I32,
            DType::U8 => Self::U8,
            DType::Bool => Self::Bool,
            DType::I64 => {
                let integers = columns.iter().filter_map(|column| column.typed::<i64>().ok()).flat_map(|c| c.values());
                // Zero fits every type.
                let (min, max) = integers.fold((0, 0), |(min, max), &value| (value.min(min), value.max(max)));
                let fits = |low: i64, high: i64| low <= min && max <= high;
                if fits(0, u8::MAX.into()) {
                    Self::I64AsU8
                } else if fits(i16::MIN.into(), i16::MAX.into()) {
                    Self::I64AsI16
                } else if fits(i32::MIN.into(), i32::MAX.into()) {
                    Self::I64AsI32
                } else {
                    Self::I64
                }
            }
        }
    }

    /// Appends the elements of columns that this type can hold. None may be compressed.
    pub(super) fn write(self, out: &mut Vec<u8>, columns: &[&Column]) {
        if self == Self::F32Same {
            let first = columns.iter().find_map(|column| column.typed::<f32>().ok()?.values().first().copied());
            return append_le(out, first.as_slice());
        }
        for column in columns {
            match (self, column) {
                (Self::I64AsU8, Column::I64(data)) => out.extend(data.values().iter().map(|&value| value as u8)),
                (Self::I64AsI16, Column::I64(data)) => append_le(out, &narrow(data.values(), |value| value as i16)),
                (Self::I64AsI32, Column::I64(data)) => append_le(out, &narrow(data.values(), |value| value as i32)),
                _ => column.array().into_iter().for_each(|elements| put_rows(out, elements)),
            }
        }
    }

    /// Decodes an array of `elements` elements, which form whole rows of the shape, from [as many bytes](Self::bytes) as
    /// they need. Integers must be in `ranges`, which apply cyclically to the elements of a row and exclude their ends;
    /// without ranges any integer is allowed.
    pub(super) fn read(
        self,
        bytes: &[u8],
        elements: usize,
        shape: RowShape,
        ranges: &[Range<i64>],
    ) -> Result<Column, ReadFault> {
        match self {
            Self::F32Same => {
                let first = f32::read_le(bytes);
                check(&first, |value| (!value.is_finite()).then_some(ValueFault::NotFinite))?;
                let value = first.first().copied().unwrap_or_default();
                Ok(Column::from_typed(ColumnData::new(vec![value; elements], shape)?))
            }
            Self::F32 => floats(f32::read_le(bytes), shape),
            Self::F64 => floats(f64::read_le(bytes), shape),
            Self::I32 => integers(i32::read_le(bytes), shape, ranges),
            Self::U8 => integers(bytes.to_vec(), shape, ranges),
            Self::I64 => integers(i64::read_le(bytes), shape, ranges),
            Self::I64AsU8 => integers(bytes.iter().copied().map(i64::from).collect(), shape, ranges),
            Self::I64AsI16 => integers(widen::<i16>(bytes), shape, ranges),
            Self::I64AsI32 => integers(widen::<i32>(bytes), shape, ranges),
            Self::Bool => bools(bytes, shape),
        }
    }
}

/// The reason why bytes do not form a column.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// An element is not allowed.
    Value { element: usize, fault: ValueFault },
    /// The elements do not form rows.
    Rows(ColumnError),
}

impl From<ColumnError> for ReadFault {
    fn from(error: ColumnError) -> Self {
        Self::Rows(error)
    }
}

/// Returns an error that names the first element for which `fault` returns one.
fn check<T: Copy>(values: &[T], fault: impl Fn(T) -> Option<ValueFault>) -> Result<(), ReadFault> {
    let found = values.iter().enumerate().find_map(|(element, &value)| Some((element, fault(value)?)));
    found.map_or(Ok(()), |(element, fault)| Err(ReadFault::Value { element, fault }))
}

fn floats<T: Element + Into<f64>>(values: Vec<T>, shape: RowShape) -> Result<Column, ReadFault> {
    check(&values, |value| (!value.into().is_finite()).then_some(ValueFault::NotFinite))?;
    Ok(Column::from_typed(ColumnData::new(values, shape)?))
}

fn integers<T: Element + Into<i64>>(
    values: Vec<T>,
    shape: RowShape,
    ranges: &[Range<i64>],
) -> Result<Column, ReadFault> {
    let outside = |(value, range): (&T, &Range<i64>)| !range.contains(&(*value).into());
    // With a single range, check all elements in one vectorised pass; the slow search then finds the first one outside.
    let has_outside = match ranges {
        [range] => values.iter().fold(false, |found, value| found | outside((value, range))),
        _ => true,
    };
    if has_outside && let Some(element) = values.iter().zip(ranges.iter().cycle()).position(outside) {
        return Err(ReadFault::Value { element, fault: ValueFault::OutOfRange(values[element].into()) });
    }
    Ok(Column::from_typed(ColumnData::new(values, shape)?))
}

fn bools(bytes: &[u8], shape: RowShape) -> Result<Column, ReadFault> {
    check(bytes, |byte| (byte > 1).then_some(ValueFault::NotBool(byte)))?;
    Ok(ColumnData::new(bytes.iter().map(|&byte| byte == 1).collect(), shape)?.into())
}

fn widen<T: LittleEndian + Into<i64>>(bytes: &[u8]) -> Vec<i64> {
    T::read_le(bytes).into_iter().map(T::into).collect()
}

fn narrow<T>(values: &[i64], to: impl Fn(i64) -> T) -> Vec<T> {
    values.iter().copied().map(to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::ColumnType;

    #[test]
    fn integers_travel_in_the_narrowest_type() {
        let cases: [(&[i64], WireType); 7] = [
            (&[], WireType::I64AsU8),
            (&[0, 255], WireType::I64AsU8),
            (&[-1, 3], WireType::I64AsI16),
            (&[0, 256], WireType::I64AsI16),
            (&[-32_769], WireType::I64AsI32),
            (&[i64::from(i32::MAX)], WireType::I64AsI32),
            (&[i64::from(i32::MAX) + 1, i64::MIN], WireType::I64),
        ];
        for (values, wire) in cases {
            let column = Column::from(ColumnData::scalars(values.to_vec()));
            assert_eq!(WireType::narrowest(DType::I64, &[&column]), wire);
            let mut bytes = vec![];
            wire.write(&mut bytes, &[&column]);
            assert_eq!(bytes.len(), values.len() * wire.size());
            assert_eq!(wire.read(&bytes, values.len(), RowShape::SCALAR, &[]).unwrap(), column);
        }
    }

    #[test]
    fn every_type_travels_unchanged() {
        let shape = RowShape::vector(2);
        let columns: [Column; 5] = [
            ColumnData::new(vec![1.5f32, -0.0, f32::MIN_POSITIVE, 4.0], shape).unwrap().into(),
            ColumnData::new(vec![1.5f64, f64::MAX], shape).unwrap().into(),
            ColumnData::new(vec![i32::MIN, 7], shape).unwrap().into(),
            ColumnData::new(vec![0u8, 255], shape).unwrap().into(),
            ColumnData::new(vec![true, false], shape).unwrap().into(),
        ];
        for column in columns {
            let ColumnType::Array(dtype) = column.column_type() else { panic!("an array") };
            let wire = WireType::narrowest(dtype, &[&column]);
            let mut bytes = vec![];
            wire.write(&mut bytes, &[&column]);
            assert_eq!((wire.dtype(), bytes.len()), (dtype, 2 * column.rows() * wire.size()));
            assert_eq!(wire.read(&bytes, 2 * column.rows(), shape, &[]).unwrap(), column);
        }
    }

    #[test]
    fn scalars_that_are_all_the_same_travel_as_one() {
        let column = |values: &[f32]| Column::from(ColumnData::scalars(values.to_vec()));
        let narrowest = |columns: &[&Column]| WireType::narrowest_scalar(DType::F32, columns);
        let (ones, zeros) = (column(&[1.0; 3]), column(&[0.0, 0.0]));
        assert_eq!(narrowest(&[&ones, &ones]), WireType::F32Same);
        assert_eq!(narrowest(&[&ones, &zeros]), WireType::F32);
        assert_eq!(narrowest(&[&zeros, &column(&[-0.0])]), WireType::F32, "bits count, not values");
        assert_eq!(narrowest(&[&column(&[])]), WireType::F32);
        let wire = WireType::F32Same;
        let mut bytes = vec![];
        wire.write(&mut bytes, &[&ones, &ones]);
        assert_eq!((bytes.len() as u64, wire.bytes(6), wire.bytes(0)), (4, 4, 0));
        assert_eq!(wire.read(&bytes, 6, RowShape::SCALAR, &[]).unwrap(), column(&[1.0; 6]));
        let odd = wire.read(&f32::NAN.to_le_bytes(), 6, RowShape::SCALAR, &[]).unwrap_err();
        assert!(matches!(odd, ReadFault::Value { element: 0, fault: ValueFault::NotFinite }));
    }
}
