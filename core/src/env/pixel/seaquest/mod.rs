//! Seaquest: a submarine that rescues divers before its oxygen runs out.

mod spawn;
mod swimmer;

use self::swimmer::{BOTTOM, ENEMY_SHOT_INTERVAL, MAX_SWIMMERS, MOVE_INTERVAL, Swimmer, push, take_at};
use super::{
    Cells, Channel, Game, GameFrame, Move, SIDE,
    palette::{BLUE, BLUISH_GREEN, DARK_GREY, LIGHT_GREY, ORANGE, REDDISH_PURPLE, SKY_BLUE, VERMILLION, WHITE, YELLOW},
};
use crate::{
    env::{EnvError, Rng, SnapshotReader},
    prelude::*,
};

const SUB_FRONT: usize = 0;
const SUB_BACK: usize = 1;
const FRIENDLY_BULLET: usize = 2;
const TRAIL: usize = 3;
const ENEMY_BULLET: usize = 4;
const ENEMY_FISH: usize = 5;
const ENEMY_SUB: usize = 6;
const OXYGEN_GAUGE: usize = 7;
const DIVER_GAUGE: usize = 8;
const DIVER: usize = 9;

/// The row of the gauges. The surface is row 0.
const GAUGES: i8 = SIDE - 1;

const MAX_OXYGEN: i16 = 200;
/// Oxygen level below zero: the frame after it is the last one under water.
const NO_OXYGEN: i16 = -1;
const MAX_DIVERS: u8 = 6;
/// Frames between two shots of the submarine.
const COOL_DOWN: u8 = 5;
/// Minimum of frames between two steps of enemies.
const MIN_MOVE_INTERVAL: u8 = 2;
/// Frames between two new enemies at the beginning, and between two new divers.
const SPAWN_INTERVAL: u8 = 20;
const DIVER_INTERVAL: u8 = 30;

/// The submarine shoots enemy fish and submarines, a point each, and takes up to six divers aboard. Under water the oxygen
/// lasts for 201 frames. Surfacing requires a diver, who is set down; six are set down together and are worth up to ten
/// points, for the oxygen left. An enemy's touch or bullet ends the game, as does surfacing without a diver or running out
/// of oxygen. With each surfacing enemies appear more often, with every second one they also swim faster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seaquest {
    sub: Swimmer,
    friendly: Vec<Swimmer>,
    enemy_bullets: Vec<Swimmer>,
    fish: Vec<Swimmer>,
    enemy_subs: Vec<Swimmer>,
    divers: Vec<Swimmer>,
    oxygen: i16,
    aboard: u8,
    surfaced: bool,
    spawn_interval: u8,
    spawn_timer: u8,
    diver_timer: u8,
    move_interval: u8,
    /// Whether the next surfacing makes enemies faster.
    ramp_odd: bool,
}

impl Seaquest {
    fn swarms(&self) -> [&Vec<Swimmer>; 5] {
        [&self.friendly, &self.enemy_bullets, &self.fish, &self.enemy_subs, &self.divers]
    }

    fn steer(&mut self, action: Move) {
        let sub = &mut self.sub;
        sub.reload = sub.reload.saturating_sub(1);
        match action {
            Move::Fire if sub.reload == 0 => {
                sub.reload = COOL_DOWN;
                push(&mut self.friendly, Swimmer { wait: 0, ..*sub });
            }
            Move::Left => (sub.x, sub.to_right) = ((sub.x - 1).max(0), false),
            Move::Right => (sub.x, sub.to_right) = ((sub.x + 1).min(SIDE - 1), true),
            Move::Up => sub.y = (sub.y - 1).max(0),
            Move::Down => sub.y = (sub.y + 1).min(BOTTOM),
            Move::Fire | Move::Stay => {}
        }
    }

    fn move_friendly_bullets(&mut self, frame: &mut GameFrame) {
        let Self { friendly, fish, enemy_subs, .. } = self;
        friendly.retain_mut(|bullet| {
            let stays = bullet.swim(0);
            let hit = stays && (take_at(fish, bullet) || take_at(enemy_subs, bullet));
            frame.reward += u32::from(hit);
            stays && !hit
        });
    }

    fn move_divers(&mut self) {
        let Self { divers, sub, aboard, .. } = self;
        divers.retain_mut(|diver| {
            let mut board = |diver: &Swimmer| {
                let boards = diver.is_at(sub) && *aboard < MAX_DIVERS;
                *aboard += u8::from(boards);
                boards
            };
            !board(diver) && diver.swim(MOVE_INTERVAL) && !board(diver)
        });
    }

    fn move_enemies(&mut self, frame: &mut GameFrame) {
        let Self { sub, friendly, enemy_bullets, fish, enemy_subs, move_interval, .. } = self;
        let mut swim = |enemy: &mut Swimmer| {
            frame.over |= enemy.is_at(sub);
            let stepped = enemy.wait == 0;
            let stays = enemy.swim(*move_interval);
            frame.over |= stays && enemy.is_at(sub);
            // Enemies may also swim into a bullet.
            let hit = stays && stepped && take_at(friendly, enemy);
            frame.reward += u32::from(hit);
            stays && !hit
        };
        enemy_subs.retain_mut(|enemy| {
            let stays = swim(enemy);
            if enemy.reload > 0 {
                enemy.reload -= 1;
            } else if stays {
                enemy.reload = ENEMY_SHOT_INTERVAL;
                push(enemy_bullets, Swimmer { wait: 0, ..*enemy });
            }
            stays
        });
        fish.retain_mut(swim);
    }

    fn move_enemy_bullets(&mut self, frame: &mut GameFrame) {
        let sub = self.sub;
        self.enemy_bullets.retain_mut(|bullet| {
            frame.over |= bullet.is_at(&sub);
            let stays = bullet.swim(0);
            frame.over |= stays && bullet.is_at(&sub);
            stays
        });
    }

    /// Returns the remaining oxygen in tenths: points for six divers, and cells of the gauge.
    fn tenths(&self) -> u32 {
        u32::from((self.oxygen * 10 / MAX_OXYGEN).max(0).unsigned_abs())
    }

    fn breathe(&mut self, frame: &mut GameFrame) {
        if self.sub.y > 0 {
            self.surfaced = false;
            frame.over |= self.oxygen == NO_OXYGEN;
            self.oxygen = (self.oxygen - 1).max(NO_OXYGEN);
        } else if !self.surfaced {
            if self.aboard == 0 {
                frame.over = true;
            } else {
                self.surface(frame);
            }
        }
    }

    fn surface(&mut self, frame: &mut GameFrame) {
        self.surfaced = true;
        if self.aboard == MAX_DIVERS {
            self.aboard = 0;
            frame.reward += self.tenths();
        } else {
            self.aboard = self.aboard.saturating_sub(1);
        }
        self.oxygen = MAX_OXYGEN;
        self.spawn_interval = self.spawn_interval.saturating_sub(1).max(1);
        if self.ramp_odd {
            self.move_interval = self.move_interval.saturating_sub(1).max(MIN_MOVE_INTERVAL);
        }
        self.ramp_odd = !self.ramp_odd;
    }
}

impl Game for Seaquest {
    const CHANNELS: &'static [Channel] = &[
        Channel::new("submarine front", YELLOW),
        Channel::new("submarine back", ORANGE),
        Channel::new("friendly bullet", WHITE),
        Channel::new("trail", DARK_GREY).behind(),
        Channel::new("enemy bullet", LIGHT_GREY),
        Channel::new("enemy fish", VERMILLION),
        Channel::new("enemy submarine", REDDISH_PURPLE),
        // The divers' gauge is drawn over the oxygen gauge.
        Channel::new("oxygen gauge", SKY_BLUE).behind(),
        Channel::new("diver gauge", BLUISH_GREEN),
        Channel::new("diver", BLUE),
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Up, Move::Right, Move::Down, Move::Fire];

    fn begin(&mut self, _rng: &mut Rng) {
        let swarm = |mut swimmers: Vec<Swimmer>| {
            // Allocates once for the life of the environment: frames allocate nothing.
            swimmers.clear();
            swimmers.reserve(MAX_SWIMMERS);
            swimmers
        };
        let old = core::mem::take(self);
        *self = Self {
            sub: Swimmer { x: 5, ..Swimmer::default() },
            friendly: swarm(old.friendly),
            enemy_bullets: swarm(old.enemy_bullets),
            fish: swarm(old.fish),
            enemy_subs: swarm(old.enemy_subs),
            divers: swarm(old.divers),
            oxygen: MAX_OXYGEN,
            aboard: 0,
            surfaced: true,
            spawn_interval: SPAWN_INTERVAL,
            spawn_timer: SPAWN_INTERVAL,
            diver_timer: DIVER_INTERVAL,
            move_interval: MOVE_INTERVAL,
            ramp_odd: false,
        };
    }

    fn play(&mut self, action: Move, rng: &mut Rng) -> GameFrame {
        let mut frame = GameFrame::default();
        self.spawn(rng);
        self.steer(action);
        self.move_friendly_bullets(&mut frame);
        self.move_divers();
        self.move_enemies(&mut frame);
        self.move_enemy_bullets(&mut frame);
        self.breathe(&mut frame);
        frame
    }

    fn show(&self, cells: &mut Cells<'_>) {
        cells.mark(self.sub.x, self.sub.y, SUB_FRONT);
        cells.mark(self.sub.behind(), self.sub.y, SUB_BACK);
        let kinds = [FRIENDLY_BULLET, ENEMY_BULLET, ENEMY_FISH, ENEMY_SUB, DIVER];
        for (swarm, kind) in self.swarms().into_iter().zip(kinds) {
            for swimmer in swarm {
                cells.mark(swimmer.x, swimmer.y, kind);
                if [ENEMY_FISH, ENEMY_SUB, DIVER].contains(&kind) {
                    cells.mark(swimmer.behind(), swimmer.y, TRAIL);
                }
            }
        }
        for x in 0..self.tenths() as i8 {
            cells.mark(x, GAUGES, OXYGEN_GAUGE);
        }
        for i in 1..=self.aboard as i8 {
            cells.mark(SIDE - 1 - i, GAUGES, DIVER_GAUGE);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.sub.put(out);
        for swarm in self.swarms() {
            out.push(swarm.len() as u8);
            for swimmer in swarm {
                swimmer.put(out);
            }
        }
        out.extend([
            (self.oxygen - NO_OXYGEN) as u8,
            self.aboard,
            u8::from(self.surfaced),
            self.spawn_interval,
            self.spawn_timer,
        ]);
        out.extend([self.diver_timer, self.move_interval, u8::from(self.ramp_odd)]);
    }

    fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        let sub = Swimmer::read(snapshot)?;
        let mut swarm = || {
            let mut swimmers = Vec::with_capacity(MAX_SWIMMERS);
            for _ in 0..snapshot.below(MAX_SWIMMERS as u8 + 1)? {
                swimmers.push(Swimmer::read(snapshot)?);
            }
            Ok(swimmers)
        };
        Ok(Self {
            sub,
            friendly: swarm()?,
            enemy_bullets: swarm()?,
            fish: swarm()?,
            enemy_subs: swarm()?,
            divers: swarm()?,
            oxygen: i16::from(snapshot.below((MAX_OXYGEN - NO_OXYGEN) as u8 + 1)?) + NO_OXYGEN,
            aboard: snapshot.below(MAX_DIVERS + 1)?,
            surfaced: snapshot.bool()?,
            spawn_interval: snapshot.below(SPAWN_INTERVAL + 1)?,
            spawn_timer: snapshot.below(SPAWN_INTERVAL + 1)?,
            diver_timer: snapshot.below(DIVER_INTERVAL + 1)?,
            move_interval: snapshot.below(MOVE_INTERVAL + 1)?,
            ramp_odd: snapshot.bool()?,
        })
    }
}

#[cfg(test)]
mod tests;
