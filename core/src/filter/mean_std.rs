//! Implements the filter that learns while it normalises.

use super::{FilterError, FilterFloat, MeanStdConfig, RunningStat, normalize::denominators};
use crate::{column::RowShape, prelude::*};

/// Normalises rows with the statistics of all rows so far, including the current ones: RLlib's semantics.
///
/// `running` are the statistics that normalise rows. `buffer` are the statistics of the rows since its last reset: the delta
/// that has not been synchronised yet.
#[derive(Clone, Debug)]
pub struct MeanStdFilter {
    config: MeanStdConfig,
    running: RunningStat,
    buffer: RunningStat,
    training: bool,
    /// Derived from `running`; recomputed when `running` has changed.
    denominators: Vec<f64>,
    fresh: bool,
}

impl MeanStdFilter {
    /// Creates a filter without data, in training mode.
    ///
    /// # Errors
    /// [`FilterError::BadShape`], [`FilterError::BadClip`].
    pub fn new(shape: RowShape, config: MeanStdConfig) -> Result<Self, FilterError> {
        let stat = RunningStat::new(shape)?;
        Self::from_parts(config, stat.clone(), stat)
    }

    /// Creates a filter from existing statistics, in training mode.
    pub(super) fn from_parts(
        config: MeanStdConfig,
        running: RunningStat,
        buffer: RunningStat,
    ) -> Result<Self, FilterError> {
        running.check_shape(&buffer)?;
        let config = config.check()?;
        let denominators = Vec::with_capacity(running.mean().len());
        Ok(Self { config, running, buffer, training: true, denominators, fresh: false })
    }

    /// Normalises values of shape `dims` in place: one row, or a batch if there is one dimension more than in the filter's
    /// shape. With `update` in training mode, first pushes every row into the statistics and the buffer, then normalises all
    /// rows with the result.
    ///
    /// # Errors
    /// [`FilterError`]; on an error, the filter stays as it is.
    #[doc(alias = "__call__")]
    pub fn call<T: FilterFloat>(&mut self, dims: &[u32], values: &mut [T], update: bool) -> Result<(), FilterError> {
        let shape = self.shape();
        let rows = match dims.strip_suffix(shape.dims()) {
            Some([]) => 1,
            Some([rows]) => *rows as usize,
            _ => return Err(self.running.mismatch(format!("values of {dims:?}"))),
        };
        if rows.checked_mul(shape.elements()) != Some(values.len()) {
            return Err(self.running.mismatch(format!("{} values for {dims:?}", values.len())));
        }
        self.filter_rows(values, update)
    }

    /// Applies [`call`](Self::call) to as many rows as the values form. Does not allocate.
    ///
    /// # Errors
    /// [`FilterError`]; on an error, the filter stays as it is.
    pub fn filter_rows<T: FilterFloat>(&mut self, values: &mut [T], update: bool) -> Result<(), FilterError> {
        let rows = self.running.check_rows(values)?;
        if update && self.training {
            self.running.check_count(rows as u64)?;
            self.buffer.check_count(rows as u64)?;
            for row in values.chunks_exact(self.running.mean().len()) {
                self.running.push_checked(row);
                self.buffer.push_checked(row);
            }
            self.fresh = false;
        }
        if !self.fresh {
            denominators(&self.running, &mut self.denominators);
            self.fresh = true;
        }
        self.config.apply(self.running.mean(), &self.denominators, values);
        Ok(())
    }

    /// Returns the shape of a row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.running.shape()
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> MeanStdConfig {
        self.config
    }

    /// Returns the statistics that normalise rows.
    #[must_use]
    #[doc(alias = "running_stats")]
    pub fn running(&self) -> &RunningStat {
        &self.running
    }

    /// Returns the statistics of the rows since the last reset of the buffer.
    #[must_use]
    pub fn buffer(&self) -> &RunningStat {
        &self.buffer
    }

    /// Returns whether calls with `update` learn.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Lets later calls with `update` learn.
    pub fn in_training(&mut self) {
        self.training = true;
    }

    /// Stops learning in later calls, even with `update`.
    pub fn in_eval(&mut self) {
        self.training = false;
    }

    /// Clears the buffer; the statistics stay.
    #[doc(alias = "clear_buffer")]
    pub fn reset_buffer(&mut self) {
        self.buffer.reset();
    }

    /// Returns a copy, and clears the buffer here.
    #[doc(alias = "flush_after")]
    #[must_use = "the copy alone holds what was in the buffer"]
    pub fn flush(&mut self) -> Self {
        let copy = self.clone();
        self.reset_buffer();
        copy
    }

    /// Merges the other filter's buffer into these statistics; with `with_buffer`, also replaces this buffer by a copy of
    /// it.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`], [`FilterError::TooManyRows`]; on an error, the filter stays as it is.
    pub fn apply_changes(&mut self, other: &Self, with_buffer: bool) -> Result<(), FilterError> {
        self.running.merge(&other.buffer)?;
        self.fresh = false;
        if with_buffer {
            self.buffer.copy_from(&other.buffer);
        }
        Ok(())
    }

    /// Counts the rows in the other filter's buffer as rows of this filter: adds them to the statistics and to the buffer.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`], [`FilterError::TooManyRows`]; on an error, the filter stays as it is.
    pub fn absorb(&mut self, other: &Self) -> Result<(), FilterError> {
        self.buffer.check_count(other.buffer.n())?;
        self.running.merge(&other.buffer)?;
        self.fresh = false;
        self.buffer.merge(&other.buffer)
    }

    /// Copies the other filter's statistics, buffer and configuration. Keeps its training or evaluation mode.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`].
    pub fn sync(&mut self, other: &Self) -> Result<(), FilterError> {
        self.running.check_shape(&other.running)?;
        self.running.copy_from(&other.running);
        self.buffer.copy_from(&other.buffer);
        self.config = other.config;
        self.fresh = false;
        Ok(())
    }

    /// Returns the size of the statistics in memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.running.size_bytes() + self.buffer.size_bytes() + size_of_val(&*self.denominators)
    }
}

/// Filters are equal when they will produce the same results.
impl PartialEq for MeanStdFilter {
    fn eq(&self, other: &Self) -> bool {
        let key = |filter: &Self| (filter.config, filter.training);
        key(self) == key(other) && self.running == other.running && self.buffer == other.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(config: MeanStdConfig) -> MeanStdFilter {
        MeanStdFilter::new(RowShape::SCALAR, config).unwrap()
    }

    fn call(filter: &mut MeanStdFilter, x: f64, update: bool) -> f64 {
        let mut row = [x];
        filter.filter_rows(&mut row, update).unwrap();
        row[0]
    }

    fn counts(filter: &MeanStdFilter) -> (u64, u64) {
        (filter.running().n(), filter.buffer().n())
    }

    #[test]
    fn rows_are_normalised_with_what_includes_them() {
        let mut filter = scalar(MeanStdConfig::UNCLIPPED);
        let wanted = [0.0, 0.707_105_781_187_961_6, 0.999_999_000_001_000_1, 1.161_894_103_862_922_3, 1.697_055_794_8];
        for (x, want) in [1.0, 2.0, 3.0, 4.0, 10.0].into_iter().zip(wanted) {
            let got = call(&mut filter, x, true);
            assert!((got - want).abs() < 1e-9, "{x}: {got} {want}");
        }
        assert_eq!(counts(&filter), (5, 5));
        assert_eq!(call(&mut filter, 4.0, false), 0.0);
        assert_eq!(counts(&filter), (5, 5));
    }

    #[test]
    fn results_are_clamped() {
        let mut filter = scalar(MeanStdConfig::default());
        filter.filter_rows(&mut [0.0_f32; 5], true).unwrap();
        assert_eq!((call(&mut filter, 5.0, false), call(&mut filter, -5.0, false)), (10.0, -10.0));
    }

    #[test]
    fn results_are_finite_where_32_bits_end() {
        let mut filter = scalar(MeanStdConfig::UNCLIPPED);
        let mut rows = [f32::MAX, f32::MIN];
        filter.filter_rows(&mut rows, false).unwrap();
        assert_eq!(rows, [f32::MAX, f32::MIN]);
        let mut rows = [1e100, -1e100];
        filter.filter_rows(&mut rows, false).unwrap();
        assert_eq!(rows, [1e106, -1e106]);
        let error = filter.filter_rows(&mut [1.1e100], false).unwrap_err().to_string();
        assert_eq!(
            error,
            "row 0 holds 1.1e100 at element 0; observations must be finite and at most 1e100 in magnitude"
        );
    }

    #[test]
    fn a_batch_is_normalised_with_its_last_statistics() {
        let mut filter = MeanStdFilter::new(RowShape::vector(2), MeanStdConfig::UNCLIPPED).unwrap();
        let mut rows = [1.0, 10.0, 3.0, 20.0];
        filter.call(&[2, 2], &mut rows, true).unwrap();
        assert_eq!(filter.running().mean(), [2.0, 15.0]);
        assert_eq!(filter.running().var().collect::<Vec<_>>(), [2.0, 50.0]);
        let wanted: [f64; 4] = [-0.7071062811869011, -0.7071066811865616, 0.7071062811869011, 0.7071066811865616];
        for (got, want) in rows.into_iter().zip(wanted) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
    }

    #[test]
    fn parts_can_be_switched_off() {
        let mut raw = scalar(MeanStdConfig { demean: false, destd: false, clip: Some(3.5) });
        assert_eq!((call(&mut raw, 3.0, true), call(&mut raw, 9.0, true)), (3.0, 3.5));
        let mut centred = scalar(MeanStdConfig { destd: false, ..MeanStdConfig::UNCLIPPED });
        assert_eq!((call(&mut centred, 3.0, true), call(&mut centred, 9.0, true)), (0.0, 3.0));
    }

    #[test]
    fn shapes_are_checked() {
        let mut filter = MeanStdFilter::new(RowShape::vector(2), MeanStdConfig::UNCLIPPED).unwrap();
        let before = filter.clone();
        for dims in [&[3][..], &[4], &[], &[2, 2, 2], &[2, 3], &[1, 2]] {
            assert!(filter.call(dims, &mut [1.0; 4], true).is_err(), "{dims:?}");
        }
        let error = filter.call(&[3], &mut [0.0; 3], true).unwrap_err();
        assert_eq!(error.to_string(), "rows of shape (2) are wanted, not values of [3]");
        let mut rows = [1.0, 2.0, f32::NAN, 4.0];
        let error = filter.filter_rows(&mut rows, true).unwrap_err();
        assert!(matches!(error, FilterError::NotFinite { row: 1, element: 0, .. }), "{error}");
        assert_eq!(rows[..2], [1.0, 2.0]);
        assert!(filter.filter_rows(&mut rows, false).is_err());
        assert_eq!(filter, before);
        for clip in [f64::NAN, -1.0] {
            let config = MeanStdConfig { clip: Some(clip), ..MeanStdConfig::UNCLIPPED };
            assert!(MeanStdFilter::new(RowShape::SCALAR, config).is_err());
        }
    }

    #[test]
    fn buffers_travel() {
        let (mut f, mut g) = (scalar(MeanStdConfig::UNCLIPPED), scalar(MeanStdConfig::default()));
        f.filter_rows(&mut [1.0; 5], true).unwrap();
        g.sync(&f).unwrap();
        assert_eq!((counts(&g), g.config()), ((5, 5), MeanStdConfig::UNCLIPPED));
        assert_eq!(counts(&f.flush()), (5, 5));
        assert_eq!((counts(&f), counts(&g)), ((5, 0), (5, 5)));
        f.apply_changes(&g, false).unwrap();
        assert_eq!(counts(&f), (10, 0));
        f.apply_changes(&g, true).unwrap();
        assert_eq!(counts(&f), (15, 5));
        f.absorb(&g).unwrap();
        assert_eq!(counts(&f), (20, 10));
        assert_eq!(call(&mut f, 1.0, false), 0.0);
    }

    #[test]
    fn evaluation_changes_nothing() {
        let mut filter = scalar(MeanStdConfig::default());
        filter.filter_rows(&mut [1.0, 2.0, 3.0], true).unwrap();
        filter.in_eval();
        let before = filter.clone();
        assert_eq!(call(&mut filter, 7.0, true), call(&mut filter, 7.0, false));
        assert_eq!(filter, before);
        filter.in_training();
        call(&mut filter, 7.0, true);
        assert_eq!(counts(&filter), (4, 4));
    }
}
