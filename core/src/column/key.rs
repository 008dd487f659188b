//! Typed names of columns.

use core::marker::PhantomData;

use super::Element;

/// The name of a column together with the type of its elements. The well-known ones are constants
/// in [`batch`](crate::batch); anyone can declare more.
#[derive(Debug)]
pub struct ColumnKey<T> {
    name: &'static str,
    element: PhantomData<fn() -> T>,
}

impl<T: Element> ColumnKey<T> {
    /// Declares a column.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, element: PhantomData }
    }

    /// The column's name, as RLlib writes it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for ColumnKey<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ColumnKey<T> {}
