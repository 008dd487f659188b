//! Recorded actions of an open multi-agent episode as bytes.
//!
//! A step is the number of agents that act, and their actions in the order in which the agents were added.

use crate::{
    env::{
        EnvError, EnvSpaces, SnapshotReader,
        action_log::{push_number, push_row, read_number, read_row},
        multi_agent::{AgentRows, Roster, Turn},
        put_rows,
    },
    ids::AgentId,
    prelude::*,
};

/// Appends the actions of a step.
pub(super) fn push_step(log: &mut Vec<u8>, acting: &Roster<()>, actions: &AgentRows) {
    push_number(log, acting.len() as u64);
    for (hint, (agent, ())) in acting.iter().enumerate() {
        // Actions were checked: every acting agent has one.
        if let Some(row) = actions.get_near(agent, hint) {
            push_row(log, row);
        }
    }
}

/// Stores the observations of a turn, in the order of the agents.
pub(super) fn see(seen: &mut Vec<u8>, turn: &Turn) {
    seen.clear();
    turn.obs().iter().for_each(|(_, row)| put_rows(seen, row));
}

/// Reads the actions of a step into `actions`.
///
/// # Errors
/// [`EnvError::BadSnapshot`] for bytes that do not match the acting agents.
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
        read_row(log, actions.row_mut(agent, spaces.action_type, spaces.action.shape().elements()))?;
    }
    Ok(())
}
