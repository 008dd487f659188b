//! Atari games as DeepMind's agents see them.

use super::{EpisodicLife, FireReset, FrameStack, GreyScale, Lives, NoopReset, Resize, SkipFrames, WrapError};
use crate::{env::Env, preprocess::image::Size};

/// An Atari game in DeepMind's wrappers, the innermost first: [`NoopReset`], [`SkipFrames`], [`EpisodicLife`],
/// [`FireReset`], [`GreyScale`], [`Resize`], [`FrameStack`].
pub type DeepMind<E> = FrameStack<Resize<GreyScale<FireReset<EpisodicLife<SkipFrames<NoopReset<E>>>>>>>;

/// What of an Atari game an agent sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepMindOptions {
    /// The most steps without action at the beginning of a game.
    pub noop_max: u32,
    /// Frames that an action lasts; 1 for games that skip frames by themselves.
    pub frame_skip: u32,
    /// The game has a fire button, action 1, and waits for it.
    pub fire_reset: bool,
    /// Size of the images.
    pub size: Size,
    /// How many frames are seen together.
    pub frame_stack: u16,
}

impl Default for DeepMindOptions {
    fn default() -> Self {
        Self { noop_max: 30, frame_skip: 4, fire_reset: false, size: Size::new(84, 84), frame_stack: 4 }
    }
}

/// Wraps an Atari game as RLlib's `wrap_deepmind` does, in the same order. Its frames are (height, width, 3), action 0
/// does nothing.
///
/// RLlib clips the rewards of these games to their sign too, but in the sampler and not here, so that metrics have the
/// real ones.
///
/// # Errors
/// [`WrapError`] for observations that are no colour images, and sizes that are none.
#[doc(alias = "wrap_deepmind")]
pub fn deepmind<E>(env: E, options: DeepMindOptions) -> Result<DeepMind<E>, WrapError>
where
    E: Env<Obs = u8, Act = i64> + Lives,
{
    let env = SkipFrames::new(NoopReset::new(env, options.noop_max), options.frame_skip);
    let env = FireReset::new(EpisodicLife::new(env), if options.fire_reset { &[1, 2] } else { &[] });
    FrameStack::new(Resize::new(GreyScale::new(env)?, options.size)?, options.frame_stack)
}
