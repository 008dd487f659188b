//! Converts a [`FragmentUpload`] to fragments of slots.

use core::ops::Range;

use super::{
    CutFault, FragmentLimits, UploadError, ValueFault,
    elements::{ReadFault, WireType},
    limits::ColumnLimit,
    pieces::{WireCut, finished_episodes, next_step},
};
use crate::{
    batch::{Cut, CutReason, EpisodeMetrics, OBS, SampleBatch, SlotFragment, TERMINATEDS, TRUNCATEDS, state_in},
    column::{Column, ColumnData, ColumnName, LittleEndian as _, RowShape},
    ids::{FragmentNo, SlotId, WeightsVersion},
    lease::Lease,
    prelude::*,
    protocol::message::FragmentUpload,
    sampler::{RecurrentShape, SlotState},
};

/// Decodes the fragments of a lease, all of them or a part, for a run with these limits.
///
/// # Errors
/// [`UploadError`] names the slot or the column that is wrong.
pub fn slot_fragments(
    upload: &FragmentUpload,
    run: u32,
    lease: &Lease,
    limits: &FragmentLimits,
) -> Result<Vec<SlotFragment>, UploadError> {
    if limits.policies().is_some() {
        return Err(UploadError::OtherKind);
    }
    let numbers = [u64::from(upload.run), upload.lease, upload.fragment, upload.weights_version];
    check_lease(numbers, run, lease)?;
    let slots = &slots_of(&upload.slots, lease)?[..];
    check_slots(upload, slots, limits)?;
    let columns = wire_columns(upload, limits)?;
    check_data_length(upload, &columns, limits)?;

    let mut data = Data { all: upload.data.len(), rest: &upload.data, slots };
    let total_rows = upload.rows.iter().map(|&rows| rows as usize).sum();
    let rows = data.batch(&columns, total_rows, |row| row / limits.rows.max(1) as usize)?;
    let bootstrap_values = f32::read_le(data.take(4 * upload.cut_ends.len())?);
    if let Some(cut) = bootstrap_values.iter().position(|value| !value.is_finite()) {
        let slot = data.slot(slot_of_cut(upload, cut));
        return Err(UploadError::Value { column: "bootstrap_value", slot, fault: ValueFault::NotFinite });
    }
    let obs: Vec<WireColumn<'_>> = columns.into_iter().filter(|column| column.limit.name == OBS.name()).collect();
    let final_obs = data.batch(&obs, upload.cut_ends.len(), |cut| slot_of_cut(upload, cut))?;
    let states = data.states(&limits.recurrent, sequences(upload, limits) as usize)?;
    data.end()?;

    let parts = FragmentParts { upload, limits, rows, bootstrap_values, final_obs, states };
    parts.split(slots)
}

/// Checks run, lease, fragment and version of the weights.
pub(super) fn check_lease(found: [u64; 4], run: u32, lease: &Lease) -> Result<(), UploadError> {
    let expected = [
        ("run", u64::from(run)),
        ("lease", lease.id.0),
        ("fragment", lease.fragment.0),
        ("weights version", lease.weights_version.0),
    ];
    let wrong = expected.into_iter().zip(found).find(|((_, expected), found)| found != expected);
    wrong.map_or(Ok(()), |((what, expected), found)| Err(UploadError::WrongLease { what, found, expected }))
}

/// Returns the slots of an upload, which must be some of the lease's, in their order.
pub(super) fn slots_of(uploaded: &[u32], lease: &Lease) -> Result<Vec<SlotId>, UploadError> {
    let mut leased = lease.slots.iter().map(|leased| leased.slot);
    let mut next = |&found: &u32| leased.find(|slot| slot.0 == found).ok_or(UploadError::WrongSlot(found));
    let slots: Vec<SlotId> = uploaded.iter().map(&mut next).collect::<Result<_, _>>()?;
    if slots.is_empty() { Err(UploadError::NoSlots) } else { Ok(slots) }
}

/// Checks that tables have the lengths that the slots and other tables require, and that there are as many rows as the run
/// requires.
fn check_slots(upload: &FragmentUpload, slots: &[SlotId], limits: &FragmentLimits) -> Result<(), UploadError> {
    let entries = slots.len() as u64;
    let cuts = upload.cuts.iter().map(|&cuts| u64::from(cuts)).sum();
    let tables = [
        ("rows", upload.rows.len(), entries),
        ("first_episodes", upload.first_episodes.len(), entries),
        ("first_ts", upload.first_ts.len(), entries),
        ("cuts", upload.cuts.len(), entries),
        ("state_ends", upload.state_ends.len(), entries),
        ("cut_ends", upload.cut_ends.len(), cuts),
        ("cut_reasons", upload.cut_reasons.len(), cuts),
    ];
    for (table, found, expected) in tables {
        check_table(table, found as u64, expected)?;
    }
    let wrong = slots.iter().zip(&upload.rows).find(|(_, rows)| **rows != limits.rows);
    wrong.map_or(Ok(()), |(&slot, &found)| Err(UploadError::Rows { slot, found, expected: limits.rows }))
}

pub(super) fn check_table(table: &'static str, found: u64, expected: u64) -> Result<(), UploadError> {
    if found == expected { Ok(()) } else { Err(UploadError::Table { table, found, expected }) }
}

/// A column of the run's rows and its wire encoding.
struct WireColumn<'a> {
    limit: &'a ColumnLimit,
    wire: WireType,
}

impl WireColumn<'_> {
    /// Returns the bytes of this many rows. Saturates.
    fn bytes(&self, rows: u64) -> u64 {
        self.wire.bytes(rows.saturating_mul(self.limit.shape.elements() as u64))
    }
}

/// Returns the upload's columns in its order: exactly those that the limits name.
fn wire_columns<'a>(upload: &FragmentUpload, limits: &'a FragmentLimits) -> Result<Vec<WireColumn<'a>>, UploadError> {
    let expected = limits.columns.len() as u64;
    check_table("column_types", upload.column_types.len() as u64, expected)?;
    check_table("column_ranks", upload.column_ranks.len() as u64, expected)?;
    let mut columns: Vec<WireColumn<'a>> = Vec::with_capacity(limits.columns.len());
    let mut dims = &upload.column_dims[..];
    let mut names = upload.column_names.split('\n');
    for (place, (&byte, &rank)) in upload.column_types.iter().zip(&upload.column_ranks).enumerate() {
        let limit = names.next().and_then(|name| limits.column(name)).ok_or(UploadError::ExtraColumn(place))?;
        if columns.iter().any(|known| known.limit.name == limit.name) {
            return Err(UploadError::ExtraColumn(place));
        }
        let wire = WireType::try_from(byte).map_err(|source| UploadError::WireType { column: limit.name, source })?;
        let shape = dims.split_off(..usize::from(rank)).and_then(|dims| RowShape::new(dims).ok());
        // A single value for all rows is only for columns with one element per row and a known number of rows.
        let too_short = wire == WireType::F32Same && (limit.name == OBS.name() || limit.shape.elements() != 1);
        if wire.dtype() != limit.dtype || shape != Some(limit.shape) || too_short {
            let (expected, shape) = (limit.dtype, limit.shape);
            return Err(UploadError::ColumnType { column: limit.name, expected, shape });
        }
        columns.push(WireColumn { limit, wire });
    }
    if names.next().is_some() {
        return Err(UploadError::ExtraColumn(columns.len()));
    }
    check_table("column_dims", dims.len() as u64, 0)?;
    Ok(columns)
}

/// Returns the number of sequences of all slots, which follows from the cuts; 0 without recurrent state.
fn sequences(upload: &FragmentUpload, limits: &FragmentLimits) -> u64 {
    if limits.recurrent.state_lens.is_empty() {
        return 0;
    }
    let longest = limits.recurrent.max_seq_len.get();
    let mut ends = &upload.cut_ends[..];
    let of_slot = |&cuts: &u32| {
        let ends = ends.split_off(..cuts as usize).unwrap_or_default();
        let starts = core::iter::once(0).chain(ends.iter().copied());
        ends.iter().zip(starts).map(|(end, start)| u64::from(end.saturating_sub(start).div_ceil(longest))).sum::<u64>()
    };
    upload.cuts.iter().map(of_slot).sum()
}

/// Checks that the data is exactly as long as columns, bootstrap values, final observations and states together.
fn check_data_length(
    upload: &FragmentUpload,
    columns: &[WireColumn<'_>],
    limits: &FragmentLimits,
) -> Result<(), UploadError> {
    let rows: u64 = upload.rows.iter().map(|&rows| u64::from(rows)).sum();
    let cuts = upload.cut_ends.len() as u64;
    let obs = columns.iter().find(|column| column.limit.name == OBS.name());
    let obs = obs.ok_or_else(|| UploadError::MissingColumn(OBS.name()))?;
    let of_rows = columns.iter().fold(0u64, |sum, column| sum.saturating_add(column.bytes(rows)));
    let states = sequences(upload, limits).saturating_mul(4 * limits.recurrent.width() as u64);
    let expected = of_rows.saturating_add(obs.bytes(cuts)).saturating_add(4 * cuts).saturating_add(states);
    check_table("data", upload.data.len() as u64, expected)
}

/// The column bytes that are still to be read. Their length was checked.
struct Data<'a> {
    all: usize,
    rest: &'a [u8],
    /// The upload's slots.
    slots: &'a [SlotId],
}

impl<'a> Data<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], UploadError> {
        let (found, needed) = (self.all as u64, (self.all - self.rest.len()) as u64 + bytes as u64);
        self.rest.split_off(..bytes).ok_or(UploadError::Table { table: "data", found, expected: needed })
    }

    fn end(&self) -> Result<(), UploadError> {
        check_table("data", self.all as u64, (self.all - self.rest.len()) as u64)
    }

    fn slot(&self, place: usize) -> SlotId {
        self.slots.get(place).copied().unwrap_or_default()
    }

    /// Reads the states at the starts of this many sequences, one column after the other.
    fn states(&mut self, shape: &RecurrentShape, sequences: usize) -> Result<Vec<(ColumnName, Column)>, UploadError> {
        let state = |(index, &len): (usize, &usize)| {
            let values = f32::read_le(self.take(4 * sequences * len)?);
            if !values.iter().all(|value| value.is_finite()) {
                let (column, slot) = ("state_in", self.slot(0));
                return Err(UploadError::Value { column, slot, fault: ValueFault::NotFinite });
            }
            let column = ColumnData::new(values, RowShape::vector(len as u32));
            let column = column.map_err(|source| UploadError::Column { column: "state_in", source })?;
            Ok((state_in(index), column.into()))
        };
        shape.state_lens.iter().enumerate().map(state).collect()
    }

    /// Reads the columns one after the other; `place_of` returns the index of the slot that a row belongs to.
    fn batch(
        &mut self,
        columns: &[WireColumn<'_>],
        rows: usize,
        place_of: impl Fn(usize) -> usize,
    ) -> Result<SampleBatch, UploadError> {
        let mut batch = SampleBatch::new();
        for WireColumn { limit, wire } in columns {
            let (name, elements) = (limit.name, limit.shape.elements());
            let bytes = self.take(wire.bytes((rows * elements) as u64) as usize)?;
            let column =
                wire.read(bytes, rows * elements, limit.shape, &limit.ranges).map_err(|fault| match fault {
                    ReadFault::Value { element, fault } => {
                        UploadError::Value { column: name, slot: self.slot(place_of(element / elements.max(1))), fault }
                    }
                    ReadFault::Rows(source) => UploadError::Column { column: name, source },
                })?;
            batch.insert(name, column)?;
        }
        Ok(batch)
    }
}

/// Returns the index of the slot that a cut belongs to.
fn slot_of_cut(upload: &FragmentUpload, cut: usize) -> usize {
    let ends = upload.cuts.iter().scan(0u64, |end, &cuts| {
        *end += u64::from(cuts);
        Some(*end)
    });
    ends.take_while(|&end| end <= cut as u64).count()
}

/// The decoded contents of an upload, of all its slots together.
struct FragmentParts<'a> {
    upload: &'a FragmentUpload,
    limits: &'a FragmentLimits,
    rows: SampleBatch,
    bootstrap_values: Vec<f32>,
    final_obs: SampleBatch,
    states: Vec<(ColumnName, Column)>,
}

impl FragmentParts<'_> {
    /// Splits everything by slot. The parts share the buffers.
    fn split(&self, slots: &[SlotId]) -> Result<Vec<SlotFragment>, UploadError> {
        let upload = self.upload;
        let mut fragments = Vec::with_capacity(slots.len());
        let mut returns = &upload.episode_returns[..];
        let (mut row, mut cut, mut sequence, mut state_start) = (0, 0, 0, 0);
        for (place, &slot) in slots.iter().enumerate() {
            let (row_end, cut_end) = (row + upload.rows[place] as usize, cut + upload.cuts[place] as usize);
            let cuts = read_cuts(upload, slot, cut..cut_end, &self.bootstrap_values, upload.rows[place])?;
            let rows = self.in_sequences(self.rows.slice_rows(row..row_end), &cuts, &mut sequence);
            let flags = (rows.get(TERMINATEDS)?, rows.get(TRUNCATEDS)?);
            check_flags(slot, &cuts, flags, self.limits.no_done_at_end)?;
            let (episode, t) = (upload.first_episodes[place], upload.first_ts[place]);
            let finished = finished_episodes(episode, t, &cuts).ok_or(UploadError::Start { slot, episode, t })?;
            let state_end = upload.state_ends[place] as usize;
            let state = upload.states.get(state_start..state_end).ok_or(UploadError::State(slot))?;
            check_state(slot, state, next_step(episode, t, &cuts), self.limits.recurrent.width())?;
            fragments.push(SlotFragment {
                slot,
                fragment: FragmentNo(upload.fragment),
                weights_version: WeightsVersion(upload.weights_version),
                first_episode: episode,
                first_t: t,
                rows,
                cuts,
                final_obs: self.final_obs.slice_rows(cut..cut_end),
                episodes: read_episodes(slot, &finished, &mut returns)?,
                state: state.to_vec(),
                ..SlotFragment::default()
            });
            (row, cut, state_start) = (row_end, cut_end, state_end);
        }
        check_table("episode_returns", returns.len() as u64, 0)?;
        check_table("states", upload.states.len() as u64, state_start as u64)?;
        Ok(fragments)
    }

    /// Returns a slot's rows with the sequences that follow from its cuts; the first one has the index `sequence`.
    fn in_sequences(&self, rows: SampleBatch, cuts: &[Cut], sequence: &mut usize) -> SampleBatch {
        if self.states.is_empty() {
            return rows;
        }
        let starts = core::iter::once(0).chain(cuts.iter().map(|cut| cut.end));
        let pieces = cuts.iter().zip(starts).map(|(cut, start)| (cut.end - start) as usize);
        let seq_lens: Vec<i32> = pieces.flat_map(|piece| self.limits.recurrent.seq_lens(piece)).collect();
        let first = core::mem::replace(sequence, *sequence + seq_lens.len());
        let states = self.states.iter().map(|(name, column)| (name.clone(), column.slice(first..*sequence)));
        rows.in_sequences(ColumnData::scalars(seq_lens), states)
    }
}

/// Checks that a slot's state decodes, belongs to the step after the slot's last row and has the policy's number of
/// recurrent state elements. Only the environment can check its snapshot.
fn check_state(slot: SlotId, state: &[u8], next: Option<(u32, u32)>, recurrent: usize) -> Result<(), UploadError> {
    let state = SlotState::decode(state).map_err(|source| UploadError::BadState { slot, source })?;
    let fits = next == Some((state.episode, state.t)) && state.recurrent.len() == recurrent;
    if fits { Ok(()) } else { Err(UploadError::State(slot)) }
}

/// Reads the cuts of a slot: ascending, the last one at the last row.
fn read_cuts(
    upload: &FragmentUpload,
    slot: SlotId,
    places: Range<usize>,
    bootstrap_values: &[f32],
    rows: u32,
) -> Result<Vec<Cut>, UploadError> {
    let wrong = |fault| UploadError::Cuts { slot, fault };
    let mut cuts: Vec<Cut> = Vec::with_capacity(places.len());
    for place in places {
        let end = upload.cut_ends[place];
        let reason = WireCut::try_from(upload.cut_reasons[place]).map_err(|_| wrong(CutFault::Reason))?.into();
        let bootstrap_value = bootstrap_values[place];
        if end <= cuts.last().map_or(0, |last| last.end) || end > rows {
            return Err(wrong(CutFault::Order(end)));
        }
        if reason == CutReason::FragmentEnd && end != rows {
            return Err(wrong(CutFault::EarlyEnd(end)));
        }
        if reason == CutReason::Terminated && bootstrap_value != 0.0 {
            return Err(wrong(CutFault::Bootstrap(end)));
        }
        cuts.push(Cut { end, reason, bootstrap_value });
    }
    if cuts.last().map_or(0, |last| last.end) != rows {
        return Err(wrong(CutFault::End));
    }
    Ok(cuts)
}

/// Checks that an episode ends exactly where the flags say so, with the same reason; under `no_done_at_end` no flag is set,
/// and all ends are bootstrapped.
fn check_flags(
    slot: SlotId,
    cuts: &[Cut],
    (terminateds, truncateds): (&[bool], &[bool]),
    no_done_at_end: bool,
) -> Result<(), UploadError> {
    let mut start = 0;
    for cut in cuts {
        let last = cut.end as usize - 1;
        let inside = (start..last).any(|row| terminateds[row] || truncateds[row]);
        let agrees = match cut.reason {
            // An episode may reach its time limit in the same step in which it terminates.
            CutReason::Terminated => terminateds[last] && !no_done_at_end,
            CutReason::Truncated => truncateds[last] != no_done_at_end && !terminateds[last],
            CutReason::FragmentEnd => !terminateds[last] && !truncateds[last],
        };
        if inside || !agrees {
            return Err(UploadError::Cuts { slot, fault: CutFault::Flags(cut.end) });
        }
        start = cut.end as usize;
    }
    Ok(())
}

fn read_episodes(
    slot: SlotId,
    finished: &[(u32, u32)],
    returns: &mut &[u8],
) -> Result<Vec<EpisodeMetrics>, UploadError> {
    let bytes = returns.split_off(..8 * finished.len()).ok_or(UploadError::Returns(slot))?;
    let returns = f64::read_le(bytes);
    if !returns.iter().all(|value| value.is_finite()) {
        return Err(UploadError::Value { column: "episode_return", slot, fault: ValueFault::NotFinite });
    }
    let episodes = finished.iter().zip(returns);
    let metrics = |(&(episode, len), episode_return)| EpisodeMetrics {
        episode,
        len,
        episode_return,
        ..EpisodeMetrics::default()
    };
    Ok(episodes.map(metrics).collect())
}
