//! One sub-environment: its phase, and the rules that its updates must follow.

use super::maker::{EnvStart, MadeEnv, Spaces};
use crate::{
    env::{
        EnvError, EnvState, Moment, SnapshotReader, StepMark,
        action_log::{MAX_BYTES, obs_hash, split_hash},
        base::{
            replay,
            rules::{check_actions, check_obs},
        },
        multi_agent::{AgentRows, Debts, Roster, Turn},
    },
    ids::AgentId,
    prelude::*,
    rng::Streams,
};

/// The event or call that a sub-environment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubEnvPhase {
    /// The first poll.
    New,
    /// A poll to collect its updates.
    Answered,
    /// Actions.
    Acting,
    /// The remainder of its restoration.
    Restoring,
    /// A reset.
    Over,
    /// A restart: it is quarantined, and has reported that.
    Out,
}

pub(super) struct Sub {
    /// `None` between a failure and the next reset, if it could not be restarted immediately, and during quarantine.
    pub(super) made: Option<MadeEnv>,
    /// Whether it was restarted and not yet passed to callbacks.
    pub(super) is_new: bool,
    pub(super) start: EnvStart,
    pub(super) phase: SubEnvPhase,
    /// Updates to return by the next poll.
    pub(super) turn: Turn,
    /// A failure to report by the next poll.
    pub(super) fault: Option<EnvError>,
    /// Whether the latest actions include it.
    pub(super) answered: bool,
    /// Moment of the next step.
    moment: Moment,
    /// Agents that act next.
    acting: Roster<()>,
    /// Agents whose end was reported.
    done: Roster<()>,
    debts: Debts,
    /// Actions of the open episode, if they are recorded.
    pub(super) log: Option<Vec<u8>>,
    /// The latest observations, if actions are recorded.
    seen: Vec<u8>,
}

impl Sub {
    pub(super) fn new(start: EnvStart, made: MadeEnv) -> Self {
        let moment = Moment { slot: start.slot, episode: start.episode, t: 0, agent: 0 };
        Self {
            made: Some(made),
            is_new: false,
            start,
            phase: SubEnvPhase::New,
            turn: Turn::new(),
            fault: None,
            answered: false,
            moment,
            acting: Roster::default(),
            done: Roster::default(),
            debts: Debts::default(),
            log: None,
            seen: Vec::new(),
        }
    }

    /// Begins the next episode; its number is used up even if that fails.
    pub(super) fn reset(
        &mut self,
        env: usize,
        streams: Streams,
        spaces: &mut Spaces,
        turn: &mut Turn,
    ) -> Result<(), EnvError> {
        turn.clear();
        self.acting.clear();
        self.done.clear();
        self.debts.clear();
        let (slot, episode) = (self.start.slot, self.start.episode);
        self.moment = Moment { slot, episode, t: 0, agent: 0 };
        self.start.episode = episode.wrapping_add(1);
        self.log.iter_mut().for_each(Vec::clear);
        let made = self.made.as_mut().ok_or_else(not_restarted)?;
        made.reset(&mut streams.at(slot, episode, 0, 0), spaces.get(&AgentId::SINGLE), turn)?;
        if turn.is_over() || turn.outcomes().len() > 0 {
            return Err(EnvError::Failed("a reset brought a reward or an end, it brings observations only".into()));
        }
        self.inspect(env, spaces, turn)
    }

    /// Records the beginning of its next step.
    pub(super) fn mark(&self, mark: &StepMark) {
        let Moment { slot, episode, t, .. } = self.moment;
        mark.at(slot, episode, t);
    }

    /// Takes one step and stores its result in `self.turn`.
    pub(super) fn step(
        &mut self,
        env: usize,
        actions: &AgentRows,
        streams: Streams,
        spaces: &mut Spaces,
    ) -> Result<(), EnvError> {
        let mut turn = core::mem::take(&mut self.turn);
        turn.clear();
        if let (Some(log), Some(MadeEnv::MultiAgent(env))) = (&mut self.log, &self.made)
            && env.state() != EnvState::Opaque
            && log.len() <= MAX_BYTES
        {
            replay::push_step(log, &self.acting, actions);
        }
        let stepped = match self.made.as_mut() {
            Some(made) => made.step(actions, streams, self.moment, spaces.get(&AgentId::SINGLE), &mut turn),
            None => Err(not_restarted()),
        };
        self.moment.t = self.moment.t.saturating_add(1);
        let result = stepped.map_err(|error| at_env(error, env)).and_then(|()| self.inspect(env, spaces, &mut turn));
        self.turn = turn;
        result
    }

    /// Delivers owed rewards, checks the turn, and records which agents act next.
    fn inspect(&mut self, env: usize, spaces: &mut Spaces, turn: &mut Turn) -> Result<(), EnvError> {
        let made = self.made.as_ref().ok_or_else(not_restarted)?;
        turn.settle(&mut self.debts);
        let unknown = |agent: &AgentId| EnvError::UnknownAgent { env, agent: agent.clone() };
        let paid = turn.outcomes().map(|(agent, outcome)| (agent, outcome.reward));
        for (agent, reward) in paid.chain(self.debts.rewards()) {
            spaces.learn(agent, made)?.ok_or_else(|| unknown(agent))?;
            // Batches hold rewards as 32-bit floats.
            if !(reward as f32).is_finite() {
                return Err(EnvError::BadReward { env, agent: agent.clone(), reward: reward.to_string() });
            }
        }
        self.acting.clear();
        if self.log.is_some() {
            replay::see(&mut self.seen, turn);
        }
        for (hint, (agent, row)) in turn.obs().iter().enumerate() {
            let bad = |reason| EnvError::BadObservation { env, agent: agent.clone(), reason };
            if self.done.contains(agent, hint) {
                return Err(bad("comes after the agent's end".into()));
            }
            let spaces = spaces.learn(agent, made)?.ok_or_else(|| unknown(agent))?;
            let outcome = turn.outcome_near(agent, hint);
            check_obs(spaces, row, outcome.terminated || turn.all_terminated()).map_err(bad)?;
            if !(outcome.is_done() || turn.is_over()) {
                self.acting.entry(agent);
            }
        }
        for (agent, _) in turn.outcomes().filter(|(_, outcome)| outcome.is_done()) {
            self.done.entry(agent);
        }
        Ok(())
    }

    /// Appends the step of the open episode and its snapshot or recorded actions; returns false if there is none; see
    /// [`BaseEnv::snapshot`](super::BaseEnv::snapshot).
    pub(super) fn snapshot(&self, out: &mut Vec<u8>) -> bool {
        if self.phase != SubEnvPhase::Acting {
            return false;
        }
        let start = out.len();
        out.extend(self.moment.t.to_le_bytes());
        let state = match (&self.made, &self.log) {
            (Some(MadeEnv::Lane(env)), _) => match env.snapshot_at(0, out) {
                Ok(state) => state,
                Err(_) => {
                    out.truncate(start);
                    return false;
                }
            },
            (Some(MadeEnv::MultiAgent(env)), Some(log)) if env.state() != EnvState::Opaque => {
                out.extend_from_slice(log);
                out.extend(obs_hash(&self.seen));
                EnvState::Replay
            }
            (Some(MadeEnv::MultiAgent(env)), Some(_)) => env.state(),
            _ => {
                out.truncate(start);
                return false;
            }
        };
        if state == EnvState::Opaque {
            out.truncate(start);
        }
        true
    }

    /// Returns why its environment cannot be saved.
    pub(super) fn snapshot_error(&self) -> Option<EnvError> {
        let Some(MadeEnv::Lane(env)) = &self.made else { return None };
        env.snapshot_at(0, &mut Vec::new()).err()
    }

    /// Returns whether the sub-environment is where this snapshot of this episode was taken.
    pub(super) fn is_at(&self, episode: u32, snapshot: &[u8]) -> bool {
        let mut here = Vec::new();
        self.is_in(episode) && self.snapshot(&mut here) && here == snapshot
    }

    /// Returns whether the open episode has this number.
    pub(super) fn is_in(&self, episode: u32) -> bool {
        self.moment.episode == episode
    }

    /// Begins the episode to restore.
    pub(super) fn begin_restore(&mut self, env: usize, reset: Streams, spaces: &mut Spaces) -> Result<(), EnvError> {
        let mut turn = core::mem::take(&mut self.turn);
        let begun = self.reset(env, reset, spaces, &mut turn);
        self.turn = turn;
        begun
    }

    /// Restores a snapshot, replaying at most `steps` recorded steps; returns false if some are left. A single agent's
    /// environment restores its own snapshot, others replay the recorded actions.
    pub(super) fn restore(
        &mut self,
        env: usize,
        env_step: Streams,
        spaces: &mut Spaces,
        snapshot: &[u8],
        steps: &mut u32,
    ) -> Result<bool, EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let t = reader.u32()?;
        if let Some(MadeEnv::Lane(made)) = &mut self.made {
            *steps -= made.replay_at(0, reader.rest(), *steps)?;
            if *steps == 0 {
                return Ok(false);
            }
            let single = spaces.get(&AgentId::SINGLE).ok_or_else(not_restarted)?;
            let len = single.observation.shape().elements();
            let mut obs = AgentRows::new();
            made.restore_at(0, reader.rest(), obs.row_mut(&AgentId::SINGLE, single.observation_type, len))?;
            self.moment.t = t;
            return Ok(true);
        }
        let known = self.log.as_deref().unwrap_or_default();
        let (log, hash) = split_hash(reader.rest())?;
        let mut reader = SnapshotReader::new(log.strip_prefix(known).ok_or_else(|| reader.bad())?);
        let mut actions = AgentRows::new();
        while !reader.rest().is_empty() {
            if *steps == 0 {
                return Ok(false);
            }
            *steps -= 1;
            replay::read_step(&mut reader, &self.acting, |agent| spaces.get(agent).cloned(), &mut actions)?;
            let at = self.moment;
            self.step(env, &actions, env_step, spaces).map_err(|error| error.in_replay(at))?;
            if self.turn.is_over() {
                return Err(EnvError::NotReplayed { t: self.moment.t });
            }
        }
        match self.moment.t == t {
            true if obs_hash(&self.seen) == *hash => Ok(true),
            true => Err(EnvError::NotReplayed { t }),
            false => Err(EnvError::BadSnapshot(snapshot.len())),
        }
    }

    /// Checks that exactly the agents that have to act do, with rows that fit their action spaces.
    pub(super) fn check_actions(&self, env: usize, actions: &AgentRows, spaces: &Spaces) -> Result<(), EnvError> {
        check_actions(env, &self.acting, actions, |agent| spaces.get(agent))
    }

    /// Adds what agents are owed to the latest updates.
    pub(super) fn pay_out(&mut self, turn: &mut Turn) {
        turn.pay_out(&mut self.debts);
    }

    /// Writes what agents are owed, without delivering it.
    pub(super) fn owed(&self, turn: &mut Turn) {
        if !self.debts.is_empty() {
            turn.pay_out(&mut self.debts.clone());
        }
    }
}

/// Returns the error for a failed sub-environment that could not be restarted.
fn not_restarted() -> EnvError {
    EnvError::Failed("it could not be restarted".into())
}

/// Replaces the lane in an error by the sub-environment's index, which the caller knows.
fn at_env(error: EnvError, env: usize) -> EnvError {
    match error {
        EnvError::InvalidAction { action, .. } => EnvError::InvalidAction { lane: env, action },
        other => other,
    }
}
