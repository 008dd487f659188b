//! Appearance of enemies and divers.

use super::{
    DIVER_INTERVAL, Seaquest,
    swimmer::{BOTTOM, ENEMY_SHOT_INTERVAL, MOVE_INTERVAL, Swimmer, push},
};
use crate::env::{Rng, pixel::SIDE};

impl Seaquest {
    /// Creates a swimmer at a random side of a random row under water.
    fn newcomer(rng: &mut Rng, wait: u8) -> Swimmer {
        let to_right = rng.below(2) == 0;
        let y = 1 + rng.below(BOTTOM as u32) as i8;
        Swimmer { x: if to_right { 0 } else { SIDE - 1 }, y, to_right, wait, reload: 0 }
    }

    pub(super) fn spawn_enemy(&mut self, rng: &mut Rng) {
        let is_sub = rng.below(3) == 0;
        let enemy = Self::newcomer(rng, self.move_interval);
        // Enemies in one row all swim in the same direction.
        let mut others = self.fish.iter().chain(&self.enemy_subs);
        if others.any(|other| other.y == enemy.y && other.to_right != enemy.to_right) {
            return;
        }
        if is_sub {
            push(&mut self.enemy_subs, Swimmer { reload: ENEMY_SHOT_INTERVAL, ..enemy });
        } else {
            push(&mut self.fish, enemy);
        }
    }

    pub(super) fn spawn(&mut self, rng: &mut Rng) {
        if self.spawn_timer == 0 {
            self.spawn_enemy(rng);
            self.spawn_timer = self.spawn_interval;
        }
        if self.diver_timer == 0 {
            push(&mut self.divers, Self::newcomer(rng, MOVE_INTERVAL));
            self.diver_timer = DIVER_INTERVAL;
        }
        self.spawn_timer = self.spawn_timer.saturating_sub(1);
        self.diver_timer = self.diver_timer.saturating_sub(1);
    }
}
