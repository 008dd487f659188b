//! Converts fragments of slots to a [`FragmentUpload`].

use super::{
    elements::WireType,
    pieces::{WireCut, finished_episodes},
};
use crate::{
    batch::{EpisodeMetrics, OBS, SampleBatch, SlotFragment},
    column::{Column, ColumnType, DType, append_le},
    ids::{LeaseId, SlotId},
    prelude::*,
    protocol::message::FragmentUpload,
};

/// The reason why fragments cannot be encoded. Each case is a bug of the code that made them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// There are no fragments.
    #[error("there are no fragments to upload")]
    Empty,
    /// The fragments are of different fragment numbers or weights.
    #[error("slot {0} is of another fragment or of other weights than the first slot")]
    Mixed(SlotId),
    /// A slot has more or fewer columns than the first.
    #[error("slot {0} has more or fewer columns than the first slot")]
    ColumnCount(SlotId),
    /// A slot has other columns than the first.
    #[error("slot {slot} has no column '{column}' of the type and shape that the first slot has")]
    Columns {
        /// The slot.
        slot: SlotId,
        /// The column.
        column: String,
    },
    /// A slot has a compressed column, or one whose rows have any length.
    #[error("column '{column}' of slot {slot} is no array: decompress it, or leave it out")]
    NoArray {
        /// The slot.
        slot: SlotId,
        /// The column.
        column: String,
    },
    /// An episode has more custom metrics than an upload may hold, or names that are too long.
    #[error(
        "an episode of slot {0} has more than {most} custom metrics, or one whose name is empty or longer than {longest} \
         bytes: record fewer, or name them shorter",
        most = EpisodeMetrics::MAX_CUSTOM_METRICS,
        longest = EpisodeMetrics::MAX_NAME_BYTES
    )]
    CustomMetrics(SlotId),
    /// A slot's episodes do not match its cuts.
    #[error("the episodes of slot {0} are not those that its cuts say")]
    Episodes(SlotId),
}

/// Encodes the fragments of a lease.
///
/// # Errors
/// [`EncodeError`] if the fragments do not belong together.
pub fn fragment_upload(run: u32, lease: LeaseId, fragments: &[SlotFragment]) -> Result<FragmentUpload, EncodeError> {
    let first = fragments.first().ok_or(EncodeError::Empty)?;
    let mut upload = FragmentUpload {
        run,
        lease: lease.0,
        fragment: first.fragment.0,
        weights_version: first.weights_version.0,
        ..FragmentUpload::default()
    };
    for fragment in fragments {
        if (fragment.fragment, fragment.weights_version) != (first.fragment, first.weights_version) {
            return Err(EncodeError::Mixed(fragment.slot));
        }
        let in_sequences = |batch: &SampleBatch| batch.seq_lens().is_some();
        if fragment.rows.iter().len() != first.rows.iter().len()
            || in_sequences(&fragment.rows) != in_sequences(&first.rows)
        {
            return Err(EncodeError::ColumnCount(fragment.slot));
        }
        push_slot(&mut upload, fragment)?;
    }
    push_columns(&mut upload, fragments, &first.rows)?;
    Ok(upload)
}

/// Appends everything of a slot but its columns.
fn push_slot(upload: &mut FragmentUpload, fragment: &SlotFragment) -> Result<(), EncodeError> {
    let finished = finished_episodes(fragment.first_episode, fragment.first_t, &fragment.cuts);
    let reported = fragment.episodes.iter().map(|episode| (episode.episode, episode.len));
    if !finished.is_some_and(|finished| finished.into_iter().eq(reported)) {
        return Err(EncodeError::Episodes(fragment.slot));
    }
    upload.slots.push(fragment.slot.0);
    upload.rows.push(fragment.rows.len() as u32);
    upload.first_episodes.push(fragment.first_episode);
    upload.first_ts.push(fragment.first_t);
    upload.cuts.push(fragment.cuts.len() as u32);
    for cut in &fragment.cuts {
        upload.cut_ends.push(cut.end);
        upload.cut_reasons.push(WireCut::from(cut.reason).to_wire());
    }
    for episode in &fragment.episodes {
        append_le(&mut upload.episode_returns, &[episode.episode_return]);
    }
    upload.states.extend_from_slice(&fragment.state);
    upload.state_ends.push(upload.states.len() as u32);
    Ok(())
}

fn push_columns(
    upload: &mut FragmentUpload,
    fragments: &[SlotFragment],
    like: &SampleBatch,
) -> Result<(), EncodeError> {
    let mut obs_wire = WireType::F32;
    let bytes = |batch: &SampleBatch| batch.iter().map(|(_, column)| column_bytes(column)).sum::<usize>();
    let bytes = fragments.iter().map(|slot| bytes(&slot.rows) + bytes(&slot.final_obs) + 4 * slot.cuts.len()).sum();
    // Reserve all of it: a growing buffer would be copied several times.
    upload.data.reserve(bytes);
    let states: Vec<&str> = like.states().map(|(name, _)| name).collect();
    for (name, like) in like.iter().filter(|(name, _)| !states.contains(name)) {
        let columns = same_columns(fragments, name, like, |fragment| &fragment.rows)?;
        let ColumnType::Array(dtype) = like.column_type() else {
            let slot = fragments.first().map_or(SlotId(0), |first| first.slot);
            return Err(EncodeError::NoArray { slot, column: name.into() });
        };
        let mut all = columns.clone();
        if name == OBS.name() {
            all.extend(same_columns(fragments, name, like, |fragment| &fragment.final_obs)?);
        }
        // Final observations have other rows, so `obs` must not use a type that depends on equal rows.
        let wire = match name != OBS.name() && like.shape().elements() == 1 {
            true => WireType::narrowest_scalar(dtype, &all),
            false => WireType::narrowest(dtype, &all),
        };
        if name == OBS.name() {
            obs_wire = wire;
        }
        if !upload.column_types.is_empty() {
            upload.column_names.push('\n');
        }
        upload.column_names.push_str(name);
        upload.column_types.push(wire.to_wire());
        upload.column_ranks.push(like.shape().dims().len() as u8);
        upload.column_dims.extend_from_slice(like.shape().dims());
        wire.write(&mut upload.data, &columns);
    }
    let cuts = fragments.iter().flat_map(|fragment| &fragment.cuts);
    append_le(&mut upload.data, &cuts.map(|cut| cut.bootstrap_value).collect::<Vec<f32>>());
    let final_obs = fragments.iter().filter_map(|fragment| fragment.final_obs.column(OBS.name()));
    obs_wire.write(&mut upload.data, &final_obs.collect::<Vec<_>>());
    for (name, like) in like.states() {
        WireType::F32.write(&mut upload.data, &same_columns(fragments, name, like, |fragment| &fragment.rows)?);
    }
    Ok(())
}

/// Estimates the bytes of a column's elements, integers as single bytes.
fn column_bytes(column: &Column) -> usize {
    let bytes = if column.column_type() == DType::I64.into() { 1 } else { column.column_type().element_size() };
    column.rows() * column.shape().elements() * bytes
}

/// Returns one column of every fragment, all of one type and shape.
fn same_columns<'a>(
    fragments: &'a [SlotFragment],
    name: &str,
    like: &Column,
    batch: impl Fn(&SlotFragment) -> &SampleBatch,
) -> Result<Vec<&'a Column>, EncodeError> {
    let of = |fragment: &'a SlotFragment| {
        let slot = fragment.slot;
        let column = batch(fragment).column(name);
        let column = column
            .filter(|column| column.column_type() == like.column_type() && column.shape() == like.shape())
            .ok_or_else(|| EncodeError::Columns { slot, column: name.into() })?;
        if column.is_compressed() {
            return Err(EncodeError::NoArray { slot, column: name.into() });
        }
        Ok(column)
    };
    fragments.iter().map(of).collect()
}
