//! Columns of a train batch as the numbers that a model takes.

use std::borrow::Cow;

use rollmesh_core::{
    batch::{ACTIONS, BatchError, OBS, REWARDS, SampleBatch},
    column::{Column, ColumnError},
    env::RowsRef,
    policy::{ObsEncoder, PreviousStep},
};

use candle_core::{Device, Tensor};

use super::{dist::ActionHead, error::LearnError};

/// A train batch, read without the zeros that its sequences may be padded with.
pub(super) struct Columns<'a> {
    batch: &'a SampleBatch,
    /// The rows that are steps; `None` if all are.
    steps: Option<Vec<u32>>,
    len: usize,
}

impl<'a> Columns<'a> {
    pub(super) fn new(batch: &'a SampleBatch) -> Result<Self, LearnError> {
        if batch.time_major() {
            return Err(BatchError::TimeMajor("learning").into());
        }
        if batch.is_empty() {
            return Err(LearnError::EmptyBatch);
        }
        // The rows of columns have been checked, but without columns the lengths may be anything.
        if batch.column(OBS.name()).is_none() {
            return Err(BatchError::MissingColumn(OBS.name().to_owned()).into());
        }
        let padded = batch.max_seq_len().filter(|_| batch.zero_padded()).zip(batch.seq_lens());
        let steps = padded.map(|(max_seq_len, lens)| {
            // The last row's number is the largest.
            let rows = lens.len().saturating_mul(max_seq_len);
            u32::try_from(rows).map_err(|_| BatchError::TooManyRows(rows))?;
            let sequences = lens.iter().enumerate();
            let steps =
                sequences.flat_map(|(i, len)| (0..len.unsigned_abs()).map(move |t| (i * max_seq_len) as u32 + t));
            Ok::<Vec<u32>, BatchError>(steps.collect())
        });
        let steps = steps.transpose()?;
        Ok(Self { batch, steps, len: batch.len() })
    }

    /// Returns the number of steps.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the lengths of the sequences.
    pub(super) fn seq_lens(&self) -> Result<Vec<usize>, LearnError> {
        let lens = self.batch.seq_lens().ok_or(BatchError::NoSequences("learning of a recurrent policy"))?;
        Ok(lens.iter().map(|len| len.unsigned_abs() as usize).collect())
    }

    /// Returns a column with one row per step, of `width` numbers each.
    pub(super) fn floats(&self, name: &str, width: usize) -> Result<Vec<f32>, LearnError> {
        let column = self.steps_of(name)?;
        check_width(name, column.shape().elements(), width)?;
        numbers(name, &column)
    }

    /// Returns the same, if the column is there.
    pub(super) fn optional(&self, name: &str, width: usize) -> Result<Option<Vec<f32>>, LearnError> {
        self.batch.column(name).map(|_| self.floats(name, width)).transpose()
    }

    /// Returns a column of one integer per step, if it is there.
    pub(super) fn optional_integers(&self, name: &str) -> Result<Option<Vec<i64>>, LearnError> {
        let Some(column) = self.optional_column(name)? else { return Ok(None) };
        check_width(name, column.shape().elements(), 1)?;
        integers(name, &column).map(Some)
    }

    /// Returns a column with one row per step, if it is there.
    pub(super) fn optional_column(&self, name: &str) -> Result<Option<Column>, LearnError> {
        self.batch.column(name).map(|_| Ok(self.steps_of(name)?.into_owned())).transpose()
    }

    /// Returns a column with one row per sequence, of `width` numbers each.
    pub(super) fn states(&self, name: &str, width: usize) -> Result<Vec<f32>, LearnError> {
        let column = self.column(name)?;
        check_width(name, column.shape().elements(), width)?;
        numbers(name, column)
    }

    /// Returns the observations as the acting policy sees them.
    pub(super) fn obs(&self, encoder: &ObsEncoder) -> Result<Vec<f32>, LearnError> {
        let column = self.steps_of(OBS.name())?;
        Ok(encoder.encode(rows(OBS.name(), &column)?, self.len, &mut Vec::new())?.to_vec())
    }

    /// Encodes the step before each row, for models that take it. Sequences are given by their first row and length; `first` has
    /// the step before each of them.
    pub(super) fn previous(
        &self,
        step: &PreviousStep,
        sequences: &[(usize, usize)],
        first: &[f32],
    ) -> Result<Vec<f32>, LearnError> {
        let (actions, rewards) = (self.steps_of(ACTIONS.name())?, self.floats(REWARDS.name(), 1)?);
        let (actions, len) = (rows(ACTIONS.name(), &actions)?, actions.shape().elements());
        let (mut previous, mut scratch) = (Vec::with_capacity(self.len * step.len()), Vec::new());
        for (&(start, steps), first) in sequences.iter().zip(first.chunks_exact(step.len())) {
            previous.extend_from_slice(first);
            for (row, reward) in rewards.iter().enumerate().skip(start).take(steps.saturating_sub(1)) {
                let end = previous.len();
                previous.resize(end + step.len(), 0.0);
                step.write(actions.part(row * len..(row + 1) * len), *reward, &mut previous[end..], &mut scratch)?;
            }
        }
        Ok(previous)
    }

    /// Returns actions `[rows, components]`: floats as they are, and other values as their indices among those of their
    /// component.
    pub(super) fn actions(&self, head: &ActionHead, device: &Device) -> Result<Tensor, LearnError> {
        let (name, column, len) = (ACTIONS.name(), self.steps_of(ACTIONS.name())?, head.action_len());
        check_width(name, column.shape().elements(), len)?;
        let components = head.components().cycle();
        let is_whole = head.components().all(|values| values.is_some());
        let actions: Result<Vec<f32>, LearnError> = if is_whole {
            let actions = integers(name, &column)?.into_iter().zip(components.flatten());
            actions.map(|(action, values)| index_of(action, values)).collect()
        } else {
            let number = |(x, values): (f32, Option<(i64, u32)>)| match values {
                None => Ok(x),
                Some(values) if x.fract() == 0.0 => index_of(x as i64, values),
                Some(values) => Err(not_among(x.into(), values)),
            };
            numbers(name, &column)?.into_iter().zip(components).map(number).collect()
        };
        Ok(Tensor::from_vec(actions?, (self.len, len), device)?)
    }

    fn column(&self, name: &str) -> Result<&'a Column, LearnError> {
        Ok(self.batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_owned()))?)
    }

    fn steps_of(&self, name: &str) -> Result<Cow<'a, Column>, LearnError> {
        let column = self.column(name)?;
        match &self.steps {
            Some(steps) => Ok(Cow::Owned(column.gather(steps).map_err(|source| of_column(name, source))?)),
            None => Ok(Cow::Borrowed(column)),
        }
    }
}

/// Returns the index of an action's value among those of its component.
fn index_of(action: i64, (first, n): (i64, u32)) -> Result<f32, LearnError> {
    let index = action.checked_sub(first).and_then(|index| u32::try_from(index).ok()).filter(|&i| i < n);
    // A network does not give more than 2^24 logits.
    index.map(|index| index as f32).ok_or_else(|| not_among(action as f64, (first, n)))
}

fn not_among(action: f64, (first, n): (i64, u32)) -> LearnError {
    LearnError::Action { action, first, last: first.saturating_add(n.into()).saturating_sub(1) }
}

fn of_column(name: &str, source: ColumnError) -> BatchError {
    BatchError::Column { name: name.to_owned(), source }
}

fn check_width(name: &str, found: usize, wanted: usize) -> Result<(), LearnError> {
    if found == wanted { Ok(()) } else { Err(LearnError::Width { column: name.to_owned(), found, wanted }) }
}

/// Returns the numbers of a column.
fn rows<'a>(name: &str, column: &'a Column) -> Result<RowsRef<'a>, LearnError> {
    Ok(column.array().map_err(|source| of_column(name, source))?)
}

fn numbers(name: &str, column: &Column) -> Result<Vec<f32>, LearnError> {
    rows(name, column).map(RowsRef::cast)
}

fn integers(name: &str, column: &Column) -> Result<Vec<i64>, LearnError> {
    Ok(match column {
        Column::I32(data) => data.values().iter().map(|&x| x.into()).collect(),
        Column::U8(data) => data.values().iter().map(|&x| x.into()).collect(),
        Column::Bool(data) => data.values().iter().map(|&x| x.into()).collect(),
        other => other.typed::<i64>().map_err(|source| of_column(name, source))?.values().to_vec(),
    })
}
