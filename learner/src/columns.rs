//! Columns of a train batch as the numbers that a model takes.

use std::borrow::Cow;

use rollmesh_core::{
    batch::{ACTIONS, BatchError, OBS, SampleBatch},
    column::{Column, ColumnError},
    env::RowsRef,
    policy::ObsEncoder,
};

use super::error::LearnError;

/// A train batch, read without the zeros that its sequences may be padded with.
pub(super) struct Columns<'a> {
    batch: &'a SampleBatch,
    /// The rows that are steps, if others are among them.
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
        // What a column has as rows was looked at; lengths alone may be anything.
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

    /// Steps.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Lengths of the sequences.
    pub(super) fn seq_lens(&self) -> Result<Vec<usize>, LearnError> {
        let lens = self.batch.seq_lens().ok_or(BatchError::NoSequences("learning of a recurrent policy"))?;
        Ok(lens.iter().map(|len| len.unsigned_abs() as usize).collect())
    }

    /// A column with one row per step, of `width` numbers each.
    pub(super) fn floats(&self, name: &str, width: usize) -> Result<Vec<f32>, LearnError> {
        let column = self.steps_of(name)?;
        check_width(name, column.shape().elements(), width)?;
        numbers(name, &column)
    }

    /// The same, if the column is there.
    pub(super) fn optional(&self, name: &str, width: usize) -> Result<Option<Vec<f32>>, LearnError> {
        self.batch.column(name).map(|_| self.floats(name, width)).transpose()
    }

    /// A column of one integer per step, if it is there.
    pub(super) fn optional_integers(&self, name: &str) -> Result<Option<Vec<i64>>, LearnError> {
        let Some(column) = self.optional_column(name)? else { return Ok(None) };
        check_width(name, column.shape().elements(), 1)?;
        integers(name, &column).map(Some)
    }

    /// A column with one row per step, if it is there.
    pub(super) fn optional_column(&self, name: &str) -> Result<Option<Column>, LearnError> {
        self.batch.column(name).map(|_| Ok(self.steps_of(name)?.into_owned())).transpose()
    }

    /// A column with one row per sequence, of `width` numbers each.
    pub(super) fn states(&self, name: &str, width: usize) -> Result<Vec<f32>, LearnError> {
        let column = self.column(name)?;
        check_width(name, column.shape().elements(), width)?;
        numbers(name, column)
    }

    /// Observations as the acting policy sees them.
    pub(super) fn obs(&self, encoder: &ObsEncoder) -> Result<Vec<f32>, LearnError> {
        let column = self.steps_of(OBS.name())?;
        let rows = match column.as_ref() {
            Column::F32(data) => RowsRef::F32(data.values()),
            Column::F64(data) => RowsRef::F64(data.values()),
            Column::I32(data) => RowsRef::I32(data.values()),
            Column::I64(data) => RowsRef::I64(data.values()),
            Column::U8(data) => RowsRef::U8(data.values()),
            Column::Bool(data) => RowsRef::Bool(data.values()),
            other => RowsRef::F32(none(OBS.name(), other)?),
        };
        Ok(encoder.encode(rows, self.len, &mut Vec::new())?.to_vec())
    }

    /// Of actions of components with a first value and so many each, the numbers of their values.
    pub(super) fn categorical_actions(
        &self,
        components: impl ExactSizeIterator<Item = (i64, u32)> + Clone,
    ) -> Result<Vec<u32>, LearnError> {
        let column = self.actions(components.len())?;
        let values = integers(ACTIONS.name(), &column)?;
        let component = |(action, (first, n)): (i64, (i64, u32))| {
            let index = action.checked_sub(first).and_then(|index| u32::try_from(index).ok()).filter(|&i| i < n);
            let last = first.saturating_add(n.into()).saturating_sub(1);
            index.ok_or(LearnError::Action { action, first, last })
        };
        values.into_iter().zip(components.cycle()).map(component).collect()
    }

    /// Actions of this many numbers.
    pub(super) fn continuous_actions(&self, len: usize) -> Result<Vec<f32>, LearnError> {
        numbers(ACTIONS.name(), self.actions(len)?.as_ref())
    }

    fn actions(&self, width: usize) -> Result<Cow<'a, Column>, LearnError> {
        let column = self.steps_of(ACTIONS.name())?;
        check_width(ACTIONS.name(), column.shape().elements(), width)?;
        Ok(column)
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

fn of_column(name: &str, source: ColumnError) -> BatchError {
    BatchError::Column { name: name.to_owned(), source }
}

fn check_width(name: &str, found: usize, wanted: usize) -> Result<(), LearnError> {
    if found == wanted { Ok(()) } else { Err(LearnError::Width { column: name.to_owned(), found, wanted }) }
}

fn numbers(name: &str, column: &Column) -> Result<Vec<f32>, LearnError> {
    Ok(match column {
        Column::F32(data) => data.values().to_vec(),
        Column::F64(data) => data.values().iter().map(|&x| x as f32).collect(),
        Column::I32(data) => data.values().iter().map(|&x| x as f32).collect(),
        Column::I64(data) => data.values().iter().map(|&x| x as f32).collect(),
        Column::U8(data) => data.values().iter().map(|&x| f32::from(x)).collect(),
        Column::Bool(data) => data.values().iter().map(|&x| f32::from(u8::from(x))).collect(),
        other => none(name, other)?.to_vec(),
    })
}

/// There are no numbers, and the error says what there is.
fn none<'a>(name: &str, column: &'a Column) -> Result<&'a [f32], LearnError> {
    Ok(column.typed().map_err(|source| of_column(name, source))?.values())
}

fn integers(name: &str, column: &Column) -> Result<Vec<i64>, LearnError> {
    Ok(match column {
        Column::I32(data) => data.values().iter().map(|&x| x.into()).collect(),
        Column::U8(data) => data.values().iter().map(|&x| x.into()).collect(),
        Column::Bool(data) => data.values().iter().map(|&x| x.into()).collect(),
        other => other.typed::<i64>().map_err(|source| of_column(name, source))?.values().to_vec(),
    })
}
