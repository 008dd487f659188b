//! This tab as a worker.

use leptos::prelude::*;

use super::action_button::ActionButton;
use crate::{
    format,
    shell::Store,
    state::{Action, State, TabStatus, TabWorker},
};

/// Join, see what one contributes, leave.
#[component]
pub(crate) fn ThisTab() -> impl IntoView {
    let store = expect_context::<Store>();
    let is_out = store.select(|state| state.tab == TabWorker::Out);
    let line = move |id: &'static str, name: &'static str, value: fn(&TabStatus) -> String| {
        view! {
            <div class="line">
                <dt>{name}</dt>
                <dd data-testid=id>{store.select(move |state| of_tab(state, value))}</dd>
            </div>
        }
    };
    view! {
        <section class="card" aria-labelledby="tab-title" data-testid="this-tab">
            <div class="card-head">
                <h2 id="tab-title">"This tab"</h2>
                <span class="state" data-testid="tab-state" data-tone=store.select(tone)>{store.select(state_name)}</span>
            </div>
            <Show
                when=move || is_out.get()
                fallback=move || view! {
                    <dl class="lines">
                        {line("tab-env-steps", "Env steps", |status| format::count(status.env_steps))}
                        {line("tab-steps-per-s", "Steps per second", |status| format::short(status.steps_per_s))}
                        {line("tab-fragments", "Fragments", |status| format::count(status.fragments))}
                        {line("tab-weights", "Weights version", |status| format::count(status.weights_version))}
                    </dl>
                    <ActionButton action=Action::Leave id="leave">"Leave"</ActionButton>
                }
            >
                <p class="hint">
                    "This tab can sample for the run in the background, like any other worker. Close it whenever you like: its slots go to others."
                </p>
                <ActionButton action=Action::Join id="join" class="button primary">"Join as worker"</ActionButton>
            </Show>
        </section>
    }
}

fn of_tab(state: &State, value: fn(&TabStatus) -> String) -> String {
    match &state.tab {
        TabWorker::In(status) => value(status),
        TabWorker::Out | TabWorker::Joining => "–".into(),
    }
}

fn state_name(state: &State) -> String {
    match &state.tab {
        TabWorker::Out => "not a worker".into(),
        TabWorker::Joining => "joining".into(),
        TabWorker::In(status) => status.state.clone(),
    }
}

fn tone(state: &State) -> &'static str {
    match &state.tab {
        TabWorker::In(status) if status.state == "sampling" => "good",
        TabWorker::In(status) if status.state == "waiting" => "warning",
        TabWorker::Out | TabWorker::Joining | TabWorker::In(_) => "quiet",
    }
}
