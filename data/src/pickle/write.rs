//! Arrays as Python 3.8 and later would pickle them with protocol 5: read by every NumPy.

use rollmesh_core::column::{ColumnData, Element, RowShape, append_le};

/// A pickle in the making: an array, or dicts and tuples of arrays.
pub(crate) struct Pickle {
    bytes: Vec<u8>,
}

impl Pickle {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0x80, 5] }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// What `numpy.ndarray.__reduce_ex__(5)` says of the rows.
    pub(crate) fn array<T: Element>(&mut self, data: &ColumnData<T>) {
        /// About what there is besides the elements.
        const AROUND: usize = 256;
        let values = data.values();
        self.bytes.reserve(values.len() * T::BYTES + AROUND);
        self.name("numpy.core.numeric", "_frombuffer");
        self.bytes.push(b'(');
        self.bytes.push(0x96);
        self.bytes.extend_from_slice(&((values.len() * T::BYTES) as u64).to_le_bytes());
        append_le(&mut self.bytes, values);
        self.name("numpy", "dtype");
        let (name, order) = match T::DTYPE {
            rollmesh_core::column::DType::F32 => ("f4", "<"),
            rollmesh_core::column::DType::F64 => ("f8", "<"),
            rollmesh_core::column::DType::I32 => ("i4", "<"),
            rollmesh_core::column::DType::I64 => ("i8", "<"),
            rollmesh_core::column::DType::U8 => ("u1", "|"),
            rollmesh_core::column::DType::Bool => ("b1", "|"),
        };
        self.text(name);
        // Arguments, call, and the state of the type: version 3, order of bytes, no fields, no alignment.
        self.bytes.extend_from_slice(&[0x89, 0x88, 0x87, b'R', b'(', b'K', 3]);
        self.text(order);
        self.bytes.extend_from_slice(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb");
        self.shape(data.rows(), data.shape());
        self.text("C");
        self.bytes.extend_from_slice(b"tR");
    }

    /// A dict; after each [`key`](Self::key) its value, then [`close_dict`](Self::close_dict).
    pub(crate) fn open_dict(&mut self) {
        self.bytes.extend_from_slice(b"}(");
    }

    pub(crate) fn key(&mut self, name: &str) {
        self.text(name);
    }

    pub(crate) fn close_dict(&mut self) {
        self.bytes.push(b'u');
    }

    /// A tuple; after it its items, then [`close_tuple`](Self::close_tuple).
    pub(crate) fn open_tuple(&mut self) {
        self.bytes.push(b'(');
    }

    pub(crate) fn close_tuple(&mut self) {
        self.bytes.push(b't');
    }

    fn name(&mut self, module: &str, name: &str) {
        self.text(module);
        self.text(name);
        self.bytes.push(0x93);
    }

    fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(len) => self.bytes.extend_from_slice(&[0x8c, len]),
            Err(_) => {
                self.bytes.push(0x8d);
                self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn shape(&mut self, rows: usize, row: RowShape) {
        self.bytes.push(b'(');
        for dim in [rows as u64].into_iter().chain(row.dims().iter().map(|dim| u64::from(*dim))) {
            // Eight bytes of a signed number are enough for anything that is in memory.
            self.bytes.extend_from_slice(&[0x8a, 8]);
            self.bytes.extend_from_slice(&dim.to_le_bytes());
        }
        self.bytes.push(b't');
    }
}
