//! Small arcade games on a grid of 10 x 10 cells, one channel per kind of thing.
//!
//! The rules are those of MinAtar (Young and Tian: "MinAtar: An Atari-inspired testbed for thorough and reproducible
//! reinforcement learning experiments", 2019), reimplemented. Actions are each game's own moves, without those that have no
//! effect. Only Freeway has an end without a loss, after 2,500 frames; the others are registered with a generous time limit
//! of 10,000, so that no episode lasts forever. Both limits truncate.
//!
//! ```
//! use rollmesh_core::{
//!     env::{Env, pixel},
//!     ids::SlotId,
//!     rng::{Purpose, Streams},
//! };
//!
//! let mut game = pixel::Pixel::<pixel::Breakout>::default();
//! let mut obs = vec![0; game.observation_space().shape().elements()];
//! game.reset(&mut Streams::new(7, Purpose::Reset).at(SlotId(0), 0, 0, 0), &mut obs)?;
//!
//! // A picture of it: 10 x 10 pixels, thirty bricks among them, one of which is behind the ball.
//! let channels = pixel::channels("PixelBreakout-v0").expect("a game of this module");
//! let mut rgb = [0; 300];
//! pixel::draw(channels, &obs, &mut rgb);
//! let brick = channels.iter().find(|channel| channel.name == "brick").expect("one of its channels").rgb;
//! assert_eq!(rgb.chunks(3).filter(|pixel| **pixel == brick).count(), 29);
//! # Ok::<(), rollmesh_core::env::EnvError>(())
//! ```

mod asterix;
mod breakout;
mod freeway;
mod game;
mod grid;
mod invaders;
mod palette;
mod seaquest;

pub use asterix::Asterix;
pub use breakout::Breakout;
pub use freeway::Freeway;
pub use game::{Game, GameFrame, Move, Pixel};
pub use grid::{Bits, Cells, SIDE};
pub use invaders::Invaders;
pub use palette::{BACKGROUND, Channel, draw};
pub use seaquest::Seaquest;

use super::{EnvRegistry, EnvSpec, Vectorized};
use crate::prelude::*;

/// Returns the channels of a game by its registered name, for example `PixelBreakout-v0`, to [`draw`] its observations.
#[must_use]
pub fn channels(name: &str) -> Option<&'static [Channel]> {
    match name {
        "PixelAsterix-v0" => Some(Asterix::CHANNELS),
        "PixelBreakout-v0" => Some(Breakout::CHANNELS),
        "PixelFreeway-v0" => Some(Freeway::CHANNELS),
        "PixelInvaders-v0" => Some(Invaders::CHANNELS),
        "PixelSeaquest-v0" => Some(Seaquest::CHANNELS),
        _ => None,
    }
}

/// Registers the environments of this module.
pub(super) fn register(registry: &mut EnvRegistry) {
    registry.register(spec::<Asterix>("PixelAsterix-v0", 10_000));
    registry.register(spec::<Breakout>("PixelBreakout-v0", 10_000));
    registry.register(spec::<Freeway>("PixelFreeway-v0", 2_500));
    registry.register(spec::<Invaders>("PixelInvaders-v0", 10_000));
    registry.register(spec::<Seaquest>("PixelSeaquest-v0", 10_000));
}

fn spec<G: Game + 'static>(name: &str, max_episode_steps: u32) -> EnvSpec {
    let factory = |lanes: usize| Vectorized::new((0..lanes).map(|_| Pixel::<G>::default()).collect());
    EnvSpec::new(name, move |contexts, _| Box::new(factory(contexts.len())))
        .with_settings(&[])
        .with_max_episode_steps(max_episode_steps)
}

#[cfg(test)]
mod tests;
