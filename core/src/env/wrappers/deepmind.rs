//! DeepMind's preprocessing of Atari games.

use super::{
    EpisodicLife, FireReset, FrameStack, GreyScale, Lives, NoopReset, Resize, SkipFrames, TimeLimit, WrapError,
};
use crate::{env::Env, preprocess::image::Size};

/// An Atari game in DeepMind's wrappers, the innermost first: [`TimeLimit`], [`NoopReset`], [`SkipFrames`],
/// [`EpisodicLife`], [`FireReset`], [`GreyScale`], [`Resize`], [`FrameStack`].
pub type DeepMind<E> = FrameStack<Resize<GreyScale<FireReset<EpisodicLife<SkipFrames<NoopReset<TimeLimit<E>>>>>>>>;

/// Options of DeepMind's preprocessing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepMindOptions {
    /// Frames after which a whole game is truncated and then reset, however many lives are left. A registered environment's
    /// time limit cannot do that: it ends an episode, after which [`EpisodicLife`] continues in the same game.
    pub max_frames: u32,
    /// Most steps without action at the beginning of a game.
    pub noop_max: u32,
    /// Frames per action; 1 for games that skip frames themselves.
    pub frame_skip: u32,
    /// Whether the game has a fire button, action 1, and waits for it.
    pub fire_reset: bool,
    /// Size of the images.
    pub size: Size,
    /// Number of stacked frames.
    pub frame_stack: u16,
}

impl Default for DeepMindOptions {
    fn default() -> Self {
        // Half an hour at 60 frames a second, as in Gymnasium's Atari games.
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

/// Wraps an Atari game as RLlib's `wrap_deepmind` does, in the same order. Its frames must be (height, width, 3), and action
/// 0 must do nothing.
///
/// RLlib also clips the rewards of these games to their sign, but in the sampler and not here, so that metrics have the raw
/// rewards.
///
/// ```
/// use rollmesh_core::{
///     column::{DType, RowShape},
///     env::{EnvState,
///         Env, EnvError, EnvRegistry, EnvSpec, Rng, SnapshotReader, Step, Vectorized, check_env,
///         wrappers::{DeepMindOptions, Lives, deepmind},
///     },
///     preprocess::image::Size,
///     space::Space,
/// };
///
/// /// A red ball falls in one of four columns of a screen of 16 x 12 pixels; missing it costs a life.
/// #[derive(Clone, Default)]
/// struct Catch {
///     ball: [u8; 2],
///     player: u8,
///     lives: u8,
/// }
///
/// impl Catch {
///     fn draw(&self, obs: &mut [u8]) {
///         let [row, column] = self.ball;
///         for (i, pixel) in obs.chunks_exact_mut(3).enumerate() {
///             let (y, x) = (i / 12, i % 12 / 3);
///             let ball = y == usize::from(row) && x == usize::from(column);
///             let player = y == 15 && x == usize::from(self.player);
///             pixel.copy_from_slice(&[if ball { 255 } else { 0 }, 0, if player { 255 } else { 0 }]);
///         }
///     }
/// }
///
/// impl Lives for Catch {
///     fn lives(&self) -> u32 {
///         u32::from(self.lives)
///     }
/// }
///
/// impl Env for Catch {
///     type Obs = u8;
///     type Act = i64;
///
///     fn observation_space(&self) -> Space {
///         Space::uniform(DType::U8, RowShape::new(&[16, 12, 3]).unwrap_or(RowShape::SCALAR), 0.0, 255.0)
///     }
///     fn action_space(&self) -> Space {
///         Space::Discrete { n: 3 } // stay, left, right
///     }
///     fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
///         *self = Self { ball: [0, rng.below(4) as u8], player: 1, lives: 3 };
///         self.draw(obs);
///         Ok(())
///     }
///     fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
///         self.player = match action[0] {
///             1 => self.player.saturating_sub(1),
///             2 => (self.player + 1).min(3),
///             _ => self.player,
///         };
///         self.ball[0] += 1;
///         let (landed, caught) = (self.ball[0] == 15, self.ball[1] == self.player);
///         if landed {
///             self.lives = self.lives.saturating_sub(u8::from(!caught));
///             self.ball = [0, rng.below(4) as u8];
///         }
///         self.draw(obs);
///         let reward = f64::from(u8::from(landed && caught));
///         Ok(Step { reward, terminated: self.lives == 0, truncated: false })
///     }
///     fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
///         out.extend([self.ball[0], self.ball[1], self.player, self.lives]);
///         EnvState::Snapshot
///     }
///     fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
///         let mut reader = SnapshotReader::new(snapshot);
///         let ball = [reader.below(15)?, reader.below(4)?];
///         let (player, lives) = (reader.below(4)?, reader.below(4)?);
///         reader.finish()?;
///         *self = Self { ball, player, lives };
///         self.draw(obs);
///         Ok(())
///     }
/// }
///
/// let options = DeepMindOptions { size: Size::new(8, 6), max_frames: 1_000, ..DeepMindOptions::default() };
/// deepmind(Catch::default(), options)?; // check before registering that they fit
/// let spec = EnvSpec::new("Catch-v0", move |contexts, _kernels| {
///     let env = |_| deepmind(Catch::default(), options).expect("tried before");
///     Box::new(Vectorized::new(contexts.iter().map(env).collect()))
/// });
/// assert_eq!(spec.spaces()?.observation.shape().dims(), [8, 6, 4]);
/// check_env(&spec, 2)?;
/// let mut registry = EnvRegistry::builtin();
/// registry.register(spec);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`WrapError`] for observations that are not colour images, invalid sizes, and games without the actions that the wrappers
/// take.
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
