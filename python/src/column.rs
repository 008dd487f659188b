//! Columns as memory that NumPy reads in place.

use std::ffi::{c_int, c_void};

use pyo3::{
    exceptions::PyBufferError,
    ffi,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};
use rollmesh_core::{
    by_type,
    column::{BytesColumn, BytesKind, Column, DType, LittleEndian, RowShape, RowsRef, append_le},
};

use crate::failure::{Failure, Kind};

/// The elements of a column, read-only, through Python's buffer protocol. Shares the column's memory and keeps it alive.
#[pyclass(frozen)]
pub(crate) struct ColumnBuffer(Column);

#[pymethods]
impl ColumnBuffer {
    /// Returns NumPy's name of the type of elements.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype().map(DType::name)
    }

    /// Returns the number of rows, then the dimensions of a row.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        dims(self.0.rows(), &self.0.shape())
    }

    // SAFETY: called by the interpreter with a valid view. `PyBuffer_FillInfo` refuses writable views and makes the view hold
    // a reference to this object, which is frozen and holds the column: a column's shared memory is never written, since a
    // write copies it first.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let column = &slf.get().0;
        let no_size = |_| PyBufferError::new_err("the column has no elements of one size");
        let (start, bytes) = by_type!(RowsRef, column.array().map_err(no_size)?, values => {
            (values.as_ptr().cast::<c_void>().cast_mut(), size_of_val(values))
        });
        let length = ffi::Py_ssize_t::try_from(bytes).map_err(|_| PyBufferError::new_err("the column is too long"))?;
        // SAFETY: as above.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

fn dims(rows: usize, shape: &RowShape) -> Vec<usize> {
    [rows].into_iter().chain(shape.dims().iter().map(|dim| *dim as usize)).collect()
}

/// Checks that a column has this many rows of this shape.
pub(crate) fn check_shape(
    kind: Kind,
    name: &str,
    column: &Column,
    rows: usize,
    shape: &RowShape,
) -> Result<(), Failure> {
    let (found, wanted) = (dims(column.rows(), &column.shape()), dims(rows, shape));
    if found == wanted {
        return Ok(());
    }
    Err(Failure::new(kind, format!("{name} has the shape {found:?}; give an array of the shape {wanted:?}")))
}

/// Converts a column for Python: to its buffer, or `(kind, rows)` of ragged rows.
pub(crate) fn to_python<'py>(py: Python<'py>, column: &Column) -> PyResult<Bound<'py, PyAny>> {
    let column = match column {
        Column::Compressed(_) => py.detach(|| column.decompress()).map_err(Failure::from)?,
        plain => plain.clone(),
    };
    match &column {
        Column::Bytes(rows) => {
            let list = PyList::new(py, rows.iter().map(|row| PyBytes::new(py, row)))?;
            Ok((rows.kind().to_string(), list).into_pyobject(py)?.into_any())
        }
        _ => Ok(Bound::new(py, ColumnBuffer(column))?.into_any()),
    }
}

/// Converts a column of Python: `(dtype, shape of a row, bytes)`, or `(kind, rows)` with the kind "bytes" or "json".
pub(crate) fn of_python(value: &Bound<'_, PyAny>) -> PyResult<Column> {
    if let Ok((kind, rows)) = value.extract::<(String, Vec<Vec<u8>>)>() {
        let kind = if kind == "json" { BytesKind::Json } else { BytesKind::Bytes };
        let lengths: Vec<u32> = rows.iter().map(|row| u32::try_from(row.len()).unwrap_or(u32::MAX)).collect();
        return Ok(Column::Bytes(BytesColumn::from_lengths(kind, rows.concat(), &lengths).map_err(Failure::from)?));
    }
    let (dtype, shape, bytes): (String, Vec<u32>, Bound<'_, PyBytes>) = value.extract()?;
    let known = DType::by_name(&dtype);
    let dtype = known.ok_or_else(|| Failure::new(Kind::Batch, format!("columns of {dtype} are not supported")))?;
    let shape = RowShape::new(&shape).map_err(Failure::from)?;
    Ok(Column::from_raw(dtype, shape, bytes.as_bytes()).map_err(Failure::from)?)
}

/// Converts a tensor of Python to 32-bit floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    LittleEndian::read_le(bytes)
}

/// Converts 32-bit floats to a tensor of Python.
pub(crate) fn bytes_of<'py>(py: Python<'py>, values: &[f32]) -> Bound<'py, PyBytes> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    append_le(&mut bytes, values);
    PyBytes::new(py, &bytes)
}

/// Converts a value to an object of Python, by JSON.
pub(crate) fn json<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).map_err(Failure::from)?;
    py.import("json")?.call_method1("loads", (text,))
}

/// Converts settings to JSON.
pub(crate) fn to_json(value: &Bound<'_, PyDict>) -> PyResult<String> {
    value.py().import("rollmesh._json")?.call_method1("dumps", (value,))?.extract()
}
