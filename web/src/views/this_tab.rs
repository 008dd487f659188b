//! This tab at work for the hub.

use leptos::prelude::*;

use super::{action_button::ActionButton, evaluate_form::EvaluateForm};
use crate::{
    format,
    shell::Store,
    state::{Action, State, TabEvaluator, TabStatus, TabWorker},
};

/// Join or evaluate, see what one contributes, leave.
#[component]
pub(crate) fn ThisTab() -> impl IntoView {
    let store = expect_context::<Store>();
    let is_out = store.select(|state| state.tab == TabWorker::Out);
    let evaluator = store.select(|state| state.tab.evaluator().cloned());
    view! {
        <section class="card" aria-labelledby="tab-title" data-testid="this-tab">
            <div class="card-head">
                <h2 id="tab-title">"This tab"</h2>
                <span class="state" data-testid="tab-state" data-tone=store.select(tone)>{store.select(state_name)}</span>
            </div>
            <Show
                when=move || is_out.get()
                fallback=move || view! {
                    {move || match evaluator.get() {
                        Some(evaluator) => view! { <Evaluating evaluator/> }.into_any(),
                        None => view! { <Sampling/> }.into_any(),
                    }}
                    <ActionButton action=Action::Leave id="leave">"Leave"</ActionButton>
                }
            >
                <p class="hint">
                    "This tab can sample for the run in the background, like any other worker. Close it whenever you like: its slots go to others."
                </p>
                <ActionButton action=Action::Join id="join" class="button primary">"Join as worker"</ActionButton>
            </Show>
            // Who is refused finds what was typed.
            <div hidden=move || !is_out.get()>
                <EvaluateForm/>
            </div>
        </section>
    }
}

#[component]
fn Sampling() -> impl IntoView {
    let store = expect_context::<Store>();
    let reason = store.select(|state| of_tab(state, |status| status.reason.clone()));
    let is_able = store.select(|state| !matches!(&state.tab, TabWorker::In(_, status) if status.state == "unable"));
    view! {
        <p class="hint" data-testid="tab-reason" hidden=move || is_able.get()>{reason}</p>
        <dl class="lines">
            <Line id="tab-env-steps" name="Env steps" value=|status| format::count(status.env_steps)/>
            <Line id="tab-steps-per-s" name="Steps per second" value=|status| format::short(status.steps_per_s)/>
            <Line id="tab-fragments" name="Fragments" value=|status| format::count(status.fragments)/>
            <Line id="tab-weights" name="Weights version" value=|status| format::count(status.weights_version)/>
        </dl>
    }
}

#[component]
fn Evaluating(
    /// What this tab is.
    evaluator: TabEvaluator,
) -> impl IntoView {
    view! {
        <p class="hint">
            "This tab evaluates as " <b data-testid="tab-name">{evaluator.name}</b> " in " {evaluator.env}
            " for programs that ask the hub for that name. Its evaluations end with the tab."
        </p>
        <dl class="lines">
            <Line id="tab-evaluations" name="Evaluations" value=|status| format::count(status.evaluations)/>
            <Line id="tab-env-steps" name="Env steps" value=|status| format::count(status.env_steps)/>
            <Line id="tab-steps-per-s" name="Steps per second" value=|status| format::short(status.steps_per_s)/>
        </dl>
    }
}

/// A number that the Web Worker tells.
#[component]
fn Line(
    /// Name for tests.
    id: &'static str,
    /// What it is.
    name: &'static str,
    /// How it is written.
    value: fn(&TabStatus) -> String,
) -> impl IntoView {
    let store = expect_context::<Store>();
    view! {
        <div class="line">
            <dt>{name}</dt>
            <dd data-testid=id>{store.select(move |state| of_tab(state, value))}</dd>
        </div>
    }
}

fn of_tab(state: &State, value: fn(&TabStatus) -> String) -> String {
    match &state.tab {
        TabWorker::In(_, status) => value(status),
        TabWorker::Out | TabWorker::Joining(_) => "–".into(),
    }
}

fn state_name(state: &State) -> String {
    match &state.tab {
        TabWorker::Out => "not a worker".into(),
        TabWorker::Joining(_) => "joining".into(),
        TabWorker::In(_, status) => status.state.clone(),
    }
}

fn tone(state: &State) -> &'static str {
    match &state.tab {
        TabWorker::In(_, status) if matches!(status.state.as_str(), "sampling" | "evaluating") => "good",
        TabWorker::In(_, status) if matches!(status.state.as_str(), "waiting" | "unable") => "warning",
        TabWorker::Out | TabWorker::Joining(_) | TabWorker::In(..) => "quiet",
    }
}
