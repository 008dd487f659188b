//! `rollmesh status`: the run, its throughput, and the ledger.

use std::{collections::BTreeMap, io::IsTerminal as _, process::ExitCode, time::Duration};

use clap::Args;
use rollmesh_core::{
    group::Ledger,
    protocol::message::{LauncherRow, RunRow, WorkerRow},
};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{HubTarget, run_command, state_name};
use crate::{
    cli::{exit::Failure, table::count},
    control::{Control, ControlError},
    hub::{LOCAL_KIND, seconds_now},
    net::expiry_warning,
    terminal::printable,
};

/// Interval at which `--watch` prints the status.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(
    after_help = "The token comes from the environment variable ROLLMESH_TOKEN or --token-file; an operator's or a \
                        viewer's will do.\n\n\
                        Examples:\n  ROLLMESH_TOKEN=… rollmesh status --hub ws://127.0.0.1:7878\n  \
                        ROLLMESH_TOKEN=… rollmesh status --json | jq .ledger\n  \
                        rollmesh status --token-file viewer.token --watch"
)]
pub(in crate::cli) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the status every second until the hub exits
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    target: HubTarget,
}

impl StatusArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        run_command(self.target.viewer(), async |hub| {
            if self.watch {
                return self.watch(hub).await;
            }
            print!("{}", self.text(hub));
            Ok(())
        })
    }

    async fn watch(&self, hub: &mut Control) -> Result<(), ControlError> {
        // A terminal shows the latest status, other outputs get all of them.
        let clear = if std::io::stdout().is_terminal() && !self.json { "\x1b[H\x1b[2J" } else { "" };
        let mut ticks = interval(WATCH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => print!("{clear}{}", self.text(hub)),
                heard = hub.next() => match heard {
                    Ok(_) => {}
                    // Prints the last status; watching until the hub disconnects was the goal.
                    Err(ControlError::Left(reason)) => {
                        print!("{clear}{}", self.text(hub));
                        eprintln!("the hub has left: {reason}");
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }

    fn text(&self, hub: &Control) -> String {
        if self.json { format!("{}\n", object(hub)) } else { table(hub) }
    }
}

fn table(hub: &Control) -> String {
    let (status, ledger) = (hub.status(), &hub.ledger().ledger);
    let mut lines = vec![("hub", hub.server().to_owned())];
    let warning = hub.certificate_expiry().and_then(|expires| expiry_warning(expires, seconds_now()));
    lines.extend(warning.map(|warning| ("certificate", warning.text)));
    let starting = starting(hub).map_or_else(String::new, |row| {
        format!(" · run {} begins once environment {} is made", row.run, printable(&row.env))
    });
    if status.run == 0 {
        lines.push(("run", format!("none yet{starting}")));
    } else {
        let phase = hub.phase().name();
        let mut run = format!("{} · {phase} · {} with {}, seed {}", status.run, status.env, status.algo, status.seed);
        for text in [&status.waiting, &status.error] {
            if !text.is_empty() {
                run += &format!(" · {}", printable(text));
            }
        }
        run += &starting;
        let target = number(status.stop_return).map_or_else(String::new, |target| format!(" of {target}"));
        let mean = number(status.episode_return_mean).map_or_else(|| "-".into(), |mean| format!("{mean:.1}"));
        let (steps, most) = (status.env_steps, status.max_env_steps);
        lines.extend([
            ("run", run),
            ("return", format!("{mean}{target} · {} episodes", status.episodes)),
            ("env steps", format!("{steps} of {most} · iteration {} · {:.0} /s", status.iteration, status.steps_per_s)),
            ("time", format!("{:.1} s · {}", status.wall_ms as f64 / 1e3, count(status.num_slots.into(), "slot"))),
        ]);
    }
    let (all, local) = (hub.workers().len(), hub.local_workers().count());
    let unhealthy = hub.unhealthy_workers().count();
    lines.push((
        "workers",
        format!("{all} · {local} local · {unhealthy} unhealthy · {} restarts", hub.ledger().num_worker_restarts),
    ));
    let hosts = hosts(hub);
    if !hosts.is_empty() {
        let counts = hosts.iter().map(|(host, count)| format!("{} {count}", printable(host)));
        lines.push(("hosts", counts.collect::<Vec<_>>().join(" · ")));
    }
    let launchers = hub.launchers().iter().map(|LauncherRow { name, capacity, running, absent }| {
        format!("{} {running} of {capacity}{}", printable(name), if *absent { ", absent" } else { "" })
    });
    let launchers = launchers.collect::<Vec<_>>().join(" · ");
    lines.extend((!launchers.is_empty()).then_some(("launchers", launchers)));
    lines.extend(idle_lines(hub));
    lines.push(("ledger", identity(ledger)));
    let some = |counts: &[(&str, u64)]| -> String {
        let some = counts.iter().filter(|(_, count)| *count > 0);
        some.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect::<Vec<_>>().join(" · ")
    };
    let details = [
        ("committed", some(&[("queued", ledger.queued), ("dropped as stale", ledger.dropped_stale)])),
        ("rejected", some(&ledger.rejected.by_reason())),
        ("expired", some(&ledger.expired.by_cause())),
        ("uninvited", some(&ledger.uninvited.rejected.by_reason())),
        ("regenerated", some(&[("env steps", ledger.regenerated)])),
        ("abandoned", some(&[("episodes", ledger.abandoned_episodes)])),
    ];
    if status.failures > 0 {
        lines.push(("failures", format!("{} · {}", status.failures, printable(&status.last_failure))));
    }
    lines.extend(details.into_iter().filter(|(_, text)| !text.is_empty()));
    lines.into_iter().map(|(name, text)| format!("{name:<12}{text}\n")).collect()
}

/// Returns the run that is about to begin.
fn starting(hub: &Control) -> Option<&RunRow> {
    hub.runs().iter().find(|row| row.place == 1 && !hub.phase().is_active())
}

/// Returns the number of workers on each machine that is known by name.
fn hosts(hub: &Control) -> BTreeMap<String, u64> {
    let mut hosts = BTreeMap::new();
    let names = hub.workers().keys().map(|worker| hub.place(*worker).host);
    names.filter(|host| !host.is_empty()).for_each(|host| *hosts.entry(host).or_default() += 1);
    hosts
}

/// Returns the workers that make no rows, healthy or not.
fn idle_workers(hub: &Control) -> impl Iterator<Item = &WorkerRow> {
    hub.workers().values().filter(|row| !row.reason.is_empty())
}

/// Returns a line per reason, for all workers that make no rows for that reason.
fn idle_lines(hub: &Control) -> Vec<(&'static str, String)> {
    let mut workers = BTreeMap::<(&str, &str), Vec<String>>::new();
    for row in idle_workers(hub) {
        workers.entry((state_name(row.state), &row.reason)).or_default().push(row.worker.to_string());
    }
    let line = |((state, reason), ids): ((&'static str, &str), Vec<String>)| {
        let workers = if ids.len() == 1 { "worker" } else { "workers" };
        (state, format!("{workers} {}: {}", ids.join(", "), printable(reason)))
    };
    workers.into_iter().map(line).collect()
}

fn identity(ledger: &Ledger) -> String {
    let sign = if ledger.balances() { "=" } else { "IS NOT" };
    format!(
        "granted {} {sign} committed {} + superseded {} + rejected {} + expired {} + outstanding {}",
        ledger.granted,
        ledger.committed,
        ledger.superseded,
        ledger.rejected.total(),
        ledger.expired.total(),
        ledger.outstanding
    )
}

fn object(hub: &Control) -> Value {
    let status = hub.status();
    // Before the first run there is none of this.
    let of_run = |value: Value| if status.run == 0 { Value::Null } else { value };
    json!({
        "server": hub.server(),
        "certificate_expires": hub.certificate_expiry(),
        "run": status.run,
        "phase": hub.phase().name(),
        "starting": starting(hub).map(|row| row.run),
        "env": of_run(json!(status.env)),
        "algo": of_run(json!(status.algo)),
        "seed": status.seed,
        "num_slots": status.num_slots,
        "iteration": status.iteration,
        "env_steps": status.env_steps,
        "max_env_steps": status.max_env_steps,
        "episodes": status.episodes,
        "episode_return_mean": of_run(json!(number(status.episode_return_mean))),
        "stop_return": number(status.stop_return),
        "steps_per_s": number(status.steps_per_s),
        "wall_s": status.wall_ms as f64 / 1e3,
        "waiting": Some(&status.waiting).filter(|waiting| !waiting.is_empty()),
        "error": Some(&status.error).filter(|error| !error.is_empty()),
        "failures": status.failures,
        "last_failure": Some(&status.last_failure).filter(|failure| !failure.is_empty()),
        "num_workers": hub.workers().values().filter(|row| row.kind != LOCAL_KIND).count(),
        "num_local_workers": hub.local_workers().count(),
        "hosts": hosts(hub),
        "launchers": hub.launchers(),
        "num_worker_restarts": hub.ledger().num_worker_restarts,
        "unhealthy_workers": hub.unhealthy_workers().map(worker_object).collect::<Vec<_>>(),
        "idle_workers": idle_workers(hub).map(worker_object).collect::<Vec<_>>(),
        "ledger": ledger_object(&hub.ledger().ledger),
    })
}

fn worker_object(row: &WorkerRow) -> Value {
    json!({ "worker": row.worker, "state": state_name(row.state), "reason": row.reason })
}

fn ledger_object(ledger: &Ledger) -> Value {
    let mut object = json!(ledger);
    object["balances"] = ledger.balances().into();
    object
}

/// Returns the number as the shortest decimal of its 32-bit value; `None` for NaN, which stands for a missing value.
fn number(value: f32) -> Option<f64> {
    if value.is_finite() { value.to_string().parse().ok() } else { None }
}
