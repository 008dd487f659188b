//! Rows of any element type: parts of them, and checks of their types and lengths.

use std::ops::Range;

use rollmesh_core::{
    column::DType,
    env::{EnvError, RowsMut, RowsRef},
    space::{PointError, Space},
};

pub(super) fn check_rows(
    what: &'static str,
    elements: &'static str,
    (found, len): (DType, usize),
    (wanted, buffer): (DType, usize),
) -> Result<(), EnvError> {
    if found != wanted {
        return Err(EnvError::WrongType { what, found: found.name(), wanted: wanted.name() });
    }
    check_len(elements, len, buffer)
}

pub(super) fn check_len(what: &'static str, wanted: usize, found: usize) -> Result<(), EnvError> {
    if wanted == found { Ok(()) } else { Err(EnvError::WrongLength { what, wanted, found }) }
}

macro_rules! rows {
    ($($variant:ident($ty:ty)),+) => {
        /// One row.
        pub(super) enum PythonRow {
            $($variant(Vec<$ty>)),+
        }

        impl PythonRow {
            pub(super) fn new(dtype: DType, len: usize) -> Self {
                match dtype { $(DType::$variant => Self::$variant(vec![<$ty>::default(); len])),+ }
            }

            pub(super) fn all(&self) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowsRef::$variant(values)),+ }
            }

            pub(super) fn all_mut(&mut self) -> RowsMut<'_> {
                match self { $(Self::$variant(values) => RowsMut::$variant(values)),+ }
            }
        }

        /// Returns some of the rows of this length.
        pub(super) fn rows_of(rows: RowsRef<'_>, range: Range<usize>, len: usize) -> RowsRef<'_> {
            match rows { $(RowsRef::$variant(values) => RowsRef::$variant(&values[range.start * len..range.end * len])),+ }
        }

        pub(super) fn rows_mut_of<'a>(rows: &'a mut RowsMut<'_>, range: Range<usize>, len: usize) -> RowsMut<'a> {
            match rows { $(RowsMut::$variant(values) => RowsMut::$variant(&mut values[range.start * len..range.end * len])),+ }
        }

        pub(super) fn shared<'a>(rows: &'a RowsMut<'_>) -> RowsRef<'a> {
            match rows { $(RowsMut::$variant(values) => RowsRef::$variant(values)),+ }
        }

        pub(super) fn reborrow<'a>(rows: &'a mut RowsMut<'_>) -> RowsMut<'a> {
            match rows { $(RowsMut::$variant(values) => RowsMut::$variant(values)),+ }
        }

        pub(super) fn first_outside(space: &Space, rows: RowsRef<'_>) -> Result<Option<usize>, PointError> {
            match rows { $(RowsRef::$variant(values) => space.first_outside(values)),+ }
        }
    };
}

rows!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));
