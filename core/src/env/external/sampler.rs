//! The sampler's side of external episodes.

use super::{
    ExternalEpisodes, ExternalError,
    lane::{DrivenLane, Entry, OpenExternal, Request, Taken, TurnKind},
};
use crate::{
    env::{
        BaseEnv, EnvActions, EnvError, EnvSpaces, EnvUpdate, EnvUpdates, Reset, RowsRef,
        base::rules::check_actions,
        check::rows,
        multi_agent::{AgentRows, Turn},
    },
    ids::AgentId,
    prelude::*,
    space::Space,
};

impl BaseEnv for ExternalEpisodes {
    fn num_envs(&self) -> usize {
        self.lanes.len()
    }

    fn agents(&self) -> Vec<AgentId> {
        self.agents.keys().cloned().collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.agents.get(agent).cloned()
    }

    /// Returns a turn of every lane that has one and is not waiting for an answer: possibly none.
    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        if self.stopped {
            return Err(EnvError::Stopped);
        }
        for (env, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(entry) = lane.pop() {
                lane.hand_over(entry, updates.add(env));
            }
        }
        Ok(())
    }

    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        if self.stopped {
            return Err(EnvError::Stopped);
        }
        let num_envs = self.lanes.len();
        for (at, EnvActions { env, actions: rows }) in actions.iter().enumerate() {
            let env = *env;
            let lane = self.lanes.get(env).ok_or(EnvError::NoSuchLane { lane: env, num_envs })?;
            // Ascending, so each occurs once.
            if at.checked_sub(1).and_then(|before| actions.get(before)).is_some_and(|before| before.env >= env) {
                return Err(EnvError::OutOfTurn { env, reason: "answers come once, in the order of the environments" });
            }
            if !lane.taken.is_some_and(|taken| taken.waits) {
                return Err(EnvError::OutOfTurn { env, reason: "it waits for no actions: poll first" });
            }
            check_actions(env, &lane.acting, rows, |agent| self.agents.get(agent))?;
            for (agent, row) in rows.iter() {
                if !self.agents.get(agent).is_some_and(|spaces| is_possible(&spaces.action, row)) {
                    return Err(EnvError::InvalidAction { lane: env, action: rows::describe(row) });
                }
            }
        }
        let waiting = self.lanes.iter().filter(|lane| lane.taken.is_some_and(|taken| taken.waits)).count();
        if waiting != actions.len() {
            return Err(EnvError::OutOfTurn { env: 0, reason: "an environment has no entry in the answer" });
        }
        for EnvActions { env, actions } in actions {
            if let Some(lane) = self.lanes.get_mut(*env) {
                lane.take_answer(actions);
            }
        }
        Ok(())
    }

    /// Drops the sampler's present episode. Drivers begin the episodes.
    fn try_reset(&mut self, env: usize, _turn: &mut Turn) -> Result<Reset, EnvError> {
        self.try_restart(env).map(|()| Reset::Unsupported)
    }

    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        if self.stopped {
            return Err(EnvError::Stopped);
        }
        let num_envs = self.lanes.len();
        let lane = self.lanes.get_mut(env).ok_or(EnvError::NoSuchLane { lane: env, num_envs })?;
        if let Some(id) = lane.give_up() {
            self.close(id, ExternalError::LostEpisode(id));
        }
        Ok(())
    }

    /// Passes the error to drivers and sampler with their next call.
    fn stop(&mut self) -> Result<(), EnvError> {
        self.stopped = true;
        Ok(())
    }
}

impl DrivenLane {
    /// Passes a turn to the sampler.
    fn hand_over(&mut self, mut entry: Entry, update: &mut EnvUpdate) {
        core::mem::swap(&mut entry.turn, &mut update.turn);
        core::mem::swap(&mut entry.actions, &mut update.off_policy_actions);
        let Entry { serial, kind, .. } = entry;
        self.recycle(entry);
        self.acting.clear();
        match kind {
            TurnKind::Asked | TurnKind::Logged => {
                self.taken = Some(Taken { serial, asked: kind == TurnKind::Asked, waits: true });
                for (hint, (agent, _)) in update.turn.obs().iter().enumerate() {
                    if !update.turn.outcome_near(agent, hint).is_done() {
                        self.acting.entry(agent);
                    }
                }
            }
            TurnKind::Ended => self.taken = None,
            TurnKind::Abandoned => {
                self.taken = None;
                update.fault = Some(EnvError::Failed("the driver of the episode has disconnected".into()));
            }
        }
    }

    /// Stores the sampler's answer to its present turn.
    fn take_answer(&mut self, actions: &AgentRows) {
        let Some(taken) = &mut self.taken else { return };
        taken.waits = false;
        let asks = |open: &&mut OpenExternal| taken.asked && open.serial == taken.serial;
        if let Some(open) = self.open.as_mut().filter(asks) {
            open.request = Request::Answered;
            self.answer.clear();
            for (agent, action) in actions.iter() {
                self.answer.set(agent, action);
            }
        }
    }
}

/// Returns whether a policy may choose this. Bounds of a box are not enforced.
fn is_possible(space: &Space, row: RowsRef<'_>) -> bool {
    match space {
        Space::Box(_) => rows::is_numbers(row),
        space => rows::contains(space, row).unwrap_or(false),
    }
}
