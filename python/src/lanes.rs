//! Environments with one agent each, stepped together from Python.

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh::{Registry, kernels::AUTO, native};
use rollmesh_core::{
    column::{Column, ColumnData},
    config::Config,
    env::{AnyVectorEnv, EnvContext, EnvError, EnvSpaces, Frame, Moment, Moments, StepOut},
    ids::SlotId,
    rng::{Purpose, Streams},
    worker::{RegisteredEnv, WorkerPlace},
};

use crate::{
    column,
    failure::{Failure, Kind},
    policy::spaces_json,
};

/// Environments side by side. Their random numbers are those of a worker with the same seed and as many environments.
#[pyclass(unsendable)]
pub(crate) struct Lanes {
    env: Box<dyn AnyVectorEnv>,
    spaces: EnvSpaces,
    /// Steps after which an episode is truncated.
    limit: u32,
    moments: Vec<Moment>,
    reset: Streams,
    env_step: Streams,
}

/// Observations to act on, rewards, terminateds, truncateds, and, if an episode has ended, the observations right after the
/// step.
type Stepped<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

#[pymethods]
impl Lanes {
    #[new]
    fn new(name: &str, num_envs: u32, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        if !(1..=SlotId::MAX_PER_RUN).contains(&num_envs) {
            let why = format!("num_envs is {num_envs}; it is a number from 1 to {}", SlotId::MAX_PER_RUN);
            return Err(Failure::new(Kind::Config, why).into());
        }
        let config: Config = column::to_json(config)?.parse().map_err(Failure::from)?;
        let registry = native(Registry::builtin());
        let spec = match registry.env(name).map_err(|error| Failure::new(Kind::Config, error))? {
            RegisteredEnv::SingleAgent(spec) => spec,
            _ => {
                let why = format!("'{name}' has several agents; a vector environment has one each, RolloutWorker all");
                return Err(Failure::new(Kind::Config, why).into());
            }
        };
        let context = |index| EnvContext::new(WorkerPlace::LOCAL.home(index)).with_config(config.clone());
        let contexts: Vec<EnvContext> = (0..num_envs).map(context).collect();
        let env = spec.make(&contexts, AUTO).map_err(Failure::from)?;
        let moment = |slot| Moment { slot: SlotId(slot), ..Moment::default() };
        Ok(Self {
            spaces: EnvSpaces::of(env.as_ref()),
            env,
            limit: spec.max_episode_steps.unwrap_or(u32::MAX),
            moments: (0..num_envs).map(moment).collect(),
            reset: Streams::new(0, Purpose::Reset),
            env_step: Streams::new(0, Purpose::EnvStep),
        })
    }

    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        column::json(py, &spaces_json(&self.spaces))
    }

    /// Begins an episode everywhere: episode 0 with a seed, else the next one.
    fn reset<'py>(&mut self, py: Python<'py>, seed: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(seed) = seed {
            self.reset = Streams::new(seed, Purpose::Reset);
            self.env_step = Streams::new(seed, Purpose::EnvStep);
        }
        let lanes = self.moments.len();
        let mut obs = self.observations(lanes)?;
        for lane in 0..lanes {
            self.moments[lane].episode = if seed.is_some() { 0 } else { self.moments[lane].episode.wrapping_add(1) };
            self.begin(lane, &mut obs)?;
        }
        column::to_python(py, &obs)
    }

    /// Takes a step everywhere. Where an episode has ended the next one begins in the same step.
    fn step<'py>(&mut self, py: Python<'py>, actions: &Bound<'_, PyAny>) -> PyResult<Stepped<'py>> {
        let (actions, lanes) = (column::of_python(actions)?, self.moments.len());
        column::check_shape(Kind::Env, "actions", &actions, lanes, &self.spaces.action.shape())?;
        let mut obs = self.observations(lanes)?;
        let (mut rewards, mut terminateds, mut truncateds) = (vec![0.0; lanes], vec![false; lanes], vec![false; lanes]);
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let moments = Moments { streams: self.env_step, lanes: &self.moments, mark: None };
        let rows = obs.array_mut().map_err(Failure::from)?;
        let stepped = self.env.step(actions.array().map_err(Failure::from)?, moments, rows, out);
        stepped.map_err(|error| self.located(None, error))?;
        // A write to `obs` copies the rows first, since `last` shares them.
        let last = obs.clone();
        let mut has_ended = false;
        for lane in 0..lanes {
            let moment = &mut self.moments[lane];
            moment.t = moment.t.saturating_add(1);
            truncateds[lane] |= moment.t >= self.limit;
            if terminateds[lane] || truncateds[lane] {
                has_ended = true;
                moment.episode = moment.episode.wrapping_add(1);
                self.begin(lane, &mut obs)?;
            }
        }
        let array = |column: Column| column::to_python(py, &column);
        Ok((
            array(obs)?,
            array(ColumnData::scalars(rewards).into())?,
            array(ColumnData::scalars(terminateds).into())?,
            array(ColumnData::scalars(truncateds).into())?,
            has_ended.then(|| array(last)).transpose()?,
        ))
    }

    /// The picture of an environment, if it has one: height, width and RGB bytes.
    fn render<'py>(&self, py: Python<'py>, lane: usize) -> Option<(u32, u32, Bound<'py, PyBytes>)> {
        let mut frame = Frame::new();
        let drawn = self.env.render_at(lane, &mut frame);
        drawn.then(|| (frame.height(), frame.width(), PyBytes::new(py, frame.rgb())))
    }
}

impl Lanes {
    fn observations(&self, rows: usize) -> Result<Column, Failure> {
        Ok(Column::zeros(self.spaces.observation_type.into(), self.spaces.observation.shape(), rows)?)
    }

    /// Begins a lane's episode and writes its first observation.
    fn begin(&mut self, lane: usize, obs: &mut Column) -> Result<(), Failure> {
        let moment = &mut self.moments[lane];
        moment.t = 0;
        let mut rng = self.reset.at(moment.slot, moment.episode, 0, 0);
        let width = obs.shape().elements();
        let row = obs.array_mut()?.part(lane * width..(lane + 1) * width);
        let reset = self.env.reset_at(lane, &mut rng, row);
        reset.map_err(|error| self.located(Some(lane), error))
    }

    /// Adds step and episode of the failure to an error, if the lane is known.
    fn located(&self, lane: Option<usize>, error: EnvError) -> Failure {
        let (lane, source) = match error {
            EnvError::InLane { lane, source } => (Some(lane), *source),
            error => (lane, error),
        };
        match lane.and_then(|lane| self.moments.get(lane)) {
            Some(Moment { slot, episode, t, .. }) => {
                Failure::new(Kind::Env, format!("environment {} in step {t} of episode {episode}: {source}", slot.0))
            }
            None => source.into(),
        }
    }
}
