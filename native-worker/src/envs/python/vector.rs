//! The environments of a host, as lanes of one vector.

use std::{any::Any, ops::Range};

use rollmesh_core::{
    column::DType,
    env::{
        ActionLog, AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvState, Frame, Moments, Replay, Rng, RowsMut,
        RowsRef, SnapshotReader, StepOut, put_rows,
    },
    space::{PointError, Space},
};
use serde::Deserialize;

use super::{
    PythonSettings,
    order::{Exchange, HostOrder},
};
use crate::envs::remote::wire::{Request, SpacesOf};

/// Environments with the same name and settings, one lane each.
///
/// Their open episodes move by recorded actions, unless their Gymnasium spec says `nondeterministic`.
pub(super) struct PythonEnvs {
    name: String,
    parts: Vec<Part>,
    spaces: EnvSpaces,
    is_opaque: bool,
    logs: Vec<ActionLog>,
    /// Lanes whose environment does not match their log: a new process made it, or it failed.
    is_stale: Vec<bool>,
}

/// Lanes that a host steps.
struct Part {
    order: HostOrder,
    lanes: Range<usize>,
}

impl Part {
    /// Returns which of these lanes are the part's.
    fn within(&self, lanes: &Range<usize>) -> Range<usize> {
        self.lanes.start.max(lanes.start)..self.lanes.end.min(lanes.end)
    }

    /// Returns an error of the host, which counts its own lanes, with the lane of the vector.
    fn located(&self, error: EnvError) -> EnvError {
        match error {
            EnvError::InLane { lane, source } => EnvError::InLane { lane: self.lanes.start + lane, source },
            error => error,
        }
    }
}

/// A host's description of what it made.
#[derive(Deserialize)]
struct Made {
    spaces: SpacesOf,
    is_opaque: bool,
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
        let mut described: Option<Made> = None;
        for host in 0..hosts {
            let own = host * lanes / hosts..(host + 1) * lanes / hosts;
            let (order, made) = HostOrder::make::<Made>(name, first, own.len(), settings, host)?;
            parts.push(Part { order, lanes: own });
            if described.as_ref().is_some_and(|first| first.spaces.spaces != made.spaces.spaces) {
                return Err(EnvError::Failed(format!("{name}: its environments have different spaces")));
            }
            described = Some(made);
        }
        let Made { spaces, is_opaque } = described.ok_or_else(none)?;
        Ok(Self {
            name: name.into(),
            parts,
            spaces: spaces.spaces,
            is_opaque,
            logs: vec![ActionLog::default(); lanes],
            is_stale: vec![false; lanes],
        })
    }

    fn obs_len(&self) -> usize {
        self.spaces.observation.shape().elements()
    }

    /// Makes the environments of these lanes again whose processes have ended.
    fn revive(&mut self, lanes: &Range<usize>) -> Result<(), EnvError> {
        for part in self.parts.iter_mut().filter(|part| !part.within(lanes).is_empty()) {
            if part.order.revive()? {
                self.is_stale[part.lanes.clone()].fill(true);
            }
        }
        Ok(())
    }

    /// Marks the lanes whose processes have ended.
    fn mark_lost(&mut self) {
        for part in self.parts.iter().filter(|part| !part.order.is_there()) {
            self.is_stale[part.lanes.clone()].fill(true);
        }
    }

    /// Replays the logs of lanes whose environments do not match them.
    fn refresh(&mut self) -> Result<(), EnvError> {
        self.mark_lost();
        for lane in 0..self.logs.len() {
            if !self.is_stale[lane] {
                continue;
            }
            if self.is_opaque {
                return Err(EnvError::Failed(format!(
                    "{}: the process of lane {lane} ended, and its episode cannot be replayed",
                    self.name
                )));
            }
            let mut snapshot = Vec::new();
            self.logs[lane].put(&mut snapshot);
            self.replay_at(lane, &snapshot, u32::MAX)?;
            self.logs[lane].check(&snapshot)?;
        }
        Ok(())
    }

    /// Steps these lanes, whose rows the buffers hold. If their process has ended since the last look, that is an error: new
    /// environments would have no episodes to step.
    fn step_lanes(
        &mut self,
        lanes: Range<usize>,
        actions: RowsRef<'_>,
        mut obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let (obs_len, act_len) = (self.obs_len(), self.spaces.action.shape().elements());
        let parts = self.parts.iter().filter(|part| !part.within(&lanes).is_empty());
        // All hosts step at the same time.
        let asked = parts.map(|part| {
            let own = part.within(&lanes);
            let rows = own.start - lanes.start..own.end - lanes.start;
            let body = |request: &mut Vec<u8>| {
                request.extend((own.len() as u32).to_le_bytes());
                put_rows(request, rows_of(actions, rows, act_len));
            };
            (part, part.order.send(("for a step", Request::Step), own.start - part.lanes.start, body))
        });
        let asked: Vec<(&Part, Result<Exchange<'_>, EnvError>)> = asked.collect();
        let mut stepped = Ok(());
        // The answer of every part is read, also after an error.
        for (part, exchange) in asked {
            let own = part.within(&lanes);
            let rows = own.start - lanes.start..own.end - lanes.start;
            let take = |reply: &[u8]| {
                let mut reader = SnapshotReader::new(reply);
                reader.rows(rows_mut_of(&mut obs, rows.clone(), obs_len)).ok()?;
                reader.rows(RowsMut::F64(&mut out.rewards[rows.clone()])).ok()?;
                for row in rows.clone() {
                    let ends = reader.below(4).ok()?;
                    (out.terminateds[row], out.truncateds[row]) = (ends & 1 > 0, ends & 2 > 0);
                }
                reader.finish().ok()
            };
            let answer = exchange.and_then(|exchange| part.order.receive(exchange, take));
            // Every part is received, whatever became of the ones before.
            let answer = answer.map_err(|error| part.located(error));
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

    fn part_of(&self, lane: usize) -> Result<&Part, EnvError> {
        let found = self.parts.iter().find(|part| part.lanes.contains(&lane));
        found.ok_or(EnvError::NoSuchLane { lane, num_envs: self.logs.len() })
    }

    fn check_obs(&self, obs: &RowsMut<'_>, rows: usize) -> Result<(), EnvError> {
        let (found, wanted) = (self.spaces.observation_type, obs.dtype());
        check_rows("observations", "observation elements", (found, rows * self.obs_len()), (wanted, obs.len()))
    }

    /// Checks actions before any lane steps: those that no environment accepts are refused. Values beyond the bounds of a
    /// box are left to the environments.
    fn check_actions(&self, actions: RowsRef<'_>, rows: usize) -> Result<(), EnvError> {
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

    /// The seed is the first draw from the reset's random stream.
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
        self.revive(&(lane..lane + 1))?;
        let part = self.part_of(lane)?;
        let asked = part.order.ask(("for a reset", Request::Reset), lane - part.lanes.start, body, take);
        asked.map_err(|error| part.located(error))?;
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

    /// Needs `render_mode` `rgb_array` in the run's `env_config`.
    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        let part = self.part_of(lane).ok().filter(|_| !self.is_stale[lane]);
        part.is_some_and(|part| part.order.render(lane - part.lanes.start, frame))
    }

    fn info_at(&self, _lane: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        if self.is_opaque {
            return EnvState::Opaque;
        }
        if let Some(log) = self.logs.get(lane) {
            log.put(out);
        }
        EnvState::Replay
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        self.part_of(lane)?;
        self.mark_lost();
        if self.is_stale[lane] {
            self.logs[lane].end();
        }
        let (mut replay, rng) = Replay::new(snapshot, &self.logs[lane])?;
        let mut obs = Row::new(self.spaces.observation_type, self.obs_len());
        let mut action = Row::new(self.spaces.action_type, self.spaces.action.shape().elements());
        if let Some(mut rng) = rng {
            self.reset_at(lane, &mut rng, obs.all_mut())?;
        }
        for step in 0..max_steps {
            let Some((streams, moment)) = replay.next(action.all_mut())? else { return Ok(step) };
            self.check_actions(action.all(), 1).map_err(|_| EnvError::BadSnapshot(snapshot.len()))?;
            let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
            let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
            self.step_lanes(lane..lane + 1, action.all(), obs.all_mut(), out)?;
            let log = &mut self.logs[lane];
            log.push(action.all(), streams, moment);
            log.see(obs.all());
            if terminated[0] || truncated[0] {
                return Err(log.mismatch());
            }
        }
        Ok(max_steps)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        self.check_obs(&obs, 1)?;
        self.replay_at(lane, snapshot, u32::MAX)?;
        let log = &self.logs[lane];
        log.show(obs)?;
        log.check(snapshot)
    }
}

fn check_rows(
    what: &'static str,
    elements: &'static str,
    (found, len): (DType, usize),
    (wanted, buffer): (DType, usize),
) -> Result<(), EnvError> {
    if found != wanted {
        return Err(EnvError::WrongType { what, found: found.name(), wanted: wanted.name() });
    }
    check_len(elements, len, buffer)
}

fn check_len(what: &'static str, wanted: usize, found: usize) -> Result<(), EnvError> {
    if wanted == found { Ok(()) } else { Err(EnvError::WrongLength { what, wanted, found }) }
}

macro_rules! rows {
    ($($variant:ident($ty:ty)),+) => {
        /// One row.
        enum Row {
            $($variant(Vec<$ty>)),+
        }

        impl Row {
            fn new(dtype: DType, len: usize) -> Self {
                match dtype { $(DType::$variant => Self::$variant(vec![<$ty>::default(); len])),+ }
            }

            fn all(&self) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowsRef::$variant(values)),+ }
            }

            fn all_mut(&mut self) -> RowsMut<'_> {
                match self { $(Self::$variant(values) => RowsMut::$variant(values)),+ }
            }
        }

        /// Returns some of the rows of this length.
        fn rows_of(rows: RowsRef<'_>, range: Range<usize>, len: usize) -> RowsRef<'_> {
            match rows { $(RowsRef::$variant(values) => RowsRef::$variant(&values[range.start * len..range.end * len])),+ }
        }

        fn rows_mut_of<'a>(rows: &'a mut RowsMut<'_>, range: Range<usize>, len: usize) -> RowsMut<'a> {
            match rows { $(RowsMut::$variant(values) => RowsMut::$variant(&mut values[range.start * len..range.end * len])),+ }
        }

        fn shared<'a>(rows: &'a RowsMut<'_>) -> RowsRef<'a> {
            match rows { $(RowsMut::$variant(values) => RowsRef::$variant(values)),+ }
        }

        fn reborrow<'a>(rows: &'a mut RowsMut<'_>) -> RowsMut<'a> {
            match rows { $(RowsMut::$variant(values) => RowsMut::$variant(values)),+ }
        }

        fn first_outside(space: &Space, rows: RowsRef<'_>) -> Result<Option<usize>, PointError> {
            match rows { $(RowsRef::$variant(values) => space.first_outside(values)),+ }
        }
    };
}

rows!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));
