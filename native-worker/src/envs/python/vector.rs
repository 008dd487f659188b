//! The environments of a host, as lanes of one vector.

use std::{any::Any, ops::Range};

use rollmesh_core::{
    column::DType,
    env::{
        ActionLog, AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvState, Frame, Moments, Rng, RowsMut, RowsRef,
        SnapshotReader, StepOut, put_rows,
    },
    space::Space,
};
use serde::{Deserialize, Serialize};

use super::{
    PythonSettings,
    lane_group::{Exchange, LaneGroup},
    rows::{check_len, check_rows, first_outside, reborrow, rows_mut_of, rows_of, shared},
    shared::{SharedPlace, SharedRows, take_ends},
};
use crate::envs::remote::wire::{ChildRequest, SpacesOf};

/// Environments with the same name and settings, one lane each.
///
/// Their open episodes move by the state of their simulator if the host can save it, and else by recorded actions, unless their
/// Gymnasium spec says `nondeterministic` or the run's fingerprint shows it.
pub(super) struct PythonEnvs {
    pub(super) name: String,
    /// The context that made them.
    pub(super) context: EnvContext,
    pub(super) settings: PythonSettings,
    pub(super) parts: Vec<HostedLanes>,
    pub(super) spaces: EnvSpaces,
    pub(super) starts: Starts,
    pub(super) state: HostState,
    /// The steps since the reset or the base of each lane.
    pub(super) logs: Vec<ActionLog>,
    /// The bases that open episodes were restored from: the observation, and the state of the simulator.
    pub(super) bases: Vec<Option<Vec<u8>>>,
    /// Lanes whose environment does not match their log: a new process made it, or it failed.
    pub(super) is_stale: Vec<bool>,
}

/// Lanes that a host steps.
pub(super) struct HostedLanes {
    pub(super) group: LaneGroup,
    /// Its rows; `None` if they go through pipes.
    shared: Option<SharedRows>,
    pub(super) lanes: Range<usize>,
}

impl HostedLanes {
    /// Returns which of these lanes are the part's.
    fn within(&self, lanes: &Range<usize>) -> Range<usize> {
        self.lanes.start.max(lanes.start)..self.lanes.end.min(lanes.end)
    }
}

/// Returns an error of a host, which counts its own lanes, with the lane of the vector: the host's first one is `of_part`.
pub(super) fn located(of_part: usize, error: EnvError) -> EnvError {
    match error {
        EnvError::InLane { lane, source } => EnvError::InLane { lane: of_part + lane, source },
        error => error,
    }
}

/// A step that a host has been asked for.
struct AskedStep<'a> {
    group: &'a LaneGroup,
    shared: &'a mut Option<SharedRows>,
    exchange: Result<Exchange<'a>, EnvError>,
    /// The first of the lanes, as the host counts them.
    first: usize,
    /// The first lane of the host, as the vector counts them.
    of_part: usize,
    /// Rows of the step.
    rows: Range<usize>,
}

/// The numbers from which discrete spaces of an environment in Python count, one for each component; its rows count from 0. Empty
/// where they are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// Of observations.
    pub observation: Vec<i64>,
    /// Of actions.
    pub action: Vec<i64>,
}

/// A host's description of the lanes that it made.
#[derive(Deserialize)]
struct MadeLanes {
    spaces: SpacesOf,
    starts: Starts,
    state: HostState,
    shared: Option<SharedPlace>,
}

/// The way in which open episodes of a host's environments move.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HostState {
    Snapshot,
    Replay,
    Opaque,
}

impl PythonEnvs {
    /// Makes an environment per context, all with the settings of the first.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`] without an interpreter, package or environment of that name, [`EnvError::Failed`].
    pub(super) fn make(name: &str, contexts: &[EnvContext], settings: &PythonSettings) -> Result<Self, EnvError> {
        let none = || EnvError::Failed("a vector of Python environments has at least one".into());
        let first = contexts.first().ok_or_else(none)?;
        let lanes = contexts.len();
        let hosts = settings.processes.map_or(1, usize::from).min(lanes);
        let mut parts = Vec::with_capacity(hosts);
        let mut described: Option<(EnvSpaces, Starts, HostState)> = None;
        for host in 0..hosts {
            let own = host * lanes / hosts..(host + 1) * lanes / hosts;
            let (group, made) = LaneGroup::make::<MadeLanes>(name, first, own.len(), settings, host)?;
            let is_deterministic = host > 0 || group.check_fingerprint(&first.config)?;
            let MadeLanes { spaces, starts, state, shared } = made;
            parts.push(HostedLanes { group, shared: shared.and_then(SharedRows::open), lanes: own });
            match &described {
                Some((first, ..)) if *first != spaces.spaces => {
                    return Err(EnvError::Failed(format!("{name}: its environments have different spaces")));
                }
                Some(_) => {}
                None => {
                    described = Some((spaces.spaces, starts, if is_deterministic { state } else { HostState::Opaque }))
                }
            }
        }
        let (spaces, starts, state) = described.ok_or_else(none)?;
        Ok(Self {
            name: name.into(),
            context: first.clone(),
            settings: settings.clone(),
            parts,
            spaces,
            starts,
            state,
            bases: vec![None; lanes],
            logs: vec![ActionLog::default(); lanes],
            is_stale: vec![false; lanes],
        })
    }

    pub(super) fn obs_len(&self) -> usize {
        self.spaces.observation.shape().elements()
    }

    /// Recreates the environments of these lanes whose processes have ended.
    pub(super) fn revive(&mut self, lanes: &Range<usize>) -> Result<(), EnvError> {
        for part in self.parts.iter_mut().filter(|part| !part.within(lanes).is_empty()) {
            if let Some(made) = part.group.revive::<MadeLanes>()? {
                part.shared = made.shared.and_then(SharedRows::open);
                self.is_stale[part.lanes.clone()].fill(true);
            }
        }
        Ok(())
    }

    /// Steps these lanes, whose rows the buffers hold. If their process has ended since the last look, that is an error: new
    /// environments would have no episodes to step.
    pub(super) fn step_lanes(
        &mut self,
        lanes: Range<usize>,
        actions: RowsRef<'_>,
        mut obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let (obs_len, act_len) = (self.obs_len(), self.spaces.action.shape().elements());
        let parts = self.parts.iter_mut().filter(|part| !part.within(&lanes).is_empty());
        // All hosts step at the same time.
        let asked = parts.map(|part| {
            let own = part.within(&lanes);
            let HostedLanes { group, shared, lanes: of_part } = part;
            let (first, rows) = (own.start - of_part.start, own.start - lanes.start..own.end - lanes.start);
            let actions = rows_of(actions, rows.clone(), act_len);
            let put = shared.as_mut().map(|shared| shared.put_actions(first, rows.len(), actions)).transpose();
            let body = |request: &mut Vec<u8>| {
                request.extend((rows.len() as u32).to_le_bytes());
                if shared.is_none() {
                    put_rows(request, actions);
                }
            };
            let exchange = put
                .map_err(|error| EnvError::Failed(format!("its rows cannot be shared with a Python process: {error}")))
                .and_then(|_| group.send(("for a step", ChildRequest::Step), first, body));
            AskedStep { group, shared, exchange, first, of_part: of_part.start, rows }
        });
        let asked: Vec<AskedStep<'_>> = asked.collect();
        let mut stepped = Ok(());
        // The answer of every part is read, also after an error.
        for AskedStep { group, shared, exchange, first, of_part, rows } in asked {
            let take = |reply: &[u8]| {
                let obs = rows_mut_of(&mut obs, rows.clone(), obs_len);
                let (rewards, terminateds) = (&mut out.rewards[rows.clone()], &mut out.terminateds[rows.clone()]);
                let truncateds = &mut out.truncateds[rows.clone()];
                if let Some(shared) = shared {
                    return shared.take(first, obs, StepOut { rewards, terminateds, truncateds }).ok();
                }
                let mut reader = SnapshotReader::new(reply);
                reader.rows(obs).ok()?;
                reader.rows(RowsMut::F64(rewards)).ok()?;
                take_ends(&mut reader, terminateds, truncateds).ok()?;
                reader.finish().ok()
            };
            let answer = exchange.and_then(|exchange| group.receive(exchange, take));
            // Every part is received, also after the failure of another one.
            let answer = answer.map_err(|error| located(of_part, error));
            stepped = stepped.and(answer);
        }
        if let Err(error) = &stepped {
            // Some lanes may have stepped, so the state of all is unknown.
            self.is_stale[lanes].fill(true);
            if let EnvError::InLane { lane, .. } = error {
                self.logs.iter_mut().skip(*lane).take(1).for_each(ActionLog::end);
            }
        }
        stepped
    }

    pub(super) fn part_of(&self, lane: usize) -> Result<&HostedLanes, EnvError> {
        let found = self.parts.iter().find(|part| part.lanes.contains(&lane));
        found.ok_or(EnvError::NoSuchLane { lane, num_envs: self.logs.len() })
    }

    pub(super) fn check_obs(&self, obs: &RowsMut<'_>, rows: usize) -> Result<(), EnvError> {
        let (found, wanted) = (self.spaces.observation_type, obs.dtype());
        check_rows("observations", "observation elements", (found, rows * self.obs_len()), (wanted, obs.len()))
    }

    /// Checks actions before any lane steps: those that no environment accepts are refused. Values beyond the bounds of a
    /// box are left to the environments.
    pub(super) fn check_actions(&self, actions: RowsRef<'_>, rows: usize) -> Result<(), EnvError> {
        let (space, found) = (&self.spaces.action, self.spaces.action_type);
        let len = space.shape().elements();
        check_rows("actions", "action elements", (found, rows * len), (actions.dtype(), actions.len()))?;
        let outside = match space {
            Space::Box(_) => actions.first_not_finite().map(|element| element / len.max(1)),
            Space::Tuple(_) | Space::Dict(_) => match actions {
                RowsRef::F32(values) => {
                    values.chunks_exact(len.max(1)).position(|row| !space.contains_beyond_bounds(row))
                }
                _ => None,
            },
            space => first_outside(space, actions).map_err(|error| EnvError::Failed(error.to_string()))?,
        };
        outside.map_or(Ok(()), |lane| {
            let action = format!("of {} outside of {space}", self.name);
            Err(EnvError::InvalidAction { lane, action })
        })
    }
}

impl AnyVectorEnv for PythonEnvs {
    fn num_envs(&self) -> usize {
        self.logs.len()
    }

    fn observation_space(&self) -> Space {
        self.spaces.observation.clone()
    }

    fn action_space(&self) -> Space {
        self.spaces.action.clone()
    }

    fn dtypes(&self) -> (DType, DType) {
        (self.spaces.observation_type, self.spaces.action_type)
    }

    /// Begins an episode, whose seed is the first number of the reset's random stream.
    fn reset_at(&mut self, lane: usize, rng: &mut Rng, mut obs: RowsMut<'_>) -> Result<(), EnvError> {
        self.part_of(lane)?;
        self.check_obs(&obs, 1)?;
        let start = rng.clone();
        let seed = rng.next_u32();
        let body = |request: &mut Vec<u8>| request.extend(seed.to_le_bytes());
        let take = |reply: &[u8]| {
            let mut reader = SnapshotReader::new(reply);
            reader.rows(reborrow(&mut obs)).ok()?;
            reader.finish().ok()
        };
        self.logs[lane].end();
        self.bases[lane] = None;
        self.revive(&(lane..lane + 1))?;
        let part = self.part_of(lane)?;
        let asked = part.group.ask(("for a reset", ChildRequest::Reset), lane - part.lanes.start, body, take);
        asked.map_err(|error| located(part.lanes.start, error))?;
        self.is_stale[lane] = false;
        let log = &mut self.logs[lane];
        log.begin(&start);
        log.see(shared(&obs));
        Ok(())
    }

    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        mut obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let lanes = self.logs.len();
        self.check_obs(&obs, lanes)?;
        self.check_actions(actions, lanes)?;
        let StepOut { rewards, terminateds, truncateds } = out;
        for (what, found) in [
            ("moments", moments.lanes.len()),
            ("rewards", rewards.len()),
            ("terminated flags", terminateds.len()),
            ("truncated flags", truncateds.len()),
        ] {
            check_len(what, lanes, found)?;
        }
        self.refresh()?;
        let filled = StepOut { rewards: &mut *rewards, terminateds: &mut *terminateds, truncateds: &mut *truncateds };
        self.step_lanes(0..lanes, actions, reborrow(&mut obs), filled)?;
        let (obs_len, act_len) = (self.obs_len(), self.spaces.action.shape().elements());
        for (lane, (log, moment)) in self.logs.iter_mut().zip(moments.lanes).enumerate() {
            if terminateds[lane] || truncateds[lane] {
                log.end();
            } else {
                log.push(rows_of(actions, lane..lane + 1, act_len), moments.streams, *moment);
                log.see(rows_of(shared(&obs), lane..lane + 1, obs_len));
            }
        }
        Ok(())
    }

    /// Draws a lane; `render_mode` must be `rgb_array` in the run's `env_config`.
    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        let part = self.part_of(lane).ok().filter(|_| !self.is_stale[lane]);
        part.is_some_and(|part| part.group.render(lane - part.lanes.start, frame))
    }

    fn info_at(&self, _lane: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> Result<EnvState, EnvError> {
        match (self.state, self.logs.get(lane)) {
            (HostState::Replay, Some(log)) => log.put(out),
            (HostState::Snapshot, Some(log)) => self.put_state(lane, log, out)?,
            (HostState::Opaque, _) | (_, None) => {}
        }
        Ok(self.state())
    }

    fn state(&self) -> EnvState {
        match self.state {
            HostState::Opaque => EnvState::Opaque,
            HostState::Replay => EnvState::Replay,
            HostState::Snapshot => EnvState::Snapshot,
        }
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        match self.split(snapshot)? {
            ([], log) => self.replay(lane, &[], log, max_steps),
            // The rest follows immediately.
            _ => Ok(0),
        }
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        self.check_obs(&obs, 1)?;
        let (base, log) = self.split(snapshot)?;
        self.replay(lane, base, log, u32::MAX)?;
        self.logs[lane].show(obs)?;
        self.logs[lane].check(log)
    }
}
