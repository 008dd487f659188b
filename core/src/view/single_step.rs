//! Builds a policy's input at one step of a batch, for value estimates.

use super::{
    Shift, ViewError, ViewRequirements, ViewRow,
    requirement::{STATE_IN, in_terms_of_obs, owner},
    series::{is_obs, suffix, window},
};
use crate::{
    batch::{AGENT_INDEX, BatchError, ENV_ID, EPS_ID, NEW_OBS, OBS, SampleBatch, T, UNROLL_ID},
    column::{Column, RowBuffer, RowShape, RowsRef},
    prelude::*,
};

/// Columns with one value per fragment.
const IDS: [&str; 4] = [EPS_ID.name(), AGENT_INDEX.name(), ENV_ID.name(), UNROLL_ID.name()];

/// A step of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepIndex {
    /// The step after the last one: its observation is the last `new_obs`, its previous action the last action.
    Last,
    /// A step of the batch. Padding does not count.
    At(usize),
}

/// Returns the policy's input at a step of a batch that holds one piece of one trajectory: a batch of one row with the views
/// that are used for computing actions.
///
/// At a step of the batch, it consists of the batch's own views. The state of a recurrent policy within a sequence, and all
/// values after the last step, are assembled from any columns of the batch that show the required steps: data columns and
/// all their views, including those that are not used for computing actions. Values of the step itself are zero. If the
/// batch lacks a required step, that is an error; the collector's
/// [`build_for_inference`](super::AgentCollector::build_for_inference) is always complete.
///
/// # Errors
/// [`ViewError::NoSuchStep`]; [`ViewError::NotInBatch`]; [`ViewError::Batch`] if a view or its data is missing or the
/// batch is time-major, [`ViewError::Future`] for a view of later steps, [`ViewError::TooLarge`].
#[doc(alias = "get_single_step_input_dict")]
pub fn single_step_input(
    batch: &SampleBatch,
    views: &ViewRequirements,
    index: StepIndex,
) -> Result<SampleBatch, ViewError> {
    if batch.time_major() {
        return Err(BatchError::TimeMajor("single_step_input").into());
    }
    let views = in_terms_of_obs(views.clone());
    let steps = Steps::of(batch);
    let (step, last) = match index {
        StepIndex::At(step) => (step, step),
        StepIndex::Last => (steps.count, steps.count.wrapping_sub(1)),
    };
    if last >= steps.count {
        return Err(ViewError::NoSuchStep { row: last, steps: steps.count });
    }
    let seen: Vec<ViewedColumn<'_>> =
        batch.iter().map(|(name, column)| ViewedColumn::of(name, column, &views)).collect();
    let mut input = SampleBatch::new();
    for (view, requirement) in views.iter().filter(|(_, requirement)| requirement.used_for_compute_actions) {
        let (data_col, shift) = (requirement.data_col(view), &requirement.shift);
        if shift.latest() > 0 {
            return Err(ViewError::Future { view: view.clone(), offset: shift.latest() });
        }
        let too_large = || ViewError::TooLarge { view: view.clone(), steps: 1 };
        let parts: BTreeSet<&str> = seen.iter().filter_map(|seen| suffix(&seen.data, data_col)).collect_ordered();
        if parts.is_empty() {
            let missing =
                if is_obs(data_col) { data_col.replacen(OBS.name(), NEW_OBS.name(), 1) } else { data_col.into() };
            return Err(BatchError::MissingColumn(missing).into());
        }
        for part in parts {
            let own = format!("{view}{part}");
            let whole = (index != StepIndex::Last && !steps.per_sequence(&own)).then(|| batch.column(&own)).flatten();
            let column = match whole {
                Some(column) => one_row(column, steps.row(step)).ok_or_else(too_large)?,
                None => {
                    let data = format!("{data_col}{part}");
                    let unknown = |before| ViewError::NotInBatch { view: view.clone(), data_col: data.clone(), before };
                    put_together(&seen, &steps, &data, step, shift).map_err(unknown)?.ok_or_else(too_large)?
                }
            };
            input.insert(own, column)?;
        }
    }
    Ok(input)
}

fn one_row(column: &Column, row: usize) -> Option<Column> {
    let row = ViewRow::of(column, row)?;
    let mut out = RowBuffer::new(row.dtype());
    out.push(row.values);
    out.into_column(row.shape).ok()
}

/// The positions of the steps in a batch.
struct Steps<'a> {
    count: usize,
    lens: Option<&'a [i32]>,
    /// Rows of each sequence, if they are padded.
    padded_len: Option<usize>,
}

impl<'a> Steps<'a> {
    fn of(batch: &'a SampleBatch) -> Self {
        let padded_len = batch.max_seq_len().filter(|_| batch.zero_padded());
        Self { count: batch.len(), lens: batch.seq_lens(), padded_len }
    }

    /// Returns whether a column has a row per sequence.
    fn per_sequence(&self, name: &str) -> bool {
        self.lens.is_some() && name.starts_with(STATE_IN)
    }

    /// Returns the sequence of a step, and the step's position in it.
    fn sequence(&self, step: usize) -> Option<(usize, usize)> {
        let mut place = step;
        for (sequence, len) in self.lens?.iter().enumerate() {
            let len = len.unsigned_abs() as usize;
            if place < len {
                return Some((sequence, place));
            }
            place -= len;
        }
        None
    }

    /// Returns the row of a step in columns that have one per step.
    fn row(&self, step: usize) -> usize {
        let padded =
            self.padded_len.and_then(|len| self.sequence(step).map(|(sequence, place)| sequence * len + place));
        padded.unwrap_or(step)
    }

    /// Returns the row of a step in a column, if it has one.
    fn row_in(&self, seen: &ViewedColumn<'_>, step: usize) -> Option<usize> {
        if step >= self.count {
            return None;
        }
        if !seen.per_sequence(self) {
            return Some(self.row(step));
        }
        self.sequence(step).and_then(|(sequence, place)| (place == 0).then_some(sequence))
    }
}

/// A column of the batch, as a view of a data column.
struct ViewedColumn<'a> {
    name: &'a str,
    data: String,
    shift: Shift,
    column: &'a Column,
}

impl<'a> ViewedColumn<'a> {
    /// Returns the source of a column. A column without a requirement is data itself.
    fn of(name: &'a str, column: &'a Column, views: &ViewRequirements) -> Self {
        let (data, shift) = match (owner(views, name), suffix(name, NEW_OBS.name())) {
            (Some((view, requirement)), _) => {
                let part = suffix(name, view).unwrap_or_default();
                (format!("{}{part}", requirement.data_col(view)), requirement.shift.clone())
            }
            (None, Some(part)) => (format!("{}{part}", OBS.name()), Shift::NONE.later()),
            (None, None) => (name.to_string(), Shift::NONE),
        };
        Self { name, data, shift, column }
    }

    fn per_sequence(&self, steps: &Steps<'_>) -> bool {
        steps.per_sequence(self.name)
    }

    /// Returns a row of the data, with its shape.
    fn data_row(&self) -> Option<ViewRow<'a>> {
        let row = ViewRow::of(self.column, 0)?;
        if self.shift.len() == 1 {
            return Some(row);
        }
        let (offsets, shape) = row.shape.dims().split_first()?;
        let shape = RowShape::new(shape).ok()?;
        let values = row.values.get(0..shape.elements()).filter(|_| *offsets as usize == self.shift.len())?;
        Some(ViewRow { values, shape })
    }

    /// Returns the data of a step, counted from the batch's first.
    fn find(&self, steps: &Steps<'_>, step: i64) -> Option<ViewRow<'a>> {
        let ViewRow { shape, .. } = self.data_row()?;
        let width = shape.elements();
        let mut offsets = self.shift.offsets().enumerate();
        offsets.find_map(|(place, offset)| {
            let row = steps.row_in(self, usize::try_from(step - i64::from(offset)).ok()?)?;
            let values = ViewRow::of(self.column, row)?.values.get(place * width..(place + 1) * width)?;
            Some(ViewRow { values, shape })
        })
    }
}

/// Assembles a view of `data` at a step from all columns that show it; the error gives the distance of the missing step.
fn put_together(
    seen: &[ViewedColumn<'_>],
    steps: &Steps<'_>,
    data: &str,
    step: usize,
    shift: &Shift,
) -> Result<Option<Column>, u32> {
    let mut seen: Vec<&ViewedColumn<'_>> = seen.iter().filter(|seen| seen.data == data).collect();
    // N-step postprocessing changes later steps, except at the end.
    seen.sort_by_key(|seen| seen.shift.latest().max(0));
    let Some(like) = seen.iter().find_map(|seen| seen.data_row()) else { return Ok(None) };
    let mut out = RowBuffer::new(like.dtype());
    let same = |row: &ViewRow<'_>| row.shape == like.shape && row.dtype() == like.dtype();
    for offset in shift.offsets() {
        let at = step as i64 + i64::from(offset);
        // After the last step, only its observation is known; beyond it, columns hold zeros.
        let found = if at >= steps.count as i64 && !is_obs(data) {
            None
        } else {
            seen.iter().find_map(|seen| seen.find(steps, at)).filter(same)
        };
        match found {
            Some(row) => _ = out.push(row.values),
            None if IDS.contains(&data) => _ = out.push(like.values),
            None if offset == 0 && !is_obs(data) => push_coming(&seen, steps, data, like, &mut out),
            None => return Err(offset.unsigned_abs()),
        }
    }
    Ok(window(shift, like.shape).and_then(|shape| out.into_column(shape).ok()))
}

/// Appends the known values of the step after the last one: `t` increases, and the rest is unknown.
fn push_coming(seen: &[&ViewedColumn<'_>], steps: &Steps<'_>, data: &str, like: ViewRow<'_>, out: &mut RowBuffer) {
    let last = seen.iter().find_map(|seen| seen.find(steps, steps.count as i64 - 1));
    match last.map(|row| row.values) {
        Some(RowsRef::I64([t])) if data == T.name() => _ = out.push(RowsRef::I64(&[t.wrapping_add(1)])),
        _ => out.push_zeros(like.shape.elements()),
    }
}
