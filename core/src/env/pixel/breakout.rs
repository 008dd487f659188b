//! Breakout: a ball, a paddle, and a wall of bricks.

use super::{
    Bits, Cells, Channel, Game, GameFrame, Move, SIDE,
    grid::read_coordinate,
    palette::{BLUISH_GREEN, GREY, ORANGE, WHITE},
};
use crate::{
    env::{EnvError, Rng, SnapshotReader},
    prelude::*,
};

const PADDLE: usize = 0;
const BALL: usize = 1;
const TRAIL: usize = 2;
const BRICK: usize = 3;

const BOTTOM: i8 = SIDE - 1;

/// The ball flies diagonally, one cell per frame, and bounces off walls, bricks and the paddle in the bottom row. Every
/// brick is a point. A destroyed wall is rebuilt when the ball next reaches the bottom. The game is over when the ball
/// passes the paddle. A ball that hits a brick right after another passes through it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakout {
    paddle: i8,
    ball: [i8; 2],
    /// Direction of the ball, -1 or 1 on each axis.
    flight: [i8; 2],
    /// The ball's position one frame ago.
    trail: [i8; 2],
    bricks: Bits,
    /// Whether the ball has hit a brick in the last frame.
    struck: bool,
}

impl Breakout {
    fn wall() -> Bits {
        Bits::rectangle(0..SIDE, 1..4)
    }

    /// Moves the ball; returns the frame's result.
    fn fly(&mut self) -> GameFrame {
        let [x, y] = self.ball;
        self.trail = self.ball;
        let [mut new_x, mut new_y] = [x + self.flight[0], y + self.flight[1]];
        if !(0..SIDE).contains(&new_x) {
            new_x = new_x.clamp(0, SIDE - 1);
            self.flight[0] = -self.flight[0];
        }
        let mut frame = GameFrame::default();
        let mut strikes = false;
        if new_y < 0 {
            new_y = 0;
            self.flight[1] = -self.flight[1];
        } else if self.bricks.contains(new_x, new_y) {
            strikes = true;
            if !self.struck {
                frame.reward = 1;
                self.bricks.remove(new_x, new_y);
                new_y = y;
                self.flight[1] = -self.flight[1];
            }
        } else if new_y >= BOTTOM {
            if self.bricks.is_empty() {
                self.bricks = Self::wall();
            }
            if x == self.paddle {
                new_y = y;
                self.flight[1] = -self.flight[1];
            } else if new_x == self.paddle {
                // At the edge of the paddle, the ball bounces back where it came from.
                new_y = y;
                self.flight = self.flight.map(|direction| -direction);
            } else {
                frame.over = true;
            }
        }
        self.struck = strikes;
        self.ball = [new_x, new_y.min(BOTTOM)];
        frame
    }
}

impl Game for Breakout {
    const CHANNELS: &'static [Channel] = &[
        Channel::new("paddle", BLUISH_GREEN),
        Channel::new("ball", WHITE),
        Channel::new("trail", GREY),
        Channel::new("brick", ORANGE),
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Right];

    fn begin(&mut self, rng: &mut Rng) {
        let from_left = rng.below(2) == 0;
        let ball = [if from_left { 0 } else { SIDE - 1 }, 3];
        *self = Self {
            paddle: 4,
            ball,
            flight: [if from_left { 1 } else { -1 }, 1],
            trail: ball,
            bricks: Self::wall(),
            struck: false,
        };
    }

    fn play(&mut self, action: Move, _rng: &mut Rng) -> GameFrame {
        match action {
            Move::Left => self.paddle = (self.paddle - 1).max(0),
            Move::Right => self.paddle = (self.paddle + 1).min(SIDE - 1),
            _ => {}
        }
        self.fly()
    }

    fn show(&self, cells: &mut Cells<'_>) {
        cells.mark(self.paddle, BOTTOM, PADDLE);
        cells.mark(self.ball[0], self.ball[1], BALL);
        cells.mark(self.trail[0], self.trail[1], TRAIL);
        cells.mark_all(&self.bricks, BRICK);
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.paddle as u8);
        out.extend([self.ball, self.trail].concat().iter().map(|&coordinate| coordinate as u8));
        out.extend(self.flight.map(|direction| u8::from(direction > 0)));
        self.bricks.put(out);
        out.push(u8::from(self.struck));
    }

    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        let paddle = read_coordinate(snapshot)?;
        let mut position = || Ok([read_coordinate(snapshot)?, read_coordinate(snapshot)?]);
        let (ball, trail) = (position()?, position()?);
        let mut direction = || Ok(if snapshot.bool()? { 1 } else { -1 });
        let flight = [direction()?, direction()?];
        let bricks = Bits::read(snapshot)?;
        Ok(Self { paddle, ball, flight, trail, bricks, struck: snapshot.bool()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flying(ball: [i8; 2], flight: [i8; 2]) -> Breakout {
        Breakout { paddle: 4, ball, flight, trail: ball, bricks: Breakout::wall(), struck: false }
    }

    #[test]
    fn a_brick_is_a_point_and_throws_the_ball_back() {
        let mut game = flying([4, 4], [1, -1]);
        assert_eq!(game.fly(), GameFrame { reward: 1, over: false });
        assert!(!game.bricks.contains(5, 3));
        assert_eq!((game.ball, game.flight, game.bricks.count()), ([5, 4], [1, 1], 29));
    }

    #[test]
    fn a_brick_right_after_another_is_passed() {
        let mut game = Breakout { struck: true, ..flying([4, 4], [1, -1]) };
        assert_eq!(game.fly(), GameFrame::default());
        assert_eq!((game.ball, game.bricks.count()), ([5, 3], 30));
    }

    #[test]
    fn walls_and_ceiling_throw_the_ball_back() {
        let mut game = flying([9, 5], [1, 1]);
        game.fly();
        assert_eq!((game.ball, game.flight), ([9, 6], [-1, 1]));
        let mut game = flying([3, 0], [1, -1]);
        game.fly();
        assert_eq!((game.ball, game.flight), ([4, 0], [1, 1]));
    }

    #[test]
    fn the_paddle_plays_the_ball_and_its_edge_sends_it_back() {
        let mut game = flying([4, 8], [1, 1]);
        assert_eq!(game.fly(), GameFrame::default());
        assert_eq!((game.ball, game.flight), ([5, 8], [1, -1]));
        let mut game = flying([3, 8], [1, 1]);
        assert_eq!(game.fly(), GameFrame::default());
        assert_eq!((game.ball, game.flight), ([4, 8], [-1, -1]));
        let mut game = flying([7, 8], [1, 1]);
        assert_eq!(game.fly(), GameFrame { reward: 0, over: true });
        assert_eq!(game.ball, [8, 9]);
    }

    #[test]
    fn cleared_wall_is_rebuilt() {
        let mut game = Breakout { bricks: Bits::default(), ..flying([4, 8], [1, 1]) };
        game.fly();
        assert_eq!(game.bricks, Breakout::wall());
    }
}
