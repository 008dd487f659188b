//! Implements filters whose rows do not depend on which slots share a worker: frozen statistics, and a delta per slot.

use super::{FilterError, FilterFloat, MeanStdConfig, RunningStat, normalize::denominators};
use crate::{
    ids::{FragmentNo, SlotId},
    prelude::*,
};

/// The statistics of one version, with their configuration. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct FrozenStat {
    config: MeanStdConfig,
    stat: Arc<Frozen>,
}

#[derive(Debug, PartialEq)]
struct Frozen {
    running: RunningStat,
    /// Derived from `running`.
    denominators: Vec<f64>,
}

/// The contribution of one slot's fragment to the statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterDelta {
    /// The slot.
    pub slot: SlotId,
    /// Its fragment.
    pub fragment: FragmentNo,
    /// Statistics of the fragment's rows alone.
    pub stat: RunningStat,
}

impl FrozenStat {
    /// Freezes statistics.
    ///
    /// # Errors
    /// [`FilterError::BadClip`].
    pub fn new(running: RunningStat, config: MeanStdConfig) -> Result<Self, FilterError> {
        let config = config.check()?;
        let mut divide_by = Vec::with_capacity(running.mean().len());
        denominators(&running, &mut divide_by);
        Ok(Self { config, stat: Arc::new(Frozen { running, denominators: divide_by }) })
    }

    /// Returns the statistics.
    #[must_use]
    pub fn running(&self) -> &RunningStat {
        &self.stat.running
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> MeanStdConfig {
        self.config
    }

    /// Returns what is divided by after the mean is subtracted, one number for each element.
    #[must_use]
    pub fn denominators(&self) -> &[f64] {
        &self.stat.denominators
    }

    /// Normalises whole rows in place, with the same bits as a [`MeanStdFilter`](super::MeanStdFilter) with these
    /// statistics. While the statistics have no rows, it leaves the rows unchanged.
    ///
    /// # Errors
    /// [`FilterError`] for rows of another shape or with a value that is not finite; on an error, the rows stay as they are.
    pub fn normalize<T: FilterFloat>(&self, rows: &mut [T]) -> Result<(), FilterError> {
        self.running().check_rows(rows)?;
        if self.running().n() > 0 {
            self.config.apply(self.running().mean(), &self.stat.denominators, rows);
        }
        Ok(())
    }

    /// Returns the next version: these statistics and the deltas, merged in order of slot and fragment, so that their
    /// arrival order does not change the result.
    ///
    /// # Errors
    /// [`FilterError::DuplicateDelta`] when a fragment has two deltas, [`FilterError::ShapeMismatch`],
    /// [`FilterError::TooManyRows`].
    pub fn merged(&self, deltas: &[FilterDelta]) -> Result<Self, FilterError> {
        let mut order: Vec<&FilterDelta> = deltas.iter().collect();
        order.sort_by_key(|delta| (delta.slot, delta.fragment));
        if let Some([twice, _]) = order.array_windows().find(|[a, b]| (a.slot, a.fragment) == (b.slot, b.fragment)) {
            return Err(FilterError::DuplicateDelta { slot: twice.slot, fragment: twice.fragment });
        }
        let mut running = self.running().clone();
        order.into_iter().try_for_each(|delta| running.merge(&delta.stat))?;
        Self::new(running, self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::MeanStdFilter, *};
    use crate::column::RowShape;

    fn frozen(values: &[f64]) -> FrozenStat {
        let mut stat = RunningStat::new(RowShape::SCALAR).unwrap();
        values.iter().for_each(|x| stat.push(&[*x]).unwrap());
        FrozenStat::new(stat, MeanStdConfig::default()).unwrap()
    }

    fn delta(slot: u32, fragment: u64, values: &[f64]) -> FilterDelta {
        let stat = frozen(values).running().clone();
        FilterDelta { slot: SlotId(slot), fragment: FragmentNo(fragment), stat }
    }

    #[test]
    fn frozen_statistics_normalise_like_a_filter_that_does_not_learn() {
        let frozen = frozen(&[1.0, 2.0, 3.0]);
        let mut filter = MeanStdFilter::new(RowShape::SCALAR, MeanStdConfig::default()).unwrap();
        filter.filter_rows(&mut [1.0, 2.0, 3.0], true).unwrap();
        let (mut row, mut same) = ([4.0_f32], [4.0_f32]);
        frozen.normalize(&mut row).unwrap();
        filter.filter_rows(&mut same, false).unwrap();
        assert_eq!(row, same);
    }

    #[test]
    fn without_statistics_rows_stay_as_they_are() {
        let mut rows = [500.0_f32, -2.0];
        frozen(&[]).normalize(&mut rows).unwrap();
        assert_eq!(rows, [500.0, -2.0]);
        assert!(frozen(&[]).normalize(&mut [f32::NAN]).is_err());
    }

    #[test]
    fn merged_filter_does_not_depend_on_the_order_of_arrival() {
        let base = frozen(&[0.1, 0.7]);
        let mut deltas = vec![delta(2, 0, &[0.3, 5.5]), delta(0, 1, &[1.9]), delta(0, 0, &[0.2, 0.6, 8.1])];
        let merged = base.merged(&deltas).unwrap();
        deltas.reverse();
        assert_eq!(base.merged(&deltas).unwrap(), merged);
        assert_eq!(merged.running().n(), 8);
        deltas.push(delta(2, 0, &[1.0]));
        assert_eq!(base.merged(&deltas).unwrap_err().to_string(), "there are two deltas of slot 2, fragment 0");
    }
}
