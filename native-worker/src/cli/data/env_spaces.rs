//! The spaces that rows of an environment may have.

use rollmesh_core::{
    env::EnvContext,
    ids::HomeIndex,
    worker::{RolloutConfig, config::PreprocessorPref},
};
use rollmesh_data::survey::RowSpaces;

use crate::{
    Registry,
    cli::{exit::Failure, python::allow},
};

/// Returns the spaces that rows of an environment may have: its own, or those that all of its agents share, and those of
/// policies' observations. Workers wrap games with coloured screens as for DeepMind's agents, so their rows may be of the
/// wrappers' space.
pub(super) fn row_spaces(env: &str, registry: &Registry) -> Result<RowSpaces, Failure> {
    allow(env);
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
    if let Some(spec) = registry.envs.multi_agent(env) {
        return spec.shared_spaces(&context).map(RowSpaces::new).map_err(Failure::usage);
    }
    let spec = registry.envs.spec(env).map_err(Failure::usage)?;
    let spaces = spec.spaces_in(&context).map_err(Failure::usage)?;
    // The wrappers take pictures, and another instance of an environment may be expensive.
    let is_picture = spaces.observation.shape().dims().len() == 3;
    let spaces = RowSpaces::new(spaces);
    if !is_picture {
        return Ok(spaces);
    }
    let config = RolloutConfig { preprocessor_pref: PreprocessorPref::DeepMind, ..RolloutConfig::default() };
    let wrapped = spec.preprocessed(&context, &config).and_then(|spec| spec.spaces_in(&context));
    Ok(spaces.with_observation(wrapped.map_err(Failure::usage)?.observation))
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        column::{ColumnData, DType, RowShape},
        env::{Env, EnvError, EnvSpec, Rng, Step, Vectorized},
        space::{BoxSpace, Space},
    };

    use super::*;

    /// A game with a dark screen.
    struct Game;

    impl Env for Game {
        type Obs = u8;
        type Act = i64;

        fn observation_space(&self) -> Space {
            let screen = RowShape::new(&[210, 160, 3]).expect("a screen is a shape");
            Space::Box(BoxSpace::uniform(DType::U8, screen, 0.0, 255.0).expect("bytes are valid bounds"))
        }

        fn action_space(&self) -> Space {
            Space::Discrete { n: 4 }
        }

        fn reset(&mut self, _: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
            obs.fill(0);
            Ok(())
        }

        fn step(&mut self, _: &[i64], _: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
            obs.fill(0);
            Ok(Step::default())
        }
    }

    #[test]
    fn agents_that_share_their_spaces_have_them() {
        let of = |env: &str| row_spaces(env, &Registry::builtin()).map_err(|failure| failure.to_string());
        assert_eq!(of("MultiAgentCartPole-v1").unwrap().env.action, Space::Discrete { n: 2 });
        assert!(of("CartPole-v9").unwrap_err().contains("there is no environment 'CartPole-v9'"));
    }

    #[test]
    fn rows_of_game_may_be_screens_or_wrapped_pictures() {
        let env = EnvSpec::new("ALE/Game-v0", |contexts, _| {
            Box::new(Vectorized::new(contexts.iter().map(|_| Game).collect()))
        });
        let spaces = row_spaces("ALE/Game-v0", &Registry::builtin().with_env(env)).unwrap_or_else(|_| panic!("a game"));
        let of = |dims: &[u32]| {
            let shape = RowShape::new(dims).unwrap();
            let column = ColumnData::new(vec![7_u8; shape.elements()], shape).unwrap();
            spaces.observation_of(&column.into()).map(|space| space.shape().dims().to_vec())
        };
        assert_eq!(of(&[210, 160, 3]), Some(vec![210, 160, 3]));
        assert_eq!(of(&[84, 84, 4]), Some(vec![84, 84, 4]));
        assert_eq!(of(&[84, 84]), None);
    }
}
