//! Decodes batches.

use super::{
    super::{AnyBatch, BatchError, BatchParts, MultiAgentBatch, SampleBatch},
    ALL_FLAGS, HAS_GRAD_UPDATES, HAS_MAX_SEQ_LEN, IS_TRAINING, MAGIC, MULTI, SINGLE, TIME_MAJOR, TYPES, VERSION,
    ZERO_PADDED,
};
use crate::{
    column::{
        BlockEntry, BytesColumn, BytesKind, Column, ColumnData, ColumnError, ColumnName, ColumnType, CompressedColumn,
        LittleEndian, RowShape,
    },
    ids::PolicyId,
    prelude::*,
};

/// The reason why bytes do not decode to a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The bytes do not start with the magic.
    #[error("the bytes are no batch: they do not start with the magic")]
    Magic,
    /// This program does not know the version.
    #[error("the batch has version {found}, this program reads {VERSION}: use a newer program")]
    Version {
        /// The version found.
        found: u16,
    },
    /// The bytes are another kind of batch.
    #[error("the bytes hold a batch of kind {found}, not {wanted}; 1 is a sample batch, 2 a multi-agent one")]
    Kind {
        /// The kind requested.
        wanted: u16,
        /// The kind found.
        found: u16,
    },
    /// The bytes end early.
    #[error("the bytes end before {0}")]
    Short(&'static str),
    /// There are bytes after the end.
    #[error("{0} bytes follow the batch")]
    Long(usize),
    /// A number has no meaning.
    #[error("{0} is not what a batch can have")]
    Bad(&'static str),
    /// A policy occurs twice.
    #[error("policy '{0}' is there twice")]
    DuplicatePolicy(PolicyId),
    /// A column's bytes do not decode to rows.
    #[error("column '{name}': {source}")]
    Column {
        /// The column.
        name: String,
        /// The cause.
        source: ColumnError,
    },
    /// The parts do not form a valid batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// Decodes a batch.
///
/// # Errors
/// [`CodecError`] if the bytes are not exactly one batch.
pub fn decode(bytes: &[u8]) -> Result<SampleBatch, CodecError> {
    let mut input = Input(bytes);
    input.head(SINGLE)?;
    let batch = input.batch()?;
    input.end()?;
    Ok(batch)
}

/// Decodes a multi-agent batch.
///
/// # Errors
/// [`CodecError`] if the bytes are not exactly one multi-agent batch.
pub fn decode_multi_agent(bytes: &[u8]) -> Result<MultiAgentBatch, CodecError> {
    let mut input = Input(bytes);
    input.head(MULTI)?;
    let env_steps = input.size("env steps")?;
    let policies: u32 = input.number("number of policies")?;
    let mut policy_batches = BTreeMap::new();
    for _ in 0..policies {
        let policy = PolicyId::new(input.text("policy id")?.to_string());
        if policy_batches.insert(policy.clone(), input.batch()?).is_some() {
            return Err(CodecError::DuplicatePolicy(policy));
        }
    }
    input.end()?;
    Ok(MultiAgentBatch::new(policy_batches, env_steps))
}

/// Decodes a batch of either kind.
///
/// # Errors
/// [`CodecError`] if the bytes are not exactly one batch.
pub fn decode_any(bytes: &[u8]) -> Result<AnyBatch, CodecError> {
    match decode(bytes) {
        Err(CodecError::Kind { found: MULTI, .. }) => decode_multi_agent(bytes).map(AnyBatch::Multi),
        single => single.map(AnyBatch::Single),
    }
}

/// The bytes that remain to be read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize, what: &'static str) -> Result<&'a [u8], CodecError> {
        self.0.split_off(..bytes).ok_or(CodecError::Short(what))
    }

    fn numbers<T: LittleEndian>(&mut self, count: usize, what: &'static str) -> Result<Vec<T>, CodecError> {
        let bytes = count.checked_mul(T::BYTES).ok_or(CodecError::Short(what))?;
        Ok(T::read_le(self.take(bytes, what)?))
    }

    fn number<T: LittleEndian>(&mut self, what: &'static str) -> Result<T, CodecError> {
        self.numbers(1, what)?.first().copied().ok_or(CodecError::Short(what))
    }

    /// Reads a 64-bit number that must fit into a `usize`.
    fn size(&mut self, what: &'static str) -> Result<usize, CodecError> {
        usize::try_from(self.number::<u64>(what)?).map_err(|_| CodecError::Bad(what))
    }

    fn text(&mut self, what: &'static str) -> Result<&'a str, CodecError> {
        let len: u32 = self.number(what)?;
        core::str::from_utf8(self.take(len as usize, what)?).map_err(|_| CodecError::Bad(what))
    }

    fn head(&mut self, wanted: u16) -> Result<(), CodecError> {
        if self.take(MAGIC.len(), "magic") != Ok(&MAGIC) {
            return Err(CodecError::Magic);
        }
        let found = self.number("version")?;
        if found != VERSION {
            return Err(CodecError::Version { found });
        }
        let found = self.number("kind")?;
        if found == wanted { Ok(()) } else { Err(CodecError::Kind { wanted, found }) }
    }

    fn end(&self) -> Result<(), CodecError> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecError::Long(self.0.len())) }
    }

    fn batch(&mut self) -> Result<SampleBatch, CodecError> {
        let flags: u32 = self.number("flags")?;
        if flags & !ALL_FLAGS != 0 {
            return Err(CodecError::Bad("flags"));
        }
        let has = |flag| flags & flag != 0;
        let columns: u32 = self.number("number of columns")?;
        let sequences = self.size("number of sequences")?;
        let max_seq_len = self.size("max_seq_len")?;
        let updates: f64 = self.number("num_grad_updates")?;
        let seq_lens = self.numbers(sequences, "seq_lens")?;
        let mut parts = BatchParts {
            columns: Vec::new(),
            seq_lens: Some(ColumnData::scalars(seq_lens)),
            max_seq_len: has(HAS_MAX_SEQ_LEN).then_some(max_seq_len),
            zero_padded: has(ZERO_PADDED),
            time_major: has(TIME_MAJOR),
            is_training: has(IS_TRAINING),
            num_grad_updates: has(HAS_GRAD_UPDATES).then_some(updates),
        };
        for _ in 0..columns {
            parts.columns.push(self.column()?);
        }
        Ok(SampleBatch::from_parts(parts)?)
    }

    fn column(&mut self) -> Result<(ColumnName, Column), CodecError> {
        let name = self.text("name of a column")?;
        let tags = self.take(4, "type of a column")?;
        let &[number, rank, compressed @ (0 | 1), 0] = tags else { return Err(CodecError::Bad("type of a column")) };
        let column_type = TYPES.iter().find(|(_, known)| *known == number);
        let column_type = column_type.ok_or(CodecError::Bad("type of a column"))?.0;
        let dims = self.numbers(usize::from(rank), "shape of a column")?;
        let shape = RowShape::new(&dims).map_err(|_| CodecError::Bad("shape of a column"))?;
        let rows = self.size("rows of a column")?;
        let bytes = self.size("bytes of a column")?;
        let data = Input(self.take(bytes, "rows of a column")?);
        let of_column = |source| CodecError::Column { name: name.to_string(), source };
        let column = match (compressed, column_type) {
            (1, _) => data.blocks(column_type, shape)?.map_err(of_column)?,
            (_, ColumnType::Array(dtype)) => {
                if bytes.checked_rem(dtype.size()) != Some(0) {
                    return Err(CodecError::Bad("bytes of a column"));
                }
                Column::from_raw(dtype, shape, data.0).map_err(of_column)?
            }
            (_, ColumnType::Ragged(kind)) => data.ragged(kind, rows)?.map_err(of_column)?,
        };
        if column.rows() != rows || column.shape() != shape {
            return Err(CodecError::Bad("rows of a column"));
        }
        Ok((name.to_string().into(), column))
    }

    fn ragged(mut self, kind: BytesKind, rows: usize) -> Result<Result<Column, ColumnError>, CodecError> {
        let lengths: Vec<u32> = self.numbers(rows, "lengths of a column")?;
        Ok(BytesColumn::from_lengths(kind, self.0.to_vec(), &lengths).map(Column::Bytes))
    }

    fn blocks(mut self, column_type: ColumnType, shape: RowShape) -> Result<Result<Column, ColumnError>, CodecError> {
        let count = self.size("number of blocks")?;
        let bytes = count.checked_mul(super::write::BLOCK).ok_or(CodecError::Short("table of blocks"))?;
        let mut table = Input(self.take(bytes, "table of blocks")?);
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(BlockEntry {
                bytes: table.size("bytes of a block")?,
                raw: table.size("bytes of a block")?,
                rows: table.size("rows of a block")?,
                used: table.size("rows of a block")?..table.size("rows of a block")?,
            });
        }
        let column = CompressedColumn::from_blocks(column_type, shape, self.0.to_vec(), &entries);
        Ok(column.map(Column::Compressed))
    }
}
