//! Columns as Arrow arrays and back, under [`parquet`](super::parquet) and [`minari`](super::minari).
//!
//! A row of numbers is a number, or a list of fixed size; its shape is in the field's metadata, `shape` = `84,84,4`. Bytes
//! are binary, JSON is text with `content` = `json`. What others write is read as long as it makes rows of one shape:
//! lists of any kind, integers and floats of any width, texts; parts of structs get dotted names.

mod ipc;
mod read;
mod write;

pub(super) use ipc::IpcBatches;
pub(super) use read::columns;
pub(super) use write::{array, data_type, field};

use super::dataset::DatasetError;

/// Key of a row's shape in a field's metadata.
const SHAPE: &str = "shape";
/// Key of what a text is.
const CONTENT: &str = "content";
const JSON: &str = "json";

/// Whatever Arrow finds wrong is wrong with the file.
pub(super) fn corrupt(error: impl std::fmt::Display) -> DatasetError {
    DatasetError::Corrupt(error.to_string())
}
