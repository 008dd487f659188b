//! Reads a file as record batches, one row group at a time.

use std::{path::Path, sync::Arc};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Fields, SchemaRef};
use parquet::{
    arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    },
    file::metadata::{ColumnChunkMetaData, ParquetStatisticsPolicy, RowGroupMetaData},
};

use super::{
    super::{
        arrow::{corrupt, guarded},
        dataset::DatasetError,
        source::{FileSource, Source},
    },
    claims,
    pages::Checked,
};

/// Maximum number of rows of a record batch.
const MAX_ROWS: usize = 1 << 16;

/// An open file.
pub(crate) struct ParquetFile {
    source: Checked,
    metadata: ArrowReaderMetadata,
    buffer: usize,
    /// First row group that has not begun.
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
}

impl ParquetFile {
    pub(crate) fn open(path: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let io = |source| DatasetError::Io { path: path.display().to_string(), source };
        Self::new(Arc::new(FileSource::open(path).map_err(io)?), buffer).map_err(|error| error.of(path))
    }

    pub(crate) fn new(source: Arc<dyn Source>, buffer: usize) -> Result<Self, DatasetError> {
        let source = Checked::new(source, buffer);
        source.check_contents()?;
        // Statistics are not used, and they may have any size.
        let options = ArrowReaderOptions::new()
            .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
        let metadata = guarded(|| ArrowReaderMetadata::load(&source, options))?.map_err(corrupt)?;
        Ok(Self { source, metadata, buffer, next_group: 0, reader: None })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    pub(crate) fn rewind(&mut self) {
        (self.next_group, self.reader) = (0, None);
    }

    /// Returns the next rows: at most an eighth of the buffer, but at least one.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, DatasetError> {
        loop {
            // A reader that panicked is not used again.
            if let Some(mut reader) = self.reader.take()
                && let Some(batch) = guarded(|| reader.next())?
            {
                self.reader = Some(reader);
                return batch.map(Some).map_err(|error| self.source.failed(error));
            }
            let Some(group) = self.metadata.metadata().row_groups().get(self.next_group) else { return Ok(None) };
            if group.columns().iter().any(|column| claims::lacks_decoder(column.compression())) {
                return Err(super::NO_ZSTD);
            }
            let source = guarded(|| self.source.of_group(group))??;
            let most = self.rows_per_read(group)?;
            let metadata = self.metadata.clone();
            let reader = guarded(|| {
                let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata);
                builder.with_row_groups(vec![self.next_group]).with_batch_size(most).build()
            })?;
            self.reader = Some(reader.map_err(|error| self.source.failed(error))?);
            self.next_group += 1;
        }
    }

    /// Returns the number of rows of a record batch. The crate allocates memory for this number even if there are fewer
    /// values, and fills missing lists of fixed size.
    fn rows_per_read(&self, group: &RowGroupMetaData) -> Result<usize, DatasetError> {
        let rows = u64::try_from(group.num_rows()).map_err(|_| corrupt("a negative number of rows"))?;
        let bytes = u64::try_from(group.total_byte_size()).unwrap_or(u64::MAX).max(1);
        let width_of = |column: &ColumnChunkMetaData| u64::try_from(column.column_descr().type_length());
        let widths = group.columns().iter().map(|column| width_of(column).unwrap_or(0).max(8));
        // A dictionary expands a few bytes to many, and a list has more values than its row counts.
        let values = group.columns().iter().map(|column| u64::try_from(column.num_values()).unwrap_or(u64::MAX));
        let plain = widths
            .clone()
            .zip(values)
            .fold(0u64, |sum, (width, values)| sum.saturating_add(values.saturating_mul(width)));
        let of_file = bytes.max(plain).div_ceil(rows.max(1));
        let of_values: u64 = widths.sum();
        let of_schema = fields_width(self.schema().fields(), false);
        let of_row = of_values.max(of_schema);
        if of_row > self.buffer as u64 {
            return Err(DatasetError::TooLarge { what: "a row", bytes: of_row, buffer: self.buffer });
        }
        let rows = self.buffer as u64 / 8 / of_file.max(of_row).max(1);
        Ok(usize::try_from(rows).unwrap_or(MAX_ROWS).clamp(1, MAX_ROWS))
    }
}

/// Returns the size of a row of a field, where missing lists of fixed size may be filled.
fn width(field: &Field, may_lack: bool) -> u64 {
    let may_lack = may_lack || field.is_nullable();
    match field.data_type() {
        DataType::FixedSizeList(item, len) => {
            let len = if may_lack { u64::try_from(*len).unwrap_or(0) } else { 1 };
            len.saturating_mul(width(item, may_lack))
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => width(item, may_lack),
        DataType::Struct(fields) => fields_width(fields, may_lack),
        other => other.primitive_width().unwrap_or(8) as u64,
    }
}

fn fields_width(fields: &Fields, may_lack: bool) -> u64 {
    fields.iter().map(|field| width(field, may_lack)).fold(0, u64::saturating_add)
}
