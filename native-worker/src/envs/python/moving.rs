//! Moving open episodes between the environments of hosts.
//!
//! An episode is replayed by its actions after its reset. If the host saves the state of the simulator, a snapshot has
//! a base: observation and state, from which the actions since then are replayed; usually there are none.

use std::slice;

use rollmesh_core::{
    env::{ActionLog, AnyVectorEnv as _, EnvError, Replay, RowsMut, RowsRef, SnapshotReader, StepOut, put_rows},
    ids::SlotId,
    rng::{Purpose, Streams},
};

use super::{
    rows::{PythonRow, reborrow, shared},
    vector::{HostState, PythonEnvs, located},
};
use crate::envs::remote::wire::{ChildRequest, part, put_part};

impl PythonEnvs {
    /// Marks the lanes whose processes have ended.
    fn mark_lost(&mut self) {
        for part in self.parts.iter().filter(|part| !part.group.is_there()) {
            self.is_stale[part.lanes.clone()].fill(true);
        }
    }

    /// Replays the logs of lanes whose environments do not match them.
    pub(super) fn refresh(&mut self) -> Result<(), EnvError> {
        self.mark_lost();
        for lane in 0..self.logs.len() {
            if !self.is_stale[lane] {
                continue;
            }
            if self.state == HostState::Opaque {
                return Err(EnvError::Failed(format!(
                    "{}: the process of lane {lane} ended, and its episode cannot be replayed",
                    self.name
                )));
            }
            let (log, base) = (self.logs[lane].clone(), self.bases[lane].clone());
            if let Err(error) = self.replay_all(lane, base.as_deref(), &log) {
                // A later try replays the same episode.
                (self.logs[lane], self.bases[lane], self.is_stale[lane]) = (log, base, true);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replays all steps of an episode, and compares the last observation.
    fn replay_all(&mut self, lane: usize, base: Option<&[u8]>, log: &ActionLog) -> Result<(), EnvError> {
        let mut steps = Vec::new();
        log.put(&mut steps);
        self.replay(lane, base.unwrap_or_default(), &steps, u32::MAX)?;
        self.logs[lane].check(&steps)
    }

    /// Appends a base with the lane's present state, which is that of another environment after the same steps if its process has
    /// ended: states of all machines are compared.
    ///
    /// # Errors
    /// Those of the second environment, after appending the lane's own base and the steps since, from which the episode continues.
    pub(super) fn put_state(&self, lane: usize, log: &ActionLog, out: &mut Vec<u8>) -> Result<(), EnvError> {
        if !log.is_open() {
            put_part(out, |_| {});
            log.put(out);
            return Ok(());
        }
        let mut obs = PythonRow::new(self.spaces.observation_type, self.obs_len());
        let shown = log.show(obs.all_mut());
        match shown.and_then(|()| self.save(lane).or_else(|_| self.save_by_replay(lane, log))) {
            Ok(state) => {
                put_part(out, |out| {
                    put_rows(out, obs.all());
                    out.extend(state);
                });
                based(obs.all()).put(out);
                Ok(())
            }
            Err(error) => {
                put_part(out, |out| out.extend(self.bases[lane].iter().flatten()));
                log.put(out);
                Err(EnvError::Failed(format!("the state of its episode cannot be saved: {error}")))
            }
        }
    }

    fn save(&self, lane: usize) -> Result<Vec<u8>, EnvError> {
        let part = self.part_of(lane)?;
        if self.is_stale[lane] {
            return Err(EnvError::Failed(format!("{}: lane {lane} has to be replayed first", self.name)));
        }
        let saved = |reply: &[u8]| Some(reply.to_vec());
        part.group.ask(("for its state", ChildRequest::Save), lane - part.lanes.start, |_| {}, saved)
    }

    /// Returns the state of a lane after a replay in an environment that is made for that.
    fn save_by_replay(&self, lane: usize, log: &ActionLog) -> Result<Vec<u8>, EnvError> {
        let mut twin = Self::make(&self.name, slice::from_ref(&self.context), &self.settings)?;
        twin.replay_all(0, self.bases[lane].as_deref(), log)?;
        twin.save(0)
    }

    /// Splits a snapshot into the base of its steps, empty for a reset, and the log.
    pub(super) fn split<'a>(&self, snapshot: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), EnvError> {
        match self.state {
            HostState::Snapshot => part(snapshot).ok_or(EnvError::BadSnapshot(snapshot.len())),
            HostState::Replay | HostState::Opaque => Ok((&[], snapshot)),
        }
    }

    /// Continues a lane from a base, whose first part is the observation.
    fn continue_from(&mut self, lane: usize, base: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(base);
        let mut obs = obs;
        reader.rows(reborrow(&mut obs))?;
        self.logs[lane].end();
        self.revive(&(lane..lane + 1))?;
        let part = self.part_of(lane)?;
        let state = |request: &mut Vec<u8>| request.extend_from_slice(reader.rest());
        let asked =
            part.group.ask(("to restore it", ChildRequest::Restore), lane - part.lanes.start, state, |_| Some(()));
        asked.map_err(|error| located(part.lanes.start, error))?;
        self.is_stale[lane] = false;
        self.bases[lane] = Some(base.to_vec());
        self.logs[lane] = based(shared(&obs));
        Ok(())
    }

    /// Replays at most `max_steps` steps of a log after its base, or after its reset if the base is empty. Returns their
    /// number.
    pub(super) fn replay(&mut self, lane: usize, base: &[u8], log: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        self.part_of(lane)?;
        self.mark_lost();
        if self.is_stale[lane] || !base.is_empty() {
            self.logs[lane].end();
        }
        let (mut replay, rng) = Replay::new(log, &self.logs[lane])?;
        let mut obs = PythonRow::new(self.spaces.observation_type, self.obs_len());
        let mut action = PythonRow::new(self.spaces.action_type, self.spaces.action.shape().elements());
        match rng {
            Some(mut rng) if base.is_empty() => self.reset_at(lane, &mut rng, obs.all_mut())?,
            Some(_) => self.continue_from(lane, base, obs.all_mut())?,
            None => {}
        }
        for step in 0..max_steps {
            let Some((streams, moment)) = replay.next(action.all_mut())? else { return Ok(step) };
            self.check_actions(action.all(), 1).map_err(|_| EnvError::BadSnapshot(log.len()))?;
            let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
            let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
            let stepped = self.step_lanes(lane..lane + 1, action.all(), obs.all_mut(), out);
            stepped.map_err(|error| error.in_replay(moment))?;
            let own = &mut self.logs[lane];
            own.push(action.all(), streams, moment);
            own.see(obs.all());
            if terminated[0] || truncated[0] {
                return Err(own.mismatch());
            }
        }
        Ok(max_steps)
    }
}

/// Returns the log of steps after a base, which draw no random numbers: its reset is that of any stream.
fn based(obs: RowsRef<'_>) -> ActionLog {
    let mut log = ActionLog::default();
    log.begin(&Streams::new(0, Purpose::Reset).at(SlotId(0), 0, 0, 0));
    log.see(obs);
    log
}
