//! Converts fragments by policy to an [`AgentUpload`] and back.

use super::{
    EpisodeFault, FragmentLimits, UploadError, ValueFault,
    agent_episodes::{EpisodeReader, push_episodes},
    fragment::{check_table, slots_of},
    limits::{ColumnLimit, PolicyLimit, PolicyLimits},
    upload::EncodeError,
};
use crate::{
    batch::{
        AGENT_INDEX, EPS_ID, EpisodeMetrics, MultiAgentBatch, SampleBatch, SlotFragment, T, TERMINATEDS, TRUNCATEDS,
        codec, state_in,
    },
    column::{Column, DType, RowShape},
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    lease::Lease,
    prelude::*,
    protocol::message::AgentUpload,
    sampler::{BatchMode, CountStepsBy, SlotState, agent_position},
};

/// Encodes the fragments of a lease.
///
/// # Errors
/// [`EncodeError`] if the fragments do not belong together.
pub fn agent_upload(run: u32, lease: LeaseId, fragments: &[SlotFragment]) -> Result<AgentUpload, EncodeError> {
    let first = fragments.first().ok_or(EncodeError::Empty)?;
    let mut upload = AgentUpload {
        run,
        lease: lease.0,
        fragment: first.fragment.0,
        weights_version: first.weights_version.0,
        ..AgentUpload::default()
    };
    for fragment in fragments {
        let slot = fragment.slot;
        if (fragment.fragment, fragment.weights_version) != (first.fragment, first.weights_version) {
            return Err(EncodeError::Mixed(slot));
        }
        let agents = fragment.agents.as_ref().ok_or(EncodeError::ColumnCount(slot))?;
        upload.slots.push(slot.0);
        upload.batches.extend_from_slice(&codec::encode_multi_agent(agents));
        upload.batch_ends.push(upload.batches.len() as u32);
        push_episodes(&mut upload, slot, &fragment.episodes)?;
        upload.states.extend_from_slice(&fragment.state);
        upload.state_ends.push(upload.states.len() as u32);
    }
    Ok(upload)
}

/// Decodes the fragments of a lease, all of them or a part, for a run with these limits.
///
/// # Errors
/// [`UploadError`] names the slot, the policy or the column that is wrong.
pub fn agent_fragments(
    upload: &AgentUpload,
    run: u32,
    lease: &Lease,
    limits: &FragmentLimits,
) -> Result<Vec<SlotFragment>, UploadError> {
    let AgentUpload { run: found, lease: of, fragment, weights_version, .. } = *upload;
    super::fragment::check_lease([u64::from(found), of, fragment, weights_version], run, lease)?;
    let policies = limits.policies().ok_or(UploadError::OtherKind)?;
    let slots = slots_of(&upload.slots, lease)?;
    let entries = slots.len() as u64;
    let tables = [
        ("batch_ends", upload.batch_ends.len(), entries),
        ("episodes", upload.episodes.len(), entries),
        ("state_ends", upload.state_ends.len(), entries),
    ];
    for (table, found, expected) in tables {
        check_table(table, found as u64, expected)?;
    }
    let mut reader = EpisodeReader::new(upload)?;
    let mut fragments = Vec::with_capacity(slots.len());
    let (mut batch_start, mut state_start) = (0, 0);
    for (place, &slot) in slots.iter().enumerate() {
        let (batch_end, state_end) = (upload.batch_ends[place] as usize, upload.state_ends[place] as usize);
        let bytes = upload.batches.get(batch_start..batch_end).ok_or(UploadError::NoRows(slot))?;
        let agents = codec::decode_multi_agent(bytes)
            .map_err(|source| UploadError::BadRows { slot, source: Box::new(source) })?;
        check_rows(&agents, slot, policies, limits.no_done_at_end)?;
        let state = upload.states.get(state_start..state_end).ok_or(UploadError::State(slot))?;
        let open = agent_position(state, slot).filter(|_| state.len() <= SlotState::MAX_BYTES);
        let ends_with_episode = limits.batch_mode == BatchMode::CompleteEpisodes;
        if open.is_none_or(|(_, steps)| ends_with_episode && steps > 0) {
            return Err(UploadError::State(slot));
        }
        let ended = upload.episodes[place];
        if ended as usize > agents.env_steps.min(limits.max_env_steps as usize) {
            return Err(UploadError::Episodes { slot, fault: EpisodeFault::TooMany });
        }
        let episodes = reader.read(slot, ended)?;
        check_length(&agents, &episodes, slot, limits)?;
        fragments.push(SlotFragment {
            slot,
            fragment: FragmentNo(fragment),
            weights_version: WeightsVersion(weights_version),
            agents: Some(agents),
            episodes,
            state: state.to_vec(),
            ..SlotFragment::default()
        });
        (batch_start, state_start) = (batch_end, state_end);
    }
    check_table("batches", upload.batches.len() as u64, batch_start as u64)?;
    check_table("states", upload.states.len() as u64, state_start as u64)?;
    Ok(fragments)
}

/// Checks that a slot has as many steps as the lease asks for; with `complete_episodes` those of whole episodes, none more
/// than needed.
fn check_length(
    agents: &MultiAgentBatch,
    episodes: &[EpisodeMetrics],
    slot: SlotId,
    limits: &FragmentLimits,
) -> Result<(), UploadError> {
    let (expected, most) = (limits.rows, limits.max_env_steps);
    let counted = limits.count_steps_by.of(agents.env_steps, agents.agent_steps());
    let whole = || {
        let (last, before) = episodes.split_last()?;
        let before: u64 = before.iter().map(|episode| u64::from(episode.len)).sum();
        let is_needed = limits.count_steps_by == CountStepsBy::AgentSteps || before < u64::from(expected);
        Some(is_needed && before + u64::from(last.len) == agents.env_steps as u64)
    };
    let fits = (1..=most as usize).contains(&agents.env_steps) && counted >= expected as usize;
    if fits && (limits.batch_mode == BatchMode::TruncateEpisodes || whole() == Some(true)) {
        return Ok(());
    }
    let found = u32::try_from(agents.env_steps).unwrap_or(u32::MAX);
    let is_equal = expected == most;
    Err(if is_equal { UploadError::Rows { slot, found, expected } } else { UploadError::Length { slot, found } })
}

/// Checks that the rows belong to the run's policies and have the columns that the run needs.
fn check_rows(
    agents: &MultiAgentBatch,
    slot: SlotId,
    policies: &PolicyLimits,
    no_done_at_end: bool,
) -> Result<(), UploadError> {
    for (id, batch) in &agents.policy_batches {
        let policy = policies.get(id).ok_or_else(|| UploadError::UnknownPolicy { slot, policy: id.to_string() })?;
        for limit in &policy.columns {
            check_column(batch.column(limit.name).ok_or(UploadError::MissingColumn(limit.name))?, limit, slot)?;
        }
        if batch.is_empty() || !has_the_form(batch, policy) {
            return Err(UploadError::OtherKind);
        }
        // Those added by a policy or a callback included.
        if batch.first_not_finite().is_some() {
            return Err(UploadError::Value { column: "rows", slot, fault: ValueFault::NotFinite });
        }
        for key in [TERMINATEDS, TRUNCATEDS] {
            if no_done_at_end && policy.is_exact && batch.get(key)?.contains(&true) {
                return Err(UploadError::Value { column: key.name(), slot, fault: ValueFault::OutOfRange(1) });
            }
        }
        let (episodes, steps, numbers) = (batch.get(EPS_ID)?, batch.get(T)?, batch.get(AGENT_INDEX)?);
        let out =
            |value: &i64| Err(UploadError::Value { column: "eps_id", slot, fault: ValueFault::OutOfRange(*value) });
        if let Some(id) = episodes.iter().find(|id| **id >> 32 != i64::from(slot.0)) {
            return out(id);
        }
        if let Some(number) = steps.iter().chain(numbers).find(|number| **number < 0) {
            return out(number);
        }
    }
    Ok(())
}

/// Returns whether the rows of all slots can be joined: the same columns and flags, with states at the starts of sequences.
fn has_the_form(batch: &SampleBatch, policy: &PolicyLimit) -> bool {
    let states = &policy.recurrent.state_lens;
    let is_state = |(index, len): (usize, &usize)| {
        let column = batch.column(state_in(index).as_str());
        column.is_some_and(|column| {
            (column.column_type(), column.shape()) == (DType::F32.into(), RowShape::vector(*len as u32))
        })
    };
    let plain = !batch.time_major() && !batch.zero_padded() && batch.num_grad_updates().is_none();
    plain
        && batch.is_training()
        && batch.iter().all(|(_, column)| !column.is_compressed())
        && batch.seq_lens().is_some() != states.is_empty()
        && states.iter().enumerate().all(is_state)
        && (!policy.is_exact || batch.iter().len() == policy.columns.len() + states.len())
}

fn check_column(column: &Column, limit: &ColumnLimit, slot: SlotId) -> Result<(), UploadError> {
    if column.column_type() != limit.dtype.into() || column.shape() != limit.shape {
        let (expected, shape) = (limit.dtype, limit.shape);
        return Err(UploadError::ColumnType { column: limit.name, expected, shape });
    }
    let (Ok(values), false) = (column.typed::<i64>(), limit.ranges.is_empty()) else { return Ok(()) };
    let mut ranges = limit.ranges.iter().cycle();
    let outside = values.values().iter().find(|value| ranges.next().is_some_and(|range| !range.contains(*value)));
    match outside {
        Some(value) => Err(UploadError::Value { column: limit.name, slot, fault: ValueFault::OutOfRange(*value) }),
        None => Ok(()),
    }
}
