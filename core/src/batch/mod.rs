//! Batches of experience: [`SampleBatch`], and what one slot hands over per fragment.

mod columns;
mod fragment;
mod sample_batch;

pub use columns::*;
pub use fragment::{Cut, CutReason, EpisodeMetrics, SlotFragment};
pub use sample_batch::{BatchError, SampleBatch};
