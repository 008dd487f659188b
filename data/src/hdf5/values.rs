//! Converts stored elements to columns.

use half::f16;
use rollmesh_core::column::{BytesColumn, BytesKind, Column, ColumnData, ColumnError, Element, RowShape};

use super::{
    Context, Hdf5Error,
    datatype::{Class, Datatype},
    heap::global_object,
};

/// Returns a column of these elements, which must form whole rows of the shape.
pub(super) fn column(
    context: &Context,
    datatype: &Datatype,
    shape: RowShape,
    mut raw: Vec<u8>,
) -> Result<Column, Hdf5Error> {
    if datatype.big_endian {
        raw.chunks_exact_mut(datatype.size).for_each(<[u8]>::reverse);
    }
    let column = match (&datatype.class, datatype.size) {
        (Class::Text | Class::Heap, _) => return text(context, datatype, shape, &raw),
        (Class::Bool, _) => {
            if raw.iter().any(|byte| *byte > 1) {
                return Err(Hdf5Error::Corrupt("a truth value that is neither 0 nor 1"));
            }
            array(&raw, shape, |[byte]: [u8; 1]| byte != 0)
        }
        (Class::Float, 2) => array(&raw, shape, |bytes| f16::from_le_bytes(bytes).to_f32()),
        (Class::Float, 4) => array(&raw, shape, f32::from_le_bytes),
        (Class::Float, _) => array(&raw, shape, f64::from_le_bytes),
        (Class::Unsigned, 1) => ColumnData::new(raw, shape).map(Column::from),
        (Class::Unsigned, 2) => array(&raw, shape, |bytes| i32::from(u16::from_le_bytes(bytes))),
        (Class::Unsigned, 4) => array(&raw, shape, |bytes| i64::from(u32::from_le_bytes(bytes))),
        (Class::Unsigned, _) => {
            if raw.as_chunks::<8>().0.iter().any(|bytes| i64::from_le_bytes(*bytes) < 0) {
                return Err(Hdf5Error::Unsupported("an integer above 2^63 - 1".to_string()));
            }
            array(&raw, shape, i64::from_le_bytes)
        }
        (Class::Signed, 1) => array(&raw, shape, |[byte]: [u8; 1]| i32::from(byte as i8)),
        (Class::Signed, 2) => array(&raw, shape, |bytes| i32::from(i16::from_le_bytes(bytes))),
        (Class::Signed, 4) => array(&raw, shape, i32::from_le_bytes),
        (Class::Signed, _) => array(&raw, shape, i64::from_le_bytes),
    };
    column.map_err(|_| Hdf5Error::Corrupt("rows that are not whole"))
}

fn array<T: Element, const SIZE: usize>(
    raw: &[u8],
    shape: RowShape,
    from: impl Fn([u8; SIZE]) -> T,
) -> Result<Column, ColumnError> {
    let values = raw.as_chunks::<SIZE>().0.iter().map(|bytes| from(*bytes)).collect();
    ColumnData::new(values, shape).map(Column::from_typed)
}

/// Returns rows of text; looks up those in a heap.
fn text(context: &Context, datatype: &Datatype, shape: RowShape, raw: &[u8]) -> Result<Column, Hdf5Error> {
    if shape != RowShape::SCALAR || datatype.size == 0 {
        return Err(Hdf5Error::Unsupported("an array of texts per row".to_string()));
    }
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(raw.len() / datatype.size));
    for entry in raw.chunks_exact(datatype.size) {
        let before = bytes.len();
        if datatype.class == Class::Text {
            bytes.extend_from_slice(entry.split(|byte| *byte == 0).next().unwrap_or_default());
        } else {
            let mut cursor = context.cursor(entry);
            let (len, address, number) = (cursor.u32()? as usize, cursor.offset()?, cursor.u32()?);
            if len > 0 {
                let object = global_object(context, address, number.into())?;
                bytes.extend_from_slice(object.get(..len).ok_or(Hdf5Error::Corrupt("a text shorter than it says"))?);
            }
        }
        context.fits(bytes.len() as u64, "a range of texts")?;
        lengths.push((bytes.len() - before) as u32);
    }
    let column = BytesColumn::from_lengths(BytesKind::Bytes, bytes, &lengths);
    column.map(Column::from).map_err(|_| Hdf5Error::Corrupt("texts of wrong lengths"))
}
