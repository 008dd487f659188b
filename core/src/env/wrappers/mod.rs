//! Wrappers around environments.
//!
//! A wrapper is an [`Env`] around another one, forwards what it does not change (always including rendering and infos), and
//! writes its state in front of the inner one's snapshot, so that wrappers can be nested in any order. All random numbers of
//! a wrapper come from the given [`Rng`], no step allocates, and snapshots are untrusted.
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`TimeLimit`] | truncates episodes after a number of steps |
//! | [`ClipReward`] | takes the sign of rewards, or limits them |
//! | [`NormalizeReward`] | divides rewards by the deviation of their discounted sum |
//! | [`FrameStack`] | stacks the last observations |
//! | [`ActionMasked`] | adds a mask of the possible actions |
//! | [`ScaleObs`] | converts bytes to floats from 0 to 1 |
//! | [`GreyScale`], [`Resize`] | smaller images |
//! | [`RecordEpisode`] | records episodes for inspection |
//! | [`NoopReset`], [`FireReset`], [`SkipFrames`], [`EpisodicLife`] | the conventions for Atari games |
//! | [`deepmind()`] | all wrappers for an Atari game |
//!
//! An environment of many lanes, as those of [`classic`](super::classic) are, is wrapped as a [`Lane`](super::Lane).
//!
//! A registered environment's time limit is enforced by the sampler, see [`EnvSpec`](super::EnvSpec): the wrapper is for a
//! limit that is part of the problem.
//!
//! ```
//! use rollmesh_core::env::{
//!     EnvSpec, Vectorized, check_env,
//!     pixel::{Breakout, Pixel},
//!     wrappers::{ClipReward, FrameStack, RewardClip, TimeLimit},
//! };
//!
//! let spec = EnvSpec::new("StackedBreakout-v0", |contexts, _kernels| {
//!     let env = || {
//!         let env = TimeLimit::new(Pixel::<Breakout>::default(), 1_000);
//!         FrameStack::new(ClipReward::new(env, RewardClip::Sign), 4).expect("four small images are a space")
//!     };
//!     Box::new(Vectorized::new(contexts.iter().map(|_| env()).collect()))
//! });
//! assert_eq!(spec.spaces()?.observation.shape().dims(), [10, 10, 16]);
//! check_env(&spec, 2)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action_masked;
mod clip_reward;
mod converted;
mod deepmind;
mod episodic_life;
mod fire_reset;
mod frame_stack;
mod image;
mod noop_reset;
mod normalize_reward;
mod record_episode;
mod skip_frames;
mod time_limit;

pub use action_masked::{ActionMasked, Mask};
pub use clip_reward::{ClipReward, RewardClip};
pub use converted::{Convert, Converted};
pub use deepmind::{DeepMind, DeepMindOptions, deepmind};
pub use episodic_life::EpisodicLife;
pub use fire_reset::FireReset;
pub use frame_stack::FrameStack;
pub use image::{Grey, GreyScale, Resize, ScaleObs, Unit};
pub use noop_reset::NoopReset;
pub use normalize_reward::NormalizeReward;
pub use record_episode::{RecordEpisode, Recording};
pub use skip_frames::SkipFrames;
pub use time_limit::TimeLimit;

use super::{Env, EnvError, Rng};
use crate::{
    column::{DType, RowShape},
    prelude::*,
    space::SpaceError,
};

/// The reason why a wrapper does not fit an environment.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WrapError {
    /// The observations are not images, or not of the required kind.
    #[error("observations are {space}, the wrapper needs images of uint8, {wanted}")]
    NotAnImage {
        /// The observation space.
        space: String,
        /// The required shape.
        wanted: &'static str,
    },
    /// The resulting observation space would be invalid.
    #[error("the wrapped observations make no space: {0}")]
    BadSpace(#[from] SpaceError),
    /// A row shape cannot have one more axis.
    #[error("observations of shape {0} cannot get one more axis")]
    TooManyAxes(RowShape),
    /// The rows' element type does not fit the environment's space.
    #[error("observations are {space}, but rows of {found}")]
    WrongType {
        /// The observation space.
        space: String,
        /// Element type of the rows.
        found: DType,
    },
    /// The actions are not finitely many.
    #[error("actions are {0}, the wrapper needs Discrete or MultiDiscrete ones")]
    NotDiscrete(String),
    /// The wrapper takes an action that the environment does not have.
    #[error("the wrapper takes action {action}, which is not in the action space {space}")]
    NoSuchAction {
        /// The action.
        action: String,
        /// The action space.
        space: String,
    },
}

/// Checks an action that a wrapper takes itself.
fn check_action<E: Env>(env: &E, action: &[E::Act]) -> Result<(), WrapError> {
    let space = env.action_space();
    if space.contains_row(action) == Ok(true) && env.accepts(action) {
        return Ok(());
    }
    Err(WrapError::NoSuchAction { action: format!("{action:?}"), space: space.to_string() })
}

/// Returns the action that does nothing: zeros.
fn noop<E: Env>(env: &E) -> Result<Vec<E::Act>, WrapError> {
    let noop = vec![E::Act::default(); env.action_space().shape().elements()];
    check_action(env, &noop)?;
    Ok(noop)
}

/// A game in which the player has lives.
pub trait Lives {
    /// Returns the number of lives left, 0 when the game is over.
    fn lives(&self) -> u32;
}

/// Implements the state of a wrapper without its own.
macro_rules! same_state {
    () => {
        fn snapshot(&self, out: &mut Vec<u8>) -> $crate::env::EnvState {
            self.env.snapshot(out)
        }

        fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
            self.env.restore(snapshot, obs)
        }
    };
}
use same_state;

/// Takes a step before the first observation; resets if that ends the episode.
fn step_in_reset<E: Env>(env: &mut E, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
    let step = env.step(action, rng, obs)?;
    if step.terminated || step.truncated { env.reset(rng, obs) } else { Ok(()) }
}

/// Implements the types, spaces, rendering and infos of a wrapper that does not change rows.
macro_rules! same_rows {
    () => {
        type Obs = E::Obs;
        type Act = E::Act;

        fn observation_space(&self) -> crate::space::Space {
            self.env.observation_space()
        }

        fn action_space(&self) -> crate::space::Space {
            self.env.action_space()
        }

        fn accepts(&self, action: &[E::Act]) -> bool {
            self.env.accepts(action)
        }

        fn render(&self, frame: &mut crate::env::Frame) -> bool {
            self.env.render(frame)
        }

        fn info(&self, out: &mut crate::prelude::Vec<u8>) -> bool {
            self.env.info(out)
        }
    };
}
use same_rows;

macro_rules! transparent {
    ($($wrapper:ident),+ $(,)?) => {
        $(
            impl<E: Env> $wrapper<E> {
                /// Returns the environment inside.
                #[must_use]
                pub const fn env(&self) -> &E {
                    &self.env
                }
            }

            impl<E: Env + Lives> Lives for $wrapper<E> {
                fn lives(&self) -> u32 {
                    self.env.lives()
                }
            }
        )+
    };
}

transparent!(ClipReward, EpisodicLife, FireReset, FrameStack, NoopReset);
transparent!(NormalizeReward, RecordEpisode, SkipFrames, TimeLimit);

#[cfg(test)]
mod arcade;
#[cfg(test)]
mod tests;
