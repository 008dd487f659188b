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
    run::{PreprocessorPref, RolloutConfig},
    space::Space,
};

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
    /// The environment as a worker of this configuration sees it: with [`PreprocessorPref::DeepMind`] a game with a coloured
    /// screen in DeepMind's wrappers, with `dim` and `framestack` of the model's settings; any other as it is.
    ///
    /// # Errors
    /// As [`make`](Self::make); [`EnvError::Config`] for settings of the wrappers that make no sense.
    pub fn preprocessed(&self, context: &EnvContext, config: &RolloutConfig) -> Result<Self, EnvError> {
        let wrapped = self.in_wrappers(&self.spaces_in(context)?, config)?;
        Ok(wrapped.unwrap_or_else(|| self.clone()))
    }

    /// [`preprocessed`](Self::preprocessed), for an environment of these spaces; none if it stays as it is.
    ///
    /// # Errors
    /// [`EnvError::Config`] as there.
    pub(crate) fn in_wrappers(&self, spaces: &EnvSpaces, config: &RolloutConfig) -> Result<Option<Self>, EnvError> {
        if config.preprocessor_pref != PreprocessorPref::DeepMind || !is_game(spaces) {
            return Ok(None);
        }
        let options = options(&config.model_config, &self.name).map_err(EnvError::Config)?;
        let EnvSource::Single { factory, .. } = EnvSource::of_spec(self).wrapped(options) else { return Ok(None) };
        let mut wrapped = Self::fallible(self.name.clone(), move |contexts, kernels| factory(contexts, kernels));
        (wrapped.max_episode_steps, wrapped.reward_threshold) = (self.max_episode_steps, self.reward_threshold);
        wrapped.settings.clone_from(&self.settings);
        Ok(Some(wrapped))
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
