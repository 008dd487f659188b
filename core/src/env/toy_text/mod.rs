//! Gymnasium's toy text problems, exact to Gymnasium 1.4: environments with numbered states.
//!
//! Each is an [`Mdp`], a table that planners can use as well, and [`TabularEnv`] steps many lanes in it.
//!
//! ```
//! use rollmesh_core::{
//!     env::{
//!         VectorEnv as _,
//!         toy_text::{FrozenLakeMap, FrozenLakeOptions, Mdp, TabularEnv},
//!     },
//! };
//!
//! let map = FrozenLakeMap::new(&["SFG"])?;
//! let dry = FrozenLakeOptions { is_slippery: false, ..FrozenLakeOptions::default() };
//! let lake = Mdp::frozen_lake(&map, dry);
//! let (right, values) = (2, [0.0, 1.0, 0.0]); // values of the states, one step before the goal
//! let value: f64 = lake.outcomes(0, right).map(|(p, to)| p * (to.reward + 0.5 * values[usize::from(to.state)])).sum();
//! assert_eq!(value, 0.5);
//!
//! let env = TabularEnv::new(1024, lake);
//! assert_eq!(env.observation_space().to_string(), "Discrete(3)");
//! # Ok::<(), rollmesh_core::env::toy_text::MapError>(())
//! ```

mod cliff_walking;
mod frozen_lake;
mod frozen_lake_map;
mod grid;
mod lake_settings;
mod mdp;
mod pictures;
mod tabular_env;
mod taxi;

pub use frozen_lake::FrozenLakeOptions;
pub use frozen_lake_map::{FrozenLakeMap, MapError};
pub use mdp::{Mdp, TableOutcome};
pub use tabular_env::TabularEnv;

use super::{EnvRegistry, EnvSpec};
use crate::prelude::*;
use lake_settings::LakeSettings;

/// Registers the environments of this module.
pub(super) fn register(registry: &mut EnvRegistry) {
    // All instances share one table.
    let spec = |name, mdp: Mdp| {
        let mdp = Arc::new(mdp);
        EnvSpec::new(name, move |contexts, _| Box::new(TabularEnv::new(contexts.len(), mdp.clone()))).with_settings(&[])
    };
    let lake = |name, map: FrozenLakeMap| {
        let usual = Arc::new(Mdp::frozen_lake(&map, FrozenLakeOptions::default()));
        EnvSpec::fallible(name, move |contexts, _| {
            let mdp = match contexts.first().filter(|context| !context.config.is_empty()) {
                None => usual.clone(),
                Some(context) => Arc::new(LakeSettings::read(&context.config)?.lake(&map)),
            };
            Ok(Box::new(TabularEnv::new(contexts.len(), mdp)))
        })
        .with_settings(LakeSettings::NAMES)
    };
    let small = lake("FrozenLake-v1", FrozenLakeMap::small());
    registry.register(small.with_max_episode_steps(100).with_reward_threshold(0.7));
    let large = lake("FrozenLake8x8-v1", FrozenLakeMap::large());
    registry.register(large.with_max_episode_steps(200).with_reward_threshold(0.85));
    registry.register(spec("CliffWalking-v1", Mdp::cliff_walking()));
    registry.register(spec("Taxi-v4", Mdp::taxi()).with_max_episode_steps(200).with_reward_threshold(8.0));
}
