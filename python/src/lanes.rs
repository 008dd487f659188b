//! Environments with one agent each, stepped together from Python.

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh::{
    Registry,
    envs::{Starts, starts},
    kernels::AUTO,
    native,
};
use rollmesh_core::{
    column::{Column, ColumnData},
    config::Config,
    env::{AnyVectorEnv, EnvContext, EnvError, EnvSpaces, Frame, Moment, Moments, StepOut},
    ids::SlotId,
    rng::{Purpose, Streams},
    worker::{RegisteredEnv, WorkerPlace},
};

use serde_json::json;

use crate::{
    column,
    failure::{Failure, Kind},
    owned::Owned,
    policy::spaces_json,
};

/// Environments on a separate thread. Their random numbers are those of a worker with the same seed and as many
/// environments.
#[pyclass(frozen)]
pub(crate) struct Lanes {
    envs: Owned<Envs>,
    spaces: EnvSpaces,
    starts: Starts,
}

/// The environments, in lockstep.
struct Envs {
    env: Box<dyn AnyVectorEnv>,
    spaces: EnvSpaces,
    /// The number of steps after which an episode is truncated.
    limit: u32,
    moments: Vec<Moment>,
    reset: Streams,
    env_step: Streams,
}

/// Observations to act on, rewards, terminateds, truncateds, and, if an episode has ended, the observations right after the
/// step.
struct Stepped {
    obs: Column,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
    last: Option<Column>,
}

/// [`Stepped`] as columns of Python.
type PyStepped<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

#[pymethods]
impl Lanes {
    #[new]
    fn new(py: Python<'_>, name: String, num_envs: u32, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        if !(1..=SlotId::MAX_PER_RUN).contains(&num_envs) {
            let why = format!("num_envs is {num_envs}; it is a number from 1 to {}", SlotId::MAX_PER_RUN);
            return Err(Failure::new(Kind::Config, why).into());
        }
        let config: Config = column::to_json(config)?.parse().map_err(Failure::from)?;
        let envs = Owned::new(py, "VectorEnv", move || Envs::make(&name, num_envs, &config))?;
        let described = |envs: &mut Envs| Ok::<_, Failure>((envs.spaces.clone(), starts(envs.env.as_mut())));
        let (spaces, starts) = envs.call(py, described)?;
        Ok(Self { envs, spaces, starts })
    }

    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut spaces = spaces_json(&self.spaces);
        spaces["starts"] = json!(self.starts);
        column::json(py, &spaces)
    }

    /// Begins an episode in every environment: episode 0 with one seed, or with one per environment, else the next one.
    fn reset<'py>(&self, py: Python<'py>, seed: Option<u64>, seeds: Option<Vec<u32>>) -> PyResult<Bound<'py, PyAny>> {
        let obs = self.envs.call(py, move |envs| envs.reset(seed, seeds.as_deref()))?;
        column::to_python(py, &obs)
    }

    /// Takes a step in every environment. If an episode has ended, the next one begins in the same step.
    fn step<'py>(&self, py: Python<'py>, actions: &Bound<'_, PyAny>) -> PyResult<PyStepped<'py>> {
        let actions = column::of_python(actions)?;
        let Stepped { obs, rewards, terminateds, truncateds, last } =
            self.envs.call(py, move |envs| envs.step(&actions))?;
        let array = |column: Column| column::to_python(py, &column);
        Ok((
            array(obs)?,
            array(ColumnData::scalars(rewards).into())?,
            array(ColumnData::scalars(terminateds).into())?,
            array(ColumnData::scalars(truncateds).into())?,
            last.map(array).transpose()?,
        ))
    }

    /// Returns the picture of an environment, if it has one: height, width and RGB bytes. Returns an error if it cannot
    /// be rendered.
    fn render<'py>(&self, py: Python<'py>, lane: usize) -> PyResult<Option<(u32, u32, Bound<'py, PyBytes>)>> {
        let frame = self.envs.call(py, move |envs| {
            let mut frame = Frame::new();
            let is_drawn = envs.env.render_at(lane, &mut frame);
            let failed = |reason| Err(EnvError::Unavailable(reason));
            frame.take_failure().map_or_else(|| Ok(is_drawn.then_some(frame)), failed)
        })?;
        Ok(frame.map(|frame| (frame.height(), frame.width(), PyBytes::new(py, frame.rgb()))))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.envs.end(py, |_| Ok::<_, Failure>(())).map(|_| ())
    }
}

impl Envs {
    fn make(name: &str, num_envs: u32, config: &Config) -> Result<Self, Failure> {
        let registry = native(Registry::builtin());
        let spec = match registry.env(name).map_err(|error| Failure::new(Kind::Config, error))? {
            RegisteredEnv::SingleAgent(spec) => spec,
            _ => {
                let why = format!("'{name}' has several agents; a vector environment has one each, RolloutWorker all");
                return Err(Failure::new(Kind::Config, why));
            }
        };
        let context = |index| EnvContext::new(WorkerPlace::LOCAL.home(index)).with_config(config.clone());
        let contexts: Vec<EnvContext> = (0..num_envs).map(context).collect();
        let env = spec.make(&contexts, AUTO)?;
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

    /// Works like [`Lanes::reset`]. The seed of an environment is its slot among those of seed 0.
    fn reset(&mut self, seed: Option<u64>, seeds: Option<&[u32]>) -> Result<Column, Failure> {
        let lanes = self.moments.len();
        if let Some(seeds) = seeds.filter(|seeds| seeds.len() != lanes) {
            let why = format!("seed has {} numbers; give one for each of the {lanes} environments", seeds.len());
            return Err(Failure::new(Kind::Env, why));
        }
        let is_seeded = seed.is_some() || seeds.is_some();
        if is_seeded {
            self.reset = Streams::new(seed.unwrap_or(0), Purpose::Reset);
            self.env_step = Streams::new(seed.unwrap_or(0), Purpose::EnvStep);
            for (lane, moment) in self.moments.iter_mut().enumerate() {
                moment.slot = SlotId(seeds.map_or(lane as u32, |seeds| seeds[lane]));
            }
        }
        let mut obs = self.observations(lanes)?;
        for lane in 0..lanes {
            self.moments[lane].episode = if is_seeded { 0 } else { self.moments[lane].episode.wrapping_add(1) };
            self.begin(lane, &mut obs)?;
        }
        Ok(obs)
    }

    fn step(&mut self, actions: &Column) -> Result<Stepped, Failure> {
        let lanes = self.moments.len();
        column::check_shape(Kind::Env, "actions", actions, lanes, &self.spaces.action.shape())?;
        let mut obs = self.observations(lanes)?;
        let (mut rewards, mut terminateds, mut truncateds) = (vec![0.0; lanes], vec![false; lanes], vec![false; lanes]);
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let moments = Moments { streams: self.env_step, lanes: &self.moments, mark: None };
        let stepped = self.env.step(actions.array()?, moments, obs.array_mut()?, out);
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
        Ok(Stepped { obs, rewards, terminateds, truncateds, last: has_ended.then_some(last) })
    }

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
        match lane.and_then(|lane| Some((lane, self.moments.get(lane)?))) {
            Some((lane, Moment { episode, t, .. })) => {
                Failure::new(Kind::Env, format!("environment {lane} in step {t} of episode {episode}: {source}"))
            }
            None => source.into(),
        }
    }
}
