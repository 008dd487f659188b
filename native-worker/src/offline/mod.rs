//! Experience in files.
//!
//! - [`hdf5`]: the format under D4RL and Minari.
//! - [`d4rl`], [`minari`]: data sets of logged episodes.
//! - [`parquet`]: batches in columns that pandas and everybody else reads.
//! - [`dataset`]: what these have in common.

#[cfg(feature = "offline-parquet")]
pub mod arrow;
pub mod d4rl;
pub mod dataset;
pub mod hdf5;
pub mod minari;
#[cfg(feature = "offline-parquet")]
pub mod parquet;
