//! The work of this tab for the hub.

use leptos::prelude::*;

use super::{action_button::ActionButton, evaluate_form::EvaluateForm};
use crate::{
    format,
    shell::Store,
    state::{Action, State, TabEvaluator, TabStatus},
};

/// Controls to join, evaluate and leave, with the contribution of this tab.
#[component]
pub(crate) fn ThisTab() -> impl IntoView {
    let store = expect_context::<Store>();
    let is_out = store.select(|state| state.tab.is_out());
    let evaluator = store.select(|state| state.tab.evaluator().cloned());
    let cores = cores();
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
                    <ActionButton action=Action::Leave { worker: None } id="leave">"Leave"</ActionButton>
                }
            >
                <p class="hint">
                    "This tab can sample for the run in the background, like any other worker. Close it whenever you like: its slots go to others."
                </p>
                <div class="buttons">
                    <ActionButton action=Action::Join { workers: 1 } id="join" class="button primary">
                        "Join as worker"
                    </ActionButton>
                    {(cores > 1).then(|| view! {
                        <ActionButton action=Action::Join { workers: cores } id="join-all">
                            {format!("Join with {cores} workers")}
                        </ActionButton>
                    })}
                </div>
            </Show>
            // Hidden instead of removed, so that the typed values are kept if the hub refuses.
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
    let is_able = store.select(|state| state.tab.workers().all(|(_, status)| status.state != "unable"));
    let latest = store.select(|state| state.tab.latest());
    let count = store.select(|state| state.tab.count());
    let most = cores() as usize;
    let is_full = move || count.get() >= most;
    view! {
        <p class="hint" data-testid="tab-reason" hidden=move || is_able.get()>{reason}</p>
        <div class="stepper" role="group" aria-label="Workers of this tab">
            <span class="stepper-name">"Workers"</span>
            {move || view! {
                <ActionButton
                    action=Action::Leave { worker: latest.get() }
                    id="tab-fewer"
                    class="button icon"
                    label="One worker of this tab fewer"
                >
                    "−"
                </ActionButton>
            }}
            <output class="number" data-testid="tab-workers" aria-live="polite">{count}</output>
            <span hidden=is_full>
                <ActionButton
                    action=Action::Join { workers: 1 }
                    id="tab-more"
                    class="button icon"
                    label="One worker of this tab more"
                >
                    "+"
                </ActionButton>
            </span>
        </div>
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
    /// The evaluation worker of this tab.
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

/// A number that the Web Worker reports.
#[component]
fn Line(
    /// Name for tests.
    id: &'static str,
    /// Its name.
    name: &'static str,
    /// Its value as text.
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
    state.tab.total().map_or_else(|| "–".into(), |status| value(&status))
}

fn state_name(state: &State) -> String {
    let waiting = if state.tab.is_out() { "not a worker" } else { "joining" };
    state.tab.total().map_or_else(|| waiting.into(), |status| status.state)
}

fn tone(state: &State) -> &'static str {
    match state.tab.total() {
        Some(status) if status.is_at_work() => "good",
        Some(status) if matches!(&*status.state, "waiting" | "unable") => "warning",
        Some(_) | None => "quiet",
    }
}

/// Returns the number of cores of this machine, which limits the workers of the tab; at least 1.
fn cores() -> u32 {
    window().navigator().hardware_concurrency().max(1.0) as u32
}
