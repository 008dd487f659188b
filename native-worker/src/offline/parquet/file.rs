//! A file as record batches, a row group after the other.

use std::{path::Path, sync::Arc};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::{
    arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    },
    file::{metadata::ColumnChunkMetaData, reader::Length as _},
};

use super::{
    super::{
        arrow::{corrupt, guarded},
        dataset::DatasetError,
        hdf5::{FileSource, Source},
    },
    pages::Checked,
};

/// The most rows of a record batch.
const MAX_ROWS: usize = 1 << 16;
/// Bytes that the numbers of a record batch may take, of however small a file.
const ROOM: u64 = 512 << 10;

/// An open file.
pub(in crate::offline) struct ParquetFile {
    source: Checked,
    metadata: ArrowReaderMetadata,
    buffer: usize,
    /// First row group that was not begun.
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
}

impl ParquetFile {
    pub(in crate::offline) fn open(path: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let io = |source| DatasetError::Io { path: path.display().to_string(), source };
        Self::new(Arc::new(FileSource::open(path).map_err(io)?), buffer)
    }

    pub(in crate::offline) fn new(source: Arc<dyn Source>, buffer: usize) -> Result<Self, DatasetError> {
        let source = Checked::new(source, buffer);
        source.check_contents()?;
        let metadata = guarded(|| ArrowReaderMetadata::load(&source, ArrowReaderOptions::new()))?.map_err(corrupt)?;
        Ok(Self { source, metadata, buffer, next_group: 0, reader: None })
    }

    pub(in crate::offline) fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    pub(in crate::offline) fn rewind(&mut self) {
        (self.next_group, self.reader) = (0, None);
    }

    /// The next rows: an eighth of the buffer at most, and no more than the file could hold as plain numbers, but at least one.
    pub(in crate::offline) fn next(&mut self) -> Result<Option<RecordBatch>, DatasetError> {
        loop {
            // Whoever panicked is not asked again.
            if let Some(mut reader) = self.reader.take()
                && let Some(batch) = guarded(|| reader.next())?
            {
                self.reader = Some(reader);
                return batch.map(Some).map_err(corrupt);
            }
            let Some(group) = self.metadata.metadata().row_groups().get(self.next_group) else { return Ok(None) };
            group.columns().iter().try_for_each(|column| self.source.check(column))?;
            let rows = u64::try_from(group.num_rows()).map_err(|_| corrupt("a negative number of rows"))?;
            let bytes = u64::try_from(group.total_byte_size()).unwrap_or(u64::MAX).max(1);
            let width_of = |column: &ColumnChunkMetaData| u64::try_from(column.column_descr().type_length());
            let widths = group.columns().iter().map(|column| width_of(column).unwrap_or(0).max(8));
            // A dictionary makes a few bytes of many, and a list has more values than its row is one.
            let values = group.columns().iter().map(|column| u64::try_from(column.num_values()).unwrap_or(u64::MAX));
            let plain = widths
                .clone()
                .zip(values)
                .fold(0u64, |sum, (width, values)| sum.saturating_add(values.saturating_mul(width)));
            let per_row = bytes.max(plain).div_ceil(rows.max(1)).max(1);
            // The crate takes memory for as many values, whether there are so many or not.
            let width: u64 = widths.sum();
            let rows = (self.buffer as u64 / 8 / per_row).min(self.source.len().max(ROOM) / width.max(1));
            let most = usize::try_from(rows).unwrap_or(MAX_ROWS);
            let (source, metadata) = (self.source.clone(), self.metadata.clone());
            let reader = guarded(|| {
                let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata);
                builder.with_row_groups(vec![self.next_group]).with_batch_size(most.clamp(1, MAX_ROWS)).build()
            })?;
            self.reader = Some(reader.map_err(corrupt)?);
            self.next_group += 1;
        }
    }
}
