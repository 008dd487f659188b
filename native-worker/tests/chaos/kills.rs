//! Workers are killed, one after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::rig::{Dice, Rig, calm_for, now_ms, number, percentile, times_by_name};
use crate::support::{
    Process, is_long, json,
    process::{children_of, has_ended, kill},
    until,
};

const WORKERS: u64 = 4;
const LENGTH: u64 = 64;
const BETWEEN_KILLS: Duration = Duration::from_millis(500);

/// A worker that was killed.
struct Kill {
    at_ms: u64,
    /// The hub's number for it.
    number: u64,
}

/// Kills one of the workers in every half second, at any moment of it, until the run is over. A fixed moment would be
/// synchronous with the iterations, and hit all of them early or late.
async fn kill_one_after_the_other(rig: &Rig, run: &Process, dice: &mut Dice) -> Vec<Kill> {
    until("all workers", || children_of(run.pid()).len() == WORKERS as usize && rig.iterations() > 0).await;
    let mut kills = Vec::new();
    let mut pause = tokio::time::interval(BETWEEN_KILLS);
    while !rig.path("summary.json").exists() && !has_ended(run.pid()) {
        pause.tick().await;
        tokio::time::sleep(Duration::from_millis(dice.below(BETWEEN_KILLS.as_millis() as usize) as u64)).await;
        let mut workers: Vec<(u64, u32)> = children_of(run.pid()).into_iter().filter_map(numbered).collect();
        workers.sort_unstable();
        // The newest one of five has no place yet.
        workers.truncate(WORKERS as usize);
        if workers.is_empty() {
            continue;
        }
        let (number, pid) = workers[dice.below(workers.len())];
        kills.push(Kill { at_ms: now_ms(), number });
        kill(pid);
    }
    kills
}

/// Returns the number that the hub has given to a worker, and its process.
fn numbered(pid: u32) -> Option<(u64, u32)> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut args = command.split(|&byte| byte == 0);
    args.find(|arg| *arg == b"--name")?;
    Some((std::str::from_utf8(args.next()?).ok()?.strip_prefix("local-")?.parse().ok()?, pid))
}

/// Times in milliseconds, of all kills of a test, each from the kill on.
#[derive(Default)]
struct Times {
    /// The hub has seen the end of the connection.
    detected: Vec<u64>,
    /// The replacement is admitted and has the place.
    joined: Vec<u64>,
    /// The first fragment of the replacement is accepted.
    recovered: Vec<u64>,
    /// Replacements that were killed before that.
    killed_first: usize,
}

impl Times {
    /// Takes the times of a run's kills from its audit log. Nearly all have one: only a kill at the end of the run may
    /// come too late for it.
    fn add(&mut self, kills: &[Kill], audit: &[Value]) {
        let [left, admitted, delivered] = ["left", "admitted", "delivered"].map(|event| times_by_name(audit, event));
        let replaced = audit.iter().filter(|line| line["event"] == "replaced");
        // The replacements by the workers whose places they have, and the times of these records.
        let replaced: BTreeMap<u64, (u64, u64)> =
            replaced.map(|line| (number(line, "ended"), (number(line, "by"), number(line, "at_ms")))).collect();
        let killed: BTreeSet<u64> = kills.iter().map(|kill| kill.number).collect();
        let had_place = |number| number <= WORKERS || replaced.values().any(|&(by, _)| by == number);
        let mut missed = 0;
        for &Kill { at_ms, number } in kills.iter().filter(|kill| had_place(kill.number)) {
            let time = |times: &BTreeMap<String, u64>, number: u64| times.get(&format!("local-{number}")).copied();
            let since = |at: u64| at.checked_sub(at_ms).expect("an effect comes after its cause");
            let by = replaced.get(&number).copied();
            self.detected.extend(time(&left, number).map(since));
            // A spare one has joined already.
            self.joined.extend(by.and_then(|(by, at)| Some(since(time(&admitted, by)?.max(at)))));
            match by.and_then(|(by, _)| time(&delivered, by)) {
                Some(useful) => self.recovered.push(since(useful)),
                None if by.is_some_and(|(by, _)| killed.contains(&by)) => self.killed_first += 1,
                None => missed += 1,
            }
        }
        assert!(missed <= 3, "of {} killed workers {missed} have no replacement that was of use", kills.len());
    }
}

/// Executes an undisturbed run for this time, and then the same one with kills. Returns its goodput, and the times.
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
    assert!(kills.len() >= 4, "{} kills", kills.len());
    times.add(&kills, &rig.audit());
    let goodput = found.speed() / calm.speed();
    println!(
        "{env}: {} kills, {} env steps, {} lost and regenerated, goodput {goodput:.3} ({:.0} of {:.0} env steps/s)",
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
    // If sampling takes most of the time, kills hit leases.
    let slow = calm_and_under_fire("Slow-v0", time, &mut dice, &mut times).await;
    if is_long() {
        for _ in 0..5 {
            goodputs.push(calm_and_under_fire("CartPole-v1", time, &mut dice, &mut times).await);
        }
    }
    let Times { mut detected, mut joined, mut recovered, killed_first } = times;
    for (what, times) in [
        ("end of connection seen", &mut detected),
        ("replacement in its place", &mut joined),
        ("replacement useful", &mut recovered),
    ] {
        let [p50, p99, most] = [50, 99, 100].map(|percent| percentile(times, percent));
        println!("{what} after p50 {p50} ms, p99 {p99} ms, at most {most} ms ({} kills)", times.len());
    }
    println!("{killed_first} replacements were killed first");
    // Times are meaningful only if the machine runs nothing else, as for the long form.
    if is_long() {
        goodputs.sort_by(f64::total_cmp);
        assert!(slow >= 0.9, "{slow}");
        assert!(goodputs[goodputs.len() / 2] >= 0.9, "{goodputs:?}");
        assert!(recovered.len() >= 100 && percentile(&mut recovered, 99) <= 1_000);
        assert!(percentile(&mut detected, 99) <= 100);
    }
}

/// Checks that every slot's fragments are committed in order and once. Ready workers continue, so batches are not the
/// calm run's.
pub(crate) async fn slots_have_no_gaps_in_asynchronous_mode() {
    let time = Duration::from_secs(if is_long() { 60 } else { 4 });
    let mut dice = Dice::new();
    // If sampling is slow, there is always a lease to hit.
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
