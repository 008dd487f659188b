//! Selects filters by name, and synchronises them.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{FilterError, FilterFloat, MeanStdConfig, MeanStdFilter};
use crate::{column::RowShape, prelude::*};

/// The kinds of filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "observation_filter")]
pub enum FilterKind {
    /// Leaves observations unchanged.
    #[default]
    NoFilter,
    /// Normalises with running statistics.
    MeanStdFilter,
    /// The same for a shell that calls it from several threads. The core has no threads and uses a [`MeanStdFilter`], which
    /// is also the [kind](Filter::kind) that it reports.
    ConcurrentMeanStdFilter,
}

/// The name of the filter is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no filter '{name}'; there are {}", FilterKind::ALL.map(FilterKind::name).join(", "))]
pub struct UnknownFilter {
    /// The name.
    pub name: String,
}

impl FilterKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::NoFilter, Self::MeanStdFilter, Self::ConcurrentMeanStdFilter];

    /// Returns its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoFilter => "NoFilter",
            Self::MeanStdFilter => "MeanStdFilter",
            Self::ConcurrentMeanStdFilter => "ConcurrentMeanStdFilter",
        }
    }
}

impl fmt::Display for FilterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FilterKind {
    type Err = UnknownFilter;

    fn from_str(name: &str) -> Result<Self, UnknownFilter> {
        let unknown = || UnknownFilter { name: name.chars().take(100).collect() };
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)
    }
}

impl Serialize for FilterKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for FilterKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The observation filter of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::large_enum_variant)] // There is one filter per policy.
pub enum Filter {
    /// Leaves observations unchanged.
    #[default]
    NoFilter,
    /// Normalises with running statistics.
    MeanStdFilter(MeanStdFilter),
}

impl Filter {
    /// Creates a filter for rows of this shape, without clipping.
    ///
    /// # Errors
    /// [`FilterError::BadShape`].
    #[doc(alias = "get_filter")]
    pub fn new(kind: FilterKind, shape: RowShape) -> Result<Self, FilterError> {
        Ok(match kind {
            FilterKind::NoFilter => Self::NoFilter,
            FilterKind::MeanStdFilter | FilterKind::ConcurrentMeanStdFilter => {
                Self::MeanStdFilter(MeanStdFilter::new(shape, MeanStdConfig::UNCLIPPED)?)
            }
        })
    }

    /// Returns the kind of the filter. For a requested [concurrent](FilterKind::ConcurrentMeanStdFilter) filter, the core
    /// reports a plain one.
    #[must_use]
    pub fn kind(&self) -> FilterKind {
        match self {
            Self::NoFilter => FilterKind::NoFilter,
            Self::MeanStdFilter(_) => FilterKind::MeanStdFilter,
        }
    }

    /// Returns the filter with statistics, if there is one.
    #[must_use]
    pub fn mean_std(&self) -> Option<&MeanStdFilter> {
        match self {
            Self::NoFilter => None,
            Self::MeanStdFilter(filter) => Some(filter),
        }
    }

    fn mean_std_mut(&mut self) -> Option<&mut MeanStdFilter> {
        match self {
            Self::NoFilter => None,
            Self::MeanStdFilter(filter) => Some(filter),
        }
    }

    /// Filters values of shape `dims` in place, see [`MeanStdFilter::call`].
    ///
    /// # Errors
    /// [`FilterError`]; on an error, the filter stays as it is.
    #[doc(alias = "__call__")]
    pub fn call<T: FilterFloat>(&mut self, dims: &[u32], values: &mut [T], update: bool) -> Result<(), FilterError> {
        self.mean_std_mut().map_or(Ok(()), |filter| filter.call(dims, values, update))
    }

    /// Filters whole rows in place, see [`MeanStdFilter::filter_rows`].
    ///
    /// # Errors
    /// [`FilterError`]; on an error, the filter stays as it is.
    pub fn filter_rows<T: FilterFloat>(&mut self, values: &mut [T], update: bool) -> Result<(), FilterError> {
        self.mean_std_mut().map_or(Ok(()), |filter| filter.filter_rows(values, update))
    }

    /// Lets later calls with `update` learn.
    pub fn in_training(&mut self) {
        self.mean_std_mut().into_iter().for_each(MeanStdFilter::in_training);
    }

    /// Stops learning in later calls, even with `update`.
    pub fn in_eval(&mut self) {
        self.mean_std_mut().into_iter().for_each(MeanStdFilter::in_eval);
    }

    /// Clears the buffer; the statistics stay.
    #[doc(alias = "clear_buffer")]
    pub fn reset_buffer(&mut self) {
        self.mean_std_mut().into_iter().for_each(MeanStdFilter::reset_buffer);
    }

    /// Returns a copy, and clears the buffer here.
    #[doc(alias = "flush_after")]
    #[must_use = "the copy alone holds what was in the buffer"]
    pub fn flush(&mut self) -> Self {
        match self {
            Self::NoFilter => Self::NoFilter,
            Self::MeanStdFilter(filter) => Self::MeanStdFilter(filter.flush()),
        }
    }

    /// Merges the other filter's buffer into these statistics, see [`MeanStdFilter::apply_changes`].
    ///
    /// # Errors
    /// [`FilterError`], also for filters of different kinds; on an error, the filter stays as it is.
    pub fn apply_changes(&mut self, other: &Self, with_buffer: bool) -> Result<(), FilterError> {
        self.pair(other, |filter, other| filter.apply_changes(other, with_buffer))
    }

    /// Counts the rows in the other filter's buffer as rows of this filter, see [`MeanStdFilter::absorb`].
    ///
    /// # Errors
    /// [`FilterError`], also for filters of different kinds; on an error, the filter stays as it is.
    pub fn absorb(&mut self, other: &Self) -> Result<(), FilterError> {
        self.pair(other, MeanStdFilter::absorb)
    }

    /// Copies the other filter's statistics, buffer and configuration, see [`MeanStdFilter::sync`].
    ///
    /// # Errors
    /// [`FilterError`], also for filters of different kinds; on an error, the filter stays as it is.
    pub fn sync(&mut self, other: &Self) -> Result<(), FilterError> {
        self.pair(other, MeanStdFilter::sync)
    }

    /// Returns the size of the statistics in memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.mean_std().map_or(0, MeanStdFilter::size_bytes)
    }

    /// Checks that the other filter's buffer can be merged after this number of other rows.
    fn check_changes(&self, other: &Self, rows: u64) -> Result<(), FilterError> {
        match (self, other) {
            (Self::NoFilter, Self::NoFilter) => Ok(()),
            (Self::MeanStdFilter(filter), Self::MeanStdFilter(other)) => {
                filter.running().check_shape(other.buffer())?;
                filter.running().check_count(rows.saturating_add(other.buffer().n()))
            }
            (left, right) => Err(FilterError::KindMismatch { left: left.kind(), right: right.kind() }),
        }
    }

    fn pair(
        &mut self,
        other: &Self,
        change: impl FnOnce(&mut MeanStdFilter, &MeanStdFilter) -> Result<(), FilterError>,
    ) -> Result<(), FilterError> {
        match (self, other) {
            (Self::NoFilter, Self::NoFilter) => Ok(()),
            (Self::MeanStdFilter(filter), Self::MeanStdFilter(other)) => change(filter, other),
            (left, right) => Err(FilterError::KindMismatch { left: left.kind(), right: right.kind() }),
        }
    }
}

/// Merges the buffers of all workers, in their order, into the driver's statistics and clears them; then copies the driver's
/// statistics and its buffer to all workers. The driver's buffer stays as it is.
///
/// The driver's statistics already contain its own rows. A driver that learns itself must therefore [reset its
/// buffer](Filter::reset_buffer) first; otherwise the workers get those rows in their buffers and return them the next time,
/// when they are counted once more per worker.
///
/// ```
/// # use rollmesh_core::{column::RowShape, filter::{Filter, FilterKind, synchronize}};
/// # let mut driver = Filter::new(FilterKind::MeanStdFilter, RowShape::SCALAR)?;
/// # let mut worker = driver.clone();
/// for _ in 0..3 {
///     driver.filter_rows(&mut [1.0_f32, 2.0], true)?;
///     driver.reset_buffer();
///     synchronize(&mut driver, &mut [&mut worker])?;
/// }
/// assert_eq!(worker.mean_std().map(|filter| filter.running().n()), Some(6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`FilterError`] when a filter differs from the driver's in kind or shape, or when the total number of rows is too large
/// to count; on an error, all filters stay as they are.
#[doc(alias = "FilterManager")]
pub fn synchronize(driver: &mut Filter, workers: &mut [&mut Filter]) -> Result<(), FilterError> {
    let mut rows = 0;
    for worker in workers.iter() {
        driver.check_changes(worker, rows)?;
        rows += worker.mean_std().map_or(0, |filter| filter.buffer().n());
    }
    for worker in workers.iter_mut() {
        driver.apply_changes(worker, false)?;
        worker.reset_buffer();
    }
    for worker in workers {
        worker.sync(driver)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::RunningStat, *};

    fn mean_std(shape: RowShape, values: &[f64]) -> Filter {
        let mut filter = Filter::new(FilterKind::MeanStdFilter, shape).unwrap();
        filter.filter_rows(&mut values.to_vec(), true).unwrap();
        filter
    }

    fn counts(filter: &Filter) -> (u64, u64) {
        filter.mean_std().map(|filter| (filter.running().n(), filter.buffer().n())).unwrap()
    }

    #[test]
    fn names_lead_to_filters() {
        for kind in FilterKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(Filter::new(kind, RowShape::SCALAR).unwrap().kind() == FilterKind::NoFilter, {
                kind == FilterKind::NoFilter
            });
        }
        assert_eq!(
            "MeanStd".parse::<FilterKind>().unwrap_err().to_string(),
            "there is no filter 'MeanStd'; there are NoFilter, MeanStdFilter, ConcurrentMeanStdFilter"
        );
    }

    #[test]
    fn no_filter_leaves_rows_alone() {
        let mut filter = Filter::new(FilterKind::NoFilter, RowShape::vector(2)).unwrap();
        let mut rows = [1.0_f32, f32::INFINITY, 3.0];
        filter.filter_rows(&mut rows, true).unwrap();
        filter.call(&[3], &mut rows, true).unwrap();
        assert_eq!((rows, filter.flush()), ([1.0, f32::INFINITY, 3.0], Filter::NoFilter));
    }

    #[test]
    fn all_filters_have_the_observations_of_each_after_synchronisation() {
        let mut driver = mean_std(RowShape::SCALAR, &[2.0; 10]);
        driver.reset_buffer();
        let mut worker = mean_std(RowShape::SCALAR, &[3.0; 10]);
        synchronize(&mut driver, &mut [&mut worker]).unwrap();
        assert_eq!((counts(&driver), counts(&worker)), ((20, 0), (20, 0)));
        assert_eq!(worker, driver);
        assert_eq!(driver.mean_std().unwrap().running().mean(), [2.5]);
    }

    #[test]
    fn filters_that_differ_change_nothing() {
        let mut driver = mean_std(RowShape::SCALAR, &[]);
        let (mut good, mut bad) = (mean_std(RowShape::SCALAR, &[1.0]), mean_std(RowShape::vector(2), &[1.0, 2.0]));
        let before = (driver.clone(), good.clone(), bad.clone());
        assert!(synchronize(&mut driver, &mut [&mut good, &mut bad]).is_err());
        assert_eq!((&driver, &good, bad), (&before.0, &before.1, before.2));
        assert!(synchronize(&mut driver, &mut [&mut good, &mut Filter::NoFilter]).is_err());
        // Two buffers, of which only one would fit.
        let most = RunningStat::from_parts(RowShape::SCALAR, RunningStat::MAX_ROWS, vec![0.0], vec![0.0]).unwrap();
        let most =
            MeanStdFilter::from_parts(MeanStdConfig::UNCLIPPED, RunningStat::new(RowShape::SCALAR).unwrap(), most)
                .unwrap();
        let error = synchronize(&mut driver, &mut [&mut Filter::MeanStdFilter(most), &mut good]).unwrap_err();
        assert_eq!((error, driver, good), (FilterError::TooManyRows, before.0, before.1));
        let mut driver = mean_std(RowShape::SCALAR, &[]);
        let error = synchronize(&mut driver, &mut [&mut Filter::NoFilter]).unwrap_err();
        let wanted = "a MeanStdFilter and a NoFilter cannot be merged; use one kind of filter on all workers";
        assert_eq!(error.to_string(), wanted);
    }
}
