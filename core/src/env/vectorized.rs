//! Vector environments of single environments.

use super::{
    Env, EnvError, EnvState, Frame, Moment, Moments, Rng, StepOut, VectorEnv,
    action_log::{ActionLog, Replay},
    check_actions_len, check_len, check_obs_len,
};
use crate::{column::Element, prelude::*, space::Space};

/// Steps single environments sequentially, as a [`VectorEnv`].
///
/// Actions that are NaN or not in a discrete space are rejected before any lane moves. Numbers beyond the bounds of a box
/// are passed to the environments, which may clip them or not [accept](Env::accepts) them.
///
/// Environments that are [replayed](EnvState::Replay) get snapshots here: the recorded actions of their open episodes.
#[derive(Clone, Debug)]
#[doc(alias = "SyncVectorEnv")]
pub struct Vectorized<E> {
    envs: Vec<E>,
    /// One log for each environment that is replayed, empty for those with snapshots and opaque ones; `None` before the
    /// first reset or replay.
    logs: Option<Vec<ActionLog>>,
    action_space: Space,
    obs_len: usize,
    act_len: usize,
}

impl<E: Env> Vectorized<E> {
    /// Creates a vector environment from environments of one kind. An empty list gives no lanes.
    #[must_use]
    pub fn new(envs: Vec<E>) -> Self {
        let action_space = envs.first().map_or(Space::Discrete { n: 0 }, E::action_space);
        Self {
            // Points of a space always have elements, but a custom space may claim otherwise.
            obs_len: envs.first().map_or(1, |env| env.observation_space().shape().elements()).max(1),
            act_len: action_space.shape().elements().max(1),
            logs: None,
            action_space,
            envs,
        }
    }

    /// Returns the environments, lane by lane.
    #[must_use]
    pub fn envs(&self) -> &[E] {
        &self.envs
    }
}

impl<E: Env> Vectorized<E> {
    /// Checks all elements against the space in one pass, and each lane's action with its environment in a second one, which
    /// costs nothing with the default [`Env::accepts`].
    fn check_actions(&self, actions: &[E::Act]) -> Result<(), EnvError> {
        let impossible = first_impossible(&self.action_space, self.act_len, actions);
        let mut rows = self.envs.iter().zip(actions.chunks_exact(self.act_len)).take(impossible.unwrap_or(usize::MAX));
        match rows.position(|(env, action)| !env.accepts(action)).or(impossible) {
            Some(lane) => {
                let action = actions.chunks_exact(self.act_len).nth(lane).unwrap_or_default();
                Err(EnvError::InvalidAction { lane, action: format!("{action:?}") })
            }
            None => Ok(()),
        }
    }

    /// Returns the logs of replayed environments, created on first use.
    fn logs(&mut self) -> &mut Vec<ActionLog> {
        let is_replayed = |env: &E| env.snapshot(&mut Vec::new()) == EnvState::Replay;
        self.logs.get_or_insert_with(|| match self.envs.first().is_some_and(is_replayed) {
            true => vec![ActionLog::default(); self.envs.len()],
            false => Vec::new(),
        })
    }

    fn lane(&mut self, lane: usize, obs_len: usize) -> Result<&mut E, EnvError> {
        let num_envs = self.envs.len();
        let env = self.envs.get_mut(lane).ok_or(EnvError::NoSuchLane { lane, num_envs })?;
        check_obs_len(self.obs_len, obs_len)?;
        Ok(env)
    }
}

/// Returns the first row of actions of this length that are NaN or not in a discrete space.
fn first_impossible<A: Element>(space: &Space, len: usize, actions: &[A]) -> Option<usize> {
    let within = |low: f64, high: f64| actions.iter().position(|x| !x.within(low, high)).map(|i| i / len);
    match space {
        Space::Box(_) => within(f64::NEG_INFINITY, f64::INFINITY),
        space @ Space::Discrete { n } if space.takes_rows_of(A::DTYPE) => within(0.0, f64::from(*n) - 1.0),
        Space::Tuple(_) | Space::Dict(_) => within(f64::NEG_INFINITY, f64::INFINITY)
            .or_else(|| actions.chunks_exact(len).position(|row| !space.contains_beyond_bounds(row))),
        space => actions.chunks_exact(len).position(|row| !space.contains_row(row).unwrap_or(false)),
    }
}

impl<E: Env> VectorEnv for Vectorized<E> {
    type Obs = E::Obs;
    type Act = E::Act;

    fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn observation_space(&self) -> Space {
        self.envs.first().map_or(Space::Discrete { n: 0 }, E::observation_space)
    }

    fn action_space(&self) -> Space {
        self.action_space.clone()
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        let start = rng.clone();
        let reset = self.lane(lane, obs.len())?.reset(rng, obs);
        if let Some(log) = self.logs().get_mut(lane) {
            log.begin(&start);
            log.see(E::Obs::erase_rows(obs));
            if reset.is_err() {
                log.end();
            }
        }
        reset
    }

    fn step(
        &mut self,
        actions: &[Self::Act],
        moments: Moments<'_>,
        obs: &mut [Self::Obs],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let n = self.envs.len();
        check_actions_len(n * self.act_len, actions.len())?;
        check_obs_len(n * self.obs_len, obs.len())?;
        check_len("moments", n, moments.lanes.len())?;
        out.check_len(n)?;
        self.check_actions(actions)?;
        let rows = obs.chunks_exact_mut(self.obs_len).zip(actions.chunks_exact(self.act_len));
        let flags = out.terminateds.iter_mut().zip(out.truncateds);
        let results = out.rewards.iter_mut().zip(flags);
        let lanes = self.envs.iter_mut().zip(moments.lanes);
        for (lane, ((env, moment), ((obs, action), (reward, (terminated, truncated))))) in
            lanes.zip(rows.zip(results)).enumerate()
        {
            moments.mark.into_iter().for_each(|mark| mark.at(moment.slot, moment.episode, moment.t));
            let step = env.step(action, &mut moments.rng_at(*moment), obs).map_err(|error| {
                self.logs.iter_mut().flatten().skip(lane).take(1).for_each(ActionLog::end);
                match error {
                    EnvError::InvalidAction { action, .. } => EnvError::InvalidAction { lane, action },
                    other if n > 1 => EnvError::InLane { lane, source: Box::new(other) },
                    other => other,
                }
            })?;
            (*reward, *terminated, *truncated) = (step.reward, step.terminated, step.truncated);
            match self.logs.as_mut().and_then(|logs| logs.get_mut(lane)) {
                Some(log) if step.terminated || step.truncated => log.end(),
                Some(log) => {
                    log.push(E::Act::erase_rows(action), moments.streams, *moment);
                    log.see(E::Obs::erase_rows(obs));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.envs.get(lane).is_some_and(|env| env.render(frame))
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        self.envs.get(lane).is_some_and(|env| env.info(out))
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        let start = out.len();
        let state = self.envs.get(lane).map_or(EnvState::Snapshot, |env| env.snapshot(out));
        match (state, self.logs.as_ref().map(|logs| logs.get(lane))) {
            (EnvState::Replay, Some(Some(log))) => {
                // A wrapper may have written its own state in front, which a replay restores as well.
                out.truncate(start);
                log.put(out);
                state
            }
            (EnvState::Snapshot, _) => state,
            (EnvState::Replay, None) => {
                out.truncate(start);
                state
            }
            _ => {
                out.truncate(start);
                EnvState::Opaque
            }
        }
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        let Some(log) = self.logs().get(lane) else { return Ok(0) };
        let (mut replay, rng) = Replay::new(snapshot, log)?;
        let (mut obs, mut action) = (vec![E::Obs::default(); self.obs_len], vec![E::Act::default(); self.act_len]);
        if let Some(mut rng) = rng {
            self.reset_at(lane, &mut rng, &mut obs)?;
        }
        let logs = self.logs.iter_mut().flatten();
        let Some((env, log)) = self.envs.iter_mut().zip(logs).nth(lane) else { return Ok(0) };
        for step in 0..max_steps {
            let Some((streams, moment)) = replay.next(E::Act::erase_rows_mut(&mut action))? else { return Ok(step) };
            if first_impossible(&self.action_space, self.act_len, &action).is_some() || !env.accepts(&action) {
                return Err(EnvError::BadSnapshot(snapshot.len()));
            }
            let mut rng = Moments { streams, lanes: &[], mark: None }.rng_at(moment);
            log.begin_replayed(moment);
            let taken = env.step(&action, &mut rng, &mut obs).map_err(|error| {
                log.end();
                error.in_replay(moment)
            })?;
            log.push(E::Act::erase_rows(&action), streams, moment);
            log.see(E::Obs::erase_rows(&obs));
            if taken.terminated || taken.truncated {
                return Err(log.mismatch());
            }
        }
        Ok(max_steps)
    }

    fn replayed_at(&self, lane: usize) -> Option<Moment> {
        self.logs.as_ref()?.get(lane)?.replayed()
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        let Some(_) = self.logs().get(lane) else { return self.lane(lane, obs.len())?.restore(snapshot, obs) };
        self.replay_at(lane, snapshot, u32::MAX)?;
        let log = self.logs().get(lane).ok_or(EnvError::BadSnapshot(snapshot.len()))?;
        log.show(E::Obs::erase_rows_mut(obs))?;
        log.check(snapshot)
    }
}
