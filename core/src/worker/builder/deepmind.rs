//! DeepMind's preprocessing of games with coloured screens.

use crate::{
    column::DType,
    config::{Config, ConfigError},
    env::{
        EnvContext, EnvError, EnvSpaces, EnvSpec, Lane, Typed, Vectorized,
        wrappers::{DeepMindOptions, deepmind},
    },
    prelude::*,
    preprocess::image::Size,
    run::RolloutConfig,
    space::Space,
};

/// Most pixels in a row or column, and most stacked frames.
const MAX_DIM: u16 = 1_024;
const MAX_FRAME_STACK: u16 = 64;

/// Returns true for a game that can be wrapped: pictures of bytes in three colours, at least 64 x 64, and discrete actions.
pub(super) fn is_game(spaces: &EnvSpaces) -> bool {
    let Space::Box(screen) = &spaces.observation else { return false };
    let large = matches!(screen.shape().dims(), [height, width, 3] if *height >= 64 && *width >= 64);
    let bytes = screen.dtype() == DType::U8 && spaces.observation_type == DType::U8;
    large && bytes && matches!(spaces.action, Space::Discrete { .. }) && spaces.action_type == DType::I64
}

/// Reads size and number of stacked frames from the model's settings, under RLlib's names.
pub(super) fn options(model: &Config, env: &str) -> Result<DeepMindOptions, ConfigError> {
    let dim = model.get::<u16>("dim")?.unwrap_or(84);
    let stack = match model.get::<bool>("framestack") {
        Ok(Some(false)) => 1,
        Ok(_) => 4,
        // `framestack` may also be the number of frames.
        Err(_) => model.get::<u16>("framestack")?.unwrap_or(4),
    };
    for (name, value, max) in [("dim", dim, MAX_DIM), ("framestack", stack, MAX_FRAME_STACK)] {
        if !(1..=max).contains(&value) {
            return Err(ConfigError::BadValue { name: name.into(), reason: format!("it is from 1 to {max}") });
        }
    }
    let default = DeepMindOptions::default();
    // Games with this suffix return every frame; all others skip frames themselves.
    let frame_skip = if env.contains("NoFrameskip") { default.frame_skip } else { 1 };
    Ok(DeepMindOptions { size: Size::new(dim, dim), frame_stack: stack, frame_skip, ..default })
}

impl EnvSpec {
    /// Returns the environment as a worker of this configuration sees it: a game with a coloured screen that
    /// [`preprocessor_pref`](RolloutConfig::preprocessor_pref) wraps in DeepMind's wrappers, with `dim` and `framestack` of the
    /// model's settings; any other unchanged.
    ///
    /// # Errors
    /// As [`make`](Self::make); [`EnvError::Config`] for invalid settings of the wrappers.
    pub fn preprocessed(&self, context: &EnvContext, config: &RolloutConfig) -> Result<Self, EnvError> {
        let spaces = self.spaces_in(context)?;
        if !config.preprocessor_pref.wraps(&self.name) || !is_game(&spaces) {
            return Ok(self.clone());
        }
        let options = options(&config.model_config, &self.name).map_err(EnvError::Config)?;
        Ok(self.wrapped(options))
    }

    /// Returns an environment that makes the same games in wrappers.
    pub(super) fn wrapped(&self, options: DeepMindOptions) -> Self {
        let game = self.clone();
        self.made_by(move |contexts, kernels| {
            let wrap = |context: &EnvContext| {
                let game = Typed::<u8, i64>::new(game.make(core::slice::from_ref(context), kernels)?)?;
                deepmind(Lane::new(game), options).map_err(|error| EnvError::Failed(error.to_string()))
            };
            Ok(Box::new(Vectorized::new(contexts.iter().map(wrap).collect::<Result<Vec<_>, EnvError>>()?)))
        })
    }
}
