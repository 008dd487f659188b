//! Converts columns to Arrow arrays and back, for [`parquet`](super::parquet) and [`minari`](super::minari).
//!
//! A row of numbers is a number, or a list of fixed size; its shape is in the field's metadata, `shape` = `84,84,4`. Bytes
//! are binary, JSON is text with `content` = `json`. Files of other programs can be read if the rows have one shape: lists
//! of any kind, integers and floats of any width, texts; parts of structs get dotted names.

mod ipc;
mod read;
mod write;

pub(super) use ipc::IpcBatches;
pub(super) use read::columns;
pub(super) use write::{array, data_type, field};

use std::panic::{self, AssertUnwindSafe};

use super::dataset::DatasetError;

/// Key of a row's shape in a field's metadata.
const SHAPE: &str = "shape";
/// Key of a text's content type.
const CONTENT: &str = "content";
const JSON: &str = "json";

/// Reports an error of Arrow as an error of the file.
pub(super) fn corrupt(error: impl std::fmt::Display) -> DatasetError {
    DatasetError::Corrupt(error.to_string())
}

/// Calls a function of the arrow and parquet crates. They check most of a file's contents with errors, but some of them with
/// assertions, and a damaged file must not end the program. After a panic, the reader must not be used again.
pub(super) fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, DatasetError> {
    panic::catch_unwind(AssertUnwindSafe(read)).map_err(|_| corrupt("its parts contradict each other"))
}
