//! Elements of columns as little-endian bytes, integers in the narrowest type that holds them.

use core::ops::Range;

use crate::{
    column::{Column, ColumnData, ColumnError, DType, Element, RowShape},
    prelude::*,
    protocol::wire_enum::wire_enum,
};

/// A number with a fixed little-endian form.
pub(super) trait LittleEndian: Copy {
    const BYTES: usize;
    fn write(self, out: &mut Vec<u8>);
    /// Reads exactly [`BYTES`](Self::BYTES) bytes.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! little_endian {
    ($($ty:ty),+) => {
        $(impl LittleEndian for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or_else(Self::default, |bytes| Self::from_le_bytes(*bytes))
            }
        })+
    };
}

little_endian!(f32, f64, u8, i16, i32, i64);

pub(super) fn write_all<T: LittleEndian>(out: &mut Vec<u8>, values: &[T]) {
    values.iter().for_each(|value| value.write(out));
}

pub(super) fn read_all<T: LittleEndian>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::BYTES).map(T::read).collect()
}

wire_enum! {
    /// How the elements of a column travel.
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
        /// Truth values, 0 or 1.
        Bool = 6,
        /// 64-bit integers, all from 0 to 255.
        I64AsU8 = 7,
        /// 64-bit integers that fit into 16 bits.
        I64AsI16 = 8,
        /// 64-bit integers that fit into 32 bits.
        I64AsI32 = 9,
    }
}

/// What an element must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// Infinite or not a number.
    #[error("a value that is not finite")]
    NotFinite,
    /// A truth value that is neither 0 nor 1.
    #[error("a truth value {0}")]
    NotBool(u8),
    /// An integer outside of its space.
    #[error("{0}, which is outside of its space")]
    OutOfRange(i64),
}

impl WireType {
    /// Type of the elements when they have arrived.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::I32 => DType::I32,
            Self::I64 | Self::I64AsU8 | Self::I64AsI16 | Self::I64AsI32 => DType::I64,
            Self::U8 => DType::U8,
            Self::Bool => DType::Bool,
        }
    }

    /// Bytes of one element on the way.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::U8 | Self::Bool | Self::I64AsU8 => 1,
            Self::I64AsI16 => 2,
            Self::F32 | Self::I32 | Self::I64AsI32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The most compact type that carries all these columns, which have one element type.
    pub(super) fn narrowest(dtype: DType, columns: &[&Column]) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
            DType::I32 => Self::I32,
            DType::U8 => Self::U8,
            DType::Bool => Self::Bool,
            DType::I64 => {
                let integers =
                    || columns.iter().filter_map(|column| column.typed::<i64>().ok()).flat_map(|c| c.values());
                let (min, max) = (integers().min().copied().unwrap_or(0), integers().max().copied().unwrap_or(0));
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

    /// Appends the elements of a column for which this is the narrowest type, or a wider one.
    pub(super) fn write(self, out: &mut Vec<u8>, column: &Column) {
        match column {
            Column::F32(data) => write_all(out, data.values()),
            Column::F64(data) => write_all(out, data.values()),
            Column::I32(data) => write_all(out, data.values()),
            Column::U8(data) => out.extend_from_slice(data.values()),
            Column::Bool(data) => out.extend(data.values().iter().map(|&value| u8::from(value))),
            // The casts keep the value: `narrowest` has looked at all of them.
            Column::I64(data) => match self {
                Self::I64AsU8 => out.extend(data.values().iter().map(|&value| value as u8)),
                Self::I64AsI16 => data.values().iter().for_each(|&value| (value as i16).write(out)),
                Self::I64AsI32 => data.values().iter().for_each(|&value| (value as i32).write(out)),
                _ => write_all(out, data.values()),
            },
        }
    }

    /// Makes a column of bytes, as many as whole rows of the shape need. Integers must be in the range, which
    /// excludes its end.
    pub(super) fn read(self, bytes: &[u8], shape: RowShape, range: Option<Range<i64>>) -> Result<Column, ReadFault> {
        match self {
            Self::F32 => floats(read_all::<f32>(bytes), shape),
            Self::F64 => floats(read_all::<f64>(bytes), shape),
            Self::I32 => integers(read_all::<i32>(bytes), shape, range),
            Self::U8 => integers(bytes.to_vec(), shape, range),
            Self::I64 => integers(read_all::<i64>(bytes), shape, range),
            Self::I64AsU8 => integers(bytes.iter().copied().map(i64::from).collect(), shape, range),
            Self::I64AsI16 => integers(widen::<i16>(bytes), shape, range),
            Self::I64AsI32 => integers(widen::<i32>(bytes), shape, range),
            Self::Bool => bools(bytes, shape),
        }
    }
}

/// Why bytes make no column.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// An element is not allowed.
    Value { element: usize, fault: ValueFault },
    /// The elements do not make rows.
    Rows(ColumnError),
}

impl From<ColumnError> for ReadFault {
    fn from(error: ColumnError) -> Self {
        Self::Rows(error)
    }
}

/// Names the first element for which `fault` has something to say.
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
    range: Option<Range<i64>>,
) -> Result<Column, ReadFault> {
    if let Some(range) = range {
        check(&values, |value| {
            let value = value.into();
            (!range.contains(&value)).then_some(ValueFault::OutOfRange(value))
        })?;
    }
    Ok(Column::from_typed(ColumnData::new(values, shape)?))
}

fn bools(bytes: &[u8], shape: RowShape) -> Result<Column, ReadFault> {
    check(bytes, |byte| (byte > 1).then_some(ValueFault::NotBool(byte)))?;
    Ok(ColumnData::new(bytes.iter().map(|&byte| byte == 1).collect(), shape)?.into())
}

fn widen<T: LittleEndian + Into<i64>>(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks_exact(T::BYTES).map(|bytes| T::read(bytes).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            wire.write(&mut bytes, &column);
            assert_eq!(bytes.len(), values.len() * wire.size());
            assert_eq!(wire.read(&bytes, RowShape::SCALAR, None).unwrap(), column);
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
            let wire = WireType::narrowest(column.dtype(), &[&column]);
            let mut bytes = vec![];
            wire.write(&mut bytes, &column);
            assert_eq!((wire.dtype(), bytes.len()), (column.dtype(), 2 * column.rows() * wire.size()));
            assert_eq!(wire.read(&bytes, shape, None).unwrap(), column);
        }
    }
}
