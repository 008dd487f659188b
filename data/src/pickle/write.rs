//! Writes arrays as Python 3.8 and later pickle them with protocol 5: every version of NumPy reads them.

use rollmesh_core::column::{ColumnData, Element, RowShape, append_le};

/// A pickle being written: an array, or dicts and tuples of arrays.
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

    /// Writes the rows in the form of `numpy.ndarray.__reduce_ex__(5)`.
    pub(crate) fn array<T: Element>(&mut self, data: &ColumnData<T>) {
        /// Approximate size of the content besides the elements.
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
        // Arguments, call, and the state of the type: version 3, byte order, no fields, no alignment.
        self.bytes.extend_from_slice(&[0x89, 0x88, 0x87, b'R', b'(', b'K', 3]);
        self.text(order);
        self.bytes.extend_from_slice(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb");
        self.shape(data.rows(), data.shape());
        self.text("C");
        self.bytes.extend_from_slice(b"tR");
    }

    /// Begins a dict; each [`key`](Self::key) is followed by its value, and [`close_dict`](Self::close_dict) ends it.
    pub(crate) fn open_dict(&mut self) {
        self.bytes.extend_from_slice(b"}(");
    }

    pub(crate) fn key(&mut self, name: &str) {
        self.text(name);
    }

    pub(crate) fn close_dict(&mut self) {
        self.bytes.push(b'u');
    }

    /// Begins a tuple; its items follow, and [`close_tuple`](Self::close_tuple) ends it.
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
            // Eight bytes of a signed number suffice for any size in memory.
            self.bytes.extend_from_slice(&[0x8a, 8]);
            self.bytes.extend_from_slice(&dim.to_le_bytes());
        }
        self.bytes.push(b't');
    }
}
