//! Reads arrays of HDF5 files by ranges of rows, as columns. The crate `hdf5-pure` decodes the format from any [`Source`],
//! without C, so that a page can read a dropped file.
//!
//! This module bounds the memory for a file with invalid metadata, which the crate trusts: a chunk, a list of chunks or
//! a range of rows that exceeds the declared buffer is an error before it is decoded, the chunks of an array must fit
//! into the file, and the array into its chunks. Each call of the crate may read a limited number of bytes, see
//! [`listing`].

mod allowance;

use std::ops::Range;

use half::f16;
use hdf5_pure::{ChunkCacheConfig, Datatype, DatatypeByteOrder, File, FileAccessProperties, FormatError, Group};
use rollmesh_core::column::{BytesColumn, BytesKind, Column, ColumnData, ColumnError, DType, RowShape};

pub(crate) use allowance::listing;
use allowance::{SourceBytes, reading};

use crate::Source;

/// Number of texts that are read in one call. Texts in a heap have any length, so their sum is checked before each
/// group of this size.
const TEXTS_AT_ONCE: u64 = 64;
/// Memory for an entry of a list of chunks.
const CHUNK_ENTRY: u64 = 128;

/// An error of reading an HDF5 file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Hdf5Error {
    /// There is no HDF5 signature at any possible position.
    #[error("this is no HDF5 file")]
    NotHdf5,
    /// The file is damaged, incomplete, or could not be read.
    #[error(
        "the file is damaged, or in a form of HDF5 that is not read here, for which `h5repack --low=0 --high=0` or h5py's \
         libver=\"earliest\" help: {0}"
    )]
    File(String),
    /// An array's metadata contradict the file.
    #[error("the file is damaged: {0}")]
    Corrupt(&'static str),
    /// The tables of groups and arrays exceed their part of the declared buffer.
    #[error("the tables of its groups and arrays take more than {0} bytes: declare a larger buffer")]
    Tables(u64),
    /// A group contains a soft link.
    #[error(
        "it has a group with soft links, which are not read here: write a hard link instead, in h5py f[\"name\"] = f[\"/array\"]"
    )]
    SoftLinks,
    /// The elements of an array cannot be in a column.
    #[error("{0} is not read here: write arrays of numbers, truth values or texts")]
    Unsupported(String),
    /// A part that can only be read as a whole exceeds the declared buffer.
    #[error("{what} takes {bytes} bytes, the buffer is {buffer}: declare a larger one")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The declared buffer.
        buffer: usize,
    },
}

/// Converts an error of the crate.
pub(crate) fn unreadable(error: hdf5_pure::Error) -> Hdf5Error {
    match error {
        hdf5_pure::Error::Format(FormatError::SignatureNotFound) => Hdf5Error::NotHdf5,
        // The crate takes soft links in groups of the old form for hard ones, whose address is undefined.
        hdf5_pure::Error::Format(FormatError::OffsetOverflow { offset: u64::MAX, .. }) => Hdf5Error::SoftLinks,
        error => Hdf5Error::File(error.to_string()),
    }
}

/// Opens a file, within a [`listing`]. Its arrays keep decoded chunks of at most an eighth of the buffer together, if there are
/// eight of them. There is no cache of metadata, so that all that is read is counted.
pub(crate) fn open(source: impl Source + 'static, buffer: usize) -> Result<File, Hdf5Error> {
    let chunks = ChunkCacheConfig::new().with_max_bytes(buffer / 64);
    let properties = FileAccessProperties::new().with_chunk_cache(chunks);
    File::from_source_with_options(SourceBytes(source), properties).map_err(unreadable)
}

/// A member of a group.
pub(crate) enum Member {
    Array(Box<RowArray>),
    Group(Group),
}

/// Returns the member of a group with this name, within a [`listing`]; none if there is none.
pub(crate) fn member(group: &Group, name: &str, file: &File, buffer: usize) -> Result<Option<Member>, Hdf5Error> {
    match group.dataset(name) {
        Ok(dataset) => Ok(Some(Member::Array(Box::new(RowArray::new(dataset, file.file_size(), buffer)?)))),
        Err(hdf5_pure::Error::NotADataset(_)) => Ok(Some(Member::Group(group.group(name).map_err(unreadable)?))),
        Err(hdf5_pure::Error::Format(FormatError::PathNotFound(_))) => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// Returns the arrays directly in a group, by their names, within a [`listing`].
pub(crate) fn arrays(group: &Group, file: &File, buffer: usize) -> Result<Vec<(String, RowArray)>, Hdf5Error> {
    let named = |(name, dataset)| RowArray::new(dataset, file.file_size(), buffer).map(|array| (name, array));
    group.iter_datasets().map_err(unreadable)?.map(named).collect()
}

/// An array whose first dimension counts rows.
pub(crate) struct RowArray {
    dataset: hdf5_pure::Dataset,
    element: Stored,
    shape: RowShape,
    rows: u64,
    chunk_rows: u64,
    /// Size of a row in bytes, in the file or in memory, whichever is larger.
    row_bytes: u64,
    /// Maximum size of a range of rows in bytes.
    buffer: usize,
    file_size: u64,
}

/// The storage of elements, as far as their column depends on it.
#[derive(Clone, Copy)]
enum Stored {
    /// An enumeration of FALSE and TRUE, as h5py stores truth values.
    Bool,
    /// A float of 16 bits; true if its bytes are in big-endian order.
    Half(bool),
    F32,
    F64,
    U8,
    /// Integers that fit into 32 bits with a sign.
    I32,
    /// Integers that fit into 64 bits with a sign.
    I64,
    U64,
    /// Texts, in a heap, where they have any length, or not.
    Text {
        in_heap: bool,
    },
}

impl Stored {
    /// Returns how elements of a type are stored; none if they cannot be in a column.
    fn new(datatype: &Datatype) -> Option<Self> {
        Some(match datatype {
            Datatype::FloatingPoint { size: 2, byte_order, .. } => {
                Self::Half(*byte_order == DatatypeByteOrder::BigEndian)
            }
            Datatype::FloatingPoint { size: 4, .. } => Self::F32,
            Datatype::FloatingPoint { size: 8, .. } => Self::F64,
            Datatype::FixedPoint { size: 1, layout, .. } if !layout.signed => Self::U8,
            Datatype::FixedPoint { size: 1 | 2, .. } => Self::I32,
            Datatype::FixedPoint { size: 4, layout, .. } if layout.signed => Self::I32,
            Datatype::FixedPoint { size: 8, layout, .. } if !layout.signed => Self::U64,
            Datatype::FixedPoint { size: 4 | 8, .. } => Self::I64,
            Datatype::Enumeration { size: 1, members, .. }
                if members
                    .iter()
                    .map(|member| (&*member.name, &*member.value))
                    .eq([("FALSE", &[0][..]), ("TRUE", &[1])]) =>
            {
                Self::Bool
            }
            Datatype::Enumeration { base_type, .. } => Self::new(base_type)?,
            Datatype::String { .. } => Self::Text { in_heap: false },
            Datatype::VariableLength { is_string: true, .. } => Self::Text { in_heap: true },
            _ => return None,
        })
    }

    /// Returns the type of the column that holds the elements; none for texts.
    fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::Bool => DType::Bool,
            Self::Half(_) | Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::U8 => DType::U8,
            Self::I32 => DType::I32,
            Self::I64 | Self::U64 => DType::I64,
            Self::Text { .. } => return None,
        })
    }
}

impl RowArray {
    fn new(dataset: hdf5_pure::Dataset, file_size: u64, buffer: usize) -> Result<Self, Hdf5Error> {
        let datatype = dataset.datatype().map_err(unreadable)?;
        let kind = dataset.dtype().map_err(unreadable)?;
        let element = Stored::new(&datatype);
        let element = element.ok_or_else(|| Hdf5Error::Unsupported(format!("an array of type {kind}")))?;
        let dims = dataset.shape().map_err(unreadable)?;
        let (rows, row) = dims.split_first().map_or((1, &[][..]), |(rows, row)| (*rows, row));
        let inner: Option<Vec<u32>> = row.iter().map(|dim| u32::try_from(*dim).ok()).collect();
        let shape = inner.and_then(|dims| RowShape::new(&dims).ok()).filter(|shape| shape.elements() > 0);
        let shape = shape.ok_or_else(|| Hdf5Error::Unsupported(format!("an array with dimensions {dims:?}")))?;
        let (elements, stored) = (shape.elements() as u64, u64::from(datatype.type_size()));
        let in_memory = element.dtype().map_or(0, |dtype| dtype.size() as u64);
        let row_bytes = elements.saturating_mul(stored.max(in_memory));
        let chunk = dataset.chunk_shape().map_err(unreadable)?;
        let chunk_rows = chunk.as_ref().and_then(|dims| dims.first().copied()).unwrap_or(1);
        let array = Self { dataset, element, shape, rows, chunk_rows, row_bytes, buffer, file_size };
        let mut held = file_size;
        if let Some(chunk) = chunk {
            let bytes = chunk.iter().fold(stored, |bytes, dim| bytes.saturating_mul(*dim));
            array.fits("a chunk", bytes)?;
            let along = dims.iter().zip(&chunk).map(|(all, one)| all.div_ceil((*one).max(1)));
            let count = along.fold(1u64, u64::saturating_mul);
            if count > file_size {
                return Err(Hdf5Error::Corrupt("an array has more chunks than the file has bytes"));
            }
            array.fits("a list of chunks", count.saturating_mul(CHUNK_ENTRY))?;
            let chunks = array.dataset.chunks().map_err(unreadable)?;
            if chunks.iter().fold(0u64, |sum, chunk| sum.saturating_add(chunk.storage_size)) > file_size {
                return Err(Hdf5Error::Corrupt("the chunks of an array are larger than the file"));
            }
            held = held.max(bytes.saturating_mul(chunks.len() as u64));
        }
        if rows.saturating_mul(elements).saturating_mul(stored) > held {
            return Err(Hdf5Error::Corrupt("an array is larger than its chunks or the file"));
        }
        Ok(array)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the size of a row in memory.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Returns the number of rows that are stored together and are best read together.
    pub(crate) fn chunk_rows(&self) -> u64 {
        self.chunk_rows
    }

    fn fits(&self, what: &'static str, bytes: u64) -> Result<(), Hdf5Error> {
        let buffer = self.buffer;
        if bytes > buffer as u64 { Err(Hdf5Error::TooLarge { what, bytes, buffer }) } else { Ok(()) }
    }

    /// Reads the existing rows in `range`. Integers of fewer than 32 bits, except bytes, are widened to 32-bit signed ones,
    /// unsigned ones of 32 and 64 bits to 64-bit signed ones, and half floats to floats.
    pub(crate) fn read_rows(&self, range: Range<u64>) -> Result<Column, Hdf5Error> {
        reading(self.file_size, || self.rows_in(range))
    }

    fn rows_in(&self, range: Range<u64>) -> Result<Column, Hdf5Error> {
        let end = range.end.min(self.rows);
        let start = range.start.min(end);
        let rows = end - start;
        self.fits("a range of rows", rows.saturating_mul(self.row_bytes))?;
        let (dataset, shape) = (&self.dataset, self.shape);
        let column = match self.element {
            Stored::Bool => {
                let bytes = dataset.read_raw_rows(start, rows).map_err(unreadable)?;
                if bytes.iter().any(|byte| *byte > 1) {
                    return Err(Hdf5Error::Corrupt("a truth value that is neither 0 nor 1"));
                }
                ColumnData::new(bytes.into_iter().map(|byte| byte != 0).collect(), shape).map(Column::from)
            }
            Stored::Half(is_big_endian) => {
                halves(&dataset.read_raw_rows(start, rows).map_err(unreadable)?, is_big_endian, shape)
            }
            Stored::F32 => {
                ColumnData::new(dataset.read_f32_rows(start, rows).map_err(unreadable)?, shape).map(Column::from)
            }
            Stored::F64 => {
                ColumnData::new(dataset.read_f64_rows(start, rows).map_err(unreadable)?, shape).map(Column::from)
            }
            Stored::U8 => {
                ColumnData::new(dataset.read_u8_rows(start, rows).map_err(unreadable)?, shape).map(Column::from)
            }
            Stored::I32 => {
                ColumnData::new(dataset.read_i32_rows(start, rows).map_err(unreadable)?, shape).map(Column::from)
            }
            Stored::I64 => {
                ColumnData::new(dataset.read_i64_rows(start, rows).map_err(unreadable)?, shape).map(Column::from)
            }
            Stored::U64 => {
                let values = dataset
                    .read_u64_rows(start, rows)
                    .map_err(unreadable)?
                    .into_iter()
                    .map(|value| i64::try_from(value).ok());
                let values = values.collect::<Option<_>>();
                let values = values.ok_or_else(|| Hdf5Error::Unsupported("an integer above 2^63 - 1".to_string()))?;
                ColumnData::new(values, shape).map(Column::from)
            }
            Stored::Text { in_heap } => return self.texts(start..end, in_heap),
        };
        column.map_err(|_| Hdf5Error::Corrupt("rows that are not whole"))
    }

    fn texts(&self, range: Range<u64>, in_heap: bool) -> Result<Column, Hdf5Error> {
        if self.shape != RowShape::SCALAR {
            return Err(Hdf5Error::Unsupported("an array of texts per row".to_string()));
        }
        let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
        for start in range.clone().step_by(TEXTS_AT_ONCE as usize) {
            let rows = TEXTS_AT_ONCE.min(range.end - start);
            let texts = reading(self.file_size, || {
                let more = if in_heap { self.heap_bytes(start, rows)? } else { 0 };
                self.fits("a range of texts", more.saturating_add(bytes.len() as u64))?;
                self.dataset.read_string_rows(start, rows).map_err(unreadable)
            })?;
            for text in texts {
                lengths.push(text.len() as u32);
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        let column = BytesColumn::from_lengths(BytesKind::Bytes, bytes, &lengths);
        column.map(Column::from).map_err(|_| Hdf5Error::Corrupt("texts of wrong lengths"))
    }

    /// Returns the length of texts in a heap. A row begins with its text's length; many may share one text.
    fn heap_bytes(&self, start: u64, rows: u64) -> Result<u64, Hdf5Error> {
        let references = self.dataset.read_raw_rows(start, rows).map_err(unreadable)?;
        let size = (references.len() / rows as usize).max(1);
        let lengths = references.chunks_exact(size).filter_map(<[u8]>::first_chunk);
        Ok(lengths.map(|length| u64::from(u32::from_le_bytes(*length))).sum())
    }
}

fn halves(raw: &[u8], is_big_endian: bool, shape: RowShape) -> Result<Column, ColumnError> {
    let from = if is_big_endian { f16::from_be_bytes } else { f16::from_le_bytes };
    ColumnData::new(raw.as_chunks::<2>().0.iter().map(|bytes| from(*bytes).to_f32()).collect(), shape).map(Column::from)
}
