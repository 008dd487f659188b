//! Workers are killed, one after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    rig::{Dice, Rig, calm_for, now_ms, percentile, times_by_name},
    support::{
        Process, is_long, json,
        process::{children_of, has_ended, kill},
        until,
    },
};

const WORKERS: u64 = 4;
const LENGTH: u64 = 64;
const BETWEEN_KILLS: Duration = Duration::from_millis(500);

/// One that was killed.
struct Kill {
    at_ms: u64,
    /// The hub's name for it.
    name: String,
}

/// Kills one of the workers every half second until the run is over.
async fn kill_one_after_the_other(rig: &Rig, run: &Process, dice: &mut Dice) -> Vec<Kill> {
    until("all workers", || children_of(run.pid()).len() == WORKERS as usize && rig.iterations() > 0).await;
    let mut kills = Vec::new();
    let mut pause = tokio::time::interval(BETWEEN_KILLS);
    while !rig.path("summary.json").exists() && !has_ended(run.pid()) {
        pause.tick().await;
        // Not the latest one: it may be about to be measured.
        let mut workers: Vec<(u64, u32)> = children_of(run.pid()).into_iter().filter_map(numbered).collect();
        workers.sort_unstable();
        workers.pop();
        if workers.is_empty() {
            continue;
        }
        let (number, pid) = workers[dice.below(workers.len())];
        kill(pid);
        kills.push(Kill { at_ms: now_ms(), name: format!("local-{number}") });
    }
    kills
}

/// The number that the hub has given to a worker, and its process.
fn numbered(pid: u32) -> Option<(u64, u32)> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut args = command.split(|&byte| byte == 0);
    args.find(|arg| *arg == b"--name")?;
    Some((std::str::from_utf8(args.next()?).ok()?.strip_prefix("local-")?.parse().ok()?, pid))
}

/// Times in milliseconds, of all kills of a test.
#[derive(Default)]
struct Times {
    /// From a kill to the end of its connection.
    detected: Vec<u64>,
    /// From a kill to the first accepted fragment of its replacement.
    recovered: Vec<u64>,
    /// Replacements that were killed before they could do anything.
    killed_first: usize,
}

impl Times {
    fn add(&mut self, kills: &[Kill], audit: &[Value]) {
        let (left, delivered) = (times_by_name(audit, "left"), times_by_name(audit, "delivered"));
        let killed: BTreeSet<&str> = kills.iter().map(|kill| &*kill.name).collect();
        let detected = kills.iter().filter_map(|kill| Some(left.get(&kill.name)?.saturating_sub(kill.at_ms)));
        self.detected.extend(detected);
        // The hub replaces the killed in their order.
        for (done, kill) in kills.iter().enumerate() {
            let replacement = format!("local-{}", WORKERS + 1 + done as u64);
            match delivered.get(&replacement) {
                Some(useful) => self.recovered.push(useful.saturating_sub(kill.at_ms)),
                None => self.killed_first += usize::from(killed.contains(&*replacement)),
            }
        }
    }
}

/// One calm run for so long, and then the same one under fire. Its goodput, and the times.
async fn calm_and_under_fire(env: &str, time: Duration, dice: &mut Dice, times: &mut Times) -> f64 {
    let calm = calm_for(time, WORKERS, LENGTH, &["--env", env]).await;
    let rig = Rig::new(WORKERS, calm.env_steps, LENGTH, &["--env", env]);
    let run = rig.start();
    let kills = kill_one_after_the_other(&rig, &run, dice).await;
    run.finish_with(0).await;
    let found = rig.outcome();
    found.must_equal(&calm);
    let expired = found.ledger.expired;
    assert_eq!(expired.timed_out, 0, "{expired:?}");
    let detected = times.detected.len();
    times.add(&kills, &rig.audit());
    assert!(kills.len() >= 4 && times.detected.len() - detected + 3 >= kills.len(), "{} kills", kills.len());
    let goodput = found.speed() / calm.speed();
    println!(
        "{env}: {} kills, {} env steps, {} lost and made again, goodput {goodput:.3} ({:.0} of {:.0} env steps/s)",
        kills.len(),
        found.env_steps,
        found.ledger.granted - found.ledger.committed,
        found.speed(),
        calm.speed(),
    );
    goodput
}

pub(crate) async fn workers_that_are_killed_twice_a_second_cost_time_but_no_data() {
    let mut dice = Dice::new();
    let (mut times, mut goodputs) = (Times::default(), Vec::new());
    let time = Duration::from_secs(if is_long() { 60 } else { 4 });
    // Where most of the time is sampling's, kills hit leases.
    let slow = calm_and_under_fire("Slow-v0", time, &mut dice, &mut times).await;
    if is_long() {
        for _ in 0..5 {
            goodputs.push(calm_and_under_fire("CartPole-v1", time, &mut dice, &mut times).await);
        }
    }
    let Times { mut detected, mut recovered, killed_first } = times;
    println!(
        "end of connection seen after p50 {} ms, p99 {} ms, at most {} ms; replacement useful after p50 {} ms, p99 {} ms, at \
         most {} ms ({} kills, and {killed_first} replacements that were killed first)",
        percentile(&mut detected, 50),
        percentile(&mut detected, 99),
        percentile(&mut detected, 100),
        percentile(&mut recovered, 50),
        percentile(&mut recovered, 99),
        percentile(&mut recovered, 100),
        recovered.len(),
    );
    // Times mean something where the machine is the test's alone, which is where people ask for the long form.
    if is_long() {
        goodputs.sort_by(f64::total_cmp);
        assert!(slow >= 0.8, "{slow}");
        assert!(goodputs[goodputs.len() / 2] >= 0.9, "{goodputs:?}");
        assert!(percentile(&mut recovered, 99) <= 1_000);
        assert!(percentile(&mut detected, 99) <= 100);
    }
}

/// Whoever is ready goes on: batches are not the calm run's, but every slot's fragments are there, in order, once.
pub(crate) async fn slots_that_do_not_keep_step_have_no_gaps_either() {
    let time = Duration::from_secs(if is_long() { 60 } else { 4 });
    let mut dice = Dice::new();
    // Where sampling takes its time, there is always a lease to hit.
    let rig = Rig::new(WORKERS, u64::MAX, LENGTH, &["--mode", "async", "--env", "Slow-v0"]);
    let run = rig.start();
    let began = Instant::now();
    let disturb = kill_one_after_the_other(&rig, &run, &mut dice);
    let kills = tokio::time::timeout(time, disturb).await;
    assert!(kills.is_err(), "it ended by itself after {:?}", began.elapsed());
    run.signal(crate::support::process::Signal::TERM);
    run.finish_with(0).await;
    let mut next = BTreeMap::<u64, u64>::new();
    let (mut committed, mut batched) = (0, 0);
    for line in rig.text("journal.jsonl").lines().map(json) {
        if let Some(commit) = line.get("committed") {
            let slot = next.entry(commit["slot"].as_u64().unwrap()).or_default();
            assert_eq!(commit["fragment"], *slot, "{commit}");
            *slot += 1;
            committed += LENGTH;
        } else if let Some(batch) = line.get("batch") {
            batched += batch["fragments"].as_u64().unwrap() * LENGTH;
        }
    }
    assert_eq!(next.len(), 12);
    let ledger: rollmesh_core::group::Ledger = serde_json::from_str(&rig.text("ledger.json")).unwrap();
    assert!(ledger.balances() && ledger.outstanding == 0, "{ledger:?}");
    assert_eq!((ledger.committed, ledger.consumed), (committed, batched), "{ledger:?}");
    assert!(ledger.expired.left > 0, "{ledger:?}");
    println!("{committed} env steps committed, {batched} learned from, {} slots without a gap", next.len());
}
