//! The workers of the hub.

use leptos::prelude::*;
use rollmesh_core::protocol::{WorkerState, message::WorkerRow};

use super::{
    action_button::ActionButton,
    group_map::GroupMap,
    invite::Invite,
    logs::{self, ShownLog},
};
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
    view! {
        <section class="card late" aria-labelledby="workers-title">
            <div class="card-head">
                <h2 id="workers-title">"Workers"</h2>
                <span class="detail" data-testid="workers-count">{move || ids.with(Vec::len)}</span>
            </div>
            <GroupMap/>
            <div class="table-box" tabindex="0" role="group" aria-label="Workers, scrollable">
                <table data-testid="workers">
                    <thead>
                        <tr>
                            <th scope="col">"Id"</th>
                            <th scope="col">"Kind"</th>
                            <th scope="col">"Name"</th>
                            <th scope="col">"Host"</th>
                            <th scope="col">"State"</th>
                            <th scope="col" class="right">"Slots"</th>
                            <th scope="col" class="right">"Env steps"</th>
                            <th scope="col" class="right">"Steps/s"</th>
                            <th scope="col"><span class="hidden">"Steps per second, lately"</span></th>
                            <th scope="col" class="right" title="Learner updates behind the newest weights">"Lag"</th>
                            <th scope="col"><span class="hidden">"Actions"</span></th>
                        </tr>
                    </thead>
                    <tbody>
                        <For each=move || ids.get() key=|id| *id children=move |id| view! { <Row id=id/> }/>
                    </tbody>
                </table>
                <p class="hint" data-testid="workers-hint" hidden=move || hint.with(Option::is_none)>{hint}</p>
                <p class="empty" hidden=move || ids.with(|ids| !ids.is_empty())>
                    "No worker is connected. Add a local one, or join a hub's run with a tab."
                </p>
            </div>
            <Invite/>
        </section>
    }
}

#[component]
fn Row(id: u32) -> impl IntoView {
    let store = expect_context::<Store>();
    let revision = store.select(move |state| state.revision_of(id));
    let row = store.of_worker(revision, move |state| state.workers.get(&id).cloned().unwrap_or_default());
    let is_this_tab = store.select(move |state| is_this_tab(state, id));
    let reason = store.of_worker(revision, move |state| state.reason(id));
    let place = store.of_worker(revision, move |state| state.places.get(&id).cloned().unwrap_or_default());
    let text = move |show: fn(&WorkerRow) -> String| move || row.with(show);
    let build = store.of_worker(revision, move |state| build(state, id));
    let last_error =
        store.of_worker(revision, move |state| state.monitoring.last_error(id).map(|line| line.text.clone()));
    let line = store.of_worker(revision, move |state| sparkline(state.monitoring.rates(id)));
    let ShownLog(shown_log) = expect_context::<ShownLog>();
    let has_log = store.of_worker(revision, move |state| state.monitoring.log(id).is_some());
    let state = move || row.with(|row| state_name(row.state));
    view! {
        <tr data-testid="worker-row" data-worker=id data-kind=text(|row| row.kind.clone()) data-state=state>
            <td class="number" data-testid="worker-id">{id}</td>
            <td><span class="kind">{text(|row| row.kind.clone())}</span></td>
            <td class="name" title=text(|row| format!("{} on {}", row.name, row.device))>
                {text(|row| row.name.clone())}
                {move || is_this_tab.get().then(|| view! { <span class="tag" data-testid="worker-this-tab">"this tab"</span> })}
                <span class="reason" data-testid="worker-build">{build}</span>
            </td>
            <td data-testid="worker-host" title=move || place.with(|place| place.launcher.clone())>
                {move || place.with(|place| place.host.clone())}
            </td>
            <td>
                <span class="state" data-tone=move || row.with(|row| state_tone(row.state))>{state}</span>
                {move || reason.get().map(|reason| view! { <span class="reason" data-testid="worker-reason">{reason}</span> })}
                {move || last_error.get().map(|error| view! {
                    <span class="reason" data-testid="worker-last-error" title=error.clone()>"Last: " {error.clone()}</span>
                })}
            </td>
            <td class="right" data-testid="worker-slots">{text(|row| row.slots.to_string())}</td>
            <td class="right" data-testid="worker-env-steps">{text(|row| format::count(row.env_steps))}</td>
            <td class="right" data-testid="worker-steps-per-s">{text(|row| format::short(f64::from(row.steps_per_s)))}</td>
            <td>
                <svg class="sparkline" viewBox="0 0 60 16" preserveAspectRatio="none" aria-hidden="true" data-testid="worker-sparkline">
                    <path d=line/>
                </svg>
            </td>
            <td class="right" data-testid="worker-lag">{text(|row| row.weights_lag.to_string())}</td>
            <td class="right">
                <button
                    type="button"
                    class="button small"
                    data-testid="worker-log"
                    aria-label=format!("Log of worker {id}")
                    hidden=move || !has_log.get()
                    on:click=move |_| {
                        shown_log.set(id);
                        logs::scroll_into_view();
                    }
                >
                    "Log"
                </button>
                {move || row.with(|row| row.local).then(|| view! {
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

/// Device and version, as far as they are known.
fn build(state: &State, id: u32) -> String {
    let device = state.workers.get(&id).map(|row| row.device.clone());
    let version = state.monitoring.host(id).map(|host| host.version.clone());
    [device, version].into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// A line of the latest rates, from 0 to the greatest one, in a box of 60 by 16.
fn sparkline(rates: impl ExactSizeIterator<Item = f32> + Clone) -> String {
    let most = rates.clone().fold(1.0_f32, f32::max);
    let step = 60.0 / (rates.len().max(2) - 1) as f32;
    let point = |(index, rate): (usize, f32)| format!("{:.1} {:.1}", index as f32 * step, 15.0 - rate / most * 14.0);
    let points: Vec<String> = rates.enumerate().map(point).collect();
    if points.len() < 2 { String::new() } else { format!("M{}", points.join("L")) }
}

fn is_this_tab(state: &State, id: u32) -> bool {
    id != 0 && state.tab.workers().any(|(_, status)| status.worker == id)
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
    fn sparkline_spans_its_box_and_needs_two_points() {
        assert_eq!(sparkline([0.0, 5.0, 10.0].into_iter()), "M0.0 15.0L30.0 8.0L60.0 1.0");
        assert_eq!(sparkline([3.0].into_iter()), "");
    }
}
