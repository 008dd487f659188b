//! Elements of rows of any type: borrowed for a call, or in a buffer.

use core::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Column, ColumnData, ColumnError, DType, Element, LittleEndian, RowShape, dtype::sealed};
use crate::prelude::*;

/// Evaluates an expression with the content of a value of an enum that has a variant for every element type. Other variants
/// have arms of their own.
///
/// ```
/// use rollmesh_core::{by_type, column::{Element as _, RowsRef}};
///
/// let sum = |rows: RowsRef<'_>| by_type!(RowsRef, rows, values => values.iter().map(|x| x.to_f64()).sum::<f64>());
/// assert_eq!(sum(RowsRef::Bool(&[true, true])), 2.0);
/// ```
#[macro_export]
macro_rules! by_type {
    ($enum:ident, $of:expr, $values:ident => $each:expr $(, $other:pat => $else:expr)* $(,)?) => {
        match $of {
            $enum::F32($values) => $each,
            $enum::F64($values) => $each,
            $enum::I32($values) => $each,
            $enum::I64($values) => $each,
            $enum::U8($values) => $each,
            $enum::Bool($values) => $each,
            $($other => $else,)*
        }
    };
}
pub use by_type;

macro_rules! rows {
    ($($variant:ident($ty:ty): $to:expr, $from:expr, $within:expr;)+) => {
        /// Borrowed rows of some element type.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum RowsRef<'a> {
            $(#[doc = concat!("Rows of `", stringify!($ty), "`.")] $variant(&'a [$ty])),+
        }

        /// Mutably borrowed rows of some element type.
        #[derive(Debug)]
        pub enum RowsMut<'a> {
            $(#[doc = concat!("Rows of `", stringify!($ty), "`.")] $variant(&'a mut [$ty])),+
        }

        /// A buffer of elements, of one type at a time.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum RowBuffer {
            $(#[doc = concat!("Elements of type `", stringify!($ty), "`.")] $variant(Vec<$ty>)),+
        }

        impl RowsRef<'_> {
            /// Returns the element type.
            #[must_use]
            pub const fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),+ }
            }
        }

        impl RowBuffer {
            /// Creates an empty buffer for elements of a type.
            #[must_use]
            pub const fn new(dtype: DType) -> Self {
                match dtype { $(DType::$variant => Self::$variant(Vec::new())),+ }
            }

            /// Appends elements of the same type. Returns false, and appends nothing, for those of another one.
            pub fn push(&mut self, rows: RowsRef<'_>) -> bool {
                match (self, rows) {
                    $((Self::$variant(values), RowsRef::$variant(more)) => values.extend_from_slice(more),)+
                    _ => return false,
                }
                true
            }
        }

        $(
            impl Element for $ty {
                const DTYPE: DType = DType::$variant;

                #[inline]
                fn to_f64(self) -> f64 {
                    $to(self)
                }
                #[inline]
                fn from_f64(x: f64) -> Self {
                    $from(x)
                }
                #[inline]
                fn within(self, low: f64, high: f64) -> bool {
                    $within(self, low, high)
                }
                fn rows(rows: RowsRef<'_>) -> Option<&[Self]> {
                    if let RowsRef::$variant(values) = rows { Some(values) } else { None }
                }
                fn rows_mut(rows: RowsMut<'_>) -> Option<&mut [Self]> {
                    if let RowsMut::$variant(values) = rows { Some(values) } else { None }
                }
                fn erase_rows(values: &[Self]) -> RowsRef<'_> {
                    RowsRef::$variant(values)
                }
                fn erase_rows_mut(values: &mut [Self]) -> RowsMut<'_> {
                    RowsMut::$variant(values)
                }
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
        )+
    };
}

rows! {
    F32(f32): f64::from, |x| x as f32, between;
    F64(f64): |x| x, |x| x, between;
    I32(i32): f64::from, |x| x as i32, between;
    // Not compared as floats: 2^53 + 1 would be rounded to a bound of 2^53. The cast converts infinities to the limits.
    I64(i64): |x| x as f64, |x| x as i64, |x, low, high| low as i64 <= x && x <= high as i64;
    U8(u8): f64::from, |x| x as u8, between;
    Bool(bool): |x| f64::from(u8::from(x)), |x| x != 0.0, |x, low, high| between(u8::from(x), low, high);
}

#[inline]
fn between(x: impl Into<f64>, low: f64, high: f64) -> bool {
    let x = x.into();
    low <= x && x <= high
}

#[allow(clippy::len_without_is_empty)]
impl<'a> RowsRef<'a> {
    /// Returns the number of elements, not of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        by_type!(Self, self, values => values.len())
    }

    /// Returns a range of the elements; `None` if out of range.
    #[must_use]
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        Some(by_type!(Self, self, values => Element::erase_rows(values.get(range)?)))
    }

    /// Returns a range of the elements, empty if out of range.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        by_type!(Self, self, values => Element::erase_rows(values.get(range).unwrap_or_default()))
    }

    /// Converts the elements to another type, as [`Element::from_f64`] does.
    #[must_use]
    pub fn cast<T: Element>(self) -> Vec<T> {
        by_type!(Self, self, values => values.iter().map(|x| T::from_f64(x.to_f64())).collect())
    }

    /// Copies the elements to a column.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] if they do not form whole rows of the shape.
    pub fn to_column(self, shape: RowShape) -> Result<Column, ColumnError> {
        by_type!(Self, self, values => ColumnData::new(values.to_vec(), shape).map(Column::from))
    }

    /// Returns the index of the first element that is infinite or NaN; `None` for integers.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<usize> {
        // First one pass over all without branches.
        match self {
            Self::F32(values) if !values.iter().fold(true, |all, x| all & x.is_finite()) => {
                values.iter().position(|x| !x.is_finite())
            }
            Self::F64(values) if !values.iter().fold(true, |all, x| all & x.is_finite()) => {
                values.iter().position(|x| !x.is_finite())
            }
            _ => None,
        }
    }
}

/// A NaN payload that no environment computes.
const POISON_F32: f32 = f32::from_bits(0x7fe5_a5a5);
const POISON_F64: f64 = f64::from_bits(0x7ffc_a5a5_a5a5_a5a5);

#[allow(clippy::len_without_is_empty)]
impl RowsMut<'_> {
    /// Returns the rows as they are now.
    #[must_use]
    pub fn as_rows(&self) -> RowsRef<'_> {
        by_type!(Self, self, values => Element::erase_rows(values))
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.as_rows().dtype()
    }

    /// Returns the number of elements, not of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_rows().len()
    }

    /// Returns a range of the elements, empty if out of range.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        by_type!(Self, self, values => Element::erase_rows_mut(values.get_mut(range).unwrap_or_default()))
    }

    /// Fills the rows from little-endian elements.
    ///
    /// # Errors
    /// Index and value of the first byte that is not a boolean.
    pub fn read_le(&mut self, bytes: &[u8]) -> Result<(), (usize, u8)> {
        match bytes.iter().position(|byte| *byte > 1).filter(|_| self.dtype() == DType::Bool) {
            Some(element) => return Err((element, bytes[element])),
            None => by_type!(Self, self, values => fill_le(values, bytes)),
        }
        Ok(())
    }

    /// Poisons the rows, so that [`first_poisoned`](Self::first_poisoned) finds elements that are not written later.
    /// Integers and flags, of which every value is valid, stay.
    pub(crate) fn poison(&mut self) {
        match self {
            Self::F32(values) => values.fill(POISON_F32),
            Self::F64(values) => values.fill(POISON_F64),
            _ => {}
        }
    }

    /// Returns the index of the first element that is still [poisoned](Self::poison).
    pub(crate) fn first_poisoned(&self) -> Option<usize> {
        match self {
            Self::F32(values) => values.iter().position(|value| value.to_bits() == POISON_F32.to_bits()),
            Self::F64(values) => values.iter().position(|value| value.to_bits() == POISON_F64.to_bits()),
            _ => None,
        }
    }
}

fn fill_le<T: LittleEndian>(values: &mut [T], bytes: &[u8]) {
    values.iter_mut().zip(T::iter_le(bytes)).for_each(|(value, read)| *value = read);
}

impl Default for RowBuffer {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

#[allow(clippy::len_without_is_empty)]
impl RowBuffer {
    /// Creates a buffer of zeros.
    #[must_use]
    pub fn zeros(dtype: DType, elements: usize) -> Self {
        let mut buffer = Self::new(dtype);
        buffer.resize(elements);
        buffer
    }

    /// Clears the buffer, and sets the type of the elements that follow.
    pub fn start(&mut self, dtype: DType) {
        if self.all().dtype() == dtype {
            by_type!(Self, self, values => values.clear());
        } else {
            *self = Self::new(dtype);
        }
    }

    /// Replaces the content by these elements.
    pub fn set(&mut self, rows: RowsRef<'_>) {
        self.start(rows.dtype());
        self.push(rows);
    }

    /// Sets the number of elements; new ones are zero.
    pub fn resize(&mut self, elements: usize) {
        by_type!(Self, self, values => values.resize(elements, Default::default()));
    }

    /// Appends zeros.
    pub(crate) fn push_zeros(&mut self, elements: usize) {
        self.resize(self.len() + elements);
    }

    /// Allocates memory for this number of additional elements. Returns false if the allocation fails.
    pub(crate) fn try_reserve(&mut self, elements: usize) -> bool {
        by_type!(Self, self, values => values.try_reserve_exact(elements).is_ok())
    }

    /// Removes elements at the front, and keeps the memory.
    pub(crate) fn drop_front(&mut self, elements: usize) {
        by_type!(Self, self, values => drop(values.drain(..elements.min(values.len()))));
    }

    /// Moves the elements from `start` on to the front.
    pub(crate) fn move_to_front(&mut self, start: usize) {
        by_type!(Self, self, values => values.copy_within(start.., 0));
    }

    /// Sets all elements to zero.
    pub(crate) fn zero(&mut self) {
        by_type!(Self, self, values => values.fill(Default::default()));
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        by_type!(Self, self, values => values.capacity())
    }

    /// Returns all elements.
    #[must_use]
    pub fn all(&self) -> RowsRef<'_> {
        by_type!(Self, self, values => Element::erase_rows(values))
    }

    /// Returns all elements mutably.
    #[must_use]
    pub fn all_mut(&mut self) -> RowsMut<'_> {
        by_type!(Self, self, values => Element::erase_rows_mut(values))
    }

    /// Returns a range of the elements, empty if out of range.
    pub(crate) fn part(&self, range: Range<usize>) -> RowsRef<'_> {
        self.all().part(range)
    }

    /// Returns a range of the elements mutably, empty if out of range.
    pub(crate) fn part_mut(&mut self, range: Range<usize>) -> RowsMut<'_> {
        self.all_mut().part(range)
    }

    pub(crate) fn into_column(self, shape: RowShape) -> Result<Column, ColumnError> {
        Ok(by_type!(Self, self, values => ColumnData::new(values, shape)?.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_are_compared_exactly() {
        let limit = (1i64 << 53) as f64;
        assert!((1i64 << 53).within(-limit, limit) && !((1i64 << 53) + 1).within(-limit, limit));
        assert!(i64::MAX.within(0.0, f64::INFINITY) && i64::MIN.within(f64::NEG_INFINITY, 0.0));
    }

    #[test]
    fn numbers_saturate() {
        assert_eq!((u8::from_f64(-1.0), u8::from_f64(300.0), i32::from_f64(-2.7)), (0, 255, -2));
        assert_eq!((i64::from_f64(f64::NAN), bool::from_f64(0.0), bool::from_f64(1.0)), (0, false, true));
        assert!(!f32::NAN.within(f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn buffer_changes_its_type_only_when_it_starts() {
        let mut buffer = RowBuffer::default();
        assert!(buffer.push(RowsRef::F32(&[1.0, 2.0])) && !buffer.push(RowsRef::I64(&[3])));
        assert_eq!(buffer.len(), 2);
        buffer.set(RowsRef::I64(&[3, 4]));
        assert_eq!((buffer.part(1..2), buffer.part(1..9)), (RowsRef::I64(&[4]), RowsRef::I64(&[])));
        buffer.zero();
        assert_eq!(buffer.all(), RowsRef::I64(&[0, 0]));
    }

    #[test]
    fn buffers_become_columns_of_their_type() {
        for dtype in DType::ALL {
            let mut buffer = RowBuffer::zeros(dtype, 4);
            buffer.drop_front(2);
            let column = buffer.into_column(RowShape::vector(2)).unwrap();
            assert_eq!((column.dtype(), column.rows()), (Some(dtype), 1));
        }
    }
}
