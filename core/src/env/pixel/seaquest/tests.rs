//! The rules, one by one.

use super::*;
use crate::env::pixel::tests::step_rng as rng;
use crate::{
    ids::SlotId,
    rng::{Purpose, Streams},
};

fn begun() -> Seaquest {
    let mut game = Seaquest::default();
    game.begin(&mut rng());
    game
}

/// Creates a game with the submarine under water, in the middle.
fn diving() -> Seaquest {
    let mut game = begun();
    game.sub = Swimmer { x: 4, y: 4, to_right: true, ..Swimmer::default() };
    game.surfaced = false;
    game
}

fn at(x: i8, y: i8) -> Swimmer {
    Swimmer { x, y, to_right: false, wait: MOVE_INTERVAL, reload: ENEMY_SHOT_INTERVAL }
}

#[test]
fn enemies_shot_are_a_point_each() {
    let mut game = diving();
    game.fish.push(at(6, 4));
    game.enemy_subs.push(at(9, 4));
    let rewards: Vec<u32> = (0..9).map(|_| game.play(Move::Fire, &mut rng()).reward).collect();
    // The second enemy has moved closer, and the cannon fires every five frames.
    assert_eq!(rewards, [0, 1, 0, 0, 0, 0, 0, 0, 1]);
    assert!(game.fish.is_empty() && game.enemy_subs.is_empty());
}

#[test]
fn an_enemy_or_its_bullet_is_the_end() {
    let mut game = diving();
    game.fish.push(Swimmer { wait: 0, ..at(5, 4) });
    assert!(game.play(Move::Stay, &mut rng()).over);
    let mut game = diving();
    game.enemy_subs.push(Swimmer { reload: 0, ..at(6, 4) });
    assert!(!game.play(Move::Stay, &mut rng()).over);
    assert!(game.play(Move::Stay, &mut rng()).over);
}

#[test]
fn the_frame_after_the_last_oxygen_is_the_end() {
    let mut game = diving();
    for _ in 0..201 {
        game.remove_swarms();
        assert!(!game.play(Move::Stay, &mut rng()).over);
    }
    game.remove_swarms();
    assert!(game.play(Move::Stay, &mut rng()).over);
}

#[test]
fn divers_come_aboard_up_to_six() {
    let mut game = diving();
    for _ in 0..8 {
        game.divers.push(at(4, 4));
    }
    game.move_divers();
    assert_eq!((game.aboard, game.divers.len()), (6, 2));
}

#[test]
fn surfacing_needs_a_diver_and_six_divers_score_the_remaining_oxygen() {
    let surface = |aboard, oxygen| {
        let mut game = diving();
        game.sub.y = 1;
        (game.aboard, game.oxygen) = (aboard, oxygen);
        let frame = game.play(Move::Up, &mut rng());
        (frame, game.aboard, game.oxygen)
    };
    assert_eq!(surface(0, 90), (GameFrame { reward: 0, over: true }, 0, 90));
    assert_eq!(surface(3, 90), (GameFrame::default(), 2, 200));
    assert_eq!(surface(6, 90), (GameFrame { reward: 4, over: false }, 0, 200));
    // Waiting at the surface is harmless.
    let mut game = begun();
    assert!((0..300).all(|_| !game.play(Move::Stay, &mut rng()).over));
}

#[test]
fn every_surfacing_makes_it_harder_down_to_a_limit() {
    let mut game = diving();
    let mut frame = GameFrame::default();
    game.surface(&mut frame);
    assert_eq!((game.spawn_interval, game.move_interval), (19, 5));
    game.surface(&mut frame);
    assert_eq!((game.spawn_interval, game.move_interval), (18, 4));
    for _ in 0..40 {
        game.surface(&mut frame);
    }
    assert_eq!((game.spawn_interval, game.move_interval), (1, 2));
}

#[test]
fn enemies_of_a_row_swim_the_same_way() {
    let mut game = begun();
    let streams = Streams::new(3, Purpose::EnvStep);
    for t in 0..200 {
        game.spawn_enemy(&mut streams.at(SlotId(0), 0, t, 0));
    }
    let all: Vec<Swimmer> = game.fish.iter().chain(&game.enemy_subs).copied().collect();
    assert!(game.fish.len() > game.enemy_subs.len() && !game.enemy_subs.is_empty());
    assert!(all.iter().all(|a| all.iter().all(|b| a.y != b.y || a.to_right == b.to_right)));
    assert!(game.fish.len() <= MAX_SWIMMERS);
}

impl Seaquest {
    fn remove_swarms(&mut self) {
        self.fish.clear();
        self.enemy_subs.clear();
        self.enemy_bullets.clear();
    }
}
