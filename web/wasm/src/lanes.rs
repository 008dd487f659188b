//! Environments with one agent each, stepped from JavaScript.

use js_sys::{Array, Float64Array, Object, Uint8Array, Uint8ClampedArray};
use rollmesh_core::{
    column::Column,
    config::Config,
    env::{AnyVectorEnv, EnvContext, EnvError, EnvSpaces, Frame, Moment, Moments, StepOut},
    ids::SlotId,
    kernels::Kernels,
    rng::{Purpose, Streams},
    worker::{RegisteredEnv, WorkerPlace},
};
use wasm_bindgen::prelude::*;

use crate::{
    Failure,
    columns::{self, set},
    envs,
};

/// The largest number of environments of a vector environment.
const MAX_ENVS: u32 = SlotId::MAX_PER_RUN;

/// A vector environment. Its random numbers are those of a worker with the same seed and number of environments.
#[wasm_bindgen]
pub struct LanesHandle {
    env: Box<dyn AnyVectorEnv>,
    spaces: EnvSpaces,
    /// The number of steps after which an episode is truncated.
    limit: u32,
    moments: Vec<Moment>,
    has_begun: bool,
    reset: Streams,
    env_step: Streams,
}

#[wasm_bindgen]
impl LanesHandle {
    /// Creates environments of a registered name, with settings as JSON.
    #[wasm_bindgen(constructor)]
    pub fn new(name: &str, config: &str, num_envs: u32, seed: u64) -> Result<Self, Failure> {
        if !(1..=MAX_ENVS).contains(&num_envs) {
            return Err(Failure::config(format!("numEnvs is {num_envs}; it is a number from 1 to {MAX_ENVS}")));
        }
        let config: Config = config.parse().map_err(Failure::config)?;
        let registry = envs::registry();
        let spec = match registry.env(name).map_err(Failure::config)? {
            RegisteredEnv::SingleAgent(spec) => spec,
            _ => {
                let reason =
                    format!("'{name}' has several agents; VectorEnv steps environments with one, RolloutWorker all");
                return Err(Failure::config(reason));
            }
        };
        let context = |index| EnvContext::new(WorkerPlace::LOCAL.home(index)).with_config(config.clone());
        let contexts: Vec<EnvContext> = (0..num_envs).map(context).collect();
        let env = spec.make(&contexts, Kernels::PORTABLE)?;
        let moment = |slot| Moment { slot: SlotId(slot), ..Moment::default() };
        Ok(Self {
            spaces: EnvSpaces::of(env.as_ref()),
            env,
            limit: spec.max_episode_steps.unwrap_or(u32::MAX),
            moments: (0..num_envs).map(moment).collect(),
            has_begun: false,
            reset: Streams::new(seed, Purpose::Reset),
            env_step: Streams::new(seed, Purpose::EnvStep),
        })
    }

    /// Returns the spaces as JSON.
    #[wasm_bindgen(getter)]
    pub fn spaces(&self) -> Result<String, Failure> {
        crate::spaces_json(&self.spaces)
    }

    /// Begins the next episode in every lane. Returns the first observations, row by row.
    pub fn reset(&mut self) -> Result<Array, Failure> {
        let begun = std::mem::replace(&mut self.has_begun, true);
        (0..self.moments.len()).map(|lane| self.begin(lane, begun)).collect()
    }

    /// Takes a step in every lane with actions in a typed array. `ends` lists the lanes whose episodes have ended, and
    /// the first observations of their next episodes.
    pub fn step(&mut self, actions: &JsValue) -> Result<Object, Failure> {
        if !self.has_begun {
            return Err(Failure::new("environment", "no episode has begun: call reset first"));
        }
        let lanes = self.moments.len();
        let EnvSpaces { observation, observation_type, action, action_type } = &self.spaces;
        let actions = columns::of_array(*action_type, action.shape(), actions).map_err(Failure::actions)?;
        if actions.rows() != lanes {
            return Err(Failure::actions(format!(
                "there are {} rows, one for each of {lanes} is wanted",
                actions.rows()
            )));
        }
        let mut obs = Column::zeros((*observation_type).into(), observation.shape(), lanes)?;
        let (mut rewards, mut terminateds, mut truncateds) = (vec![0.0; lanes], vec![false; lanes], vec![false; lanes]);
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        let moments = Moments { streams: self.env_step, lanes: &self.moments, mark: None };
        let stepped = self.env.step(actions.array()?, moments, obs.array_mut()?, out);
        stepped.map_err(|error| self.located(None, error))?;
        let ends = Array::new();
        for lane in 0..lanes {
            self.moments[lane].t = self.moments[lane].t.saturating_add(1);
            truncateds[lane] |= self.moments[lane].t >= self.limit;
            if terminateds[lane] || truncateds[lane] {
                ends.push(&Array::of2(&(lane as u32).into(), &self.begin(lane, true)?));
            }
        }
        let flags = |flags: Vec<bool>| Uint8Array::from(&flags.into_iter().map(u8::from).collect::<Vec<_>>()[..]);
        let object = Object::new();
        set(&object, "observations", &columns::array(&obs)?);
        set(&object, "rewards", &Float64Array::from(&rewards[..]));
        set(&object, "terminateds", &flags(terminateds));
        set(&object, "truncateds", &flags(truncateds));
        set(&object, "ends", &ends);
        Ok(object)
    }

    /// Returns the picture of an environment, if it has one.
    pub fn picture(&self, lane: usize) -> Result<JsValue, Failure> {
        picture(|frame| self.env.render_at(lane, frame))
    }
}

impl LanesHandle {
    /// Begins an episode in a lane, with the next number if `next`. Returns its first observation.
    fn begin(&mut self, lane: usize, next: bool) -> Result<JsValue, Failure> {
        let moment = &mut self.moments[lane];
        *moment = Moment { episode: moment.episode.wrapping_add(u32::from(next)), t: 0, ..*moment };
        let mut rng = self.reset.at(moment.slot, moment.episode, 0, 0);
        let mut obs: Column = Column::zeros(self.spaces.observation_type.into(), self.spaces.observation.shape(), 1)?;
        let reset = self.env.reset_at(lane, &mut rng, obs.array_mut()?);
        reset.map_err(|error| self.located(Some(lane), error))?;
        Ok(columns::array(&obs)?)
    }

    /// Adds the episode and step to an error of a lane, if the lane is known.
    fn located(&self, lane: Option<usize>, error: EnvError) -> Failure {
        let (lane, source) = match error {
            EnvError::InLane { lane, source } => (Some(lane), *source),
            error => (lane.or_else(|| (self.moments.len() == 1).then_some(0)), error),
        };
        match lane.and_then(|lane| self.moments.get(lane)) {
            Some(moment) => Failure::at(moment.slot.0, Some((moment.episode, moment.t)), source),
            None => source.into(),
        }
    }
}

/// Returns the drawing as `width`, `height` and the RGBA bytes of an `ImageData`; `undefined` without a drawing.
pub(crate) fn picture(draw: impl FnOnce(&mut Frame) -> bool) -> Result<JsValue, Failure> {
    let mut frame = Frame::new();
    if !envs::drawing(|| draw(&mut frame))? {
        return Ok(JsValue::UNDEFINED);
    }
    let (pixels, _) = frame.rgb().as_chunks();
    let rgba: Vec<u8> = pixels.iter().flat_map(|[red, green, blue]| [*red, *green, *blue, 255]).collect();
    let object = Object::new();
    set(&object, "width", &frame.width().into());
    set(&object, "height", &frame.height().into());
    set(&object, "data", &Uint8ClampedArray::from(&rgba[..]));
    Ok(object.into())
}
