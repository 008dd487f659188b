//! Asterix: treasure to be collected among enemies.

use super::{
    Cells, Channel, Game, GameFrame, Move, SIDE,
    grid::read_coordinate,
    palette::{BLUISH_GREEN, GREY, VERMILLION, YELLOW},
};
use crate::{
    env::{EnvError, Rng, SnapshotReader},
    prelude::*,
};

const PLAYER: usize = 0;
const ENEMY: usize = 1;
const TRAIL: usize = 2;
const TREASURE: usize = 3;

/// Rows for things to run in, one at a time; the top and the bottom row stay empty.
const LANES: usize = 8;
/// Frames between two spawns at the beginning.
const SPAWN_INTERVAL: u8 = 10;
/// Frames between two steps of all things at the beginning.
const MOVE_INTERVAL: u8 = 5;
/// Frames between increases of the difficulty.
const RAMP_INTERVAL: u8 = 101;

/// Enemies and treasures run through the rows from either side. A treasure, a third of the things, is a point; touching an
/// enemy ends the game. Every 102nd frame things appear more often, and every second time they also run faster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asterix {
    player: [i8; 2],
    runners: [Option<Runner>; LANES],
    spawn_interval: u8,
    spawn_timer: u8,
    move_interval: u8,
    move_timer: u8,
    ramp_timer: u8,
    /// Parity of the number of increases of the difficulty.
    ramp_odd: bool,
}

/// A thing that runs along a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Runner {
    x: i8,
    to_right: bool,
    treasure: bool,
}

/// Returns the row of a lane.
const fn row(lane: usize) -> i8 {
    lane as i8 + 1
}

impl Asterix {
    fn spawn(&mut self, rng: &mut Rng) {
        let to_right = rng.below(2) == 0;
        let treasure = rng.below(3) == 0;
        let free = self.runners.iter().filter(|runner| runner.is_none()).count();
        let place = rng.below(free as u32) as usize;
        if let Some(lane) = self.runners.iter_mut().filter(|runner| runner.is_none()).nth(place) {
            *lane = Some(Runner { x: if to_right { 0 } else { SIDE - 1 }, to_right, treasure });
        }
    }

    /// Handles the player and things in the same cell.
    fn meet(&mut self, frame: &mut GameFrame) {
        for (lane, slot) in self.runners.iter_mut().enumerate() {
            let Some(runner) = slot.filter(|runner| self.player == [runner.x, row(lane)]) else { continue };
            if runner.treasure {
                *slot = None;
                frame.reward += 1;
            } else {
                frame.over = true;
            }
        }
    }

    fn run(&mut self) {
        for slot in &mut self.runners {
            if let Some(runner) = slot {
                runner.x += if runner.to_right { 1 } else { -1 };
                if !(0..SIDE).contains(&runner.x) {
                    *slot = None;
                }
            }
        }
    }

    fn ramp(&mut self) {
        if self.spawn_interval <= 1 && self.move_interval <= 1 {
            return;
        }
        if self.ramp_timer > 0 {
            self.ramp_timer -= 1;
            return;
        }
        if self.ramp_odd {
            self.move_interval = (self.move_interval - 1).max(1);
        }
        self.spawn_interval = (self.spawn_interval - 1).max(1);
        self.ramp_odd = !self.ramp_odd;
        self.ramp_timer = RAMP_INTERVAL;
    }
}

impl Game for Asterix {
    const CHANNELS: &'static [Channel] = &[
        Channel::new("player", BLUISH_GREEN),
        Channel::new("enemy", VERMILLION),
        Channel::new("trail", GREY),
        Channel::new("treasure", YELLOW),
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Up, Move::Right, Move::Down];

    fn begin(&mut self, _rng: &mut Rng) {
        *self = Self {
            player: [5, 5],
            runners: [None; LANES],
            spawn_interval: SPAWN_INTERVAL,
            spawn_timer: SPAWN_INTERVAL,
            move_interval: MOVE_INTERVAL,
            move_timer: MOVE_INTERVAL,
            ramp_timer: RAMP_INTERVAL,
            ramp_odd: false,
        };
    }

    fn play(&mut self, action: Move, rng: &mut Rng) -> GameFrame {
        if self.spawn_timer == 0 {
            self.spawn(rng);
            self.spawn_timer = self.spawn_interval;
        }
        let [x, y] = &mut self.player;
        match action {
            Move::Left => *x = (*x - 1).max(0),
            Move::Right => *x = (*x + 1).min(SIDE - 1),
            Move::Up => *y = (*y - 1).max(1),
            Move::Down => *y = (*y + 1).min(SIDE - 2),
            Move::Stay | Move::Fire => {}
        }
        let mut frame = GameFrame::default();
        self.meet(&mut frame);
        if self.move_timer == 0 {
            self.move_timer = self.move_interval;
            self.run();
            self.meet(&mut frame);
        }
        self.spawn_timer = self.spawn_timer.saturating_sub(1);
        self.move_timer = self.move_timer.saturating_sub(1);
        self.ramp();
        frame
    }

    fn show(&self, cells: &mut Cells<'_>) {
        cells.mark(self.player[0], self.player[1], PLAYER);
        for (lane, runner) in self.runners.iter().enumerate() {
            let Some(runner) = runner else { continue };
            cells.mark(runner.x, row(lane), if runner.treasure { TREASURE } else { ENEMY });
            cells.mark(if runner.to_right { runner.x - 1 } else { runner.x + 1 }, row(lane), TRAIL);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.player.map(|coordinate| coordinate as u8));
        for runner in &self.runners {
            // A free lane is encoded as a column that does not exist.
            let runner = runner.unwrap_or(Runner { x: SIDE, to_right: false, treasure: false });
            out.extend([runner.x as u8, u8::from(runner.to_right), u8::from(runner.treasure)]);
        }
        out.extend([self.spawn_interval, self.spawn_timer, self.move_interval, self.move_timer, self.ramp_timer]);
        out.push(u8::from(self.ramp_odd));
    }

    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        let mut game = Self { player: [read_coordinate(snapshot)?, read_coordinate(snapshot)?], ..Self::default() };
        for slot in &mut game.runners {
            let x = snapshot.below(SIDE as u8 + 1)? as i8;
            let runner = Runner { x, to_right: snapshot.bool()?, treasure: snapshot.bool()? };
            *slot = Some(runner).filter(|runner| runner.x < SIDE);
        }
        game.spawn_interval = snapshot.below(SPAWN_INTERVAL + 1)?.max(1);
        game.spawn_timer = snapshot.below(SPAWN_INTERVAL + 1)?;
        game.move_interval = snapshot.below(MOVE_INTERVAL + 1)?.max(1);
        game.move_timer = snapshot.below(MOVE_INTERVAL + 1)?;
        game.ramp_timer = snapshot.below(RAMP_INTERVAL + 1)?;
        game.ramp_odd = snapshot.bool()?;
        Ok(game)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::pixel::tests::step_rng as rng;

    fn begun() -> Asterix {
        let mut game = Asterix::default();
        game.begin(&mut rng());
        game
    }

    fn with_runner(treasure: bool) -> Asterix {
        let mut game = begun();
        game.runners[4] = Some(Runner { x: 4, to_right: true, treasure });
        game
    }

    #[test]
    fn treasure_is_a_point_and_an_enemy_the_end() {
        let mut game = with_runner(true);
        assert_eq!(game.play(Move::Left, &mut rng()), GameFrame { reward: 1, over: false });
        assert_eq!(game.runners[4], None);
        let mut game = with_runner(false);
        assert_eq!(game.play(Move::Left, &mut rng()), GameFrame { reward: 0, over: true });
    }

    #[test]
    fn things_run_into_a_waiting_player() {
        let mut game = with_runner(true);
        let rewards: Vec<u32> = (0..6).map(|_| game.play(Move::Stay, &mut rng()).reward).collect();
        assert_eq!(rewards, [0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn things_come_every_ten_frames_and_leave_at_the_edge() {
        let mut game = begun();
        // Out of the way of all but one row.
        game.player = [5, 1];
        let mut seen = Vec::new();
        for _ in 0..90 {
            game.play(Move::Stay, &mut rng());
            seen.push(game.runners.iter().flatten().count());
        }
        assert_eq!(seen[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(seen.iter().all(|&count| count <= LANES));
        game.runners = [Some(Runner { x: 9, to_right: true, treasure: false }); LANES];
        game.run();
        assert_eq!(game.runners, [None; LANES]);
    }

    #[test]
    fn the_player_stays_between_the_outer_rows() {
        let mut game = begun();
        for _ in 0..9 {
            game.play(Move::Up, &mut rng());
        }
        assert_eq!(game.player, [5, 1]);
    }

    #[test]
    fn it_gets_harder_until_everything_moves_in_every_step() {
        let mut game = begun();
        for _ in 0..101 {
            game.ramp();
        }
        assert_eq!((game.spawn_interval, game.move_interval), (10, 5));
        game.ramp();
        assert_eq!((game.spawn_interval, game.move_interval), (9, 5));
        for _ in 0..102 {
            game.ramp();
        }
        assert_eq!((game.spawn_interval, game.move_interval), (8, 4));
        for _ in 0..5000 {
            game.ramp();
        }
        assert_eq!((game.spawn_interval, game.move_interval), (1, 1));
    }
}
