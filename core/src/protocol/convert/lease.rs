//! Converts a [`Lease`] to a [`LeaseGrant`] and back.

use crate::{
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    lease::{FailedStep, Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::message::LeaseGrant,
    run::RunConfig,
    sampler::SlotState,
};

const HELD: u8 = 0;
const NEW: u8 = 1;
const STATE: u8 = 2;
/// The bit of a source that says that steps with a restart come before the slot's state: their number as a `u16`, and for each
/// its episode and `t` as a `u32`, little-endian.
const RESTARTS: u8 = 0x80;
/// Bytes of a step.
const STEP_BYTES: usize = 8;

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
    /// The steps at which a slot's environment is restarted are incomplete, too many or not ascending, or the run restarts
    /// none.
    #[error(
        "the restarts of slot {slot} are incomplete, above {max}, not ascending, or none of this run's",
        max = FailedStep::MAX
    )]
    Restarts {
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
    for LeasedSlot { slot, source, restarts } in &lease.slots {
        grant.slots.push(slot.0);
        put_restarts(&mut grant.states, restarts);
        let source = match source {
            SlotSource::Held => HELD,
            SlotSource::New => NEW,
            SlotSource::State(state) => {
                grant.states.extend_from_slice(state);
                STATE
            }
        };
        grant.sources.push(if restarts.is_empty() { source } else { source | RESTARTS });
        grant.state_ends.push(grant.states.len() as u32);
    }
    grant
}

fn put_restarts(out: &mut Vec<u8>, restarts: &[FailedStep]) {
    if restarts.is_empty() {
        return;
    }
    // At most `FailedStep::MAX`.
    out.extend((restarts.len() as u16).to_le_bytes());
    for FailedStep { episode, t } in restarts {
        out.extend([*episode, *t].map(u32::to_le_bytes).as_flattened());
    }
}

/// Splits the steps with a restart off a slot's part of the states; `None` if they are invalid.
fn split_restarts(part: &[u8]) -> Option<(Vec<FailedStep>, &[u8])> {
    let (len, rest) = part.split_first_chunk()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (steps, state) = rest.split_at_checked(len * STEP_BYTES)?;
    if !(1..=FailedStep::MAX).contains(&len) {
        return None;
    }
    let step =
        |[episode, t]: &[[u8; 4]; 2]| FailedStep { episode: u32::from_le_bytes(*episode), t: u32::from_le_bytes(*t) };
    let steps: Vec<FailedStep> = steps.as_chunks().0.as_chunks().0.iter().map(step).collect();
    steps.is_sorted_by(|a, b| a < b).then_some((steps, state))
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
        let part = states.get(start..end).ok_or(LeaseGrantError::State { slot })?;
        start = end;
        let (restarts, state) = match source_byte & RESTARTS {
            0 => (Vec::new(), part),
            _ => split_restarts(part)
                .filter(|_| run.rollout.restart_failed_sub_environments)
                .ok_or(LeaseGrantError::Restarts { slot })?,
        };
        let source = match source_byte & !RESTARTS {
            HELD if state.is_empty() => SlotSource::Held,
            NEW if state.is_empty() => SlotSource::New,
            STATE if state.len() <= SlotState::MAX_BYTES => SlotSource::State(state.to_vec()),
            HELD | NEW | STATE => return Err(LeaseGrantError::State { slot }),
            _ => return Err(LeaseGrantError::Source { slot, source_byte }),
        };
        leased.push(LeasedSlot { slot: SlotId(slot), source, restarts });
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
        let slot = |slot, source| LeasedSlot::new(SlotId(slot), source);
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
    fn restarts_travel_before_the_states_and_invalid_ones_are_refused() {
        let mut run = spec();
        run.rollout.restart_failed_sub_environments = true;
        let step = |episode, t| FailedStep { episode, t };
        let mut restarting = sample();
        restarting.slots[0].restarts = vec![step(0, 7), step(3, 0)];
        restarting.slots[3].restarts = vec![step(u32::MAX, 9); 1];
        let grant = lease_grant(1, &restarting);
        assert_eq!(lease(&grant, &run), Ok(restarting.clone()));
        assert_eq!(lease(&grant, &spec()), Err(LeaseGrantError::Restarts { slot: 1 }), "a run without restarts");
        let damages: [fn(&mut LeaseGrant); 4] = [
            |grant| grant.states[0] = 0,
            // More than the slot's part holds.
            |grant| grant.states[..2].fill(u8::MAX),
            // The second step is the first one again.
            |grant| grant.states.copy_within(2..10, 10),
            |grant| (grant.state_ends[0], grant.states) = (1, grant.states.split_off(17)),
        ];
        for damage in damages {
            let mut grant = grant.clone();
            damage(&mut grant);
            assert_eq!(lease(&grant, &run), Err(LeaseGrantError::Restarts { slot: 1 }));
        }
        restarting.slots[0].restarts = (0..=FailedStep::MAX as u32).map(|t| step(0, t)).collect();
        assert_eq!(lease(&lease_grant(1, &restarting), &run), Err(LeaseGrantError::Restarts { slot: 1 }));
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
