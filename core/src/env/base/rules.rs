//! Rules for what environments and their callers exchange, in any process.

use crate::{
    env::{
        EnvError, EnvSpaces, RowsRef,
        check::rows,
        multi_agent::{AgentRows, Roster},
    },
    ids::AgentId,
    prelude::*,
    space::Space,
};

/// Checks that the spaces are valid, on which the lengths of rows depend.
pub(in crate::env) fn check_spaces(agent: &AgentId, spaces: &EnvSpaces) -> Result<(), EnvError> {
    let check = |what: &str, space: &Space| {
        let nonsense = |error| EnvError::Failed(format!("agent {agent}: the {what} space makes no sense: {error}"));
        space.validate().map_err(nonsense)
    };
    check("observation", &spaces.observation)?;
    check("action", &spaces.action)
}

/// Checks an observation. A terminal one may be out of the bounds of its boxes, as Gymnasium's CartPole shows.
pub(in crate::env) fn check_obs(spaces: &EnvSpaces, row: RowsRef<'_>, terminal: bool) -> Result<(), String> {
    let EnvSpaces { observation: space, observation_type: wanted, .. } = spaces;
    let (found, len) = (row.dtype(), row.len());
    if found != *wanted {
        return Err(format!("is a row of {found}, not of {wanted}"));
    }
    if len != space.shape().elements() {
        return Err(format!("has {len} elements, {space} has {}", space.shape().elements()));
    }
    if row.first_not_finite().is_some() {
        return Err(format!("{} is not finite", rows::describe(row)));
    }
    match rows::contains(space, row) {
        Ok(true) => Ok(()),
        Ok(false) if terminal && rows::contains_beyond_bounds(space, row) => Ok(()),
        Ok(false) => Err(format!("{} is not in {space}", rows::describe(row))),
        Err(error) => Err(format!("is of a kind that cannot be handed over: {error}")),
    }
}

/// Checks that exactly the agents that have to act do, with rows that fit their action spaces.
pub(in crate::env) fn check_actions<'a>(
    env: usize,
    acting: &Roster<()>,
    actions: &AgentRows,
    spaces: impl Fn(&AgentId) -> Option<&'a EnvSpaces>,
) -> Result<(), EnvError> {
    let bad = |agent: &AgentId, reason: String| Err(EnvError::BadAction { env, agent: agent.clone(), reason });
    for (hint, (agent, row)) in actions.iter().enumerate() {
        if !acting.contains(agent, hint) {
            return bad(agent, "it cannot act, it has no observation to act on".into());
        }
        let Some(EnvSpaces { action, action_type, .. }) = spaces(agent) else { continue };
        if row.dtype() != *action_type || row.len() != action.shape().elements() {
            let (found, len) = (row.dtype(), row.len());
            return bad(agent, format!("its action is {len} of {found}, not a row of {action_type} for {action}"));
        }
    }
    match acting.iter().enumerate().find(|(hint, (agent, ()))| actions.get_near(agent, *hint).is_none()) {
        Some((_, (agent, ()))) => bad(agent, "its action is missing".into()),
        None => Ok(()),
    }
}
