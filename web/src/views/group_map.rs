//! The group drawn: the hub, the hosts that are connected to it, and the workers on each.

use std::collections::BTreeMap;

use leptos::prelude::*;

use super::workers::{state_name, state_tone};
use crate::{
    shell::Store,
    state::{HUB, State},
};

/// A host and its workers.
#[derive(Clone, Debug, Default, PartialEq)]
struct HostNode {
    name: String,
    launcher: String,
    slots: u32,
    workers: Vec<WorkerNode>,
}

#[derive(Clone, Debug, PartialEq)]
struct WorkerNode {
    id: u32,
    kind: String,
    slots: u32,
    lag: u64,
    state: &'static str,
    tone: &'static str,
    /// Why it makes no rows, or what failed there last.
    trouble: String,
}

/// The hub above its hosts, with a mark per worker: its colour is the state, its number the slots that it holds.
#[component]
pub(crate) fn GroupMap() -> impl IntoView {
    let store = expect_context::<Store>();
    let hosts = store.select(hosts);
    let restarts = store.select(|state| state.ledger.as_ref().map_or(0, |ledger| ledger.num_worker_restarts));
    let hub = store.select(|state| {
        let name = state.monitoring.host(HUB).map(|host| host.host.clone()).unwrap_or_default();
        if name.is_empty() { "hub".into() } else { format!("hub on {name}") }
    });
    view! {
        <div class="group-map" data-testid="group-map" hidden=move || hosts.with(Vec::is_empty)>
            <p class="group-hub">
                {hub}
                <span class="detail" hidden=move || restarts.get() == 0>
                    {move || format!("{} local workers replaced", restarts.get())}
                </span>
            </p>
            <ul class="group-hosts" aria-label="Hosts and their workers">
                {move || hosts.get().into_iter().map(|host| view! { <Host host/> }).collect_view()}
            </ul>
        </div>
    }
}

#[component]
fn Host(
    /// What it is.
    host: HostNode,
) -> impl IntoView {
    let HostNode { name, launcher, slots, workers } = host;
    let by = if launcher.is_empty() { String::new() } else { format!(" by {launcher}") };
    let detail = format!("{} workers{by}, {slots} slots", workers.len());
    let detail = detail.replace("1 workers", "1 worker");
    view! {
        <li class="group-host" data-testid="group-host">
            <p class="group-name">{name} <span class="detail">{detail}</span></p>
            <ul class="group-workers">
                {workers.into_iter().map(|worker| {
                    let WorkerNode { id, kind, slots, lag, state, tone, trouble } = worker;
                    let text = format!("worker {id}, {kind}: {state}, {slots} slots, {lag} updates behind");
                    let text = if trouble.is_empty() { text } else { format!("{text}. {trouble}") };
                    view! {
                        <li class="group-worker" data-tone=tone data-testid=format!("group-worker-{id}") title=text.clone()>
                            <span aria-hidden="true">{slots}</span>
                            <span class="hidden">{text}</span>
                        </li>
                    }
                }).collect_view()}
            </ul>
        </li>
    }
}

fn hosts(state: &State) -> Vec<HostNode> {
    let mut hosts: BTreeMap<(String, String), HostNode> = BTreeMap::new();
    for row in state.workers.values() {
        let place = state.places.get(&row.worker).cloned().unwrap_or_default();
        let is_browser = row.kind == "browser";
        let name = match (is_browser, place.host.is_empty()) {
            (true, _) => "browser tabs".to_owned(),
            (false, true) => "unknown host".to_owned(),
            (false, false) => place.host,
        };
        let host = hosts.entry((name.clone(), place.launcher.clone())).or_default();
        (host.name, host.launcher) = (name, place.launcher);
        host.slots += row.slots;
        let last_error = || state.monitoring.last_error(row.worker).map(|line| format!("Last error: {}", line.text));
        host.workers.push(WorkerNode {
            id: row.worker,
            kind: row.kind.clone(),
            slots: row.slots,
            lag: row.weights_lag,
            state: state_name(row.state),
            tone: state_tone(row.state),
            trouble: state.reason(row.worker).or_else(last_error).unwrap_or_default(),
        });
    }
    hosts.into_values().collect()
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::{WorkerLocation, WorkerRow};

    use super::*;

    #[test]
    fn workers_are_grouped_by_host_and_launcher_and_tabs_are_one_host() {
        let mut state = State::default();
        for (worker, kind, host) in [(1, "native", "a"), (2, "native", "b"), (3, "native", "a"), (4, "browser", "c")] {
            let row = WorkerRow { worker, kind: kind.into(), slots: worker, reason: "paused".into(), ..WorkerRow::default() };
            state.workers.insert(worker, row);
            let place = WorkerLocation { worker, host: host.into(), launcher: String::new() };
            state.places.insert(worker, place);
        }
        let found = hosts(&state);
        let shown: Vec<_> = found.iter().map(|host| (&*host.name, host.workers.len(), host.slots)).collect();
        assert_eq!(shown, [("a", 2, 4), ("b", 1, 2), ("browser tabs", 1, 4)]);
        assert_eq!(found[1].workers[0].trouble, "paused");
    }
}
