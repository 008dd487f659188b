//! Writing lines of JSON.

use std::{
    collections::{BTreeSet, VecDeque},
    path::Path,
    sync::Arc,
};

use rollmesh_core::{batch::AnyBatch, column::Column};
use rollmesh_data::{
    json::{COMPRESS_COLUMNS, decode_record, encode_record},
    limits::JsonLimits,
};

use super::{
    BatchSink, kind,
    losses::{self, Losses},
};
use crate::{
    cli::exit::Failure,
    offline::json::{JsonWriter, JsonWriterOptions},
};

/// Gathers batches, which several threads encode.
pub(super) struct JsonSink {
    writer: JsonWriter,
    gathered: VecDeque<Arc<AnyBatch>>,
    /// Kinds of batches whose losses are known.
    seen: BTreeSet<String>,
}

impl JsonSink {
    pub(super) fn new(folder: &Path, max_file_size: u64) -> Result<Self, Failure> {
        let options = JsonWriterOptions { max_file_size, ..JsonWriterOptions::default() };
        let writer = JsonWriter::new(folder, options).map_err(Failure::usage)?;
        Ok(Self { writer, gathered: VecDeque::new(), seen: BTreeSet::new() })
    }
}

impl BatchSink for JsonSink {
    fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
        let policies = batch.as_multi_agent().policy_batches;
        let kind: String = policies.iter().map(|(id, rows)| format!("{id} {}\n", kind(rows))).collect();
        let may_differ = policies.values().any(|rows| rows.iter().any(|(_, column)| may_lose_values(column)));
        if self.seen.insert(kind) || may_differ {
            read_back(batch, losses)?;
        }
        self.gathered.push_back(Arc::new(batch.clone()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.writer.append_all(&mut self.gathered).map_err(Failure::other)
    }

    fn finish(&mut self, _: &mut Losses) -> Result<(), Failure> {
        self.flush()
    }
}

/// Returns whether a line may lose values of a column: text has only one NaN, and texts may be any JSON. All other
/// numbers are written with all their digits.
fn may_lose_values(column: &Column) -> bool {
    match column {
        Column::F32(data) => data.values().iter().any(|value| value.is_nan()),
        Column::F64(data) => data.values().iter().any(|value| value.is_nan()),
        Column::Bytes(_) | Column::Compressed(_) => true,
        Column::I32(_) | Column::I64(_) | Column::U8(_) | Column::Bool(_) => false,
    }
}

/// Finds a line's losses of a batch by reading it back.
fn read_back(batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
    let mut line = Vec::new();
    encode_record(batch, &COMPRESS_COLUMNS, &mut line).map_err(Failure::usage)?;
    let back = decode_record(&line, &JsonLimits { decompressed: usize::MAX }).map_err(Failure::other)?;
    let back = back.as_multi_agent();
    for (id, rows) in batch.as_multi_agent().policy_batches {
        let Some(found) = back.policy_batch(&id) else {
            losses.insert(format!("policy {id}, which has no rows"));
            continue;
        };
        losses::of_all_rows(&rows, found, losses);
        if rows.is_empty() {
            // Empty lists have no type.
            continue;
        }
        losses::columns(&rows, found, losses);
        for (name, column) in rows.iter() {
            let plain = column.decompress().map_err(Failure::other)?;
            let same_form =
                |found: &&Column| (found.column_type(), found.shape()) == (plain.column_type(), plain.shape());
            if found.column(name).filter(same_form).is_some_and(|found| !found.same_bits(&plain)) {
                losses.insert(format!("numbers of column '{name}'"));
            }
        }
    }
    Ok(())
}
