//! Freeway: a chicken that crosses a road.

use super::{
    Cells, Channel, Game, GameFrame, Move, SIDE,
    grid::read_coordinate,
    palette::{BLUE, BLUISH_GREEN, DARK_GREY, ORANGE, REDDISH_PURPLE, SKY_BLUE, YELLOW},
};
use crate::{
    env::{EnvError, Rng, SnapshotReader},
    prelude::*,
};

const CHICKEN: usize = 0;
const CAR: usize = 1;
/// Channel of the fastest cars, which wait one frame between moves; four for slower ones follow.
const SPEED: usize = 2;

const LANES: usize = 8;
/// Frames between two steps of the chicken.
const REST: u8 = 3;
/// Longest time that a car waits between moves, in frames.
const MAX_WAIT: u8 = 5;
/// Column of the chicken.
const COLUMN: i8 = 4;
const BOTTOM: i8 = SIDE - 1;

/// The chicken walks up and down one column across eight lanes of cars, one step every three frames at most. Reaching the
/// other side is a point; then, as when a car hits it, it restarts at the bottom, and after a crossing all cars get new
/// speeds and directions. There is no end: the registered time limit of 2,500 frames is the game's length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freeway {
    /// Row of the chicken.
    chicken: i8,
    rest: u8,
    cars: [FreewayCar; LANES],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FreewayCar {
    x: i8,
    to_right: bool,
    /// Frames between two moves: 1 is the fastest.
    wait: u8,
    timer: u8,
}

impl FreewayCar {
    fn with_new_speed(self, rng: &mut Rng) -> Self {
        let wait = rng.below(u32::from(MAX_WAIT)) as u8 + 1;
        Self { x: self.x, to_right: rng.below(2) == 0, wait, timer: wait }
    }

    /// Returns the column next to the car's, around the edge.
    const fn next(x: i8, to_right: bool) -> i8 {
        (x + if to_right { 1 } else { SIDE - 1 }) % SIDE
    }
}

impl Freeway {
    fn change_speeds(&mut self, rng: &mut Rng) {
        self.cars = self.cars.map(|car| car.with_new_speed(rng));
    }

    fn drive(&mut self) {
        for (car, row) in self.cars.iter_mut().zip(1..) {
            let mut hit = [car.x, row] == [COLUMN, self.chicken];
            if car.timer == 0 {
                car.timer = car.wait;
                car.x = FreewayCar::next(car.x, car.to_right);
                hit |= [car.x, row] == [COLUMN, self.chicken];
            } else {
                car.timer -= 1;
            }
            if hit {
                self.chicken = BOTTOM;
            }
        }
    }
}

impl Game for Freeway {
    const CHANNELS: &'static [Channel] = &[
        Channel::new("chicken", YELLOW),
        Channel::new("car", ORANGE),
        Channel::new("speed 1", REDDISH_PURPLE),
        Channel::new("speed 2", BLUISH_GREEN),
        Channel::new("speed 3", SKY_BLUE),
        Channel::new("speed 4", BLUE),
        Channel::new("speed 5", DARK_GREY),
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Up, Move::Down];

    fn begin(&mut self, rng: &mut Rng) {
        *self = Self { chicken: BOTTOM, ..Self::default() };
        self.change_speeds(rng);
    }

    fn play(&mut self, action: Move, rng: &mut Rng) -> GameFrame {
        let step = match action {
            Move::Up => -1,
            Move::Down => 1,
            _ => 0,
        };
        if step != 0 && self.rest == 0 {
            self.rest = REST;
            self.chicken = (self.chicken + step).clamp(0, BOTTOM);
        }
        let mut frame = GameFrame::default();
        if self.chicken == 0 {
            frame.reward = 1;
            self.chicken = BOTTOM;
            self.change_speeds(rng);
        }
        self.drive();
        self.rest = self.rest.saturating_sub(1);
        frame
    }

    fn show(&self, cells: &mut Cells<'_>) {
        cells.mark(COLUMN, self.chicken, CHICKEN);
        for (car, row) in self.cars.iter().zip(1..) {
            cells.mark(car.x, row, CAR);
            // The cell behind a car shows its speed.
            let speed = SPEED + usize::from(car.wait.saturating_sub(1));
            cells.mark(FreewayCar::next(car.x, !car.to_right), row, speed);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend([self.chicken as u8, self.rest]);
        for car in &self.cars {
            out.extend([car.x as u8, u8::from(car.to_right), car.wait, car.timer]);
        }
    }

    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        let mut game = Self { chicken: read_coordinate(snapshot)?, rest: snapshot.below(REST + 1)?, ..Self::default() };
        for car in &mut game.cars {
            *car = FreewayCar {
                x: read_coordinate(snapshot)?,
                to_right: snapshot.bool()?,
                wait: snapshot.below(MAX_WAIT + 1)?.max(1),
                timer: snapshot.below(MAX_WAIT + 1)?,
            };
        }
        Ok(game)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::pixel::tests::step_rng as rng;

    /// Creates a game with cars far from the chicken's column that stand for a while.
    fn quiet_road() -> Freeway {
        Freeway { chicken: BOTTOM, rest: 0, cars: [FreewayCar { x: 0, to_right: true, wait: 5, timer: 5 }; LANES] }
    }

    #[test]
    fn the_chicken_takes_a_step_every_three_frames() {
        let mut game = quiet_road();
        let rows: Vec<i8> = (0..7)
            .map(|_| {
                game.play(Move::Up, &mut rng());
                game.chicken
            })
            .collect();
        assert_eq!(rows, [8, 8, 8, 7, 7, 7, 6]);
    }

    #[test]
    fn across_is_a_point_a_new_start_and_new_cars() {
        let mut game = Freeway { chicken: 1, ..quiet_road() };
        assert_eq!(game.play(Move::Up, &mut rng()), GameFrame { reward: 1, over: false });
        assert_eq!(game.chicken, BOTTOM);
        assert!(game.cars.iter().any(|car| car.wait != 5 || !car.to_right));
        assert!(game.cars.iter().all(|car| (1..=MAX_WAIT).contains(&car.wait)));
    }

    #[test]
    fn a_car_sends_the_chicken_back() {
        let mut game = Freeway { chicken: 3, ..quiet_road() };
        game.cars[2] = FreewayCar { x: 3, to_right: true, wait: 1, timer: 0 };
        assert_eq!(game.play(Move::Stay, &mut rng()), GameFrame::default());
        assert_eq!((game.cars[2].x, game.chicken), (4, BOTTOM));
    }

    #[test]
    fn cars_wrap_around_the_edge_at_their_own_speed() {
        let mut game = quiet_road();
        game.cars[0] = FreewayCar { x: 9, to_right: true, wait: 2, timer: 0 };
        game.cars[1] = FreewayCar { x: 0, to_right: false, wait: 1, timer: 0 };
        let mut seen = Vec::new();
        for _ in 0..5 {
            game.drive();
            seen.push((game.cars[0].x, game.cars[1].x));
        }
        assert_eq!(seen, [(0, 9), (0, 9), (0, 8), (1, 8), (1, 7)]);
    }
}
