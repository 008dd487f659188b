//! One ordered set of named, typed, equally long columns.

use core::{fmt, ops::Range};

use crate::{
    column::{Column, ColumnData, ColumnError, ColumnKey, Element},
    prelude::*,
};

/// Rows of experience. Rectangular by construction: the only way in checks the row counts.
///
/// Slices and clones share buffers; a write copies its rows first (see [`column`](crate::column)).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleBatch {
    columns: Vec<(Cow<'static, str>, Column)>,
    rows: usize,
}

/// Why a batch could not be built or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A column has another number of rows than the batch.
    #[error("column '{name}' has {found} rows, the batch has {expected}")]
    LengthMismatch {
        /// The column.
        name: String,
        /// Rows of the batch.
        expected: usize,
        /// Rows of the column.
        found: usize,
    },
    /// There is no such column.
    #[error("the batch has no column '{0}'")]
    MissingColumn(String),
    /// A column is not what it should be.
    #[error("column '{name}': {source}")]
    Column {
        /// The column.
        name: String,
        /// What is wrong with it.
        source: ColumnError,
    },
    /// `dones` is derived from `terminateds` and `truncateds` and cannot be stored.
    #[error("'dones' is computed from 'terminateds' and 'truncateds'; store those")]
    DonesIsDerived,
}

impl SampleBatch {
    /// An empty batch without columns.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Columns of which this crate knows that they are equally long.
    pub(crate) fn from_columns(columns: Vec<(&'static str, Column)>) -> Self {
        let rows = columns.first().map_or(0, |(_, column)| column.rows());
        debug_assert!(columns.iter().all(|(_, column)| column.rows() == rows), "columns of unequal length");
        Self { columns: columns.into_iter().map(|(name, column)| (Cow::Borrowed(name), column)).collect(), rows }
    }

    /// Adds a column, or replaces the one of this name. The first column sets the row count.
    ///
    /// # Errors
    /// [`BatchError::LengthMismatch`] if the rows do not fit, [`BatchError::DonesIsDerived`].
    pub fn insert(&mut self, name: impl Into<Cow<'static, str>>, column: impl Into<Column>) -> Result<(), BatchError> {
        let (name, column) = (name.into(), column.into());
        if name == "dones" {
            return Err(BatchError::DonesIsDerived);
        }
        let place = self.columns.iter().position(|(n, _)| *n == name);
        let alone = self.columns.len() == usize::from(place.is_some());
        if !alone && column.rows() != self.rows {
            return Err(BatchError::LengthMismatch {
                name: name.into_owned(),
                expected: self.rows,
                found: column.rows(),
            });
        }
        self.rows = column.rows();
        match place {
            Some(i) => self.columns[i].1 = column,
            None => self.columns.push((name, column)),
        }
        Ok(())
    }

    /// [`insert`](Self::insert) for use in a chain.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn with<T: Element>(mut self, key: ColumnKey<T>, data: ColumnData<T>) -> Result<Self, BatchError> {
        self.insert(key.name(), Column::from_typed(data))?;
        Ok(self)
    }

    /// Number of rows.
    #[must_use]
    #[doc(alias = "count")]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// True without rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Names and columns in order of insertion.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Column)> {
        self.columns.iter().map(|(name, column)| (name.as_ref(), column))
    }

    /// A column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.iter().find_map(|(n, column)| (n == name).then_some(column))
    }

    /// A column by key, with its element type.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`], or [`BatchError::Column`] for another type.
    pub fn data<T: Element>(&self, key: ColumnKey<T>) -> Result<&ColumnData<T>, BatchError> {
        let column = self.column(key.name()).ok_or_else(|| BatchError::MissingColumn(key.name().to_string()))?;
        column.typed().map_err(|source| BatchError::Column { name: key.name().to_string(), source })
    }

    /// The values of a column by key, row-major.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub fn get<T: Element>(&self, key: ColumnKey<T>) -> Result<&[T], BatchError> {
        self.data(key).map(ColumnData::values)
    }

    /// The rows in `range`, sharing all buffers.
    ///
    /// # Panics
    /// If the range is not within the batch, like a slice.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let rows = range.len();
        let columns = self.columns.iter().map(|(name, column)| (name.clone(), column.slice(range.clone()))).collect();
        Self { columns, rows }
    }

    /// Joins batches that have the same columns, in order. Empty batches are ignored.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] when the columns differ, [`BatchError::Column`] when their types do.
    #[doc(alias = "concat_samples")]
    pub fn concat(batches: &[Self]) -> Result<Self, BatchError> {
        let full: Vec<&Self> = batches.iter().filter(|batch| !batch.is_empty()).collect();
        let Some(first) = full.first() else { return Ok(Self::new()) };
        let mut joined = Self::new();
        for batch in &full {
            if let Some((name, _)) = batch.iter().find(|(name, _)| first.column(name).is_none()) {
                return Err(BatchError::MissingColumn(name.to_string()));
            }
        }
        for (name, _) in &first.columns {
            let mut parts = Vec::with_capacity(full.len());
            for batch in &full {
                parts.push(batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?);
            }
            let column =
                Column::concat(&parts).map_err(|source| BatchError::Column { name: name.to_string(), source })?;
            if let Some(column) = column {
                joined.insert(name.clone(), column)?;
            }
        }
        Ok(joined)
    }

    /// `terminateds` OR `truncateds`, row by row.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] without either column.
    pub fn dones(&self) -> Result<Vec<bool>, BatchError> {
        let terminateds = self.get(super::TERMINATEDS)?;
        let truncateds = self.get(super::TRUNCATEDS)?;
        Ok(terminateds.iter().zip(truncateds).map(|(a, b)| a | b).collect())
    }
}

impl fmt::Display for SampleBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleBatch({}: [", self.rows)?;
        for (i, (name, _)) in self.iter().enumerate() {
            write!(f, "{}'{name}'", if i > 0 { ", " } else { "" })?;
        }
        write!(f, "])")
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS},
        *,
    };

    fn batch(rewards: &[f32]) -> SampleBatch {
        SampleBatch::new().with(REWARDS, ColumnData::scalars(rewards.to_vec())).unwrap()
    }

    #[test]
    fn rows_must_agree() {
        let error = batch(&[1.0, 2.0]).with(ACTIONS, ColumnData::scalars(vec![1])).unwrap_err();
        assert_eq!(error.to_string(), "column 'actions' has 1 rows, the batch has 2");
    }

    #[test]
    fn a_sole_column_may_be_replaced_by_a_longer_one() {
        let longer = batch(&[1.0]).with(REWARDS, ColumnData::scalars(vec![1.0, 2.0])).unwrap();
        assert_eq!(longer.len(), 2);
    }

    #[test]
    fn concat_ignores_empty_batches_and_wants_equal_columns() {
        let joined = SampleBatch::concat(&[SampleBatch::new(), batch(&[1.0]), batch(&[2.0, 3.0])]).unwrap();
        assert_eq!(joined.get(REWARDS).unwrap(), [1.0, 2.0, 3.0]);
        let other = batch(&[1.0]).with(ACTIONS, ColumnData::scalars(vec![1])).unwrap();
        assert_eq!(
            SampleBatch::concat(&[batch(&[1.0]), other]).unwrap_err(),
            BatchError::MissingColumn("actions".into())
        );
    }

    #[test]
    fn dones_is_computed_and_cannot_be_stored() {
        let flags = |values: &[bool]| ColumnData::scalars(values.to_vec());
        let batch = SampleBatch::new()
            .with(TERMINATEDS, flags(&[true, false, false]))
            .and_then(|b| b.with(TRUNCATEDS, flags(&[true, true, false])))
            .unwrap();
        assert_eq!(batch.dones().unwrap(), [true, true, false]);
        let mut batch = batch;
        assert_eq!(batch.insert("dones", flags(&[true; 3])).unwrap_err(), BatchError::DonesIsDerived);
        assert_eq!(batch.to_string(), "SampleBatch(3: ['terminateds', 'truncateds'])");
    }

    #[test]
    fn slices_share_buffers() {
        let whole = batch(&[1.0, 2.0, 3.0]);
        let part = whole.slice(1..3);
        assert_eq!(part.get(REWARDS).unwrap(), [2.0, 3.0]);
        assert!(Arc::ptr_eq(whole.data(REWARDS).unwrap().shared(), part.data(REWARDS).unwrap().shared()));
    }
}
