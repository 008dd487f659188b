//! Properties of all games.

use super::*;
use crate::{
    env::{Env, EnvError, Rng},
    ids::SlotId,
    rng::{Purpose, Streams},
};

/// Returns the random stream of a step, for the tests of single games.
pub(super) fn step_rng() -> Rng {
    Streams::new(3, Purpose::EnvStep).at(SlotId(0), 0, 0, 0)
}

fn rng(purpose: Purpose, episode: u32, t: u32) -> Rng {
    Streams::new(11, purpose).at(SlotId(0), episode, t, 0)
}

/// Runs `$body` with `$game` once for each game, as its type.
macro_rules! for_every_game {
    ($game:ident, $body:block) => {{
        fn asterix() {
            type $game = Asterix;
            $body
        }
        fn breakout() {
            type $game = Breakout;
            $body
        }
        fn freeway() {
            type $game = Freeway;
            $body
        }
        fn invaders() {
            type $game = Invaders;
            $body
        }
        fn seaquest() {
            type $game = Seaquest;
            $body
        }
        for test in [asterix, breakout, freeway, invaders, seaquest] {
            test();
        }
    }};
}

/// Plays at random, games of at most 500 frames. Returns the sum of rewards and the number of lost games.
fn play<G: Game>(env: &mut Pixel<G>, steps: u32, mut seen: impl FnMut(&Pixel<G>, &[u8])) -> (f64, u32) {
    let mut obs = vec![0; env.observation_space().shape().elements()];
    env.reset(&mut rng(Purpose::Reset, 0, 0), &mut obs).unwrap();
    let (mut sum, mut lost) = (0.0, 0);
    for t in 0..steps {
        let action = i64::from(rng(Purpose::Action, 0, t).below(G::MOVES.len() as u32));
        let step = env.step(&[action], &mut rng(Purpose::EnvStep, 0, t), &mut obs).unwrap();
        assert!(step.reward >= 0.0 && !step.truncated);
        seen(env, &obs);
        sum += step.reward;
        lost += u32::from(step.terminated);
        if step.terminated || t % 500 == 499 {
            env.reset(&mut rng(Purpose::Reset, t, 1), &mut obs).unwrap();
        }
    }
    (sum, lost)
}

#[test]
fn playing_at_random_keeps_to_the_cells_and_scores_at_times() {
    for_every_game!(G, {
        let mut marked = vec![false; G::CHANNELS.len()];
        let (sum, lost) = play(&mut Pixel::<G>::default(), 6_000, |_, obs| {
            for cell in obs.chunks_exact(G::CHANNELS.len()) {
                assert!(cell.iter().all(|&value| value <= 1));
                for (marked, &value) in marked.iter_mut().zip(cell) {
                    *marked |= value == 1;
                }
            }
        });
        // At random, the chicken hardly ever crosses, and it never loses.
        let is_freeway = G::CHANNELS[0].name == "chicken";
        assert!(is_freeway || (sum > 0.0 && lost > 10), "{}: {sum} {lost}", G::CHANNELS[0].name);
        assert_eq!(marked, vec![true; G::CHANNELS.len()], "{}", G::CHANNELS[0].name);
    });
}

#[test]
fn a_chicken_that_goes_straight_gets_across() {
    let mut env = Pixel::<Freeway>::default();
    let mut obs = [0; 700];
    env.reset(&mut rng(Purpose::Reset, 0, 0), &mut obs).unwrap();
    let points: f64 =
        (0..2500).map(|t| env.step(&[1], &mut rng(Purpose::EnvStep, 0, t), &mut obs).unwrap().reward).sum();
    assert!(points >= 5.0, "{points}");
}

#[test]
fn restored_snapshot_continues_with_the_same_frames() {
    for_every_game!(G, {
        let mut twin = Pixel::<G>::default();
        let mut obs = vec![0; twin.observation_space().shape().elements()];
        let mut snapshot = Vec::new();
        play(&mut Pixel::<G>::default(), 3_000, |env, seen| {
            snapshot.clear();
            env.snapshot(&mut snapshot);
            assert!(snapshot.len() < 2_000);
            twin.restore(&snapshot, &mut obs).unwrap();
            assert_eq!(obs, seen);
            let mut again = Vec::new();
            twin.snapshot(&mut again);
            assert_eq!(again, snapshot);
        });
    });
}

#[test]
fn a_snapshot_cut_or_lengthened_is_refused_and_changes_nothing() {
    for_every_game!(G, {
        let mut env = Pixel::<G>::default();
        play(&mut env, 100, |_, _| {});
        let mut snapshot = Vec::new();
        env.snapshot(&mut snapshot);
        let mut obs = vec![0; env.observation_space().shape().elements()];
        for len in 0..snapshot.len() {
            assert_eq!(env.restore(&snapshot[..len], &mut obs), Err(EnvError::BadSnapshot(len)));
        }
        snapshot.push(0);
        assert_eq!(env.restore(&snapshot, &mut obs), Err(EnvError::BadSnapshot(snapshot.len())));
        snapshot.pop();
        let mut after = Vec::new();
        env.snapshot(&mut after);
        assert_eq!(after, snapshot);
    });
}

#[test]
fn every_state_that_is_accepted_can_be_played_on() {
    for_every_game!(G, {
        let mut env = Pixel::<G>::default();
        play(&mut env, 100, |_, _| {});
        let mut snapshot = Vec::new();
        env.snapshot(&mut snapshot);
        let mut obs = vec![0; env.observation_space().shape().elements()];
        let mut accepted = 0;
        for i in 0..4_000 {
            let mut rng = rng(Purpose::Audit, 0, i);
            let mut damaged = snapshot.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(snapshot.len() as u32) as usize;
                let values = if rng.below(2) == 0 { 256 } else { 16 };
                damaged[at] = rng.below(values) as u8;
            }
            if env.restore(&damaged, &mut obs).is_ok() {
                accepted += 1;
                for _ in 0..30 {
                    let action = i64::from(rng.below(G::MOVES.len() as u32));
                    env.step(&[action], &mut rng, &mut obs).unwrap();
                }
            }
        }
        assert!(accepted > 100, "{accepted}");
    });
}

#[test]
fn an_action_outside_of_the_game_is_refused_without_a_move() {
    for_every_game!(G, {
        let mut env = Pixel::<G>::default();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        play(&mut env, 50, |_, _| {});
        env.snapshot(&mut before);
        for action in [&[G::MOVES.len() as i64][..], &[-1], &[i64::MAX], &[]] {
            let mut obs = vec![0; env.observation_space().shape().elements()];
            let result = env.step(action, &mut rng(Purpose::EnvStep, 0, 0), &mut obs);
            assert!(matches!(result, Err(EnvError::InvalidAction { .. })));
        }
        env.snapshot(&mut after);
        assert_eq!(before, after);
    });
}

#[test]
fn a_sticky_action_repeats_the_last_one() {
    let paddle = |probability| {
        let mut env = Pixel::<Breakout>::default().with_sticky_action_prob(probability);
        let mut obs = [0; 400];
        env.reset(&mut rng(Purpose::Reset, 0, 0), &mut obs).unwrap();
        env.step(&[1], &mut rng(Purpose::EnvStep, 0, 0), &mut obs).unwrap();
        (0..10).position(|x| obs[(90 + x) * 4] == 1)
    };
    assert_eq!(paddle(0.0), Some(3));
    // Before the first action the last one counts as staying.
    assert_eq!(paddle(1.0), Some(4));
    let mut env = Pixel::<Breakout>::default().with_sticky_action_prob(0.0);
    let (mut obs, mut moved_left) = ([0; 400], Vec::new());
    env.reset(&mut rng(Purpose::Reset, 0, 0), &mut obs).unwrap();
    env.step(&[1], &mut rng(Purpose::EnvStep, 0, 0), &mut obs).unwrap();
    env.snapshot(&mut moved_left);
    let mut env = Pixel::<Breakout>::default();
    let repeated = (0..4_000).filter(|&t| {
        env.restore(&moved_left, &mut obs).unwrap();
        env.step(&[2], &mut rng(Purpose::EnvStep, 0, t), &mut obs).unwrap();
        obs[(90 + 2) * 4] == 1
    });
    let share = repeated.count() as f64 / 4_000.0;
    assert!((share - 0.1).abs() < 0.02, "{share}");
}

#[test]
fn every_game_is_registered_and_can_be_drawn_in_colours_of_its_own() {
    let registry = EnvRegistry::builtin();
    let games: Vec<_> = registry.iter().filter(|spec| spec.name.starts_with("Pixel")).collect();
    assert_eq!(games.len(), 5);
    for spec in games {
        let channels = channels(&spec.name).unwrap();
        assert_eq!(spec.spaces().unwrap().observation.shape().dims(), [10, 10, channels.len() as u32]);
        let mut colours: Vec<_> = channels.iter().map(|channel| channel.rgb).chain([BACKGROUND]).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), channels.len() + 1, "{}", spec.name);
    }
    assert_eq!(channels("CartPole-v1"), None);
}
