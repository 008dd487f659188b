//! Builds the views of a collector: a row for the policy, a fragment for the learner.

use core::num::NonZeroU32;

use super::{
    AgentCollector, FragmentViews, ViewError, ViewRow,
    requirement::{STATE_IN, layout},
    series::{constant, zeros},
};
use crate::{
    batch::{BatchParts, SampleBatch, T, UNROLL_ID},
    column::ColumnData,
    prelude::*,
};

impl AgentCollector {
    /// Builds the learner's views of the steps since the last fragment, and ends the fragment.
    ///
    /// `unroll_id` identifies the fragment; its views have this value at every offset. Views of columns without data are
    /// omitted, since postprocessing may add them.
    ///
    /// # Errors
    /// [`ViewError::TooLarge`] if a view's rows would not fit into memory or would have too many dimensions,
    /// [`ViewError::Batch`] for a view called `dones`. On an error, the fragment stays open.
    pub fn build_for_training(&mut self, unroll_id: i64) -> Result<FragmentViews, ViewError> {
        let sequences = self.max_seq_len.map(|longest| chunks(self.steps, longest));
        let (mut columns, mut repeated) = (Vec::new(), Vec::new());
        for (view, requirement) in &self.views {
            let (column, shift) = (requirement.data_col(view), &requirement.shift);
            let every = usize::try_from(requirement.batch_repeat_value.get()).unwrap_or(usize::MAX);
            let id = self.constant(column).or_else(|| (column == UNROLL_ID.name()).then_some(unroll_id));
            let own = id.map(|id| (view.clone(), constant(id, shift, self.steps.div_ceil(every))));
            let given = self
                .parts(column)
                .map(|(series, rest)| (format!("{view}{rest}"), series.view(shift, every, self.steps)));
            let expected = match self.max_seq_len {
                Some(length) if view.starts_with(STATE_IN) => length,
                _ => NonZeroU32::MIN,
            };
            for (name, column) in own.into_iter().chain(given) {
                let column = column.ok_or_else(|| ViewError::TooLarge { view: name.clone(), steps: self.steps })?;
                let fits = requirement.batch_repeat_value == expected;
                if fits { &mut columns } else { &mut repeated }.push((name.into(), column));
            }
        }
        let parts = BatchParts { columns, seq_lens: sequences, is_training: true, ..BatchParts::default() };
        let batch = SampleBatch::from_parts(parts)?;
        self.forget_steps();
        Ok(FragmentViews { batch, repeated })
    }

    /// Builds the policy's views before it acts, as a batch of one row: the same rows that training will have for the next
    /// step. After the last step of a fragment they are the policy's input for a bootstrap value. Views of `unroll_id`,
    /// which is not known yet, are omitted. Values of the step itself, such as its action, are zero.
    ///
    /// # Errors
    /// [`ViewError::NoInitialObs`]; [`ViewError::Future`] if a view extends beyond the next step;
    /// [`ViewError::UnknownLayout`] for a view of a column without data and without a space.
    pub fn build_for_inference(&self) -> Result<SampleBatch, ViewError> {
        let Some(_) = self.start else { return Err(ViewError::NoInitialObs) };
        let mut batch = SampleBatch::new();
        for (view, requirement) in self.views.iter().filter(|(_, requirement)| requirement.used_for_compute_actions) {
            let (data_col, shift) = (requirement.data_col(view), &requirement.shift);
            if shift.latest() > 0 {
                return Err(ViewError::Future { view: view.clone(), offset: shift.latest() });
            }
            if data_col == UNROLL_ID.name() {
                continue;
            }
            let too_large = || ViewError::TooLarge { view: view.clone(), steps: 1 };
            if let Some(id) = self.constant(data_col) {
                batch.insert(view.clone(), constant(id, shift, 1).ok_or_else(too_large)?)?;
                continue;
            }
            let mut found = false;
            for (series, rest) in self.parts(data_col) {
                let coming = Some(ViewRow::from(&self.next_t)).filter(|_| series.name == T.name());
                let column = series.view_ahead(shift, self.steps, coming).ok_or_else(too_large)?;
                batch.insert(format!("{view}{rest}"), column)?;
                found = true;
            }
            if !found {
                let declared = self.views.get(data_col).and_then(|data| data.space.as_ref());
                let space = declared
                    .or(requirement.space.as_ref())
                    .ok_or_else(|| ViewError::UnknownLayout { view: view.clone(), data_col: data_col.to_string() })?;
                let (dtype, shape) = layout(space);
                batch.insert(view.clone(), zeros(dtype, shape, shift).ok_or_else(too_large)?)?;
            }
        }
        Ok(batch)
    }
}

/// Returns the lengths of sequences of at most `longest` steps; the remainder is last.
fn chunks(steps: usize, longest: NonZeroU32) -> ColumnData<i32> {
    let longest = usize::try_from(longest.get()).unwrap_or(usize::MAX).min(i32::MAX as usize);
    let starts = (0..steps).step_by(longest);
    ColumnData::scalars(starts.map(|start| longest.min(steps - start) as i32).collect())
}
