//! The controls of the run.

use leptos::prelude::*;
use rollmesh_core::protocol::Phase;

use super::{
    action_button::ActionButton, ask_first::AskFirst, runs::Runs, saved_runs::SavedRuns, start_form::StartRunForm,
};
use crate::{
    shell::Store,
    state::{Action, State},
};

/// Pause, resume, checkpoint, stop; more and fewer workers; the hub's runs, and the form for the next one.
#[component]
pub(crate) fn Controls() -> impl IntoView {
    let store = expect_context::<Store>();
    let phase = store.select(State::phase);
    let note = store.select(|state| state.obstacle(&Action::Stop));
    let run_dir = store.select(|state| state.run.as_ref().map(|run| run.run_dir.clone()).unwrap_or_default());
    let is_tab = store.select(State::is_tab);
    let can_start = store.select(|state| state.has_hub() && !state.phase().is_active() && !state.is_of_group());
    let is_of_group = store.select(State::is_of_group);
    let can_queue = store.select(|state| state.is_online() && state.phase().is_active() && state.runs.may_wait);
    view! {
        <section class="card run" aria-labelledby="controls-title">
            <div class="card-head">
                <h2 id="controls-title">"Run"</h2>
                <span class="detail" data-testid="controls-note">{note}</span>
            </div>
            <div class="buttons">
                <Show
                    when=move || phase.get() == Phase::Paused
                    fallback=|| view! { <ActionButton action=Action::Pause id="pause">"Pause"</ActionButton> }
                >
                    <ActionButton action=Action::Resume id="resume" class="button primary">"Resume"</ActionButton>
                </Show>
                <Show when=move || !is_tab.get()>
                    <ActionButton action=Action::Checkpoint id="checkpoint">"Checkpoint"</ActionButton>
                </Show>
                <StopButtons/>
            </div>
            <LocalWorkers/>
            <p class="run-dir" data-testid="run-dir" hidden=move || run_dir.with(String::is_empty)>
                "Files on the hub: " {run_dir}
            </p>
            <Runs/>
            <SavedRuns/>
            <p class="hint" data-testid="group-note" hidden=move || !is_of_group.get()>
                "This hub belongs to a program's worker group: the program starts, calls and removes the workers, and there are no runs."
            </p>
            <Show when=move || can_start.get()>
                <StartRunForm/>
            </Show>
            <Show when=move || can_queue.get()>
                <details class="more">
                    <summary data-testid="start-another">"Another run, after those before it"</summary>
                    <StartRunForm/>
                </details>
            </Show>
        </section>
    }
}

/// Buttons that stop a run after a confirmation: when its leases have ended, or immediately.
#[component]
fn StopButtons() -> impl IntoView {
    let store = expect_context::<Store>();
    let obstacle = store.select(|state| state.obstacle(&Action::Stop));
    view! {
        <AskFirst id="stop" text="Stop…" keep="Keep running" obstacle>
            <p class="hint">"The run ends here. What its leases bring can still be learned from."</p>
            <ActionButton action=Action::Drain id="drain" class="button primary">"Finish leases first"</ActionButton>
            <ActionButton action=Action::Stop id="stop-confirm" class="button danger">"Stop immediately"</ActionButton>
        </AskFirst>
    }
}

/// Buttons that add or remove a local worker of the hub.
#[component]
fn LocalWorkers() -> impl IntoView {
    let store = expect_context::<Store>();
    let latest = store.select(|state| state.local_workers().next_back());
    let count = store.select(|state| state.local_workers().count());
    view! {
        <div class="stepper" role="group" aria-label="Local workers">
            <span class="stepper-name">"Local workers"</span>
            {move || match latest.get() {
                Some(worker) => view! {
                    <ActionButton
                        action=Action::RemoveWorker { worker }
                        id="remove-local-worker"
                        class="button icon"
                        label="One local worker fewer"
                    >
                        "−"
                    </ActionButton>
                }.into_any(),
                None => view! {
                    <button
                        type="button"
                        class="button icon"
                        data-testid="remove-local-worker"
                        aria-label="One local worker fewer"
                        title="There is no local worker."
                        disabled=true
                    >
                        "−"
                    </button>
                }.into_any(),
            }}
            <output class="number" data-testid="local-workers" aria-live="polite">{count}</output>
            <ActionButton action=Action::AddWorker id="add-worker" class="button icon" label="One local worker more">
                "+"
            </ActionButton>
        </div>
    }
}
