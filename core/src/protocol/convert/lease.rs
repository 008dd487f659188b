//! Converts a [`Lease`] to a [`LeaseGrant`] and back.

use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    lease::{Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::message::LeaseGrant,
    run::RunConfig,
    sampler::SlotState,
};

const HELD: u8 = 0;
const NEW: u8 = 1;
const STATE: u8 = 2;

/// The reason why a grant is not a valid lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseGrantError {
    /// It has no slots.
    #[error("the lease has no slots")]
    NoSlots,
    /// The tables have different lengths.
    #[error("{slots} slots have {sources} sources and {state_ends} states")]
    Tables {
        /// Length of `slots`.
        slots: usize,
        /// Length of `sources`.
        sources: usize,
        /// Length of `state_ends`.
        state_ends: usize,
    },
    /// A slot does not exist in the run, or the slots are not in order.
    #[error("slot {slot} is not ascending, or not among the run's {num_slots}")]
    Slot {
        /// The slot.
        slot: u32,
        /// Slots of the run.
        num_slots: u32,
    },
    /// The source of a slot's state is unknown to this version.
    #[error("slot {slot} has the unknown source {source_byte}")]
    Source {
        /// The slot.
        slot: u32,
        /// Its source.
        source_byte: u8,
    },
    /// A state is not where the table says, is too large, or is present though the source needs none.
    #[error("the state of slot {slot} is missing, above {max} bytes, or not wanted", max = SlotState::MAX_BYTES)]
    State {
        /// The slot.
        slot: u32,
    },
    /// Bytes of states follow that belong to no slot.
    #[error("{0} bytes of states belong to no slot")]
    ExtraStates(usize),
}

/// Encodes a lease.
#[must_use]
pub fn lease_grant(run: u32, lease: &Lease) -> LeaseGrant {
    let mut grant = LeaseGrant {
        run,
        lease: lease.id.0,
        fragment: lease.fragment.0,
        weights_version: lease.weights_version.0,
        slots: Vec::with_capacity(lease.slots.len()),
        sources: Vec::with_capacity(lease.slots.len()),
        state_ends: Vec::with_capacity(lease.slots.len()),
        states: Vec::new(),
    };
    for LeasedSlot { slot, source } in &lease.slots {
        grant.slots.push(slot.0);
        grant.sources.push(match source {
            SlotSource::Held => HELD,
            SlotSource::New => NEW,
            SlotSource::State(state) => {
                grant.states.extend_from_slice(state);
                STATE
            }
        });
        grant.state_ends.push(grant.states.len() as u32);
    }
    grant
}

/// Decodes a lease. Does not check whether the states decode, which only the sampler can.
///
/// # Errors
/// [`LeaseGrantError`] names the slot that is wrong.
pub fn lease(grant: &LeaseGrant, run: &RunConfig) -> Result<Lease, LeaseGrantError> {
    let LeaseGrant { slots, sources, state_ends, states, .. } = grant;
    if slots.is_empty() {
        return Err(LeaseGrantError::NoSlots);
    }
    if sources.len() != slots.len() || state_ends.len() != slots.len() {
        let (sources, state_ends) = (sources.len(), state_ends.len());
        return Err(LeaseGrantError::Tables { slots: slots.len(), sources, state_ends });
    }
    let num_slots = run.num_slots();
    let mut leased: Vec<LeasedSlot> = Vec::with_capacity(slots.len());
    let mut start = 0;
    for ((&slot, &source_byte), &end) in slots.iter().zip(sources).zip(state_ends) {
        if slot >= num_slots || leased.last().is_some_and(|last| last.slot.0 >= slot) {
            return Err(LeaseGrantError::Slot { slot, num_slots });
        }
        let end = end as usize;
        let state = states.get(start..end).ok_or(LeaseGrantError::State { slot })?;
        start = end;
        let source = match source_byte {
            HELD if state.is_empty() => SlotSource::Held,
            NEW if state.is_empty() => SlotSource::New,
            STATE if state.len() <= SlotState::MAX_BYTES => SlotSource::State(state.to_vec()),
            HELD | NEW | STATE => return Err(LeaseGrantError::State { slot }),
            _ => return Err(LeaseGrantError::Source { slot, source_byte }),
        };
        leased.push(LeasedSlot { slot: SlotId(slot), source });
    }
    if start != states.len() {
        return Err(LeaseGrantError::ExtraStates(states.len() - start));
    }
    Ok(Lease {
        id: LeaseId(grant.lease),
        fragment: FragmentNo(grant.fragment),
        weights_version: WeightsVersion(grant.weights_version),
        slots: leased,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change, and the expected error.
    type Case<'a> = (&'a dyn Fn(&mut LeaseGrant), &'a str);

    fn spec() -> RunConfig {
        RunConfig::new("CartPole-v1").slots(16)
    }

    fn sample() -> Lease {
        let slot = |slot, source| LeasedSlot { slot: SlotId(slot), source };
        Lease {
            id: LeaseId(9),
            fragment: FragmentNo(4),
            weights_version: WeightsVersion(3),
            slots: vec![
                slot(1, SlotSource::Held),
                slot(2, SlotSource::State(vec![1, 2, 3])),
                slot(5, SlotSource::New),
                slot(15, SlotSource::State(vec![4])),
            ],
        }
    }

    #[test]
    fn leases_travel_unchanged() {
        assert_eq!(lease(&lease_grant(1, &sample()), &spec()), Ok(sample()));
    }

    #[test]
    fn whatever_is_wrong_is_named() {
        let state = |slot| format!("the state of slot {slot} is missing, above 1048576 bytes, or not wanted");
        let cases: [Case<'_>; 10] = [
            (&|g| g.slots.clear(), "the lease has no slots"),
            (&|g| g.sources.truncate(3), "4 slots have 3 sources and 4 states"),
            (&|g| g.slots[3] = 16, "slot 16 is not ascending, or not among the run's 16"),
            (&|g| g.slots[2] = 2, "slot 2 is not ascending, or not among the run's 16"),
            (&|g| g.sources[0] = 7, "slot 1 has the unknown source 7"),
            (&|g| g.sources[1] = NEW, &state(2)),
            (&|g| g.state_ends[3] = 5, &state(15)),
            (&|g| g.state_ends[3] = 1, &state(15)),
            (&|g| g.states.push(0), "1 bytes of states belong to no slot"),
            (
                &|g| {
                    g.states = vec![0; 2_000_000];
                    g.state_ends = vec![0, 2_000_000, 2_000_000, 2_000_000];
                },
                &state(2),
            ),
        ];
        for (change, message) in cases {
            let mut grant = lease_grant(1, &sample());
            change(&mut grant);
            assert_eq!(lease(&grant, &spec()).unwrap_err().to_string(), message);
        }
    }
}
