//! Delta encoding of slot states sent to the hub: the recorded actions of an open episode only grow, so a state shares a
//! part with the one before it.

use serde::{Deserialize, Serialize};

use super::UploadError;
use crate::{
    batch::SlotFragment,
    hash::bytes_hash,
    ids::SlotId,
    prelude::*,
    sampler::{SlotState, env_range},
};

/// First byte of a delta-encoded state. No other state begins with it.
const DELTA: u8 = 5;

/// Minimum length of the shared part.
const WORTH: usize = 64;

/// Header of a state that refers to the state before: `head` bytes that follow it, then `kept` bytes of the state before,
/// from byte `from` on, then the remaining bytes.
#[derive(Serialize, Deserialize)]
struct Delta {
    from: u32,
    kept: u32,
    head: u32,
    /// Hash of the whole state before.
    start: [u8; 16],
}

/// Returns the fragment with its state encoded as a delta to `start`, the state that it began with, if that saves enough.
#[must_use]
pub(crate) fn without_known(fragment: &SlotFragment, start: &[u8]) -> Option<SlotFragment> {
    let state = &fragment.state;
    let (old, new) = (env_range(start, fragment.slot)?, env_range(state, fragment.slot)?);
    let kept = start.get(old.clone())?.iter().zip(state.get(new.clone())?).take_while(|(a, b)| a == b).count();
    if kept < WORTH {
        return None;
    }
    let (from, head, hash) = (old.start as u32, new.start as u32, bytes_hash(start).0);
    let delta = Delta { from, kept: kept as u32, head, start: hash };
    let mut bytes = postcard::to_extend(&delta, vec![DELTA]).ok()?;
    bytes.extend_from_slice(state.get(..new.start)?);
    bytes.extend_from_slice(state.get(new.start + kept..)?);
    Some(SlotFragment { state: bytes, ..fragment.clone() })
}

/// Returns true if a state of an upload is delta-encoded.
#[must_use]
pub fn has_deltas(states: &[u8], state_ends: &[u32]) -> bool {
    let starts = core::iter::once(0).chain(state_ends.iter().copied());
    let mut parts = starts.zip(state_ends).map(|(start, end)| states.get(start as usize..*end as usize));
    parts.any(|state| state.is_some_and(|state| state.first() == Some(&DELTA)))
}

/// Completes the delta-encoded states of an upload; `start` returns the state that a slot's fragment began with.
///
/// # Errors
/// [`UploadError::State`] if `start` returns no state or another one than the delta refers to, or if the result is too
/// large.
pub fn complete_states<'a>(
    slots: &[u32],
    states: &mut Vec<u8>,
    state_ends: &mut [u32],
    start: impl Fn(SlotId) -> Option<&'a [u8]>,
) -> Result<(), UploadError> {
    if !has_deltas(states, state_ends) {
        return Ok(());
    }
    let starts: Vec<usize> = core::iter::once(0).chain(state_ends.iter().map(|end| *end as usize)).collect();
    let part = |place: usize| states.get(*starts.get(place)?..*starts.get(place + 1)?);
    let (mut whole, mut ends) = (Vec::with_capacity(states.len()), Vec::with_capacity(state_ends.len()));
    for (place, slot) in slots.iter().map(|slot| SlotId(*slot)).enumerate().take(state_ends.len()) {
        let state = part(place).ok_or(UploadError::State(slot))?;
        match state.strip_prefix(&[DELTA]) {
            None => whole.extend_from_slice(state),
            Some(delta) => complete(delta, start(slot), &mut whole).ok_or(UploadError::State(slot))?,
        }
        ends.push(whole.len() as u32);
    }
    if ends.len() == state_ends.len() {
        *states = whole;
        state_ends.copy_from_slice(&ends);
    }
    Ok(())
}

fn complete(delta: &[u8], start: Option<&[u8]>, out: &mut Vec<u8>) -> Option<()> {
    let (Delta { from, kept, head, start: hash }, rest) = postcard::take_from_bytes(delta).ok()?;
    let start = start.filter(|start| bytes_hash(start).0 == hash)?;
    let kept = start.get(from as usize..(from as usize).checked_add(kept as usize)?)?;
    let (head, tail) = rest.split_at_checked(head as usize)?;
    if head.len() + kept.len() + tail.len() > SlotState::MAX_BYTES {
        return None;
    }
    [head, kept, tail].into_iter().for_each(|part| out.extend_from_slice(part));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId(3);

    fn state(t: u32, env: Vec<u8>) -> Vec<u8> {
        SlotState { episode: 7, t, episode_return: 0.5, env, recurrent: vec![0.25; 3] }.encode()
    }

    fn log(len: u32) -> Vec<u8> {
        (0..len).map(|byte| (byte % 251) as u8).collect()
    }

    #[test]
    fn states_round_trip_in_full_and_without_the_known_start() {
        let (start, end) = (state(90, log(300)), state(130, [log(310), vec![1; 8]].concat()));
        let fragment = SlotFragment { slot: SLOT, state: end.clone(), ..SlotFragment::default() };
        let short = without_known(&fragment, &start).unwrap().state;
        assert!(short.len() < 80, "{} bytes", short.len());
        let (mut states, mut ends) =
            ([&end[..], &short].concat(), [end.len() as u32, (end.len() + short.len()) as u32]);
        complete_states(&[1, 3], &mut states, &mut ends, |slot| (slot == SLOT).then_some(&start[..])).unwrap();
        assert_eq!((states, ends), ([&end[..], &end].concat(), [end.len() as u32, 2 * end.len() as u32]));
        // Another episode, or no known start.
        assert_eq!(without_known(&fragment, &state(2, vec![9; 300])), None);
        for start in [None, Some(&start[..200])] {
            let error = complete_states(&[3], &mut short.clone(), &mut [short.len() as u32], |_| start);
            assert_eq!(error, Err(UploadError::State(SLOT)));
        }
    }

    #[test]
    fn damage_gives_no_panic_and_no_endless_state() {
        let start = state(90, log(300));
        let fragment = SlotFragment { slot: SLOT, state: state(130, log(310)), ..SlotFragment::default() };
        let short = without_known(&fragment, &start).unwrap().state;
        for at in 0..short.len() {
            for bit in 0..8 {
                let mut damaged = short.clone();
                damaged[at] ^= 1 << bit;
                let mut ends = [damaged.len() as u32];
                let completed = complete_states(&[3], &mut damaged, &mut ends, |_| Some(&start[..]));
                assert!(completed.is_err() || damaged.len() <= start.len() + short.len());
            }
        }
    }
}
