//! Atari games as DeepMind's agents see them.

use super::{
    EpisodicLife, FireReset, FrameStack, GreyScale, Lives, NoopReset, Resize, SkipFrames, TimeLimit, WrapError,
};
use crate::{env::Env, preprocess::image::Size};

/// An Atari game in DeepMind's wrappers, the innermost first: [`TimeLimit`], [`NoopReset`], [`SkipFrames`],
/// [`EpisodicLife`], [`FireReset`], [`GreyScale`], [`Resize`], [`FrameStack`].
pub type DeepMind<E> = FrameStack<Resize<GreyScale<FireReset<EpisodicLife<SkipFrames<NoopReset<TimeLimit<E>>>>>>>>;

/// What of an Atari game an agent sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepMindOptions {
    /// Frames after which a whole game is truncated and then reset, however many lives are left. A registered
    /// environment's time limit cannot do that: it ends an episode, which [`EpisodicLife`] goes on from in the same
    /// game.
    pub max_frames: u32,
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
        // Half an hour at 60 frames a second, as Gymnasium's Atari games have it.
        Self {
            max_frames: 108_000,
            noop_max: 30,
            frame_skip: 4,
            fire_reset: false,
            size: Size::new(84, 84),
            frame_stack: 4,
        }
    }
}

/// Wraps an Atari game as RLlib's `wrap_deepmind` does, in the same order. Its frames are (height, width, 3), action 0
/// does nothing.
///
/// RLlib clips the rewards of these games to their sign too, but in the sampler and not here, so that metrics have the
/// real ones.
///
/// # Errors
/// [`WrapError`] for observations that are no colour images, sizes that are none, and games without the actions that
/// the wrappers take.
#[doc(alias = "wrap_deepmind")]
pub fn deepmind<E>(env: E, options: DeepMindOptions) -> Result<DeepMind<E>, WrapError>
where
    E: Env<Obs = u8, Act = i64> + Lives,
{
    let env = NoopReset::new(TimeLimit::new(env, options.max_frames), options.noop_max)?;
    let env = EpisodicLife::new(SkipFrames::new(env, options.frame_skip))?;
    let env = FireReset::new(env, if options.fire_reset { &[1, 2] } else { &[] })?;
    FrameStack::new(Resize::new(GreyScale::new(env)?, options.size)?, options.frame_stack)
}
