//! Implements filters whose rows do not depend on which slots share a worker: frozen statistics, and a delta per slot.

use super::{FilterError, FilterFloat, MeanStdConfig, RunningStat, normalize::denominators};
use crate::{
    column::RowShape,
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

/// A slot's filter: normalises with frozen statistics, and collects the slot's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedFilter {
    frozen: FrozenStat,
    delta: RunningStat,
    training: bool,
}

impl VersionedFilter {
    /// Creates a filter in training mode, with an empty delta.
    #[must_use]
    pub fn new(frozen: FrozenStat) -> Self {
        let mut delta = frozen.running().clone();
        delta.reset();
        Self { frozen, delta, training: true }
    }

    /// Normalises whole rows in place with the frozen statistics; with `update` in training mode, first pushes every row
    /// into the delta. Does not allocate.
    ///
    /// # Errors
    /// [`FilterError`]; on an error, the filter stays as it is.
    pub fn filter_rows<T: FilterFloat>(&mut self, rows: &mut [T], update: bool) -> Result<(), FilterError> {
        if update && self.training {
            let count = self.delta.check_rows(rows)?;
            self.delta.check_count(count as u64)?;
            rows.chunks_exact(self.delta.mean().len()).for_each(|row| self.delta.push_checked(row));
        }
        self.frozen.normalize(rows)
    }

    /// Returns the statistics that normalise rows.
    #[must_use]
    pub fn frozen(&self) -> &FrozenStat {
        &self.frozen
    }

    /// Returns the statistics of the slot's rows since [`take_delta`](Self::take_delta): part of its state.
    #[must_use]
    pub fn delta(&self) -> &RunningStat {
        &self.delta
    }

    /// Returns the delta at the end of a fragment, and clears it.
    #[must_use = "the delta is nowhere else"]
    pub fn take_delta(&mut self) -> RunningStat {
        let taken = self.delta.clone();
        self.delta.reset();
        taken
    }

    /// Switches to statistics of another version, between fragments.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`]; on an error, the old statistics stay.
    pub fn publish(&mut self, frozen: FrozenStat) -> Result<(), FilterError> {
        self.delta.check_shape(frozen.running())?;
        self.frozen = frozen;
        Ok(())
    }

    /// Restores a delta that the slot collected on another worker.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`]; on an error, the old delta stays.
    pub fn restore_delta(&mut self, delta: RunningStat) -> Result<(), FilterError> {
        self.delta.check_shape(&delta)?;
        self.delta = delta;
        Ok(())
    }

    /// Returns the shape of a row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.delta.shape()
    }

    /// Lets later calls with `update` learn.
    pub fn in_training(&mut self) {
        self.training = true;
    }

    /// Stops learning in later calls, even with `update`.
    pub fn in_eval(&mut self) {
        self.training = false;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::MeanStdFilter, *};

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
    fn statistics_are_frozen_within_a_fragment() {
        let mut filter = VersionedFilter::new(frozen(&[1.0, 2.0, 3.0]));
        let mut immediate = MeanStdFilter::new(RowShape::SCALAR, MeanStdConfig::default()).unwrap();
        immediate.filter_rows(&mut [1.0, 2.0, 3.0], true).unwrap();
        for _ in 0..3 {
            let (mut row, mut same) = ([4.0_f32], [4.0_f32]);
            filter.filter_rows(&mut row, true).unwrap();
            immediate.filter_rows(&mut same, false).unwrap();
            assert_eq!(row, same);
        }
        filter.filter_rows(&mut [9.0], false).unwrap();
        filter.in_eval();
        filter.filter_rows(&mut [9.0], true).unwrap();
        filter.in_training();
        assert_eq!((filter.take_delta().n(), filter.delta().n(), filter.frozen().running().n()), (3, 0, 3));
    }

    #[test]
    fn without_statistics_rows_stay_as_they_are() {
        let mut filter = VersionedFilter::new(frozen(&[]));
        let mut rows = [500.0_f32, -2.0];
        filter.filter_rows(&mut rows, true).unwrap();
        assert_eq!((rows, filter.delta().n()), ([500.0, -2.0], 2));
        assert!(filter.filter_rows(&mut [f32::NAN], false).is_err());
        assert!(filter.filter_rows(&mut [f32::NAN], true).is_err());
        assert_eq!(filter.delta().n(), 2);
    }

    #[test]
    fn the_order_of_arrival_leaves_no_trace() {
        let base = frozen(&[0.1, 0.7]);
        let mut deltas = vec![delta(2, 0, &[0.3, 5.5]), delta(0, 1, &[1.9]), delta(0, 0, &[0.2, 0.6, 8.1])];
        let merged = base.merged(&deltas).unwrap();
        deltas.reverse();
        assert_eq!(base.merged(&deltas).unwrap(), merged);
        assert_eq!(merged.running().n(), 8);
        deltas.push(delta(2, 0, &[1.0]));
        assert_eq!(base.merged(&deltas).unwrap_err().to_string(), "there are two deltas of slot 2, fragment 0");
    }

    #[test]
    fn other_shapes_are_refused() {
        let mut filter = VersionedFilter::new(frozen(&[1.0]));
        let before = filter.clone();
        let other = RunningStat::new(RowShape::vector(2)).unwrap();
        assert!(filter.restore_delta(other.clone()).is_err());
        assert!(filter.publish(FrozenStat::new(other, MeanStdConfig::default()).unwrap()).is_err());
        assert_eq!(filter, before);
        filter.restore_delta(delta(0, 0, &[3.0]).stat).unwrap();
        filter.publish(frozen(&[2.0])).unwrap();
        assert_eq!((filter.delta().mean(), filter.frozen().running().mean()), (&[3.0][..], &[2.0][..]));
    }
}
