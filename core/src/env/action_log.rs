//! Recorded actions of an open episode as bytes, from which another instance of the environment replays it.
//!
//! Elements follow each other: integers as the shortest zigzag varints (as postcard), everything else little-endian.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::{EnvError, Moment, Rng, RowsMut, RowsRef, SnapshotReader, put_rows};
use crate::{prelude::*, rng::Streams};

/// Appends the elements of an action.
pub(super) fn push_row(log: &mut Vec<u8>, row: RowsRef<'_>) {
    match row {
        RowsRef::I32(row) => row.iter().for_each(|&element| push_number(log, zigzag(element.into()))),
        RowsRef::I64(row) => row.iter().for_each(|&element| push_number(log, zigzag(element))),
        row => put_rows(log, row),
    }
}

/// Reads the elements of an action.
///
/// # Errors
/// [`EnvError::BadSnapshot`] for bytes that are not those of such elements.
pub(super) fn read_row(log: &mut SnapshotReader<'_>, row: RowsMut<'_>) -> Result<(), EnvError> {
    match row {
        RowsMut::I32(row) => {
            for element in row {
                *element = i32::try_from(unzigzag(read_number(log)?)).map_err(|_| log.bad())?;
            }
            Ok(())
        }
        RowsMut::I64(row) => {
            for element in row {
                *element = unzigzag(read_number(log)?);
            }
            Ok(())
        }
        row => log.rows(row),
    }
}

/// Appends a varint: seven bits per byte, the lowest first; the eighth bit says that more follow.
pub(super) fn push_number(log: &mut Vec<u8>, mut number: u64) {
    while number > 0x7F {
        log.push(number as u8 | 0x80);
        number >>= 7;
    }
    log.push(number as u8);
}

/// Reads a varint.
///
/// # Errors
/// [`EnvError::BadSnapshot`] for more than ten bytes, or too few.
pub(super) fn read_number(log: &mut SnapshotReader<'_>) -> Result<u64, EnvError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = log.u8()?;
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(log.bad())
}

const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Bytes of the hash at the end of a snapshot.
const HASH: usize = 8;

/// Most recorded bytes of an episode: more than a slot's state may have, so that an overlong state is detected as too large.
pub(super) const MAX_BYTES: usize = 2 << 20;

/// Returns the hash of an observation, which ends a snapshot.
pub(super) fn obs_hash(obs: &[u8]) -> [u8; HASH] {
    (XxHash3_128::oneshot(obs) as u64).to_le_bytes()
}

/// Address of the random numbers of a step, if it does not follow from that of the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    streams: Streams,
    moment: Moment,
}

impl Origin {
    fn next(self) -> Self {
        Self { moment: Moment { t: self.moment.t.wrapping_add(1), ..self.moment }, ..self }
    }
}

/// Records the open episode of an environment without a snapshot of its own. For authors of vector environments whose lanes
/// can be stepped separately; [`Vectorized`](super::Vectorized) has one for each of its environments.
///
/// A snapshot contains the random stream of the reset, each action with the address of its random numbers if needed, and a
/// hash of the last observation. Between two snapshots of an episode bytes are only appended, except for the hash.
#[derive(Clone, Debug, Default)]
pub struct ActionLog {
    bytes: Vec<u8>,
    /// Expected address of the next step's random numbers.
    next: Option<Origin>,
    steps: u32,
    /// The last observation.
    obs: Vec<u8>,
    /// The step that is being replayed.
    replayed: Option<Moment>,
}

impl ActionLog {
    /// Begins an episode, before the environment draws from `rng`.
    pub fn begin(&mut self, rng: &Rng) {
        self.end();
        // Writing into growing memory cannot fail.
        self.bytes = postcard::to_extend(rng, core::mem::take(&mut self.bytes)).unwrap_or_default();
    }

    /// Returns whether an episode is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Ends the episode, also after a failure.
    pub fn end(&mut self) {
        self.bytes.clear();
        (self.next, self.steps, self.replayed) = (None, 0, None);
    }

    /// Records the step that is about to be replayed. It stays recorded if the environment panics in it.
    pub(super) fn begin_replayed(&mut self, moment: Moment) {
        self.replayed = Some(moment);
    }

    /// Returns the step that is being replayed, or was when the environment panicked.
    pub(super) const fn replayed(&self) -> Option<Moment> {
        self.replayed
    }

    /// Records a step that was taken; ignored after the episode's end, where a wrapper may still step.
    pub fn push(&mut self, action: RowsRef<'_>, streams: Streams, moment: Moment) {
        self.replayed = None;
        if self.bytes.is_empty() || self.bytes.len() > MAX_BYTES {
            return;
        }
        let origin = Origin { streams, moment };
        let explicit = (self.next != Some(origin)).then_some(origin);
        // Writing into growing memory cannot fail.
        self.bytes = postcard::to_extend(&explicit, core::mem::take(&mut self.bytes)).unwrap_or_default();
        push_row(&mut self.bytes, action);
        self.next = Some(origin.next());
        self.steps = self.steps.saturating_add(1);
    }

    /// Writes the last observation.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`] for rows of another length.
    pub fn show(&self, obs: RowsMut<'_>) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(&self.obs);
        reader.rows(obs)?;
        reader.finish()
    }

    /// Keeps the observation after a reset or a step.
    pub fn see(&mut self, obs: RowsRef<'_>) {
        self.obs.clear();
        put_rows(&mut self.obs, obs);
    }

    /// Compares the last observation with that of a snapshot that was replayed.
    ///
    /// # Errors
    /// [`EnvError::NotReplayed`].
    pub fn check(&self, snapshot: &[u8]) -> Result<(), EnvError> {
        let (_, hash) = split_hash(snapshot)?;
        if obs_hash(&self.obs) == *hash { Ok(()) } else { Err(self.mismatch()) }
    }

    /// Returns the error for a replay that ended in another state.
    pub const fn mismatch(&self) -> EnvError {
        EnvError::NotReplayed { t: self.steps }
    }

    /// Appends the snapshot.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        out.extend(obs_hash(&self.obs));
    }
}

/// The remainder of a snapshot's replay.
pub struct Replay<'a> {
    log: SnapshotReader<'a>,
    next: Option<Origin>,
}

impl<'a> Replay<'a> {
    /// Continues a replay if the episode so far is a prefix of the snapshot's; else starts over and returns the random
    /// stream of the reset.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn new(snapshot: &'a [u8], episode: &ActionLog) -> Result<(Self, Option<Rng>), EnvError> {
        let (log, _) = split_hash(snapshot)?;
        match (log.strip_prefix(&episode.bytes[..]), postcard::take_from_bytes::<Rng>(log)) {
            (Some(log), _) if !episode.bytes.is_empty() => {
                Ok((Self { log: SnapshotReader::new(log), next: episode.next }, None))
            }
            (_, Ok((rng, log))) if rng.is_sound() => {
                Ok((Self { log: SnapshotReader::new(log), next: None }, Some(rng)))
            }
            _ => Err(EnvError::BadSnapshot(snapshot.len())),
        }
    }

    /// Reads the next action, and returns the address of its step's random numbers; `None` at the end.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn next(&mut self, action: RowsMut<'_>) -> Result<Option<(Streams, Moment)>, EnvError> {
        if self.log.rest().is_empty() {
            return Ok(None);
        }
        let explicit = postcard::take_from_bytes::<Option<Origin>>(self.log.rest());
        let (explicit, rest) = explicit.map_err(|_| self.log.bad())?;
        self.log = SnapshotReader::new(rest);
        let origin = explicit.or(self.next).ok_or_else(|| self.log.bad())?;
        read_row(&mut self.log, action)?;
        self.next = Some(origin.next());
        Ok(Some((origin.streams, origin.moment)))
    }
}

/// Splits a snapshot into log and hash.
pub(super) fn split_hash(snapshot: &[u8]) -> Result<(&[u8], &[u8]), EnvError> {
    let at = snapshot.len().checked_sub(HASH);
    at.and_then(|at| snapshot.split_at_checked(at)).ok_or(EnvError::BadSnapshot(snapshot.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_size_round_trip_and_damage_is_found() {
        let mut log = Vec::new();
        let numbers = [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN];
        numbers.iter().for_each(|number| push_number(&mut log, zigzag(*number)));
        let mut reader = SnapshotReader::new(&log);
        for number in numbers {
            assert_eq!(read_number(&mut reader).map(unzigzag), Ok(number));
        }
        assert_eq!(reader.finish(), Ok(()));
        for damaged in [&[0x80][..], &[0xFF; 11]] {
            assert_eq!(read_number(&mut SnapshotReader::new(damaged)), Err(EnvError::BadSnapshot(damaged.len())));
        }
    }
}
