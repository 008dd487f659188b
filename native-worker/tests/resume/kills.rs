//! The hub is killed at random points; whoever goes on ends as if it had not been.

use std::time::Duration;

use rollmesh::checkpoint::PolicyCheckpoint;

use crate::{
    rig::{Rig, undisturbed},
    support::{is_long, process::Signal, until},
};

/// A seed that is printed; set `ROLLMESH_SEED` to have one again.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("ROLLMESH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
    println!("ROLLMESH_SEED={seed}");
    seed
}

/// SplitMix64.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Kills a run at so many points and then lets it end; a life between two kills may be too short to reach an iteration, or
/// go on for many.
async fn killed_at(rig: &Rig, points: u64, iterations: u64, random_state: &mut u64) {
    for point in 0..points {
        let process = rig.start();
        let done = rig.iterations() as u64;
        // In the mean each life gets a share of what is left, and enough is left to be killed in.
        let left = iterations.saturating_sub(done + 20);
        let target = done + random(random_state) % (2 * left / (points - point + 1) + 1);
        until("an iteration", || rig.iterations() as u64 >= target.min(done + left)).await;
        // Anywhere within what follows, not just behind a line of metrics.
        tokio::time::sleep(Duration::from_micros(random(random_state) % 20_000)).await;
        process.signal(Signal::KILL);
        let end = process.finish().await;
        assert_eq!(end.status.code(), None, "it ended by itself: {}", end.stderr);
    }
    rig.start().finish_with(0).await;
}

#[tokio::test]
async fn a_hub_that_is_killed_at_random_points_ends_with_the_same_bits_and_books() {
    let (runs, points, iterations) = if is_long() { (5, 10, 300) } else { (1, 6, 120) };
    let calm = undisturbed(iterations).await;
    assert_eq!(calm.metrics.len() as u64, iterations);
    let mut state = seed();
    for run in 0..runs {
        let rig = Rig::new(iterations);
        killed_at(&rig, points, iterations, &mut state).await;
        println!("run {run}: {points} kills, {} env steps made again", rig.regenerated());
        assert_eq!(rig.outcome(), calm, "run {run}");
    }
}

#[tokio::test]
async fn several_workers_end_with_the_same_bits_too() {
    let (points, iterations) = if is_long() { (10, 300) } else { (2, 60) };
    let calm = undisturbed(iterations).await;
    let mut state = seed();
    let rig = Rig::with_workers(2, iterations);
    killed_at(&rig, points, iterations, &mut state).await;
    let found = rig.outcome();
    assert_eq!((found.weights_hash, found.metrics), (calm.weights_hash, calm.metrics));
    for bucket in ["committed", "consumed", "outstanding", "queued"] {
        assert_eq!(found.ledger[bucket], calm.ledger[bucket], "{bucket}");
    }
}

#[tokio::test]
async fn an_interrupted_run_goes_on_where_it_was() {
    let calm = undisturbed(120).await;
    let rig = Rig::new(120);
    for target in [20, 40, 60] {
        let process = rig.start();
        until("some iterations", || rig.iterations() >= target).await;
        process.signal(Signal::INT);
        process.finish_with(3).await;
        let saved = PolicyCheckpoint::load(rig.dir()).unwrap();
        assert_eq!(saved.iteration, rig.iterations() as u64, "the last iteration is saved");
    }
    rig.go_on().finish_with(0).await;
    assert_eq!(rig.outcome(), calm);
    assert_eq!(rig.regenerated() % 192, 0);
    assert!(rig.regenerated() <= 3 * 192, "no more than what was being made: {}", rig.regenerated());
    // Nothing is left to do, and nothing changes.
    let end = rig.go_on().finish_with(0).await;
    assert!(end.stderr.contains("going on after iteration 120, 23040 env steps"), "{}", end.stderr);
    assert_eq!(rig.outcome(), calm);
}
