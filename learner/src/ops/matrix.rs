//! Matrix products in one fixed order of sums on every processor.

use std::borrow::Cow;

use candle_core::{CpuStorage, Error, Layout, Result, Shape};
use rollmesh_core::kernels::{Kernels, nets::Dense};

/// Rows that are transposed together: as many floats as a cache line has.
const BLOCK: usize = 16;

/// A matrix in a tensor's memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    strides: (usize, usize),
}

impl<'a> Matrix<'a> {
    pub(super) fn of(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (rows, columns) = layout.shape().dims2()?;
        let &[row_stride, column_stride] = layout.stride() else {
            return Err(Error::RequiresContiguous { op: "matrix" });
        };
        if (rows > 1 && row_stride == 0) || (columns > 1 && column_stride == 0) {
            return Err(Error::RequiresContiguous { op: "matrix" });
        }
        let values = &storage.as_slice::<f32>()?[layout.start_offset()..];
        Ok(Self { values, rows, columns, strides: (row_stride, column_stride) })
    }

    pub(super) fn transposed(self) -> Self {
        let (row_stride, column_stride) = self.strides;
        Self { rows: self.columns, columns: self.rows, strides: (column_stride, row_stride), ..self }
    }

    /// Returns all elements, row by row.
    pub(super) fn row_major(&self) -> Cow<'a, [f32]> {
        let (row_stride, column_stride) = self.strides;
        if column_stride == 1 && row_stride == self.columns {
            return Cow::Borrowed(&self.values[..self.rows * self.columns]);
        }
        let mut copy = vec![0.0; self.rows * self.columns];
        for (block, rows) in copy.chunks_mut(BLOCK * self.columns.max(1)).enumerate() {
            for column in 0..self.columns {
                let first = block * BLOCK * row_stride + column * column_stride;
                let found = self.values[first..].iter().step_by(row_stride.max(1));
                let places = rows[column..].iter_mut().step_by(self.columns);
                places.zip(found).for_each(|(place, x)| *place = *x);
            }
        }
        Cow::Owned(copy)
    }
}

/// Returns a matrix's numbers column by column.
pub(super) fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    Matrix { values, rows, columns, strides: (columns, 1) }.transposed().row_major().into_owned()
}

/// Returns the product of two matrices, each sum begun with the bias of its column and in the order of `a`'s columns.
pub(super) fn product(kernels: &Kernels, a: Matrix<'_>, b: Matrix<'_>, bias: &[f32]) -> Result<(Vec<f32>, Shape)> {
    if a.columns != b.rows || b.columns != bias.len() {
        let (a, b) = ((a.rows, a.columns), (b.rows, b.columns));
        return Err(Error::Msg(format!("product of {a:?} and {b:?} with {} biases", bias.len())));
    }
    let mut product = vec![0.0; a.rows * b.columns];
    let dense = Dense::pack(&[&b.row_major()], bias);
    (kernels.linear)(&dense, &a.row_major(), &mut product);
    Ok((product, (a.rows, b.columns).into()))
}
