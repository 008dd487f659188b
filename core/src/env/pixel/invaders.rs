//! Space Invaders: a cannon against an approaching formation.

use super::{
    Bits, Cells, Channel, Game, GameFrame, Move, SIDE,
    grid::read_coordinate,
    palette::{BLUISH_GREEN, ORANGE, REDDISH_PURPLE, SKY_BLUE, VERMILLION, WHITE},
};
use crate::{
    env::{EnvError, Rng, SnapshotReader},
    prelude::*,
};

const CANNON: usize = 0;
const ALIEN: usize = 1;
const ALIEN_LEFT: usize = 2;
const ALIEN_RIGHT: usize = 3;
const FRIENDLY_BULLET: usize = 4;
const ENEMY_BULLET: usize = 5;

const BOTTOM: i8 = SIDE - 1;
/// Frames between two shots of the cannon.
const COOL_DOWN: u8 = 5;
/// Frames between two shots of the aliens.
const ALIEN_SHOT_INTERVAL: u8 = 10;
/// Most frames between two moves of the aliens in the first wave, and their minimum in later waves.
const MOVE_INTERVAL: u8 = 12;
const MIN_MOVE_INTERVAL: u8 = 6;

/// Aliens march sideways and one row down at every edge, faster the fewer they are; the one nearest to the cannon's column
/// shoots. Every alien shot is a point. A cannon that is hit or reached by an alien ends the game. Each wave moves faster
/// than the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invaders {
    cannon: i8,
    aliens: Bits,
    to_right: bool,
    friendly: Bits,
    enemy: Bits,
    cool_down: u8,
    move_interval: u8,
    move_timer: u8,
    alien_shot_timer: u8,
}

impl Invaders {
    fn formation() -> Bits {
        Bits::rectangle(2..8, 0..4)
    }

    /// Returns whether an alien or its bullet is at the cannon's position.
    fn lost(&self) -> bool {
        self.aliens.contains(self.cannon, BOTTOM) || self.enemy.contains(self.cannon, BOTTOM)
    }

    /// Moves the formation; returns true if it has landed.
    fn march(&mut self) -> bool {
        let edge = if self.to_right { SIDE - 1 } else { 0 };
        if self.aliens.has_column(edge) {
            self.to_right = !self.to_right;
            let landed = self.aliens.row(BOTTOM) != 0;
            self.aliens = self.aliens.moved(0, 1);
            landed
        } else {
            self.aliens = self.aliens.moved(if self.to_right { 1 } else { -1 }, 0);
            false
        }
    }

    /// Returns the lowest alien of the column nearest to the cannon; of two such columns the left one.
    fn shooter(&self) -> Option<[i8; 2]> {
        let column = (0..SIDE).filter(|&x| self.aliens.has_column(x)).min_by_key(|x| (x - self.cannon).abs())?;
        self.aliens.lowest(column).map(|row| [column, row])
    }
}

impl Game for Invaders {
    const CHANNELS: &'static [Channel] = &[
        Channel::new("cannon", BLUISH_GREEN),
        Channel::new("alien", SKY_BLUE),
        Channel::new("alien moving left", ORANGE),
        Channel::new("alien moving right", REDDISH_PURPLE),
        Channel::new("friendly bullet", WHITE),
        Channel::new("enemy bullet", VERMILLION),
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Right, Move::Fire];

    fn begin(&mut self, _rng: &mut Rng) {
        *self = Self {
            cannon: 5,
            aliens: Self::formation(),
            move_interval: MOVE_INTERVAL,
            move_timer: MOVE_INTERVAL,
            alien_shot_timer: ALIEN_SHOT_INTERVAL,
            ..Self::default()
        };
    }

    fn play(&mut self, action: Move, _rng: &mut Rng) -> GameFrame {
        match action {
            Move::Fire if self.cool_down == 0 => {
                self.friendly.insert(self.cannon, BOTTOM);
                self.cool_down = COOL_DOWN;
            }
            Move::Left => self.cannon = (self.cannon - 1).max(0),
            Move::Right => self.cannon = (self.cannon + 1).min(SIDE - 1),
            _ => {}
        }
        self.friendly = self.friendly.moved(0, -1);
        self.enemy = self.enemy.moved(0, 1);
        let mut over = self.lost();
        if self.move_timer == 0 {
            self.move_timer = self.move_interval.min(self.aliens.count() as u8);
            over |= self.march();
            over |= self.lost();
        }
        if self.alien_shot_timer == 0 {
            self.alien_shot_timer = ALIEN_SHOT_INTERVAL;
            if let Some([x, y]) = self.shooter() {
                self.enemy.insert(x, y);
            }
        }
        let hits = self.aliens.common(&self.friendly);
        self.aliens = self.aliens.without(&hits);
        self.friendly = self.friendly.without(&hits);
        for timer in [&mut self.cool_down, &mut self.move_timer, &mut self.alien_shot_timer] {
            *timer = timer.saturating_sub(1);
        }
        if self.aliens.is_empty() {
            self.move_interval = (self.move_interval.saturating_sub(1)).max(MIN_MOVE_INTERVAL);
            self.aliens = Self::formation();
        }
        GameFrame { reward: hits.count(), over }
    }

    fn show(&self, cells: &mut Cells<'_>) {
        cells.mark(self.cannon, BOTTOM, CANNON);
        cells.mark_all(&self.aliens, ALIEN);
        cells.mark_all(&self.aliens, if self.to_right { ALIEN_RIGHT } else { ALIEN_LEFT });
        cells.mark_all(&self.friendly, FRIENDLY_BULLET);
        cells.mark_all(&self.enemy, ENEMY_BULLET);
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend([self.cannon as u8, u8::from(self.to_right)]);
        for bits in [&self.aliens, &self.friendly, &self.enemy] {
            bits.put(out);
        }
        out.extend([self.cool_down, self.move_interval, self.move_timer, self.alien_shot_timer]);
    }

    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        Ok(Self {
            cannon: read_coordinate(snapshot)?,
            to_right: snapshot.bool()?,
            aliens: Bits::read(snapshot)?,
            friendly: Bits::read(snapshot)?,
            enemy: Bits::read(snapshot)?,
            cool_down: snapshot.below(COOL_DOWN + 1)?,
            move_interval: snapshot.below(MOVE_INTERVAL + 1)?,
            move_timer: snapshot.below(MOVE_INTERVAL + 1)?,
            alien_shot_timer: snapshot.below(ALIEN_SHOT_INTERVAL + 1)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::pixel::tests::step_rng as rng;

    fn begun() -> Invaders {
        let mut game = Invaders::default();
        game.begin(&mut rng());
        game
    }

    #[test]
    fn an_alien_shot_is_a_point() {
        let mut game = begun();
        let frames: Vec<GameFrame> = (0..6).map(|_| game.play(Move::Fire, &mut rng())).collect();
        assert!(frames[..5].iter().all(|frame| *frame == GameFrame::default()));
        assert_eq!(frames[5], GameFrame { reward: 1, over: false });
        // The second shot has just been fired: the cannon reloads for five frames.
        assert_eq!((game.aliens.count(), game.friendly.count()), (23, 1));
        assert!(!game.aliens.contains(5, 3));
    }

    #[test]
    fn the_formation_comes_down_at_the_edges() {
        let mut game = begun();
        for _ in 0..3 {
            game.march();
        }
        assert!(game.to_right);
        assert_eq!(game.aliens, Bits::rectangle(0..6, 1..5));
        game.aliens = Bits::rectangle(9..10, 9..10);
        assert!(game.march());
    }

    #[test]
    fn the_alien_nearest_to_the_cannon_shoots_and_its_bullet_ends_the_game() {
        let mut game = begun();
        game.cannon = 9;
        assert_eq!(game.shooter(), Some([7, 3]));
        game.cannon = 3;
        game.aliens = Bits::rectangle(2..3, 0..2);
        game.aliens.insert(4, 5);
        assert_eq!(game.shooter(), Some([2, 1]));
        game.aliens = Bits::default();
        assert_eq!(game.shooter(), None);

        let mut game = begun();
        game.enemy.insert(5, 8);
        assert_eq!(game.play(Move::Stay, &mut rng()), GameFrame { reward: 0, over: true });
        let mut game = begun();
        game.enemy.insert(5, 8);
        assert_eq!(game.play(Move::Left, &mut rng()), GameFrame::default());
    }

    #[test]
    fn the_next_wave_moves_faster_down_to_a_limit() {
        let mut game = begun();
        for wave in 1..10 {
            game.aliens = Bits::rectangle(5..6, 3..4);
            game.friendly = Bits::rectangle(5..6, 4..5);
            game.move_timer = 9;
            assert_eq!(game.play(Move::Stay, &mut rng()).reward, 1);
            assert_eq!(game.aliens, Invaders::formation());
            assert_eq!(game.move_interval, (12 - wave).max(6));
        }
    }

    #[test]
    fn few_aliens_move_quickly() {
        let mut game = begun();
        game.aliens = Bits::rectangle(5..7, 3..4);
        game.move_timer = 0;
        game.play(Move::Stay, &mut rng());
        assert_eq!(game.move_timer, 1);
    }
}
