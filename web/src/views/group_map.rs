//! The group drawn: the hub, the hosts that are connected to it, and the workers on each.

use std::collections::BTreeMap;

use leptos::prelude::*;

use super::workers::{state_name, state_tone};
use crate::{
    format,
    shell::Store,
    state::{HUB, State},
};

/// A host and the ids of its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct HostNode {
    name: String,
    launcher: String,
    workers: Vec<u32>,
}

/// A peer of the hub that serves its workers or programs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PeerNode {
    id: u32,
    service: String,
    name: String,
    detail: String,
}

/// A worker's mark.
#[derive(Clone, Debug, Default, PartialEq)]
struct WorkerMark {
    number: u32,
    tone: &'static str,
    text: String,
}

/// The services of peers that have a mark of their own.
const DRAWN: [&str; 3] = ["launcher", "relay", "evaluation worker"];

/// The hub above its launchers, relays, evaluation workers and hosts, with a mark per worker: its colour is the state,
/// its number the slots that it holds, or its id in a program's group, where no worker holds slots.
#[component]
pub(crate) fn GroupMap() -> impl IntoView {
    let store = expect_context::<Store>();
    let hosts = store.select(hosts);
    let restarts = store.select(|state| state.ledger.as_ref().map_or(0, |ledger| ledger.num_worker_restarts));
    let others = store.select(others);
    let peers = store.select(peers);
    let hub = store.select(|state| {
        let name = state.monitoring.host(HUB).map(|host| host.host.clone()).unwrap_or_default();
        if name.is_empty() { "hub".into() } else { format!("hub on {name}") }
    });
    view! {
        <div class="group-map" data-testid="group-map">
            <p class="group-hub">
                {hub}
                <span class="detail" hidden=move || restarts.get() == 0>
                    {move || format!(" · local workers replaced: {}", restarts.get())}
                </span>
            </p>
            <ul
                class="group-hosts"
                aria-label="Launchers, relays and evaluation workers"
                hidden=move || peers.with(Vec::is_empty)
            >
                <For each=move || peers.get() key=PeerNode::clone let:peer>
                    <li class="group-host group-peer" data-testid="group-peer" data-service=peer.service.clone()>
                        {peer.service.clone()} " " <strong>{peer.name.clone()}</strong>
                        <span class="detail">{peer.detail.clone()}</span>
                    </li>
                </For>
            </ul>
            <ul class="group-hosts" aria-label="Hosts and their workers">
                <For each=move || hosts.get() key=HostNode::clone let:host>
                    <Host host/>
                </For>
            </ul>
            <p class="hint" data-testid="group-others" hidden=move || others.with(String::is_empty)>{others}</p>
        </div>
    }
}

#[component]
fn Host(
    /// The host and its workers.
    host: HostNode,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let HostNode { name, launcher, workers } = host;
    let count = format::number_of(workers.len() as u64, "worker");
    let by = if launcher.is_empty() { String::new() } else { format!(" by {launcher}") };
    let all = workers.clone();
    let slots = store.select(move |state| {
        let slots = all.iter().filter_map(|id| state.workers.get(id)).map(|row| u64::from(row.slots)).sum();
        if state.is_of_group() { String::new() } else { format!(", {}", format::number_of(slots, "slot")) }
    });
    view! {
        <li class="group-host" data-testid="group-host">
            <p class="group-name">{name} " " <span class="detail">{count}{by}{slots}</span></p>
            <ul class="group-workers">{workers.into_iter().map(|id| view! { <Worker id/> }).collect_view()}</ul>
        </li>
    }
}

#[component]
fn Worker(
    /// Its id.
    id: u32,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let mark = store.of_worker(id, move |state| mark(state, id));
    let text = move || mark.with(|mark| mark.text.clone());
    view! {
        <li>
            <span
                class="group-worker"
                role="img"
                data-testid=format!("group-worker-{id}")
                data-tone=move || mark.with(|mark| mark.tone)
                title=text
                aria-label=text
            >
                {move || mark.with(|mark| mark.number)}
            </span>
        </li>
    }
}

fn mark(state: &State, id: u32) -> WorkerMark {
    let Some(row) = state.workers.get(&id) else { return WorkerMark::default() };
    let (kind, slots, lag, name) = (&row.kind, row.slots, row.weights_lag, state_name(row.state));
    let last_error = || state.monitoring.last_error(id).map(|line| format!("last error: {}", line.text));
    let trouble = state.reason(id).or_else(last_error).map(|text| format!(". {text}")).unwrap_or_default();
    let (num_slots, updates) = (format::number_of(slots.into(), "slot"), format::number_of(lag, "update"));
    let (number, lease) = match state.is_of_group() {
        true => (id, String::new()),
        false => (slots, format!(", {num_slots}, {updates} behind")),
    };
    let text = format!("worker {id}, {kind}: {name}{lease}{trouble}");
    WorkerMark { number, tone: state_tone(row.state), text }
}

/// Returns the launchers, relays and evaluation workers, sorted by service and name.
fn peers(state: &State) -> Vec<PeerNode> {
    let node = |(id, service, name): (u32, &str, &str)| {
        let workers = state.places.values().filter(|place| service == "launcher" && place.launcher == name).count();
        let detail =
            if workers > 0 { format!(", {}", format::number_of(workers as u64, "worker")) } else { String::new() };
        PeerNode { id, service: service.into(), name: name.into(), detail }
    };
    let mut nodes: Vec<_> = state.others.iter().filter(|(_, service, _)| DRAWN.contains(service)).map(node).collect();
    nodes.sort_by(|a, b| (&a.service, &a.name, a.id).cmp(&(&b.service, &b.name, b.id)));
    nodes
}

/// Returns a sentence with the hub's other peers, except this page and peers with a mark of their own. Peers of equal
/// service and name are counted.
fn others(state: &State) -> String {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let others = state.others.iter().filter(|(peer, service, _)| *peer != state.peer && !DRAWN.contains(service));
    others.for_each(|(_, service, name)| *counts.entry((service, name)).or_default() += 1);
    let text = |((service, name), count): (&(&str, &str), &u32)| match count {
        1 => format!("{service} {name}"),
        count => format!("{count} × {service} {name}"),
    };
    let mut texts: Vec<String> = counts.iter().map(text).collect();
    if state.others.left_out > 0 {
        texts.push(format!("{} more", state.others.left_out));
    }
    if texts.is_empty() { String::new() } else { format!("Also connected: {}.", texts.join(", ")) }
}

fn hosts(state: &State) -> Vec<HostNode> {
    // Sorted by the name up to its number, then by the number: `node-2` is before `node-10`.
    let mut hosts: BTreeMap<(&str, usize, &str, &str), Vec<u32>> = BTreeMap::new();
    for row in state.workers.values() {
        let place = state.places.get(&row.worker);
        let host = place.map_or("", |place| &*place.host);
        let name = match row.kind.as_str() {
            "browser" => "browser tabs",
            "thread" => "the program",
            _ if host.is_empty() => "unknown host",
            _ => host,
        };
        let (series, launcher) = (name.trim_end_matches(char::is_numeric), place.map_or("", |place| &*place.launcher));
        hosts.entry((series, name.len(), name, launcher)).or_default().push(row.worker);
    }
    let node = |((_, _, name, launcher), workers): ((&str, usize, &str, &str), _)| HostNode {
        name: name.into(),
        launcher: launcher.into(),
        workers,
    };
    hosts.into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollmesh_core::protocol::message::{OtherPeers, WorkerLocation, WorkerRow};

    use super::*;
    use crate::state::RunSchema;

    #[test]
    fn workers_are_grouped_by_host_and_launcher_and_tabs_are_one_host() {
        let mut state = State::default();
        for (worker, kind, host) in
            [(1, "native", "a2"), (2, "native", "a10"), (3, "native", "a2"), (4, "browser", "c")]
        {
            let row =
                WorkerRow { worker, kind: kind.into(), slots: worker, reason: "paused".into(), ..WorkerRow::default() };
            state.workers.insert(worker, row);
            let place = WorkerLocation { worker, host: host.into(), launcher: String::new() };
            state.places.insert(worker, place);
        }
        let found = hosts(&state);
        let shown: Vec<_> = found.iter().map(|host| (&*host.name, &*host.workers)).collect();
        assert_eq!(shown, [("a2", &[1, 3][..]), ("a10", &[2]), ("browser tabs", &[4])]);
        state.peer = 6;
        let viewers = [7, 8].map(|peer| (peer, "viewer", "dashboard"));
        let drawn = [(9, "launcher", "slurm"), (10, "relay", "rack 2"), (11, "evaluation worker", "judge")];
        let peers = [(6, "operator", "dashboard"), (12, "client of an environment", "game")];
        state.others = OtherPeers::new(drawn.into_iter().chain(peers).chain(viewers));
        state.places.get_mut(&1).expect("a place").launcher = "slurm".into();
        assert_eq!(others(&state), "Also connected: client of an environment game, 2 × viewer dashboard.");
        let shown: Vec<_> = super::peers(&state)
            .into_iter()
            .map(|peer| format!("{} {}{}", peer.service, peer.name, peer.detail))
            .collect();
        assert_eq!(shown, ["evaluation worker judge", "launcher slurm, 1 worker", "relay rack 2"]);
        let found = mark(&state, 2);
        assert!(found.number == 2 && found.text.ends_with("0 updates behind. paused"), "{}", found.text);
        state.schema = Some(Arc::new(RunSchema::parse(r#"{"not": {}}"#).expect("a schema")));
        let found = mark(&state, 3);
        assert_eq!((found.number, &*found.text), (3, "worker 3, native: idle. paused"));
    }
}
