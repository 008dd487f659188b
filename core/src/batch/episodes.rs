//! Finds where episodes end.

use core::str::FromStr;

use super::{BatchError, EPS_ID, SampleBatch, TERMINATEDS, TRUNCATEDS};
use crate::{
    column::{Column, ColumnData, ColumnError, ColumnKey, RowShape},
    prelude::*,
};

/// The way to find the episodes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpisodeKey {
    /// By `eps_id`: an episode ends where the id changes.
    EpsId,
    /// By `terminateds` and `truncateds`: an episode ends with a step where either is set.
    Dones,
}

impl FromStr for EpisodeKey {
    type Err = BatchError;

    fn from_str(key: &str) -> Result<Self, BatchError> {
        match key {
            "eps_id" => Ok(Self::EpsId),
            "dones" => Ok(Self::Dones),
            other => Err(BatchError::EpisodeKey(other.to_string())),
        }
    }
}

impl SampleBatch {
    /// Returns `terminateds` OR `truncateds`, row by row, padding included; `terminateds` alone without a `truncateds`
    /// column.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] without `terminateds`, [`BatchError::Column`] if a step has several flags.
    pub fn dones(&self) -> Result<Vec<bool>, BatchError> {
        let terminateds = self.flags_of(TERMINATEDS)?;
        match self.column(TRUNCATEDS.name()) {
            Some(_) => Ok(terminateds.iter().zip(self.flags_of(TRUNCATEDS)?).map(|(a, b)| a | b).collect()),
            None => Ok(terminateds.to_vec()),
        }
    }

    /// Returns a column of flags, one per step.
    fn flags_of(&self, key: ColumnKey<bool>) -> Result<&[bool], BatchError> {
        let flags = self.data(key)?;
        if flags.shape().dims().len() != usize::from(self.time_major) {
            let source = ColumnError::NotScalar(flags.shape());
            return Err(BatchError::Column { name: key.name().to_string(), source });
        }
        Ok(flags.values())
    }

    /// Returns the [`dones`](Self::dones) of the steps, without padding.
    fn step_dones(&self, operation: &'static str) -> Result<Vec<bool>, BatchError> {
        if self.time_major {
            return Err(BatchError::TimeMajor(operation));
        }
        let dones = self.dones()?;
        if !self.zero_padded {
            return Ok(dones);
        }
        let dones = Column::from(ColumnData::scalars(dones)).assemble(&self.segments_of(0..self.positions()));
        let dones = dones.map_err(BatchError::of_column(TERMINATEDS.name()))?;
        Ok(dones.typed::<bool>().map_err(BatchError::of_column(TERMINATEDS.name()))?.values().to_vec())
    }

    /// Returns true if an episode ends with the last step.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] without `terminateds` and `truncateds`; [`BatchError::TimeMajor`].
    pub fn is_terminated_or_truncated(&self) -> Result<bool, BatchError> {
        Ok(self.step_dones("is_terminated_or_truncated")?.last().copied().unwrap_or(false))
    }

    /// Returns true if no episode ends before the last step.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] without `terminateds` and `truncateds`; [`BatchError::TimeMajor`].
    pub fn is_single_trajectory(&self) -> Result<bool, BatchError> {
        let dones = self.step_dones("is_single_trajectory")?;
        Ok(!dones.split_last().is_some_and(|(_, before)| before.contains(&true)))
    }

    /// Splits the batch where episodes end. An id that recurs later starts a new episode, and rows after the last end are
    /// kept. Without a key, splits by `eps_id` if there is such a column, otherwise by flags. Slices are those of
    /// [`slice`](Self::slice): they share buffers, and a sequence with an end inside is shortened to fit.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`] without the columns of the key; [`BatchError::Column`] if they are compressed or of an
    /// unsuitable type; [`BatchError::TimeMajor`].
    pub fn split_by_episode(&self, key: Option<EpisodeKey>) -> Result<Vec<Self>, BatchError> {
        let by_id = self.column(EPS_ID.name()).is_some();
        let ends = match key {
            Some(EpisodeKey::EpsId) => self.ends_by_id()?,
            None if by_id => self.ends_by_id()?,
            Some(EpisodeKey::Dones) | None => self.ends_by_flags()?,
        };
        let mut pieces = Vec::with_capacity(ends.len());
        let mut start = 0;
        for end in ends {
            pieces.push(if self.seq_lens.is_some() {
                self.slice(start as i64, end)?
            } else {
                self.slice_rows(start..end)
            });
            start = end;
        }
        Ok(pieces)
    }

    /// Returns one past the last step of each piece, including the end of the batch.
    fn ends_by_flags(&self) -> Result<Vec<usize>, BatchError> {
        let dones = self.step_dones("split_by_episode")?;
        let mut ends: Vec<usize> = dones.iter().enumerate().filter_map(|(i, done)| done.then_some(i + 1)).collect();
        if ends.last().copied().unwrap_or(0) < dones.len() {
            ends.push(dones.len());
        }
        Ok(ends)
    }

    fn ends_by_id(&self) -> Result<Vec<usize>, BatchError> {
        if self.time_major {
            return Err(BatchError::TimeMajor("split_by_episode"));
        }
        let missing = || BatchError::MissingColumn(EPS_ID.name().to_string());
        let mut ids = self.column(EPS_ID.name()).ok_or_else(missing)?.clone();
        if self.zero_padded {
            ids = ids.assemble(&self.segments_of(0..self.positions())).map_err(BatchError::of_column(EPS_ID.name()))?;
        }
        let mut ends = changes(&ids)?;
        if ids.rows() > 0 {
            ends.push(ids.rows());
        }
        Ok(ends)
    }
}

/// Returns the rows that differ from the previous row.
fn changes(column: &Column) -> Result<Vec<usize>, BatchError> {
    fn of<T: PartialEq>(rows: &[T]) -> Vec<usize> {
        let pairs = rows.iter().zip(rows.iter().skip(1)).enumerate();
        pairs.filter_map(|(i, (before, row))| (before != row).then_some(i + 1)).collect()
    }
    match column {
        Column::I64(ids) if ids.shape() == RowShape::SCALAR => Ok(of(ids.values())),
        Column::I32(ids) if ids.shape() == RowShape::SCALAR => Ok(of(ids.values())),
        // Other programs write ids as floats, or as text.
        Column::F64(ids) if ids.shape() == RowShape::SCALAR => Ok(of(ids.values())),
        Column::Bytes(ids) => Ok(of(&ids.iter().collect::<Vec<_>>())),
        other => {
            let no_scalar = ColumnError::RaggedRows { values: other.rows(), shape: other.shape() };
            Err(BatchError::of_column(EPS_ID.name())(other.typed::<i64>().err().unwrap_or(no_scalar)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};

    fn flags(values: &[u8]) -> ColumnData<bool> {
        ColumnData::scalars(values.iter().map(|value| *value == 1).collect())
    }

    fn episodes(eps_id: Option<&[i64]>, terminateds: Option<&[u8]>) -> SampleBatch {
        let mut batch = rows(&[0, 1, 2, 3, 4, 5]);
        if let Some(ids) = eps_id {
            batch.insert(EPS_ID.name(), ints(ids)).unwrap();
        }
        if let Some(values) = terminateds {
            batch.insert(TERMINATEDS.name(), flags(values)).unwrap();
        }
        batch
    }

    fn split(batch: &SampleBatch, key: Option<EpisodeKey>) -> Vec<Vec<i64>> {
        batch.split_by_episode(key).unwrap().iter().map(a).collect()
    }

    #[test]
    fn episodes_are_split_by_id_or_by_flags() {
        let (ids, ends) = (Some(&[0, 0, 0, 0, 1, 1][..]), Some(&[0, 0, 0, 1, 0, 1][..]));
        let expected = [vec![0, 1, 2, 3], vec![4, 5]];
        for key in [None, Some(EpisodeKey::EpsId), Some(EpisodeKey::Dones)] {
            assert_eq!(split(&episodes(ids, ends), key), expected);
        }
        assert_eq!(split(&episodes(None, ends), None), expected);
        assert_eq!(split(&episodes(None, Some(&[0; 6])), None), [[0, 1, 2, 3, 4, 5]]);
        // An id that recurs starts a new piece.
        assert_eq!(split(&episodes(Some(&[1, 1, 2, 2, 1, 1]), None), None), [[0, 1], [2, 3], [4, 5]]);
        assert_eq!(split(&SampleBatch::new().with(EPS_ID, ColumnData::scalars(vec![])).unwrap(), None).len(), 0);
    }

    #[test]
    fn split_needs_ids_or_flags() {
        let missing = |batch: SampleBatch, key| batch.split_by_episode(key).unwrap_err();
        assert_eq!(missing(episodes(None, None), None), BatchError::MissingColumn("terminateds".into()));
        let by_id = Some(EpisodeKey::EpsId);
        assert_eq!(missing(episodes(None, Some(&[0; 6])), by_id), BatchError::MissingColumn("eps_id".into()));
        let truncated = SampleBatch::new().with(TRUNCATEDS, flags(&[1])).unwrap();
        assert_eq!(missing(truncated, None), BatchError::MissingColumn("terminateds".into()));
        assert_eq!("foo".parse::<EpisodeKey>(), Err(BatchError::EpisodeKey("foo".into())));
        let mut compressed = episodes(Some(&[0; 6]), None);
        compressed.compress_columns(crate::column::Granularity::Bulk, &["eps_id"]).unwrap();
        assert_eq!(
            missing(compressed, None).to_string(),
            "column 'eps_id': the column is compressed: decompress it first"
        );
    }

    #[test]
    fn padding_is_no_episode() {
        let mut batch = sequences(&[2, 3, 1]);
        batch.insert(EPS_ID.name(), ints(&[1, 1, 2, 2, 2, 0])).unwrap();
        batch.insert(TERMINATEDS.name(), flags(&[0, 0, 0, 0, 1, 0])).unwrap();
        let padded = batch.right_zero_pad(4).unwrap();
        assert_eq!(split(&padded, None), [vec![1, 2, 0, 0], vec![3, 2, 3, 0], vec![4, 0, 0, 0]]);
        assert_eq!(split(&padded, Some(EpisodeKey::Dones)), [vec![1, 2, 0, 0, 3, 2, 3, 0], vec![4, 0, 0, 0]]);
        let parts = batch.split_by_episode(None).unwrap();
        assert_eq!(SampleBatch::concat(&parts).unwrap(), batch);
    }

    #[test]
    fn dones_is_computed_and_cannot_be_stored() {
        let batch = SampleBatch::new().with(TERMINATEDS, flags(&[1, 0, 0])).unwrap();
        let mut batch = batch.with(TRUNCATEDS, flags(&[1, 1, 0])).unwrap();
        assert_eq!(batch.dones().unwrap(), [true, true, false]);
        assert_eq!(batch.insert("dones", flags(&[1; 3])).unwrap_err(), BatchError::DonesIsDerived);
    }

    #[test]
    fn ends_are_seen() {
        let test = |truncateds: &[u8]| {
            let batch = SampleBatch::new().with(TERMINATEDS, flags(&vec![0; truncateds.len()])).unwrap();
            let batch = batch.with(TRUNCATEDS, flags(truncateds)).unwrap();
            (batch.is_terminated_or_truncated().unwrap(), batch.is_single_trajectory().unwrap())
        };
        assert_eq!(test(&[0, 1]), (true, true));
        assert_eq!(test(&[0, 1, 0, 0]), (false, false));
        assert_eq!(test(&[0, 0]), (false, true));
        assert_eq!(test(&[]), (false, true));
        assert!(rows(&[1]).is_single_trajectory().is_err());
        assert_eq!(time_major(1, &[1]).is_single_trajectory(), Err(BatchError::TimeMajor("is_single_trajectory")));
    }

    #[test]
    fn a_step_has_one_flag() {
        let wide = ColumnData::new(vec![false; 4], RowShape::vector(2)).unwrap();
        let batch = rows(&[0, 1]).with(TERMINATEDS, wide).unwrap();
        let expected = "column 'terminateds': its rows have shape (2); one value per row is needed";
        assert_eq!(batch.dones().unwrap_err().to_string(), expected);
        assert!(batch.split_by_episode(None).is_err() && batch.is_terminated_or_truncated().is_err());
    }
}
