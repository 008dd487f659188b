//! The hub is killed at random points; whoever goes on ends as if it had not been.

use rollmesh::checkpoint::PolicyCheckpoint;

use crate::{
    rig::{Rig, undisturbed},
    support::{is_long, process::Signal, soon, until},
};

/// A seed that is printed; set `ROLLMESH_SEED` to have one again.
fn seed() -> u64 {
    let seed = std::env::var("ROLLMESH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
    println!("ROLLMESH_SEED={seed}");
    seed
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Kills a run after so many iterations and then so many microseconds more, again and again, until all points are used up;
/// then lets it end. Points are spread over the whole run, its first and its last moments included.
async fn killed_at(rig: &Rig, points: u64, iterations: u64, random_state: &mut u64) -> u64 {
    let mut kills = 0;
    for point in 0..points {
        let process = rig.start();
        // Each life gets a share of what is left, so that there is something left for the last one.
        let done = rig.iterations() as u64;
        let left = iterations.saturating_sub(done) / (points - point) * 2;
        let target = done + random(random_state) % (left + 1);
        let more = std::time::Duration::from_micros(random(random_state) % 20_000);
        let mut process = Some(process);
        let reached = soon("an iteration", async {
            let mut pause = tokio::time::interval(std::time::Duration::from_millis(1));
            while (rig.iterations() as u64) < target && !rig.path("summary.json").exists() {
                pause.tick().await;
            }
        });
        reached.await;
        tokio::time::sleep(more).await;
        if let Some(process) = process.take() {
            process.signal(Signal::KILL);
            let end = process.finish().await;
            kills += u64::from(end.status.code().is_none());
        }
    }
    rig.start().finish_with(0).await;
    kills
}

#[tokio::test]
async fn a_hub_that_is_killed_at_random_points_ends_with_the_same_bits_and_books() {
    let (runs, points, iterations) = if is_long() { (5, 10, 300) } else { (1, 6, 120) };
    let calm = undisturbed(iterations).await;
    assert_eq!(calm.metrics.len() as u64, iterations);
    let mut state = seed();
    for run in 0..runs {
        let rig = Rig::new(iterations);
        let kills = killed_at(&rig, points, iterations, &mut state).await;
        println!("run {run}: {kills} kills, {} env steps made again", rig.regenerated());
        assert!(kills > points / 2, "{kills} kills");
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
    let mut after = Vec::new();
    for target in [20, 40, 60] {
        let process = rig.start();
        until("some iterations", || rig.iterations() >= target).await;
        process.signal(Signal::INT);
        process.finish_with(3).await;
        let saved = PolicyCheckpoint::load(rig.dir()).unwrap();
        assert_eq!(saved.iteration, rig.iterations() as u64, "the last iteration is saved");
        after.push(saved.iteration);
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
