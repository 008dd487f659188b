//! A policy's input at one step of a batch, for value estimates.

use super::{
    Row, Shift, ViewError, ViewRequirements,
    rows::{Buffer, Values},
    series::{suffix, window},
};
use crate::{
    batch::{AGENT_INDEX, BatchError, ENV_ID, EPS_ID, NEW_OBS, OBS, SampleBatch, T, UNROLL_ID},
    column::Column,
    prelude::*,
};

/// Columns whose value does not change within a fragment.
const IDS: [&str; 4] = [EPS_ID.name(), AGENT_INDEX.name(), ENV_ID.name(), UNROLL_ID.name()];

/// A step of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepIndex {
    /// The step after the last row: its observation is the last `new_obs`, its previous action the last action.
    Last,
    /// The step of a row.
    At(usize),
}

/// What the policy would see at a step of a batch that holds one piece of one trajectory: a batch of one row with the
/// views that are used for computing actions.
///
/// For a row of the batch, its own views. After the last row they are put together from the data columns and, where
/// they reach back beyond the batch, from the views of its first row (zeros where those have not seen it).
///
/// # Errors
/// [`ViewError::NoSuchStep`]; [`ViewError::Batch`] if a view or its data is missing, [`ViewError::Future`] for a view
/// of later steps, [`ViewError::TooLarge`].
#[doc(alias = "get_single_step_input_dict")]
pub fn single_step_input(
    batch: &SampleBatch,
    views: &ViewRequirements,
    index: StepIndex,
) -> Result<SampleBatch, ViewError> {
    let steps = batch.len();
    let row = match index {
        StepIndex::At(row) => row,
        StepIndex::Last => steps.wrapping_sub(1),
    };
    if row >= steps {
        return Err(ViewError::NoSuchStep { row, steps });
    }
    let mut input = SampleBatch::new();
    for (view, requirement) in views.iter().filter(|(_, requirement)| requirement.used_for_compute_actions) {
        let (data_col, shift) = (requirement.data_col(view), &requirement.shift);
        if shift.latest() > 0 {
            return Err(ViewError::Future { view: view.clone(), offset: shift.latest() });
        }
        // For a row its views themselves; after the last one what they are made of.
        let source = match index {
            StepIndex::At(_) => Cow::Borrowed(view.as_str()),
            StepIndex::Last => match suffix(data_col, OBS.name()) {
                Some(part) => Cow::Owned(format!("{}{part}", NEW_OBS.name())),
                None => Cow::Borrowed(data_col),
            },
        };
        let mut found = false;
        for (name, column) in batch.iter() {
            let Some(rest) = suffix(name, &source) else { continue };
            let own = format!("{view}{rest}");
            let made = match index {
                StepIndex::At(row) => one_row(column, row),
                StepIndex::Last => after_last(name, column, batch.column(&own), shift),
            };
            let made = made.ok_or_else(|| ViewError::TooLarge { view: view.clone(), steps: 1 })?;
            input.insert(own, made)?;
            found = true;
        }
        if !found {
            return Err(BatchError::MissingColumn(source.into_owned()).into());
        }
    }
    Ok(input)
}

fn one_row(column: &Column, row: usize) -> Option<Column> {
    let row = Row::of(column, row)?;
    let mut out = Buffer::like(row.values);
    out.push(row.values);
    out.into_column(row.shape).ok()
}

/// A view at the step after the last row. Its data is in `column`, `new_obs` if it views observations: then row `i` is
/// what stands at step `i + 1`. `view` is the view at the batch's own rows.
fn after_last(name: &str, column: &Column, view: Option<&Column>, shift: &Shift) -> Option<Column> {
    let steps = i64::try_from(column.rows()).ok()?;
    let last = Row::of(column, column.rows().checked_sub(1)?)?;
    let is_obs = suffix(name, NEW_OBS.name()).is_some();
    let width = last.shape.elements();
    let first_view = view.and_then(|view| Row::of(view, 0));
    let mut out = Buffer::like(last.values);
    for offset in shift.offsets() {
        let step = steps + i64::from(offset);
        match usize::try_from(step - i64::from(is_obs)) {
            Ok(row) => match Row::of(column, row) {
                Some(row) => out.push(row.values),
                None => push_coming(name, last.values, &mut out),
            },
            // Of the steps before, the first row's view has seen some.
            Err(_) => {
                let place = shift.offsets().position(|seen| i64::from(seen) == step);
                let seen = place.zip(first_view).and_then(|(i, row)| row.values.get(i * width..(i + 1) * width));
                match seen.filter(|seen| seen.dtype() == last.dtype()) {
                    Some(values) => out.push(values),
                    None => out.push_zeros(width),
                }
            }
        }
    }
    out.into_column(window(shift, last.shape)?).ok()
}

/// What is known of the step after the last one: ids stay, `t` goes on, and the rest has not happened.
fn push_coming(name: &str, last: Values<'_>, out: &mut Buffer) {
    match last {
        Values::I64([t]) if name == T.name() => out.push(Values::I64(&[t.wrapping_add(1)])),
        _ if IDS.contains(&name) => out.push(last),
        _ => out.push_zeros(last.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::REWARDS,
        column::{ColumnData, ColumnKey},
        view::ViewRequirement,
    };

    fn views() -> ViewRequirements {
        let shifted = |column: &str, shift: &str| ViewRequirement::shifted(column, shift.parse().unwrap());
        ViewRequirements::from([
            ("obs".to_string(), ViewRequirement::default()),
            ("stack".to_string(), shifted("obs", "-2:0")),
            ("prev_actions".to_string(), shifted("actions", "-1")),
            ("state_in_0".to_string(), shifted("state_out_0", "-1")),
            ("t".to_string(), ViewRequirement::default()),
            ("new_obs".to_string(), shifted("obs", "1").only_for_training()),
        ])
    }

    fn batch() -> SampleBatch {
        let mut batch = SampleBatch::new()
            .with(OBS, ColumnData::scalars(vec![12.0, 13.0]))
            .and_then(|b| b.with(NEW_OBS, ColumnData::scalars(vec![13.0, 14.0])))
            .and_then(|b| b.with(T, ColumnData::scalars(vec![2, 3])))
            .unwrap();
        let stack = ColumnData::new(vec![10.0f32, 11.0, 12.0, 11.0, 12.0, 13.0], crate::column::RowShape::vector(3));
        batch.insert("stack", stack.unwrap()).unwrap();
        batch.insert("actions", ColumnData::scalars(vec![7i64, 8])).unwrap();
        batch.insert("prev_actions", ColumnData::scalars(vec![6i64, 7])).unwrap();
        batch.insert("state_out_0", ColumnData::scalars(vec![0.5f32, 0.25])).unwrap();
        batch.insert("state_in_0", ColumnData::scalars(vec![1.0f32, 0.5])).unwrap();
        batch
    }

    fn float(batch: &SampleBatch, name: &'static str) -> Vec<f32> {
        batch.get(ColumnKey::<f32>::new(name)).unwrap().to_vec()
    }

    #[test]
    fn after_the_last_row_the_new_is_the_current() {
        let input = single_step_input(&batch(), &views(), StepIndex::Last).unwrap();
        assert_eq!(float(&input, "obs"), [14.0]);
        assert_eq!(float(&input, "stack"), [12.0, 13.0, 14.0]);
        assert_eq!(float(&input, "state_in_0"), [0.25]);
        assert_eq!(input.get(ColumnKey::<i64>::new("prev_actions")).unwrap(), [8]);
        assert_eq!(input.get(T).unwrap(), [4]);
        assert!(input.column("new_obs").is_none());
    }

    #[test]
    fn at_a_row_its_views_are_taken() {
        let input = single_step_input(&batch(), &views(), StepIndex::At(0)).unwrap();
        assert_eq!(float(&input, "stack"), [10.0, 11.0, 12.0]);
        assert_eq!(float(&input, "state_in_0"), [1.0]);
        assert_eq!(input.get(ColumnKey::<i64>::new("prev_actions")).unwrap(), [6]);
    }

    #[test]
    fn errors_name_what_is_missing() {
        let bare = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0])).unwrap();
        let error = single_step_input(&bare, &views(), StepIndex::Last).unwrap_err();
        assert_eq!(error.to_string(), "the batch has no column 'new_obs'");
        let error = single_step_input(&bare, &views(), StepIndex::At(1)).unwrap_err();
        assert_eq!(error, ViewError::NoSuchStep { row: 1, steps: 1 });
        assert!(single_step_input(&SampleBatch::new(), &views(), StepIndex::Last).is_err());
    }
}
