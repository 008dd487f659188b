//! Batches of experience: [`SampleBatch`] of one policy, [`MultiAgentBatch`] of several, [`AnyBatch`] of either, and the
//! fragments that slots deliver.
//!
//! All columns of a batch have the same number of rows. Slices and clones share buffers, and a write copies its rows first.
//! Every operation keeps `infos`, recurrent states and compressed columns; `infos` and recurrent states never count
//! as steps.
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ACTIONS, EPS_ID, REWARDS, SampleBatch, SliceBy},
//!     column::ColumnData,
//! };
//!
//! let batch = SampleBatch::new()
//!     .with(ACTIONS, ColumnData::scalars(vec![0, 1, 1, 0]))?
//!     .with(REWARDS, ColumnData::scalars(vec![1.0, 1.0, 0.5, 2.0]))?
//!     .with(EPS_ID, ColumnData::scalars(vec![7, 7, 7, 8]))?;
//! assert_eq!(batch.to_string(), "SampleBatch(4: ['actions', 'rewards', 'eps_id'])");
//!
//! let episodes = batch.split_by_episode(None)?;
//! assert_eq!(episodes[0].get(REWARDS)?, [1.0, 1.0, 0.5]);
//! assert_eq!(SampleBatch::concat(&episodes)?, batch);
//!
//! let halves: Vec<SampleBatch> = batch.timeslices(SliceBy::Size(2))?.collect();
//! assert_eq!(halves[1].get(ACTIONS)?, [1, 0]);
//! # Ok::<(), rollmesh_core::batch::BatchError>(())
//! ```

mod any;
pub mod codec;
mod columns;
mod compress;
mod concat;
mod derived;
mod display;
mod episodes;
mod error;
mod fragment;
mod intercept;
#[cfg(test)]
mod laws;
mod multi_agent;
mod open;
mod parts;
mod rows;
mod sample_batch;
mod sequences;
mod shuffle;
mod slice;
#[cfg(test)]
mod test_support;
mod timeslices;

pub use any::AnyBatch;
pub use columns::*;
pub use derived::Derived;
pub use episodes::EpisodeKey;
pub use error::BatchError;
pub use fragment::{Cut, CutReason, EpisodeMetrics, SlotFragment};
pub use intercept::Intercepted;
pub use multi_agent::MultiAgentBatch;
pub use open::{Continuation, OpenEpisodes, TrajectoryKey};
pub use parts::BatchParts;
pub use rows::{Row, RowValue};
pub use sample_batch::SampleBatch;
pub use timeslices::{SliceBy, Timeslices};
