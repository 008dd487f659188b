//! The hub is killed at random points; a resumed run ends like an undisturbed one.

use std::{collections::BTreeMap, path::Path, time::Duration};

use rollmesh::checkpoint::PolicyCheckpoint;
use rollmesh_core::{
    filter::FrozenStat,
    group::{GroupConfig, JournalEntry, LeaseGroup, Ledger, SamplingMode},
    time::Micros,
};
use serde_json::{Value, json as object};

use super::rig::{Outcome, Rig, undisturbed};
use crate::support::{is_long, json, process::Signal, until};

const FILTER: [&str; 2] = ["--observation-filter", "MeanStdFilter"];

/// Returns a seed, which is printed; `ROLLMESH_SEED` sets it.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("ROLLMESH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ 0x9e37_79b9_7f4a_7c15);
    println!("ROLLMESH_SEED={seed}");
    seed
}

/// Returns the next number of SplitMix64.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Kills a run at the given number of points and then lets it end; a life between two kills may be too short to reach an iteration, or
/// continue for many.
pub(crate) async fn killed_at(rig: &Rig, points: u64, iterations: u64, random_state: &mut u64) {
    for point in 0..points {
        let process = rig.start();
        let done = rig.iterations() as u64;
        // On average each life gets a share of the remaining iterations, and enough remain for the next kills.
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
async fn hub_killed_at_random_points_ends_with_bit_identical_weights_and_ledger() {
    let (runs, points, iterations) = if is_long() { (5, 20, 400) } else { (1, 6, 120) };
    let calm = undisturbed(iterations).await;
    assert_eq!(calm.metrics.len() as u64, iterations);
    let mut state = seed();
    for run in 0..runs {
        let rig = Rig::new(iterations);
        killed_at(&rig, points, iterations, &mut state).await;
        println!("run {run}: {points} kills, {} env steps regenerated", rig.regenerated());
        assert_eq!(rig.outcome(), calm, "run {run}");
    }
}

/// Checks a run without slots, since the hub cannot recompute episodes of `device_rows` to record them: its open
/// episodes are part of the checkpoint.
#[tokio::test]
async fn run_without_workers_is_bit_identical_after_kills() {
    let (points, iterations) = if is_long() { (20, 400) } else { (3, 80) };
    let pictures = tempfile::tempdir().unwrap();
    let monitor = format!("monitor_path={}", pictures.path().display());
    let flags = ["--workers", "0", "--set", "device_rows=true", "--set", &monitor, "--set", "train_batch_size=192"];
    let calm = Rig::remote(iterations).with(&flags);
    calm.begin().finish_with(0).await;
    let mut state = seed();
    let rig = Rig::remote(iterations).with(&flags);
    killed_at(&rig, points, iterations, &mut state).await;
    let (found, calm) = (rig.outcome(), calm.outcome());
    assert_eq!(found, calm);
}

/// Returns what a run of ten iterations without workers comes to that is killed twice, or never, and what it prints at its end.
async fn killed_twice_or_never(settings: &Value) -> [(Outcome, String); 2] {
    let mut found = Vec::new();
    for kills in [2, 0] {
        let rig = Rig::of_settings(settings, 0);
        for target in [2, 5].into_iter().take(kills) {
            let process = rig.start();
            until("a checkpoint", || rig.iterations() >= target && !rig.checkpoints().is_empty()).await;
            process.signal(Signal::KILL);
            process.finish().await;
        }
        let end = rig.start().finish_with(0).await;
        found.push((rig.outcome(), end.stderr));
    }
    found.try_into().expect("two runs")
}

fn alone(more: &[(&str, Value)]) -> Value {
    let mut settings = object!({
        "env": "CartPole-v1", "num_envs": 4, "rollout_fragment_length": 16, "train_batch_size": 64, "seed": 1,
        "model_config": { "fcnet_hiddens": [8] }, "stop": { "env_steps": 12_800 }, "checkpoint_interval": 1,
    });
    more.iter().for_each(|(name, value)| settings[name] = value.clone());
    settings
}

/// When new weights reach the thread that samples depends on time, also without kills.
#[tokio::test]
async fn run_that_samples_ahead_is_not_reproducible() {
    let settings = alone(&[("sample_async", true.into())]);
    for (Outcome { summary, .. }, stderr) in killed_twice_or_never(&settings).await {
        let causes = object!(["sample_async is set: which weights sampled a row depends on time"]);
        assert_eq!((&summary["reproducible"], &summary["not_reproducible"]), (&false.into(), &causes));
        assert!(stderr.contains("sample_async is set: which weights sample a row depends on time"), "{stderr}");
    }
}

/// Fragments of whole episodes differ in length, so that episodes of other environments are open between two of them.
#[tokio::test]
async fn resumed_run_that_loses_open_episodes_is_not_reproducible() {
    let pictures = tempfile::tempdir().unwrap();
    let monitor = object!(pictures.path());
    let of_device = [("device_rows", true.into()), ("monitor_path", monitor)];
    let settings = alone(&[&of_device[..], &[("batch_mode", "complete_episodes".into())]].concat());
    let [(killed, stderr), (calm, _)] = killed_twice_or_never(&settings).await;
    let device = "device_rows is set: rows that policies on GPUs acted in have other bits";
    assert_eq!(calm.summary["not_reproducible"], object!([device]));
    let lost = killed.summary["abandoned_episodes"].as_u64().expect("episodes were open");
    assert_eq!(killed.summary["not_reproducible"], object!([device, format!("{lost} open episodes were given up")]));
    assert!(stderr.contains("open episodes cannot be continued from the checkpoint"), "{stderr}");
}

/// Checks samples counted by agent steps, which leave batches for the next one: they are part of the checkpoint.
#[tokio::test]
async fn run_without_workers_that_counts_agent_steps_is_bit_identical_after_kills() {
    let (points, iterations) = if is_long() { (20, 400) } else { (3, 80) };
    let pictures = tempfile::tempdir().unwrap();
    let settings = object!({
        "env": "RockPaperScissors-v0", "count_steps_by": "agent_steps",
        "num_envs": 10, "rollout_fragment_length": 5, "train_batch_size": 50, "seed": 1,
        "model_config": { "fcnet_hiddens": [8] }, "stop": { "env_steps": 50 * iterations },
        "monitor_path": pictures.path(), "device_rows": true,
    });
    let calm = Rig::of_settings(&settings, 0);
    calm.begin().finish_with(0).await;
    let rig = Rig::of_settings(&settings, 0);
    killed_at(&rig, points, calm.iterations() as u64, &mut seed()).await;
    assert_eq!(rig.outcome(), calm.outcome());
}

/// Returns the files of a run by name: evaluations by iteration, with their pictures, and recorded episodes by number.
fn pictures(rig: &Rig, episodes: &Path) -> BTreeMap<String, (Value, Vec<u8>)> {
    let evaluations = rig.outcome().metrics.into_iter().filter_map(|mut line| Some(line.get_mut("evaluation")?.take()));
    let evaluations =
        evaluations.map(|line| (line["iteration"].to_string(), rig.path(line["gif"].as_str().unwrap()), line));
    let recorded = std::fs::read_to_string(episodes.join("stats.jsonl")).unwrap();
    let recorded: Vec<Value> = recorded.lines().map(json).filter(|line| line["complete"] == true).collect();
    let recorded = recorded.into_iter().map(|line| {
        let file = line["file"].as_str().unwrap().to_owned();
        (file.clone(), episodes.join(file), line)
    });
    evaluations.chain(recorded).map(|(name, file, line)| (name, (line, std::fs::read(file).unwrap()))).collect()
}

/// Compares the existing files: timing decides which iterations are evaluated, and the episode that is open at a
/// checkpoint is not recorded.
#[tokio::test]
async fn evaluated_and_recorded_run_of_several_policies_ends_with_same_files_after_kills() {
    let (points, iterations) = if is_long() { (20, 400) } else { (3, 80) };
    let episodes = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [calm, rig] = episodes.each_ref().map(|episodes| {
        let settings = object!({
            "env": "MultiAgentCartPole-v1", "env_config": { "num_agents": 2 }, "policy_mapping_fn": "agent_id",
            "policies": { "0": { "policy": "ppo" }, "1": { "policy": "a2c" } },
            "num_slots": 6, "num_envs": 3, "rollout_fragment_length": 16, "seed": 1,
            "model_config": { "fcnet_hiddens": [8] }, "stop": { "env_steps": 96 * iterations },
            "evaluation": { "interval": 20, "episodes": 1, "render": true }, "monitor_path": episodes.path(),
        });
        Rig::of_settings(&settings, 2)
    });
    calm.begin().finish_with(0).await;
    killed_at(&rig, points, iterations, &mut seed()).await;
    let (found, undisturbed) = (rig.outcome(), calm.outcome());
    let updates = |metrics: &[Value]| metrics.iter().filter(|line| line["evaluation"].is_null()).cloned().collect();
    let [found_updates, updates]: [Vec<Value>; 2] = [updates(&found.metrics), updates(&undisturbed.metrics)];
    assert_eq!(found.learned(), undisturbed.learned());
    assert_eq!((found_updates.len() as u64, found_updates), (iterations, updates));
    let (found, undisturbed) = (pictures(&rig, episodes[1].path()), pictures(&calm, episodes[0].path()));
    assert!(found.keys().any(|name| name.starts_with("episode-")), "{:?}", found.keys());
    for (name, picture) in &found {
        assert!(undisturbed.get(name).is_none_or(|calm| calm == picture), "{name}");
    }
    assert!(undisturbed.contains_key("episode-1-1.gif"), "{:?}", undisturbed.keys());
}

/// Interrupts iterations of ten samples: an interrupted one is discarded, and all of it is sampled a second time.
#[tokio::test]
async fn run_without_workers_is_bit_identical_after_interruptions() {
    let pictures = tempfile::tempdir().unwrap();
    let monitor = format!("monitor_path={}", pictures.path().display());
    let flags = ["--workers", "0", "--set", "device_rows=true", "--set", &monitor, "--set", "train_batch_size=1920"];
    let calm = Rig::remote(300).with(&flags);
    calm.begin().finish_with(0).await;
    let mut state = seed();
    let rig = Rig::remote(300).with(&flags);
    for _ in 0..if is_long() { 20 } else { 4 } {
        let process = rig.start();
        let target = rig.iterations() + 1;
        until("an iteration", || rig.iterations() >= target).await;
        tokio::time::sleep(Duration::from_micros(random(&mut state) % 10_000)).await;
        process.signal(Signal::INT);
        process.finish_with(3).await;
    }
    rig.start().finish_with(0).await;
    assert_eq!(rig.outcome(), calm.outcome());
}

/// Compares the committed rows, their use and the filter. With several workers timing decides which leases are hedged:
/// `granted`, `superseded` and `expired` are not those of a calm run.
#[tokio::test]
async fn run_with_several_workers_and_a_filter_is_bit_identical_after_kills() {
    let (points, iterations) = if is_long() { (20, 400) } else { (2, 60) };
    let calm = Rig::new(iterations).with(&FILTER);
    calm.begin().finish_with(0).await;
    let mut state = seed();
    let rig = Rig::with_workers(2, iterations).with(&FILTER);
    killed_at(&rig, points, iterations, &mut state).await;
    let (found, calm) = (rig.outcome(), calm.outcome());
    assert_eq!((&found.metrics, found.learned()), (&calm.metrics, calm.learned()));
    for bucket in ["committed", "consumed", "outstanding", "queued", "dropped_stale", "rejected"] {
        assert_eq!(found.ledger[bucket], calm.ledger[bucket], "{bucket}");
    }
    assert_counted_once(&rig, &found);
}

/// Checks that every slot's fragments were committed in order and once, that none was too stale for its batch, and that
/// the learned rows are those of the journal. If slots are not in lockstep, timing decides on batches, so no bucket of
/// the ledger is that of a calm run.
#[tokio::test]
async fn runs_in_asynchronous_and_deadline_mode_lose_no_fragment_to_kills() {
    let asynchronous = SamplingMode::Asynchronous { batch_env_steps: 192, max_staleness: 1 };
    let deadline = SamplingMode::Deadline { after: Micros::from_millis(20), max_staleness: 1 };
    let modes: [(&[&str], SamplingMode); 2] =
        [(&["--mode", "async"], asynchronous), (&["--mode", "deadline", "--deadline-ms", "20"], deadline)];
    let mut state = seed();
    for (flags, mode) in modes {
        let rig = Rig::with_workers(2, 1_000_000).with(flags).with(&FILTER);
        for _ in 0..if is_long() { 20 } else { 3 } {
            let process = rig.start();
            let target = rig.iterations() + 3 + (random(&mut state) % 8) as usize;
            until("some iterations", || rig.iterations() >= target && !rig.checkpoints().is_empty()).await;
            tokio::time::sleep(Duration::from_micros(random(&mut state) % 20_000)).await;
            process.signal(Signal::KILL);
            process.finish().await;
        }
        let last = json(rig.text("metrics.jsonl").lines().next_back().unwrap())["env_steps"].as_u64().unwrap();
        rig.resume_with(&["--max-env-steps", &(last + 10 * 192).to_string()]).finish_with(0).await;

        let found = rig.outcome();
        let ledger: Ledger = serde_json::from_value(found.ledger.clone()).unwrap();
        assert!(ledger.balances() && ledger.outstanding == 0, "{mode:?}: {ledger:?}");
        assert_eq!(ledger.rejected.total(), ledger.rejected.stale, "{mode:?}");
        assert_eq!(found.summary["env_steps"], ledger.consumed, "{mode:?}");
        assert_counted_once(&rig, &found);
        let journal: Vec<JournalEntry> =
            rig.text("journal.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let replay = |journal: &[JournalEntry]| {
            let config = GroupConfig { mode, ..GroupConfig::new(12, 16) };
            LeaseGroup::new(config).unwrap().replay(journal.iter().copied())
        };
        assert_eq!(replay(&journal), Ok(()), "{mode:?}");
        assert!(journal.contains(&JournalEntry::Restored), "{mode:?}: no life continued from a checkpoint");
        let batches = journal.iter().map(|entry| match entry {
            JournalEntry::Batch { fragments } => 16 * fragments,
            _ => 0,
        });
        assert_eq!(batches.sum::<u64>(), ledger.consumed, "{mode:?}");
        let first = journal.iter().position(|entry| matches!(entry, JournalEntry::Committed { .. })).unwrap();
        let lost = [&journal[..first], &journal[first + 1..]].concat();
        assert!(replay(&lost).is_err(), "{mode:?}: a gap would be found");
    }
}

/// Asserts that the statistics of the filter count every env step that was learned from, and no other.
fn assert_counted_once(rig: &Rig, found: &Outcome) {
    let policy = PolicyCheckpoint::load(rig.dir()).unwrap();
    let statistics = FrozenStat::of_weights(&policy.weights).unwrap().expect("a filter");
    assert_eq!(found.ledger["consumed"], statistics.running().n());
}

#[tokio::test]
async fn interrupted_run_resumes_from_its_last_iteration() {
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
    rig.resume().finish_with(0).await;
    assert_eq!(rig.outcome(), calm);
    assert_eq!(rig.regenerated() % 192, 0);
    assert!(rig.regenerated() <= 3 * 192, "no more than what was being made: {}", rig.regenerated());
    // Nothing is left to do, and nothing changes.
    let end = rig.resume().finish_with(0).await;
    assert!(end.stderr.contains("resuming after iteration 120, 23040 env steps"), "{}", end.stderr);
    assert_eq!(rig.outcome(), calm);
}
