//! Reads data sets: arrays, by ranges of rows.

use std::{ops::Range, sync::Arc};

use rollmesh_core::column::{Column, DType, RowShape};

use super::{
    Context, Hdf5Error, UNDEFINED,
    chunked::Chunks,
    cursor::Cursor,
    datatype::Datatype,
    filters::{self, Filter},
    header::{self, Message},
    values,
};

/// An array whose first dimension counts rows.
pub struct Dataset {
    context: Arc<Context>,
    datatype: Datatype,
    dims: Vec<u64>,
    shape: RowShape,
    /// Stored size of a row in bytes.
    row_bytes: u64,
    fill: Vec<u8>,
    layout: Layout,
}

enum Layout {
    /// In the header itself.
    Compact(Vec<u8>),
    /// In one piece at an address.
    Contiguous(u64),
    Chunked(Chunks),
}

impl Dataset {
    pub(super) fn open(context: &Arc<Context>, messages: &[Message]) -> Result<Self, Hdf5Error> {
        let find = |kind| messages.iter().find(|message| message.kind == kind);
        let body = |kind, what| {
            let message = find(kind).ok_or(Hdf5Error::Corrupt(what))?;
            match message.shared {
                true => Err(Hdf5Error::Unsupported("a type that several data sets share".to_string())),
                false => Ok(context.cursor(&message.body)),
            }
        };
        let datatype = Datatype::parse(&mut body(header::DATATYPE, "a data set without a type")?)?;
        let mut dims = dimensions(&mut body(header::DATASPACE, "a data set without dimensions")?)?;
        if dims.is_empty() {
            dims.push(1);
        }
        let inner: Option<Vec<u32>> = dims.iter().skip(1).map(|dim| u32::try_from(*dim).ok()).collect();
        let shape = inner.and_then(|dims| RowShape::new(&dims).ok()).filter(|shape| shape.elements() > 0);
        let shape = shape.ok_or_else(|| Hdf5Error::Unsupported(format!("an array with dimensions {dims:?}")))?;
        let row_bytes = (shape.elements() * datatype.size) as u64;
        let filters = match find(header::FILTERS) {
            Some(message) => filters::parse(&mut context.cursor(&message.body))?,
            None => Vec::new(),
        };
        let fill = match find(header::FILL_VALUE) {
            Some(message) => fill_value(&mut context.cursor(&message.body)).unwrap_or_default(),
            None => Vec::new(),
        };
        let mut layout = body(header::LAYOUT, "a data set without data")?;
        let layout = parse_layout(&mut layout, &dims, datatype.size, filters)?;
        let rows = dims.first().copied().unwrap_or(0);
        let dataset = Self { context: context.clone(), datatype, dims, shape, row_bytes, fill, layout };
        dataset.check(rows)?;
        Ok(dataset)
    }

    /// Checks that the file can hold the declared dimensions.
    fn check(&self, rows: u64) -> Result<(), Hdf5Error> {
        let size = self.context.source.size();
        let most = match &self.layout {
            Layout::Compact(data) => data.len() as u64,
            Layout::Contiguous(UNDEFINED) => size,
            Layout::Contiguous(address) => size.saturating_sub(self.context.base.saturating_add(*address)),
            // Deflate cannot compress to less than a thousandth.
            Layout::Chunked(_) => size.saturating_mul(1032),
        };
        if rows.checked_mul(self.row_bytes).is_none_or(|bytes| bytes > most) {
            return Err(Hdf5Error::Corrupt("a data set is larger than the file"));
        }
        Ok(())
    }

    /// Returns the number of rows of the array: its first dimension.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.dims.first().copied().unwrap_or(0)
    }

    /// Returns all dimensions.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Returns the shape of a row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Returns the type of the elements after reading; none for text.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.datatype.dtype()
    }

    /// Returns the size of a row in memory.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.shape.elements() * self.dtype().map_or(self.datatype.size, DType::size)
    }

    /// Returns the number of rows that are stored together and are best read together.
    #[must_use]
    pub fn chunk_rows(&self) -> u64 {
        match &self.layout {
            Layout::Chunked(chunks) => chunks.rows(),
            _ => 1,
        }
    }

    /// Reads the existing rows in `range`. Integers of fewer than 32 bits, except bytes, are widened to 32-bit signed ones,
    /// unsigned ones of 32 and 64 bits to 64-bit signed ones, and half floats to floats.
    ///
    /// # Errors
    /// [`Hdf5Error::TooLarge`] if they exceed the buffer, and others.
    pub fn read_rows(&self, range: Range<u64>) -> Result<Column, Hdf5Error> {
        let end = range.end.min(self.rows());
        let range = range.start.min(end)..end;
        let rows = range.end - range.start;
        let bytes = self.context.fits(rows.saturating_mul(self.row_bytes), "a range of rows")?;
        let raw = match &self.layout {
            Layout::Compact(data) => {
                let at = (range.start * self.row_bytes) as usize;
                data.get(at..at + bytes).ok_or(Hdf5Error::Corrupt("too little data"))?.to_vec()
            }
            Layout::Contiguous(UNDEFINED) => self.filled(bytes),
            Layout::Contiguous(address) => {
                let start = address.saturating_add(range.start * self.row_bytes);
                self.context.bytes(start, bytes as u64, "a range of rows")?
            }
            Layout::Chunked(chunks) => {
                // Deflated chunks can declare any size: for rows larger than the file, decodes the chunks to check the size
                // before the allocation.
                if bytes as u64 > self.context.source.size() {
                    chunks.check_holds(&self.context, &range, bytes as u64)?;
                }
                let mut raw = self.filled(bytes);
                chunks.read(&self.context, &self.dims, range, &mut raw)?;
                raw
            }
        };
        values::column(&self.context, &self.datatype, self.shape, raw)
    }

    /// Returns the fill value for this number of bytes of unwritten rows.
    fn filled(&self, bytes: usize) -> Vec<u8> {
        let mut raw = vec![0; bytes];
        if self.fill.len() == self.datatype.size && self.fill.iter().any(|byte| *byte != 0) {
            raw.chunks_exact_mut(self.fill.len()).for_each(|element| element.copy_from_slice(&self.fill));
        }
        raw
    }
}

/// Reads the dimensions of a data set or an attribute: none for a single value.
pub(super) fn dimensions(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, Hdf5Error> {
    let version = cursor.u8()?;
    let rank = cursor.u8()?;
    let _has_max = cursor.u8()?;
    match version {
        1 => cursor.skip(5)?,
        2 if cursor.u8()? == 2 => return Ok(vec![0]),
        2 => {}
        _ => return Err(Hdf5Error::Corrupt("dimensions of unknown version")),
    }
    (0..rank).map(|_| cursor.length()).collect()
}

fn fill_value(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, Hdf5Error> {
    let version = cursor.u8()?;
    let defined = if version >= 3 {
        cursor.u8()? & 0x20 != 0
    } else {
        cursor.skip(2)?;
        cursor.u8()? != 0
    };
    let len = if defined { cursor.u32()? as usize } else { 0 };
    Ok(cursor.take(len)?.to_vec())
}

fn parse_layout(
    cursor: &mut Cursor<'_>,
    dims: &[u64],
    element: usize,
    filters: Vec<Filter>,
) -> Result<Layout, Hdf5Error> {
    let version = cursor.u8()?;
    if ![3, 4].contains(&version) {
        return Err(Hdf5Error::Unsupported(format!("a data layout of version {version}")));
    }
    match cursor.u8()? {
        0 => {
            let len = usize::from(cursor.u16()?);
            Ok(Layout::Compact(cursor.take(len)?.to_vec()))
        }
        1 => Ok(Layout::Contiguous(cursor.offset()?)),
        2 => Chunks::parse(cursor, version, dims, element, filters).map(Layout::Chunked),
        class => Err(Hdf5Error::Unsupported(format!("data layout {class} (virtual data sets)"))),
    }
}
