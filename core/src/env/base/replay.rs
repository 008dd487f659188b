//! The actions of an open episode as bytes, from which an environment without snapshots is brought back.
//!
//! A step is the number of agents that act, and the elements of their actions in the order in which the agents came:
//! integers as the shortest zigzag numbers (postcard's), everything else little-endian.

use crate::{
    env::{
        EnvError, EnvSpaces, RowsMut, RowsRef, SnapshotReader,
        multi_agent::{AgentRows, Roster},
        put_rows,
    },
    ids::AgentId,
    prelude::*,
};

/// Appends the actions of a step.
pub(super) fn push_step(log: &mut Vec<u8>, acting: &Roster<()>, actions: &AgentRows) {
    push_number(log, acting.len() as u64);
    for (hint, (agent, ())) in acting.iter().enumerate() {
        match actions.get_near(agent, hint) {
            Some(RowsRef::I32(row)) => row.iter().for_each(|&element| push_number(log, zigzag(element.into()))),
            Some(RowsRef::I64(row)) => row.iter().for_each(|&element| push_number(log, zigzag(element))),
            Some(row) => put_rows(log, row),
            // Actions were checked: every agent that acts has one.
            None => {}
        }
    }
}

/// Reads the actions of a step into `actions`.
///
/// # Errors
/// [`EnvError::BadSnapshot`] for bytes that are not those of the agents that act.
pub(super) fn read_step(
    log: &mut SnapshotReader<'_>,
    acting: &Roster<()>,
    spaces: impl Fn(&AgentId) -> Option<EnvSpaces>,
    actions: &mut AgentRows,
) -> Result<(), EnvError> {
    actions.clear();
    if read_number(log)? != acting.len() as u64 {
        return Err(log.bad());
    }
    for (agent, ()) in acting.iter() {
        let spaces = spaces(agent).ok_or_else(|| log.bad())?;
        match actions.row_mut(agent, spaces.action_type, spaces.action.shape().elements()) {
            RowsMut::I32(row) => {
                for element in row {
                    *element = i32::try_from(unzigzag(read_number(log)?)).map_err(|_| log.bad())?;
                }
            }
            RowsMut::I64(row) => {
                for element in row {
                    *element = unzigzag(read_number(log)?);
                }
            }
            row => log.rows(row)?,
        }
    }
    Ok(())
}

/// Seven bits a byte, the lowest first; the eighth says that more follow.
fn push_number(log: &mut Vec<u8>, mut number: u64) {
    while number > 0x7F {
        log.push(number as u8 | 0x80);
        number >>= 7;
    }
    log.push(number as u8);
}

fn read_number(log: &mut SnapshotReader<'_>) -> Result<u64, EnvError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_size_come_back_and_damage_is_found() {
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
