//! Whether two fragments are the same, bit for bit.

use crate::{
    batch::{Cut, CutReason, EpisodeMetrics, SampleBatch, SlotFragment},
    column::Column,
};

/// Equality of bits: unlike `==`, a NaN equals itself and -0.0 differs from 0.0.
pub(super) fn same_bits(a: &SlotFragment, b: &SlotFragment) -> bool {
    (a.slot, a.fragment, a.weights_version) == (b.slot, b.fragment, b.weights_version)
        && (a.first_episode, a.first_t, &a.state) == (b.first_episode, b.first_t, &b.state)
        && a.cuts.iter().map(cut_bits).eq(b.cuts.iter().map(cut_bits))
        && a.episodes.iter().map(episode_bits).eq(b.episodes.iter().map(episode_bits))
        && same_batch(&a.rows, &b.rows)
        && same_batch(&a.final_obs, &b.final_obs)
}

fn cut_bits(cut: &Cut) -> (u32, CutReason, u32) {
    (cut.end, cut.reason, cut.bootstrap_value.to_bits())
}

fn episode_bits(episode: &EpisodeMetrics) -> (u32, u32, u64) {
    (episode.episode, episode.len, episode.episode_return.to_bits())
}

fn same_batch(a: &SampleBatch, b: &SampleBatch) -> bool {
    a.len() == b.len()
        && a.iter().len() == b.iter().len()
        && a.iter().all(|(name, column)| b.column(name).is_some_and(|other| same_column(column, other)))
}

fn same_column(a: &Column, b: &Column) -> bool {
    let values = match (a, b) {
        (Column::F32(a), Column::F32(b)) => {
            a.values().iter().map(|v| v.to_bits()).eq(b.values().iter().map(|v| v.to_bits()))
        }
        (Column::F64(a), Column::F64(b)) => {
            a.values().iter().map(|v| v.to_bits()).eq(b.values().iter().map(|v| v.to_bits()))
        }
        (Column::I32(a), Column::I32(b)) => a.values() == b.values(),
        (Column::I64(a), Column::I64(b)) => a.values() == b.values(),
        (Column::U8(a), Column::U8(b)) => a.values() == b.values(),
        (Column::Bool(a), Column::Bool(b)) => a.values() == b.values(),
        _ => false,
    };
    values && a.shape() == b.shape()
}
