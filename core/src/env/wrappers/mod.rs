//! Environments around environments.
//!
//! A wrapper is an [`Env`] around another one, forwards what it does not change (picture and infos always), and adds its
//! state in front of the inner one's snapshot, so that wrappers can be put into each other in any order. All randomness
//! of a wrapper comes from the given [`Rng`], no step allocates, and a snapshot may come from anybody.
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`TimeLimit`] | truncates episodes after a number of steps |
//! | [`ClipReward`] | takes the sign of rewards, or limits them |
//! | [`NormalizeReward`] | divides rewards by the deviation of their discounted sum |
//! | [`FrameStack`] | shows the last observations together |
//! | [`ScaleObs`] | bytes as floats from 0 to 1 |
//! | [`GreyScale`], [`Resize`] | smaller images |
//! | [`RecordEpisode`] | keeps episodes to be looked at |
//! | [`NoopReset`], [`FireReset`], [`SkipFrames`], [`EpisodicLife`] | the ways of Atari games |
//! | [`deepmind()`] | all that an Atari game needs |
//!
//! An environment of many lanes, as those of [`classic`](super::classic) are, is wrapped as a [`Lane`](super::Lane).
//!
//! A registered environment's time limit is the sampler's, see [`EnvSpec`](super::EnvSpec): a wrapper is for what is
//! part of the problem.
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

mod clip_reward;
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

pub use clip_reward::{ClipReward, RewardClip};
pub use deepmind::{DeepMind, DeepMindOptions, deepmind};
pub use episodic_life::EpisodicLife;
pub use fire_reset::FireReset;
pub use frame_stack::FrameStack;
pub use image::{GreyScale, Resize, ScaleObs};
pub use noop_reset::NoopReset;
pub use normalize_reward::NormalizeReward;
pub use record_episode::{RecordEpisode, Recording};
pub use skip_frames::SkipFrames;
pub use time_limit::TimeLimit;

use super::{Env, EnvError, Rng};
use crate::{
    column::{DType, RowShape},
    prelude::*,
    space::{Scalar, SpaceError},
};

/// Why a wrapper does not fit an environment.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WrapError {
    /// The observations are not images, or not of the wanted kind.
    #[error("observations are {space}, the wrapper needs images of uint8, {wanted}")]
    NotAnImage {
        /// The observation space.
        space: String,
        /// The shape that is needed.
        wanted: &'static str,
    },
    /// The observations would be no space.
    #[error("the wrapped observations make no space: {0}")]
    BadSpace(#[from] SpaceError),
    /// A row shape has no room for one more axis.
    #[error("observations of shape {0} cannot get one more axis")]
    TooManyAxes(RowShape),
    /// Rows of the environment's space have another element type.
    #[error("observations are {space}, but rows of {found}")]
    WrongType {
        /// The observation space.
        space: String,
        /// Element type of the rows.
        found: DType,
    },
    /// The wrapper would take an action that the environment does not have.
    #[error("the wrapper takes action {action}, which is not in the action space {space}")]
    NoSuchAction {
        /// The action.
        action: String,
        /// The action space.
        space: String,
    },
}

/// An action that a wrapper is going to take by itself.
fn check_action<E: Env<Act: Scalar>>(env: &E, action: &[E::Act]) -> Result<(), WrapError> {
    let space = env.action_space();
    if space.contains_row(action) == Ok(true) && env.accepts(action) {
        return Ok(());
    }
    Err(WrapError::NoSuchAction { action: format!("{action:?}"), space: space.to_string() })
}

/// The action that does nothing: zeros.
fn noop<E: Env<Act: Scalar>>(env: &E) -> Result<Vec<E::Act>, WrapError> {
    let noop = vec![E::Act::default(); env.action_space().shape().elements()];
    check_action(env, &noop)?;
    Ok(noop)
}

/// A game in which the player has lives.
pub trait Lives {
    /// Lives left, 0 when the game is over.
    fn lives(&self) -> u32;
}

/// The state of a wrapper that has none of its own.
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

/// A step on the way to the first observation; an episode that it ends gives way to another one.
fn step_in_reset<E: Env>(env: &mut E, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
    let step = env.step(action, rng, obs)?;
    if step.terminated || step.truncated { env.reset(rng, obs) } else { Ok(()) }
}

/// The types, the spaces, the picture and the infos of an environment whose rows a wrapper leaves as they are.
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
                /// The environment inside.
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
