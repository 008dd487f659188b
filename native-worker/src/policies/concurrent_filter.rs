//! A thread-safe observation filter.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rollmesh_core::filter::{Filter, FilterError, FilterFloat, MeanStdFilter};

/// A [`MeanStdFilter`] behind a lock per call. Its encoding is that of a plain one.
///
/// The statistics do not depend on the order of threads, except for rounding; the normalised rows do, since each is
/// normalised with the statistics at its time. For bit-identical rows use a
/// [`VersionedFilter`](rollmesh_core::filter::VersionedFilter) per slot.
#[derive(Debug)]
pub struct ConcurrentMeanStdFilter {
    inner: Mutex<MeanStdFilter>,
}

impl From<MeanStdFilter> for ConcurrentMeanStdFilter {
    fn from(filter: MeanStdFilter) -> Self {
        Self { inner: Mutex::new(filter) }
    }
}

impl ConcurrentMeanStdFilter {
    /// See [`MeanStdFilter::call`].
    ///
    /// # Errors
    /// [`FilterError`]; the filter is unchanged then.
    #[doc(alias = "__call__")]
    pub fn call<T: FilterFloat>(&self, dims: &[u32], values: &mut [T], update: bool) -> Result<(), FilterError> {
        self.lock().call(dims, values, update)
    }

    /// See [`MeanStdFilter::filter_rows`].
    ///
    /// # Errors
    /// [`FilterError`]; the filter is unchanged then.
    pub fn filter_rows<T: FilterFloat>(&self, values: &mut [T], update: bool) -> Result<(), FilterError> {
        self.lock().filter_rows(values, update)
    }

    /// Returns a copy of the current filter, without a lock.
    #[must_use]
    #[doc(alias = "as_serializable")]
    pub fn snapshot(&self) -> MeanStdFilter {
        self.lock().clone()
    }

    /// Returns a snapshot and clears the buffer, atomically: every row is in exactly one of them.
    #[must_use = "the snapshot alone holds what was in the buffer"]
    pub fn flush(&self) -> MeanStdFilter {
        self.lock().flush()
    }

    /// See [`MeanStdFilter::reset_buffer`].
    #[doc(alias = "clear_buffer")]
    pub fn reset_buffer(&self) {
        self.lock().reset_buffer();
    }

    /// See [`MeanStdFilter::apply_changes`].
    ///
    /// # Errors
    /// [`FilterError`]; the filter is unchanged then.
    pub fn apply_changes(&self, other: &MeanStdFilter, with_buffer: bool) -> Result<(), FilterError> {
        self.lock().apply_changes(other, with_buffer)
    }

    /// See [`MeanStdFilter::sync`].
    ///
    /// # Errors
    /// [`FilterError`]; the filter is unchanged then.
    pub fn sync(&self, other: &MeanStdFilter) -> Result<(), FilterError> {
        self.lock().sync(other)
    }

    /// Enables updates of the statistics.
    pub fn in_training(&self) {
        self.lock().in_training();
    }

    /// Disables updates of the statistics, whatever calls request.
    pub fn in_eval(&self) {
        self.lock().in_eval();
    }

    /// Returns the plain filter.
    #[must_use]
    pub fn into_inner(self) -> MeanStdFilter {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the filter as a [`Filter`], while other calls wait; for functions such as
    /// [`synchronize`](rollmesh_core::filter::synchronize). `f` works on a copy that replaces the filter when it returns,
    /// but not if it panics or replaces it by another kind of filter; it must not use this filter.
    pub fn exclusive<R>(&self, f: impl FnOnce(&mut Filter) -> R) -> R {
        let mut inner = self.lock();
        let mut filter = Filter::MeanStdFilter(inner.clone());
        let result = f(&mut filter);
        if let Filter::MeanStdFilter(filter) = filter {
            *inner = filter;
        }
        result
    }

    /// Returns the encoding of the plain filter, see [`Filter::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Filter::MeanStdFilter(self.snapshot()).encode()
    }

    /// Locks the filter. Its methods check before they change anything, so it is consistent after a panic.
    fn lock(&self) -> MutexGuard<'_, MeanStdFilter> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        column::RowShape,
        filter::{MeanStdConfig, RunningStat, synchronize},
    };

    use super::*;

    #[test]
    fn no_row_is_lost_or_counted_twice() {
        let plain = MeanStdFilter::new(RowShape::vector(2), MeanStdConfig::default()).unwrap();
        let shared = ConcurrentMeanStdFilter::from(plain);
        let mut flushed = RunningStat::new(RowShape::vector(2)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let shared = &shared;
                scope.spawn(move || {
                    for step in 0..500_u16 {
                        let mut rows = [f32::from(thread), f32::from(step)];
                        shared.filter_rows(&mut rows, true).unwrap();
                    }
                });
            }
            for _ in 0..100 {
                flushed.merge(shared.flush().buffer()).unwrap();
            }
        });
        flushed.merge(shared.flush().buffer()).unwrap();
        let all = shared.snapshot();
        assert_eq!((all.running().n(), flushed.n(), all.buffer().n()), (2000, 2000, 0));
        // Threads are 0 to 3, steps 0 to 499.
        for (mean, wanted) in all.running().mean().iter().chain(flushed.mean()).zip([1.5, 249.5, 1.5, 249.5]) {
            assert!((mean - wanted).abs() < 1e-9, "{mean} {wanted}");
        }
        assert_eq!(Filter::decode(&shared.encode()), Ok(Filter::MeanStdFilter(all)));
    }

    #[test]
    fn it_stands_in_for_a_plain_one() {
        let plain = MeanStdFilter::new(RowShape::SCALAR, MeanStdConfig::default()).unwrap();
        let (mut driver, shared) = (Filter::MeanStdFilter(plain.clone()), ConcurrentMeanStdFilter::from(plain.clone()));
        let mut worker = Filter::MeanStdFilter(plain);
        shared.filter_rows(&mut [1.0, 2.0], true).unwrap();
        worker.filter_rows(&mut [6.0], true).unwrap();
        shared.exclusive(|shared| synchronize(&mut driver, &mut [shared, &mut worker])).unwrap();
        assert_eq!((shared.snapshot().running().mean(), shared.snapshot().buffer().n()), (&[3.0][..], 0));
        assert_eq!(Filter::decode(&shared.encode()), Ok(driver.clone()));
        shared.exclusive(|filter| *filter = Filter::NoFilter);
        assert_eq!(Filter::MeanStdFilter(shared.into_inner()), driver);
    }

    #[test]
    fn it_does_what_the_plain_one_does() {
        let mut plain = MeanStdFilter::new(RowShape::SCALAR, MeanStdConfig::default()).unwrap();
        let shared = ConcurrentMeanStdFilter::from(plain.clone());
        let both = |plain: &mut MeanStdFilter, update| {
            let (mut a, mut b) = ([1.0, 5.0, 2.5], [1.0, 5.0, 2.5]);
            plain.call(&[3], &mut a, update).unwrap();
            shared.call(&[3], &mut b, update).unwrap();
            assert_eq!(a, b);
            assert_eq!(shared.snapshot(), *plain);
        };
        both(&mut plain, true);
        plain.in_eval();
        shared.in_eval();
        both(&mut plain, true);
        plain.in_training();
        shared.in_training();
        let other = plain.clone();
        plain.apply_changes(&other, true).unwrap();
        shared.apply_changes(&other, true).unwrap();
        both(&mut plain, false);
        plain.reset_buffer();
        shared.reset_buffer();
        both(&mut plain, true);
        plain.sync(&other).unwrap();
        shared.sync(&other).unwrap();
        both(&mut plain, false);
        assert!(shared.filter_rows(&mut [f32::NAN], true).is_err());
    }
}
