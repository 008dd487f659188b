//! Features common to all games: moves, sticky actions, the end, and snapshots.

use super::{Cells, Channel, SIDE, grid::CELLS, palette};
use crate::{
    column::{DType, RowShape},
    env::{self, Env, EnvError, EnvState, Rng, SnapshotReader, Step},
    prelude::*,
    space::Space,
};

/// Moves of the player. Each game has some of them, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Nothing.
    Stay,
    /// One cell to the left.
    Left,
    /// One cell up.
    Up,
    /// One cell to the right.
    Right,
    /// One cell down.
    Down,
    /// A shot.
    Fire,
}

/// The result of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GameFrame {
    /// Points.
    pub reward: u32,
    /// Whether the player has lost.
    pub over: bool,
}

/// The rules of a game on a grid of [`SIDE`] x [`SIDE`] cells, which [`Pixel`] makes an environment.
///
/// The state is small and bounded, and every state that [`read`](Self::read) accepts can be continued.
pub trait Game: Send + Clone + Default {
    /// The kinds of things, in the order of the observation's last axis.
    const CHANNELS: &'static [Channel];
    /// The moves that have an effect; action `i` is the move `MOVES[i]`.
    const MOVES: &'static [Move];

    /// Begins a new game.
    fn begin(&mut self, rng: &mut Rng);

    /// Plays one frame.
    fn play(&mut self, action: Move, rng: &mut Rng) -> GameFrame;

    /// Marks all things.
    fn show(&self, cells: &mut Cells<'_>);

    /// Appends the state.
    fn put(&self, out: &mut Vec<u8>);

    /// Decodes an untrusted state.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError>;
}

/// A game as an environment.
///
/// Observations are 0 and 1 of shape (10, 10, channels); actions are the game's own moves, without those that have no
/// effect. As in MinAtar, with a probability of 0.1 the last action is repeated instead of the given one (sticky actions).
#[derive(Clone, Debug)]
#[doc(alias = "MinAtar")]
pub struct Pixel<G> {
    game: G,
    sticky_action_prob: f32,
    /// The last action, an index of the game's moves.
    last: u8,
    over: bool,
}

impl<G: Game> Default for Pixel<G> {
    fn default() -> Self {
        Self { game: G::default(), sticky_action_prob: 0.1, last: 0, over: false }
    }
}

impl<G: Game> Pixel<G> {
    /// Sets the probability with which the last action is repeated: never for 0 and less and for NaN, always for 1 and more.
    #[must_use]
    pub const fn with_sticky_action_prob(mut self, probability: f32) -> Self {
        self.sticky_action_prob = probability;
        self
    }

    /// Returns the game.
    #[must_use]
    pub const fn game(&self) -> &G {
        &self.game
    }

    fn observe(&self, obs: &mut [u8]) {
        self.game.show(&mut Cells::clear(obs, G::CHANNELS.len()));
    }
}

impl<G: Game> Env for Pixel<G> {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        let side = SIDE as u32;
        // Three small dimensions are always a valid shape.
        let shape = RowShape::new(&[side, side, G::CHANNELS.len() as u32]).unwrap_or(RowShape::SCALAR);
        Space::uniform(DType::U8, shape, 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: G::MOVES.len() as u32 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        self.game.begin(rng);
        (self.last, self.over) = (0, false);
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        let chosen = action.first().and_then(|&action| u8::try_from(action).ok());
        let Some(chosen) = chosen.filter(|&chosen| usize::from(chosen) < G::MOVES.len()) else {
            return Err(EnvError::InvalidAction { lane: 0, action: format!("{action:?}") });
        };
        let frame = if self.over {
            GameFrame { reward: 0, over: true }
        } else {
            let repeats = rng.uniform_f32() < self.sticky_action_prob;
            if !repeats {
                self.last = chosen;
            }
            let action = G::MOVES.get(usize::from(self.last)).copied().unwrap_or(Move::Stay);
            self.game.play(action, rng)
        };
        self.over = frame.over;
        self.observe(obs);
        Ok(Step { reward: f64::from(frame.reward), terminated: frame.over, truncated: false })
    }

    fn render(&self, frame: &mut env::Frame) -> bool {
        let mut obs = vec![0; CELLS * G::CHANNELS.len()];
        self.observe(&mut obs);
        palette::render(G::CHANNELS, &obs, frame);
        true
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend([self.last, u8::from(self.over)]);
        self.game.put(out);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let (last, over) = (reader.below(G::MOVES.len() as u8)?, reader.bool()?);
        let game = G::read(&mut reader)?;
        reader.finish()?;
        (self.game, self.last, self.over) = (game, last, over);
        self.observe(obs);
        Ok(())
    }
}
