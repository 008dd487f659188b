//! Games with coloured screens, as DeepMind's agents see them.

use super::EnvSource;
use crate::{
    column::DType,
    config::{Config, ConfigError},
    env::{
        AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvSpec, Lane, Typed, Vectorized,
        wrappers::{DeepMindOptions, deepmind},
    },
    kernels::Kernels,
    prelude::*,
    preprocess::image::Size,
    space::Space,
};

/// Settings of a model that are for the game's wrappers and not for the policy.
pub(super) const WRAPPER_SETTINGS: [&str; 2] = ["dim", "framestack"];

/// The most pixels in a row or column, and the most pictures that are seen together.
const MAX_DIM: u16 = 1_024;
const MAX_FRAME_STACK: u16 = 64;

/// True for a game that is wrapped: pictures of bytes in three colours, at least 64 x 64, and numbered actions.
pub(super) fn is_game(spaces: &EnvSpaces) -> bool {
    let Space::Box(screen) = &spaces.observation else { return false };
    let large = matches!(screen.shape().dims(), [height, width, 3] if *height >= 64 && *width >= 64);
    let bytes = screen.dtype() == DType::U8 && spaces.observation_type == DType::U8;
    large && bytes && matches!(spaces.action, Space::Discrete { .. }) && spaces.action_type == DType::I64
}

/// Size and number of pictures, from the settings of models; names as in RLlib.
pub(super) fn options(model: &Config, env: &str) -> Result<DeepMindOptions, ConfigError> {
    let dim = model.get::<u16>("dim")?.unwrap_or(84);
    let stack = match model.get::<bool>("framestack") {
        Ok(Some(false)) => 1,
        Ok(_) => 4,
        // A number of pictures is fine, too.
        Err(_) => model.get::<u16>("framestack")?.unwrap_or(4),
    };
    for (name, value, max) in [("dim", dim, MAX_DIM), ("framestack", stack, MAX_FRAME_STACK)] {
        if !(1..=max).contains(&value) {
            return Err(ConfigError::BadValue { name: name.into(), reason: format!("it is from 1 to {max}") });
        }
    }
    let default = DeepMindOptions::default();
    // Games that say so in their names show every frame; all others skip some by themselves.
    let frame_skip = if env.contains("NoFrameskip") { default.frame_skip } else { 1 };
    Ok(DeepMindOptions { size: Size::new(dim, dim), frame_stack: stack, frame_skip, ..default })
}

impl EnvSpec {
    /// The environment as a worker with the usual preprocessing sees it: a game with a coloured screen in DeepMind's
    /// wrappers, with `dim` and `framestack` of a model's settings; any other as it is.
    ///
    /// # Errors
    /// As [`make`](Self::make); [`EnvError::Config`] for settings of the wrappers that make no sense.
    pub fn preprocessed(&self, context: &EnvContext, model: &Config) -> Result<Self, EnvError> {
        if !is_game(&self.spaces_in(context)?) {
            return Ok(self.clone());
        }
        let options = options(model, &self.name).map_err(EnvError::Config)?;
        let EnvSource::Single { factory, .. } = EnvSource::of_spec(self).wrapped(options) else {
            return Ok(self.clone());
        };
        let mut wrapped = Self::fallible(self.name.clone(), move |contexts, kernels| factory(contexts, kernels));
        (wrapped.max_episode_steps, wrapped.reward_threshold) = (self.max_episode_steps, self.reward_threshold);
        wrapped.settings.clone_from(&self.settings);
        Ok(wrapped)
    }
}

impl EnvSource {
    /// The same games in wrappers, for a source of environments with a single agent.
    pub(super) fn wrapped(self, options: DeepMindOptions) -> Self {
        let Self::Single { factory, limit, name } = self else { return self };
        let wrapped = move |contexts: &[EnvContext], kernels: Kernels| -> Result<Box<dyn AnyVectorEnv>, EnvError> {
            let wrap = |context: &EnvContext| {
                let game = Typed::<u8, i64>::new(factory(core::slice::from_ref(context), kernels)?)?;
                deepmind(Lane::new(game), options).map_err(|error| EnvError::Failed(error.to_string()))
            };
            Ok(Box::new(Vectorized::new(contexts.iter().map(wrap).collect::<Result<Vec<_>, EnvError>>()?)))
        };
        Self::Single { factory: Arc::new(wrapped), limit, name }
    }
}
