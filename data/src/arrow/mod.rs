//! Columns as Arrow arrays and back, under [`parquet`](super::parquet) and [`minari`](super::minari).
//!
//! A row of numbers is a number, or a list of fixed size; its shape is in the field's metadata, `shape` = `84,84,4`. Bytes
//! are binary, JSON is text with `content` = `json`. What others write is read as long as it makes rows of one shape:
//! lists of any kind, integers and floats of any width, texts; parts of structs get dotted names.

mod fields;
mod ipc;
mod read;
mod write;

pub(super) use fields::schema_memory;
pub(super) use ipc::IpcBatches;
pub(super) use read::columns;
pub(super) use write::{array, data_type, field};

use std::panic::{self, AssertUnwindSafe};

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

/// What the arrow and parquet crates make of a file. They check most of what files say with errors, but some of it with
/// assertions, and a damaged file is no reason to end the program. Whatever panicked must not be used again.
pub(super) fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, DatasetError> {
    panic::catch_unwind(AssertUnwindSafe(read)).map_err(|_| corrupt("its parts contradict each other"))
}
