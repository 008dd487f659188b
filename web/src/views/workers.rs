//! The workers of the hub.

use std::fmt::Write as _;

use leptos::prelude::*;
use rollmesh_core::protocol::{
    WorkerState,
    message::{WorkerLocation, WorkerRow},
};

use super::{action_button::ActionButton, group_map::GroupMap, invite::Invite, logs::ShownLog, show_card};
use crate::{
    format,
    shell::Store,
    state::{Action, State},
};

/// A table with a row per worker.
#[component]
pub(crate) fn Workers() -> impl IntoView {
    let store = expect_context::<Store>();
    let ids = store.select(|state| state.workers.keys().copied().collect::<Vec<_>>());
    let hint = store.select(State::workers_hint);
    // A program calls the workers of its group: they have no leases of slots, and no weights of a run.
    let has_runs = store.select(|state| !state.is_of_group());
    let empty = store.select(|state| match state.is_tab() {
        true => "No worker yet: a run in this tab starts its own.",
        false => "No worker is connected. Add a local one, or join a hub's run with a tab.",
    });
    // Selected once for all rows, since it is computed after every change of the state.
    let of_tab = store.select(|state| state.tab.workers().map(|(_, status)| status.worker).collect::<Vec<_>>());
    view! {
        <section class="card late" aria-labelledby="workers-title">
            <div class="card-head">
                <h2 id="workers-title">"Workers"</h2>
                <span class="detail" data-testid="workers-count">{move || ids.with(Vec::len)}</span>
            </div>
            <GroupMap/>
            <div class="table-box workers-box" tabindex="0" role="group" aria-label="Workers, scrollable">
                // Some browsers give tables with another `display` no roles.
                <table role="table" data-testid="workers" class:of-group=move || !has_runs.get()>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Id"</th>
                            <th role="columnheader" scope="col">"Kind"</th>
                            <th role="columnheader" scope="col">"Name"</th>
                            <th role="columnheader" scope="col">"Host"</th>
                            <th role="columnheader" scope="col">"State"</th>
                            {move || has_runs.get().then(|| view! { <th role="columnheader" scope="col" class="right">"Slots"</th> })}
                            <th role="columnheader" scope="col" class="right">"Env steps"</th>
                            <th role="columnheader" scope="col" class="right">"Steps/s"</th>
                            {move || has_runs.get().then(|| view! {
                                <th role="columnheader" scope="col" class="right" title="Learner updates behind the newest weights">"Lag"</th>
                            })}
                            <th role="columnheader" scope="col"><span class="hidden">"Actions"</span></th>
                        </tr>
                    </thead>
                    <tbody role="rowgroup">
                        <For each=move || ids.get() key=|id| *id children=move |id| view! { <Row id of_tab has_runs/> }/>
                    </tbody>
                </table>
                <p class="hint" data-testid="workers-hint" hidden=move || hint.with(Option::is_none)>{hint}</p>
                <p class="empty" data-testid="workers-empty" hidden=move || ids.with(|ids| !ids.is_empty())>{empty}</p>
            </div>
            <Invite/>
        </section>
    }
}

#[component]
fn Row(
    /// The worker's id.
    id: u32,
    /// The workers of this tab.
    of_tab: RwSignal<Vec<u32>>,
    /// True if the hub executes runs.
    has_runs: RwSignal<bool>,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let text = move |show: fn(&WorkerRow) -> String| {
        store.of_worker(id, move |state| state.workers.get(&id).map(show).unwrap_or_default())
    };
    let kind = text(|row| row.kind.clone());
    let (slots, lag) = (text(|row| row.slots.to_string()), text(|row| row.weights_lag.to_string()));
    let is_this_tab = move || of_tab.with(|workers| id != 0 && workers.contains(&id));
    let is_local = store.of_worker(id, move |state| state.workers.get(&id).is_some_and(|row| row.local));
    let reason = store.of_worker(id, move |state| state.reason(id));
    let place = move |show: fn(&WorkerLocation) -> String| {
        store.of_worker(id, move |state| state.places.get(&id).map(show).unwrap_or_default())
    };
    let build = store.of_worker(id, move |state| build(state, id));
    let last_error = store.of_worker(id, move |state| state.monitoring.last_error(id).map(|line| line.text.clone()));
    let line = store.of_worker(id, move |state| sparkline(state.monitoring.rates(id)));
    let ShownLog(shown_log) = expect_context::<ShownLog>();
    let has_log = store.of_worker(id, move |state| state.monitoring.log(id).is_some());
    let state = store.of_worker(id, move |state| state.workers.get(&id).map_or(0, |row| row.state));
    let name = move || state_name(state.get());
    view! {
        <tr role="row" data-testid="worker-row" data-worker=id data-kind=kind data-state=name>
            <td role="cell" class="number" data-testid="worker-id">{id}</td>
            <td role="cell"><span class="kind">{kind}</span></td>
            <td role="cell" class="name" title=text(|row| format!("{} on {}", row.name, row.device))>
                {text(|row| row.name.clone())}
                {move || is_this_tab().then(|| view! { <span class="tag" data-testid="worker-this-tab">"this tab"</span> })}
                <span class="reason" data-testid="worker-build">{build}</span>
            </td>
            <td role="cell" data-testid="worker-host" title=place(|place| place.launcher.clone())>
                {place(|place| place.host.clone())}
            </td>
            <td role="cell">
                <span class="state" data-tone=move || state_tone(state.get())>{name}</span>
                {move || reason.get().map(|reason| view! { <span class="reason" data-testid="worker-reason">{reason}</span> })}
                {move || last_error.get().map(|error| view! {
                    <span class="reason" data-testid="worker-last-error" title=error.clone()>"Last: " {error.clone()}</span>
                })}
            </td>
            {move || has_runs.get().then(|| view! { <td role="cell" class="right" data-testid="worker-slots">{slots}</td> })}
            <td role="cell" class="right" data-testid="worker-env-steps">{text(|row| format::count(row.env_steps))}</td>
            <td role="cell" class="right">
                <span data-testid="worker-steps-per-s">{text(|row| format::short(f64::from(row.steps_per_s)))}</span>
                <svg class="sparkline" viewBox="0 0 60 160" preserveAspectRatio="none" aria-hidden="true" data-testid="worker-sparkline">
                    <path d=line vector-effect="non-scaling-stroke"/>
                </svg>
            </td>
            {move || has_runs.get().then(|| view! { <td role="cell" class="right" data-testid="worker-lag">{lag}</td> })}
            <td role="cell" class="right">
                <button
                    type="button"
                    class="button small"
                    data-testid="worker-log"
                    aria-label=format!("Log of worker {id}")
                    hidden=move || !has_log.get()
                    on:click=move |_| {
                        shown_log.set(id);
                        show_card("log");
                    }
                >
                    "Log"
                </button>
                {move || is_local.get().then(|| view! {
                    <ActionButton
                        action=Action::RestartWorker { worker: id }
                        id="restart-worker"
                        class="button small"
                        label=format!("Restart worker {id}")
                    >
                        "Restart"
                    </ActionButton>
                })}
                <ActionButton
                    action=Action::RemoveWorker { worker: id }
                    id="remove-worker"
                    class="button small"
                    label=format!("Remove worker {id}")
                >
                    "Remove"
                </ActionButton>
            </td>
        </tr>
    }
}

/// Returns the device and the version, as far as they are known.
fn build(state: &State, id: u32) -> String {
    let device = state.workers.get(&id).map(|row| row.device.clone());
    let version = state.monitoring.host(id).map(|host| host.version.clone());
    [device, version].into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Returns the path of a line of the latest rates, from 0 to the greatest one, in a box of 60 by 160 that grows from
/// the right. Whole numbers are written several times as fast as others.
fn sparkline(rates: impl ExactSizeIterator<Item = f32> + Clone) -> String {
    let most = rates.clone().fold(1.0_f32, f32::max);
    let (first, mut line) = (60_usize.saturating_sub(rates.len()), String::new());
    for (index, rate) in rates.enumerate() {
        let (pen, x, y) = (if index == 0 { 'M' } else { 'L' }, first + index, 150.0 - rate / most * 140.0);
        // Writing to a string cannot fail.
        let _ = write!(line, "{pen}{x} {}", y as i32);
    }
    line
}

pub(super) fn state_name(state: u8) -> &'static str {
    WorkerState::try_from(state).map_or("unknown", WorkerState::name)
}

pub(super) fn state_tone(state: u8) -> &'static str {
    match WorkerState::try_from(state) {
        Ok(WorkerState::Sampling) => "good",
        Ok(WorkerState::Hung | WorkerState::Quarantined) => "bad",
        Ok(WorkerState::Leaving | WorkerState::Unable) => "warning",
        Ok(WorkerState::Idle | WorkerState::Unanswered) | Err(_) => "quiet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_grows_from_the_right_and_spans_the_height_of_its_box() {
        assert_eq!(sparkline([0.0, 5.0, 10.0].into_iter()), "M57 150L58 80L59 10");
        assert!(sparkline([1.0; 60].into_iter()).starts_with("M0 10L1 10"));
        assert_eq!(sparkline([].into_iter()), "");
    }
}
