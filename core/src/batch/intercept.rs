//! Provides a batch whose columns are converted when they are read.

use core::{cell::OnceCell, fmt};

use super::{BatchError, SampleBatch};
use crate::{
    column::{Column, ColumnName},
    prelude::*,
    rng::Rng,
};

/// A view of a batch that converts each column with a function, for example to a tensor. The view calls the function when a
/// column is first read and keeps the result; a change of the batch or of the function discards the results.
///
/// The function gets columns as they are stored, compressed ones too, and may return any type.
pub struct Intercepted<'f, T> {
    batch: SampleBatch,
    interceptor: Box<dyn Fn(&Column) -> T + 'f>,
    seen: BTreeMap<ColumnName, OnceCell<T>>,
}

impl SampleBatch {
    /// Converts each column with a function. The view shares the batch's buffers.
    #[doc(alias = "set_get_interceptor")]
    pub fn intercepted<'f, T>(&self, interceptor: impl Fn(&Column) -> T + 'f) -> Intercepted<'f, T> {
        let mut view =
            Intercepted { batch: self.clone(), interceptor: Box::new(interceptor), seen: BTreeMap::default() };
        view.forget();
        view
    }
}

impl<'f, T> Intercepted<'f, T> {
    /// Returns a column by name, converted by the function.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`].
    pub fn get(&self, name: &str) -> Result<&T, BatchError> {
        let missing = || BatchError::MissingColumn(name.to_string());
        let column = self.batch.column(name).ok_or_else(missing)?;
        Ok(self.seen.get(name).ok_or_else(missing)?.get_or_init(|| (self.interceptor)(column)))
    }

    /// Replaces the function, and discards the results of the previous one.
    pub fn set_interceptor(&mut self, interceptor: impl Fn(&Column) -> T + 'f) {
        self.interceptor = Box::new(interceptor);
        self.forget();
    }

    /// Shuffles the rows of the batch, see [`SampleBatch::shuffle`].
    ///
    /// # Errors
    /// As [`SampleBatch::shuffle`].
    pub fn shuffle(&mut self, rng: &mut Rng) -> Result<(), BatchError> {
        self.batch.shuffle(rng)?;
        self.forget();
        Ok(())
    }

    /// Adds or replaces a column of the batch, see [`SampleBatch::insert`].
    ///
    /// # Errors
    /// As [`SampleBatch::insert`].
    pub fn insert(&mut self, name: impl Into<ColumnName>, column: impl Into<Column>) -> Result<(), BatchError> {
        let name = name.into();
        self.batch.insert(name.clone(), column)?;
        self.seen.insert(name, OnceCell::new());
        Ok(())
    }

    /// Returns true if the batch is for training, not for inference.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.batch.is_training()
    }

    /// Sets whether the batch is for training.
    pub fn set_training(&mut self, training: bool) {
        self.batch.set_training(training);
    }

    /// Returns the underlying batch.
    #[must_use]
    pub fn batch(&self) -> &SampleBatch {
        &self.batch
    }

    /// Returns the underlying batch and consumes the view.
    #[must_use]
    pub fn into_batch(self) -> SampleBatch {
        self.batch
    }

    fn forget(&mut self) {
        self.seen = self.batch.columns.iter().map(|(name, _)| (name.clone(), OnceCell::new())).collect();
    }
}

impl<T> fmt::Debug for Intercepted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.seen.iter().filter(|(_, seen)| seen.get().is_some()).map(|(name, _)| name);
        f.debug_struct("Intercepted").field("batch", &self.batch).field("seen", &seen.collect::<Vec<_>>()).finish()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::{super::test_support::*, *};
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    #[test]
    fn interceptor() {
        let calls = Cell::new(0);
        let plus = |n: i64| {
            let calls = &calls;
            move |column: &Column| {
                calls.set(calls.get() + 1);
                column.typed::<i64>().unwrap().values().iter().map(|value| value + n).collect::<Vec<_>>()
            }
        };
        let values: Vec<i64> = (0..20).collect();
        let mut view = rows(&values).intercepted(plus(1));
        assert_eq!(calls.get(), 0);
        assert_eq!((view.get("a").unwrap()[0], view.get("a").unwrap()[19], calls.get()), (1, 20, 1));
        assert_eq!(view.get("b"), Err(BatchError::MissingColumn("b".into())));

        view.shuffle(&mut Streams::new(1, Purpose::Shuffle).at(SlotId(0), 0, 0, 0)).unwrap();
        let shuffled = view.get("a").unwrap().clone();
        assert_eq!((shuffled == (1..21).collect::<Vec<_>>(), calls.get()), (false, 2));
        let mut sorted = shuffled.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..21).collect::<Vec<_>>());

        view.set_interceptor(plus(10));
        assert_eq!((view.get("a").unwrap()[0], calls.get()), (shuffled[0] + 9, 3));
        view.insert("a", ints(&[7; 20])).unwrap();
        view.insert("b", ints(&[8; 20])).unwrap();
        assert_eq!((view.get("a").unwrap()[3], view.get("b").unwrap()[3]), (17, 18));

        view.set_training(true);
        assert!(view.is_training() && view.into_batch().is_training());
    }
}
