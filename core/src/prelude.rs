//! Items that most modules use: those of the standard prelude from `alloc`, and [`CollectOrdered`].

#![allow(unused_imports, reason = "not every module uses all of them")]

pub(crate) use alloc::{
    borrow::{Cow, ToOwned as _},
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::{String, ToString as _},
    sync::Arc,
    vec,
    vec::Vec,
};

/// Collects into ordered maps and sets by insertion; of equal keys, the last value stays.
///
/// Their `FromIterator` sorts all entries first, with a copy of the standard library's sort for every type of entries: a twelfth of
/// the code of the module for browsers.
pub(crate) trait CollectOrdered: Iterator + Sized {
    /// Collects all items.
    fn collect_ordered<C: Default + Extend<Self::Item>>(self) -> C {
        let mut collected = C::default();
        collected.extend(self);
        collected
    }

    /// Collects all items, or fails with the first error.
    fn try_collect_ordered<T, E, C: Default + Extend<T>>(mut self) -> Result<C, E>
    where
        Self: Iterator<Item = Result<T, E>>,
    {
        let mut collected = C::default();
        self.try_for_each(|item| item.map(|item| collected.extend([item])))?;
        Ok(collected)
    }
}

impl<I: Iterator> CollectOrdered for I {}
