//! Typed names of columns.

use core::marker::PhantomData;

use super::Element;

/// The name of a column together with the type of its elements. The well-known keys are constants in
/// [`batch`](crate::batch); other code can declare more.
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

    /// Returns the column's name, as in RLlib.
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
