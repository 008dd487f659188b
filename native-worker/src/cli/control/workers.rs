//! `rollmesh workers`: the workers of a hub.

use std::process::ExitCode;

use clap::Args;
use rollmesh_core::protocol::message::{WorkerLocation, WorkerRow};
use serde_json::{Value, json};

use super::{HubTarget, run_command, state_name};
use crate::{
    cli::{exit::Failure, table::table},
    control::Control,
    terminal::printable,
};

#[derive(Args)]
#[command(after_help = "Examples:\n  ROLLMESH_TOKEN=… rollmesh workers --hub ws://127.0.0.1:7878\n  \
                        ROLLMESH_TOKEN=… rollmesh workers --json | jq '.[].state'")]
pub(in crate::cli) struct WorkersArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: HubTarget,
}

impl WorkersArgs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        run_command(self.target.viewer(), async |hub| {
            let text = if self.json { format!("{}\n", array(hub)) } else { text(hub) };
            print!("{text}");
            Ok(())
        })
    }
}

fn array(hub: &Control) -> Value {
    let object = |row: &WorkerRow| {
        json!({
            "worker": row.worker,
            "kind": row.kind,
            "name": row.name,
            "host": Some(hub.place(row.worker).host).filter(|host| !host.is_empty()),
            "launcher": Some(hub.place(row.worker).launcher).filter(|launcher| !launcher.is_empty()),
            "device": row.device,
            "local": row.local,
            "state": state_name(row.state),
            "reason": Some(&row.reason).filter(|reason| !reason.is_empty()),
            "slots": row.slots,
            "env_steps": row.env_steps,
            "steps_per_s": f64::from(row.steps_per_s),
            "weights_lag": row.weights_lag,
        })
    };
    hub.workers().values().map(object).collect()
}

/// Returns what has started a worker: the hub, one of its launchers, or neither.
fn place(row: &WorkerRow, place: &WorkerLocation) -> String {
    match (row.local, place.launcher.is_empty()) {
        (true, true) => "local".into(),
        (true, false) => printable(&place.launcher),
        (false, _) => "elsewhere".into(),
    }
}

fn text(hub: &Control) -> String {
    let titles = ["id", "kind", "name", "host", "where", "state", "slots", "env steps", "steps/s", "lag", ""];
    let cells = |row: &WorkerRow| -> [String; 11] {
        [
            row.worker.to_string(),
            printable(&row.kind),
            printable(&row.name),
            printable(&hub.place(row.worker).host),
            place(row, &hub.place(row.worker)),
            state_name(row.state).into(),
            row.slots.to_string(),
            row.env_steps.to_string(),
            format!("{:.0}", row.steps_per_s),
            row.weights_lag.to_string(),
            printable(&row.reason),
        ]
    };
    let rows: Vec<_> = std::iter::once(titles.map(str::to_owned)).chain(hub.workers().values().map(cells)).collect();
    // Numbers stand to the right.
    table(&rows, |i| matches!(i, 6..=9))
}
