//! A mock game in the format of Atari games, for tests.

use super::Lives;
use crate::{
    column::{DType, RowShape},
    env::{Env, EnvError, EnvState, Frame, Rng, SnapshotReader, Step},
    prelude::*,
    space::Space,
};

pub(super) const FRAME: usize = 210 * 160 * 3;

/// Height and width of the screen.
const SCREEN: [u32; 2] = [210, 160];

/// Three lives, one lost at about every fiftieth frame. The whole screen shows the number of the frame in red; the first row
/// flickers: it is white in every second frame. Once started with fire and up, action 2 gives 2.5 points per frame.
#[derive(Clone, Debug)]
pub(super) struct Arcade {
    pub(super) frame: u32,
    pub(super) lives: u32,
    pub(super) fired: bool,
    /// Frames of a life; `None` for a random length.
    pub(super) life: Option<u32>,
    pub(super) resets: u32,
    screen: [u32; 2],
}

impl Arcade {
    pub(super) fn new(life: Option<u32>) -> Self {
        Self { frame: 0, lives: 0, fired: false, life, resets: 0, screen: SCREEN }
    }

    /// Creates the same game with a screen of 21 x 16, for tests with many steps.
    pub(super) fn small() -> Self {
        Self { screen: SCREEN.map(|side| side / 10), ..Self::new(None) }
    }

    fn draw(&self, obs: &mut [u8]) {
        let red = (self.frame % 200) as u8;
        for (i, x) in obs.iter_mut().enumerate() {
            *x = if i % 3 == 0 { red } else { 0 };
        }
        if self.frame % 2 == 1 {
            obs.iter_mut().take(self.screen[1] as usize * 3).for_each(|x| *x = 255);
        }
    }
}

impl Lives for Arcade {
    fn lives(&self) -> u32 {
        self.lives
    }
}

impl Env for Arcade {
    type Obs = u8;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::uniform(DType::U8, RowShape::new(&[self.screen[0], self.screen[1], 3]).unwrap(), 0.0, 255.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, _: &mut Rng, obs: &mut [u8]) -> Result<(), EnvError> {
        *self = Self { frame: 0, lives: 3, fired: false, resets: self.resets + 1, ..*self };
        self.draw(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [u8]) -> Result<Step, EnvError> {
        self.frame += 1;
        self.fired |= action[0] == 1;
        let chance = rng.below(50) == 0;
        if self.life.map_or(chance, |life| self.frame.is_multiple_of(life)) {
            self.lives = self.lives.saturating_sub(1);
        }
        self.draw(obs);
        let reward = if self.fired && action[0] == 2 { 2.5 } else { 0.0 };
        Ok(Step { reward, terminated: self.lives == 0, truncated: false })
    }

    fn render(&self, frame: &mut Frame) -> bool {
        frame.fill(self.frame, 1, [self.lives as u8; 3]);
        true
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.frame.to_le_bytes());
        true
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.extend_from_slice(&self.frame.to_le_bytes());
        out.extend([self.lives as u8, u8::from(self.fired)]);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let (frame, lives, fired) = (reader.u32()? % 1_000_000, u32::from(reader.below(4)?), reader.bool()?);
        reader.finish()?;
        (self.frame, self.lives, self.fired) = (frame, lives, fired);
        self.draw(obs);
        Ok(())
    }
}
