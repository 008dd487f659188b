//! RLlib's sample files: one batch per line, see [`decode_record`](rollmesh_data::json::decode_record).
//!
//! ```
//! use rollmesh::offline::{
//!     inputs::{DatasetFolders, locate},
//!     json::{JsonReader, JsonReaderOptions, JsonWriter, JsonWriterOptions},
//! };
//! use rollmesh_core::{batch::{ACTIONS, SampleBatch}, column::ColumnData};
//!
//! let folder = std::env::temp_dir().join(format!("rollmesh-doc-{}", std::process::id()));
//! let mut writer = JsonWriter::new(&folder, JsonWriterOptions::default())?;
//! for action in 0..3 {
//!     writer.append(&SampleBatch::new().with(ACTIONS, ColumnData::scalars(vec![action]))?.into())?;
//! }
//! let files = locate(&[folder.to_string_lossy().into()], &DatasetFolders::default())?;
//! let files = files.into_iter().map(|file| file.path).collect();
//! let reader = JsonReader::new(files, JsonReaderOptions::default())?;
//! let actions: Vec<i64> = reader
//!     .read_all_files()
//!     .map(|batch| Ok(batch?.single()?.get(ACTIONS)?[0]))
//!     .collect::<Result<_, Box<dyn std::error::Error>>>()?;
//! assert_eq!(actions, [0, 1, 2]);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decoded;
mod in_order;
mod paged;
mod reader;
mod series;
mod source;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use series::{SeriesPlace, is_series, new_series};

pub use reader::{AllFiles, JsonReader, JsonReaderOptions};
pub use writer::{JsonWriter, JsonWriterOptions};
