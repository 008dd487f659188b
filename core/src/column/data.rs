//! Shared, sliceable storage of rows, typed and with the type erased.

use core::{fmt, ops::Range};

use super::{ColumnError, RowShape};
use crate::prelude::*;

/// Type of a column's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// Byte, for images.
    U8,
    /// Truth value, one byte.
    Bool,
}

impl DType {
    /// NumPy's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::Bool => "bool",
        }
    }

    /// True for floats, false for integers and truth values.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::U8 | Self::Bool => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type that columns can hold. Sealed: the set is [`DType`]'s.
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static + sealed::Erase {
    /// The type's tag.
    const DTYPE: DType;
}

mod sealed {
    use super::{Column, ColumnData};

    pub trait Erase: Sized {
        fn erase(data: ColumnData<Self>) -> Column;
        fn typed(column: &Column) -> Option<&ColumnData<Self>>;
        fn typed_mut(column: &mut Column) -> Option<&mut ColumnData<Self>>;
    }
}

/// Rows of `T`: a shared buffer and the range of it that is this column.
#[derive(Clone)]
pub struct ColumnData<T> {
    values: Arc<Vec<T>>,
    /// First element (not row) of this column in `values`.
    start: usize,
    rows: usize,
    shape: RowShape,
}

impl<T: Element> ColumnData<T> {
    /// Takes a buffer of whole rows. Copies nothing.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] when the values do not make whole rows.
    pub fn new(values: Vec<T>, shape: RowShape) -> Result<Self, ColumnError> {
        Self::from_shared(Arc::new(values), shape)
    }

    /// Takes a buffer that somebody else may hold too. Copies nothing.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] when the values do not make whole rows.
    pub fn from_shared(values: Arc<Vec<T>>, shape: RowShape) -> Result<Self, ColumnError> {
        let width = shape.elements();
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(ColumnError::RaggedRows { values: values.len(), shape });
        }
        Ok(Self { start: 0, rows: values.len() / width, shape, values })
    }

    /// Takes a buffer of which this crate knows that it holds whole rows; a rest would be left out.
    pub(crate) fn whole_rows(values: Arc<Vec<T>>, shape: RowShape) -> Self {
        debug_assert!(values.len().is_multiple_of(shape.elements()), "ragged rows");
        Self { start: 0, rows: values.len() / shape.elements().max(1), shape, values }
    }

    /// Takes one number per row. Copies nothing.
    #[must_use]
    pub fn scalars(values: Vec<T>) -> Self {
        Self { start: 0, rows: values.len(), shape: RowShape::SCALAR, values: Arc::new(values) }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Shape of one row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// All elements, row-major.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values[self.start..][..self.rows * self.shape.elements()]
    }

    /// The elements of one row.
    ///
    /// # Panics
    /// If there is no such row, like a slice.
    #[must_use]
    pub fn row(&self, row: usize) -> &[T] {
        let width = self.shape.elements();
        &self.values()[row * width..][..width]
    }

    /// The elements for writing. Copies this column's rows first if anybody else holds the buffer
    /// or if the column is a part of it, so that a write is never seen through another handle.
    pub fn values_mut(&mut self) -> &mut [T] {
        let len = self.rows * self.shape.elements();
        if len != self.values.len() || Arc::get_mut(&mut self.values).is_none() {
            self.values = Arc::new(self.values().to_vec());
            self.start = 0;
        }
        Arc::get_mut(&mut self.values).map_or(&mut [], |values| &mut values[..])
    }

    /// The rows in `range`, sharing the buffer.
    ///
    /// # Panics
    /// If the range is not within the column, like a slice.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        Self {
            values: self.values.clone(),
            start: self.start + range.start * self.shape.elements(),
            rows: range.len(),
            shape: self.shape,
        }
    }

    /// The buffer itself, for a producer that wants it back when the consumers are done.
    #[must_use]
    pub fn shared(&self) -> &Arc<Vec<T>> {
        &self.values
    }

    fn concat(parts: &[&Self]) -> Self {
        let rows = parts.iter().map(|part| part.rows).sum();
        let shape = parts.first().map_or(RowShape::SCALAR, |part| part.shape);
        let mut values = Vec::with_capacity(rows * shape.elements());
        for part in parts {
            values.extend_from_slice(part.values());
        }
        Self { values: Arc::new(values), start: 0, rows, shape }
    }
}

impl<T: Element> PartialEq for ColumnData<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.values() == other.values()
    }
}

impl<T: Element> fmt::Debug for ColumnData<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {}{}", self.rows, T::DTYPE, self.shape)
    }
}

macro_rules! column {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// A column whose element type is known at run time.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Column {
            $($variant(ColumnData<$ty>)),+
        }

        $(
            impl Element for $ty {
                const DTYPE: DType = DType::$variant;
            }

            impl sealed::Erase for $ty {
                fn erase(data: ColumnData<Self>) -> Column {
                    Column::$variant(data)
                }
                fn typed(column: &Column) -> Option<&ColumnData<Self>> {
                    if let Column::$variant(data) = column { Some(data) } else { None }
                }
                fn typed_mut(column: &mut Column) -> Option<&mut ColumnData<Self>> {
                    if let Column::$variant(data) = column { Some(data) } else { None }
                }
            }

            impl From<ColumnData<$ty>> for Column {
                fn from(data: ColumnData<$ty>) -> Self {
                    Self::$variant(data)
                }
            }
        )+

        impl Column {
            /// Number of rows.
            #[must_use]
            pub fn rows(&self) -> usize {
                match self { $(Self::$variant(data) => data.rows()),+ }
            }

            /// Shape of one row.
            #[must_use]
            pub fn shape(&self) -> RowShape {
                match self { $(Self::$variant(data) => data.shape()),+ }
            }

            /// Type of the elements.
            #[must_use]
            pub fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),+ }
            }

            /// The rows in `range`, sharing the buffer.
            ///
            /// # Panics
            /// If the range is not within the column, like a slice.
            #[must_use]
            pub fn slice(&self, range: Range<usize>) -> Self {
                match self { $(Self::$variant(data) => Self::$variant(data.slice(range))),+ }
            }

            /// Joins columns of one type and row shape, in order.
            ///
            /// # Errors
            /// [`ColumnError::Mismatch`] when type or row shape differ.
            pub fn concat(parts: &[&Self]) -> Result<Option<Self>, ColumnError> {
                let Some(first) = parts.first() else { return Ok(None) };
                if let Some(other) = parts.iter().find(|p| p.dtype() != first.dtype() || p.shape() != first.shape()) {
                    return Err(ColumnError::Mismatch { left: first.describe(), right: other.describe() });
                }
                Ok(Some(match first {
                    $(Self::$variant(_) => {
                        let parts: Vec<_> = parts.iter().filter_map(|part| part.typed::<$ty>().ok()).collect();
                        Self::$variant(ColumnData::concat(&parts))
                    })+
                }))
            }
        }
    };
}

column!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

impl Column {
    /// The column with its element type.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] when it holds something else.
    pub fn typed<T: Element>(&self) -> Result<&ColumnData<T>, ColumnError> {
        T::typed(self).ok_or_else(|| ColumnError::WrongType { wanted: T::DTYPE, found: self.dtype() })
    }

    /// The column with its element type, for writing.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] when it holds something else.
    pub fn typed_mut<T: Element>(&mut self) -> Result<&mut ColumnData<T>, ColumnError> {
        let found = self.dtype();
        T::typed_mut(self).ok_or(ColumnError::WrongType { wanted: T::DTYPE, found })
    }

    /// Makes a column of a type that is known at compile time.
    #[must_use]
    pub fn from_typed<T: Element>(data: ColumnData<T>) -> Self {
        T::erase(data)
    }

    fn describe(&self) -> String {
        format!("{}{}", self.dtype(), self.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: usize) -> ColumnData<f32> {
        ColumnData::new((0..2 * n).map(|i| i as f32).collect(), RowShape::vector(2)).unwrap()
    }

    #[test]
    fn slices_share_and_writes_copy_only_their_rows() {
        let column = pairs(10);
        let mut slice = column.slice(3..5);
        assert!(Arc::ptr_eq(column.shared(), slice.shared()));
        slice.values_mut()[0] = -1.0;
        assert_eq!(slice.values(), [-1.0, 7.0, 8.0, 9.0]);
        assert_eq!(slice.shared().len(), 4);
        assert_eq!(column.row(3), [6.0, 7.0]);
    }

    #[test]
    fn a_sole_owner_writes_in_place() {
        let mut column = pairs(3);
        let before = column.values().as_ptr();
        column.values_mut()[5] = 9.0;
        assert_eq!(column.values().as_ptr(), before);
        assert_eq!(column.row(2), [4.0, 9.0]);
    }

    #[test]
    fn values_must_make_whole_rows() {
        let error = ColumnData::new(vec![1i64; 5], RowShape::vector(2)).unwrap_err();
        assert_eq!(error.to_string(), "5 values do not make whole rows of shape (2)");
        assert!(ColumnData::new(vec![1i64; 5], RowShape::vector(0)).is_err());
    }

    #[test]
    fn joining_checks_type_and_shape() {
        let a = Column::from(pairs(2));
        let b = Column::from(pairs(1));
        assert_eq!(Column::concat(&[&a, &b]).unwrap().unwrap().rows(), 3);
        let c = Column::from(ColumnData::scalars(vec![1.0f64]));
        let error = Column::concat(&[&a, &c]).unwrap_err();
        assert_eq!(error.to_string(), "cannot join rows float32(2) with rows float64()");
    }
}
