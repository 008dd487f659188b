//! Snapshots for a sub-environment without any: the recorded actions of its open episode, which are replayed.

use super::{
    BaseEnv, EnvActions, EnvUpdates, Reset, SubEnv, ValidateEnv,
    replay::{push_step, read_step, see},
};
use crate::{
    env::{
        EnvContext, EnvError, EnvSpaces, Frame, Moment, SnapshotReader, StepMark,
        action_log::{obs_hash, split_hash},
        multi_agent::{AgentRows, Roster, Turn},
    },
    ids::{AgentId, SlotId},
    prelude::*,
};

/// Adds [`snapshot`](BaseEnv::snapshot) and [`restore`](BaseEnv::restore) to a deterministic sub-environment of any process:
/// a snapshot is the actions of the open episode, and a new sub-environment replays them.
pub struct Recorded {
    env: Box<dyn BaseEnv>,
    slot: SlotId,
    log: Vec<u8>,
    t: u32,
    /// Agents that act next; `None` while no episode waits for actions.
    acting: Option<Roster<()>>,
    /// The episode that is or was restored, until it is over.
    restored: Option<u32>,
    /// The latest observations.
    seen: Vec<u8>,
}

impl Recorded {
    /// Records the only sub-environment of `env`, that of this slot, which has not been polled.
    ///
    /// # Errors
    /// [`EnvError::WrongLength`] unless there is exactly one.
    pub fn new(env: Box<dyn BaseEnv>, slot: SlotId) -> Result<Self, EnvError> {
        match env.num_envs() {
            1 => Ok(Self { env, slot, log: Vec::new(), t: 0, acting: None, restored: None, seen: Vec::new() }),
            found => Err(EnvError::WrongLength { what: "sub-environments", wanted: 1, found }),
        }
    }

    fn begin(&mut self, turn: &Turn) {
        self.log.clear();
        self.t = 0;
        self.wait_for_agents_of(turn);
    }

    fn wait_for_agents_of(&mut self, turn: &Turn) {
        see(&mut self.seen, turn);
        let mut acting = Roster::default();
        let acts = |(hint, (agent, _)): (usize, (&AgentId, _))| {
            (!turn.outcome_near(agent, hint).is_done()).then(|| agent.clone())
        };
        turn.obs().iter().enumerate().filter_map(acts).for_each(|agent| *acting.entry(&agent) = ());
        self.acting = (!turn.is_over()).then_some(acting);
    }

    /// Polls until there are updates.
    fn poll_updates(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        updates.clear();
        while updates.entries().is_empty() {
            self.poll(updates)?;
        }
        updates.entries_mut().iter_mut().find_map(|entry| entry.fault.take()).map_or(Ok(()), Err)
    }

    /// Handles the updates of a poll.
    fn record(&mut self, updates: &EnvUpdates) {
        for entry in updates.entries() {
            match (&entry.fault, self.t) {
                (Some(_), _) => self.acting = None,
                (None, 0) => self.begin(&entry.turn),
                (None, _) => self.wait_for_agents_of(&entry.turn),
            }
        }
    }
}

impl BaseEnv for Recorded {
    fn num_envs(&self) -> usize {
        1
    }

    fn agents(&self) -> Vec<AgentId> {
        self.env.agents()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.env.spaces(agent)
    }

    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        self.env.poll(updates)?;
        self.record(updates);
        Ok(())
    }

    fn may_be_idle(&self) -> bool {
        self.env.may_be_idle()
    }

    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        for EnvActions { actions, .. } in actions {
            if let Some(acting) = self.acting.take() {
                push_step(&mut self.log, &acting, actions);
                self.t = self.t.saturating_add(1);
            }
        }
        self.env.send_actions(actions)
    }

    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError> {
        (self.t, self.acting, self.restored) = (0, None, None);
        let reset = self.env.try_reset(env, turn)?;
        if reset == Reset::Done {
            self.begin(turn);
        }
        Ok(reset)
    }

    fn pay_out(&mut self, env: usize, turn: &mut Turn) {
        self.env.pay_out(env, turn);
    }

    fn set_next_episode(&mut self, env: usize, episode: u32) {
        self.env.set_next_episode(env, episode);
    }

    fn snapshot(&self, _env: usize, out: &mut Vec<u8>) -> bool {
        if self.acting.is_some() {
            out.extend(self.t.to_le_bytes());
            out.extend_from_slice(&self.log);
            out.extend(obs_hash(&self.seen));
        }
        self.acting.is_some()
    }

    fn restore(&mut self, env: usize, episode: u32, snapshot: &[u8], steps: &mut u32) -> Result<bool, EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let t = reader.u32()?;
        let (mut updates, mut actions) = (EnvUpdates::new(), AgentRows::new());
        if self.restored != Some(episode) {
            (self.t, self.restored) = (0, Some(episode));
            self.set_next_episode(env, episode);
            self.poll_updates(&mut updates)?;
        }
        let (log, hash) = split_hash(reader.rest())?;
        let mut reader = SnapshotReader::new(log.strip_prefix(&self.log[..]).ok_or_else(|| reader.bad())?);
        while !reader.rest().is_empty() {
            if *steps == 0 {
                return Ok(false);
            }
            *steps -= 1;
            let acting = self.acting.as_ref().ok_or_else(|| reader.bad())?;
            read_step(&mut reader, acting, |agent| self.env.spaces(agent), &mut actions)?;
            let at = Moment { slot: self.slot, episode, t: self.t, agent: 0 };
            let sent = self.send_actions(&[EnvActions { env, actions: actions.clone() }]);
            sent.and_then(|()| self.poll_updates(&mut updates)).map_err(|error| error.in_replay(at))?;
        }
        match self.acting {
            Some(_) if self.t == t && obs_hash(&self.seen) == *hash => Ok(true),
            Some(_) if self.t != t => Err(EnvError::BadSnapshot(snapshot.len())),
            _ => Err(EnvError::NotReplayed { t: self.t }),
        }
    }

    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        self.acting = None;
        self.env.try_restart(env)
    }

    fn quarantine(&self, env: usize) -> Option<&str> {
        self.env.quarantine(env)
    }

    fn forgive(&mut self, env: usize) {
        self.env.forgive(env);
    }

    fn forgotten_steps(&mut self) -> u64 {
        self.env.forgotten_steps()
    }

    fn take_restarted(&mut self, env: usize) -> Option<(SubEnv<'_>, EnvContext)> {
        self.env.take_restarted(env)
    }

    fn mark_with(&mut self, mark: &StepMark) {
        self.env.mark_with(mark);
    }

    fn validate_with(&mut self, validate: ValidateEnv) {
        self.env.validate_with(validate);
    }

    fn try_render(&mut self, env: usize, frame: &mut Frame) -> bool {
        self.env.try_render(env, frame)
    }

    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        self.env.sub_environments()
    }

    fn stop(&mut self) -> Result<(), EnvError> {
        self.env.stop()
    }
}
