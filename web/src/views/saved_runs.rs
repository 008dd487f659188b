//! The runs in the hub's directory, including those of earlier hubs.

use leptos::prelude::*;
use rollmesh_core::protocol::message::SavedRunRow;

use super::{action_button::ActionButton, ask_first::AskFirst, runs::Compare};
use crate::{
    format,
    shell::Store,
    state::{Action, RunKey, State, can_resume},
};

/// A list that the page requests when the user opens it.
#[component]
pub(crate) fn SavedRuns() -> impl IntoView {
    let store = expect_context::<Store>();
    let is_shown = store.select(|state| state.is_online() && state.runs.may_wait);
    // NaN is unequal to itself, so rows are compared as they are shown.
    let rows = store.select(rows);
    let left_out = store.select(|state| state.saved.as_ref().map_or(0, |saved| saved.left_out));
    let is_known = store.select(|state| state.saved.is_some());
    let toggled = move |event: leptos::ev::Event| {
        if event_target::<web_sys::Element>(&event).has_attribute("open") {
            store.act(Action::ListSaved);
        }
    };
    view! {
        <Show when=move || is_shown.get()>
            <details class="more" on:toggle=toggled>
                <summary data-testid="saved-runs">"Runs in the hub's directory"</summary>
                <p class="hint" hidden=move || !is_known.get() || rows.with(|rows| !rows.is_empty())>
                    "There is no run yet."
                </p>
                <ul class="saved-runs" aria-label="Runs in the hub's directory">
                    <For each=move || rows.get() key=Row::clone let:row>
                        <SavedRun row/>
                    </For>
                </ul>
                <p class="hint" hidden=move || left_out.get() == 0>
                    {move || format!("{} older ones are left out; `rollmesh runs` lists them.", left_out.get())}
                </p>
                <ActionButton action=Action::ListSaved id="saved-refresh" class="button small">"Refresh"</ActionButton>
            </details>
        </Show>
    }
}

/// A run as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    id: String,
    what: String,
    state: String,
    error: String,
    can_resume: bool,
    is_running: bool,
}

impl Row {
    fn of(row: &SavedRunRow) -> Self {
        let SavedRunRow { id, env, algo, seed, state, error, .. } = row;
        let mean = format::mean(row.episode_return_mean.into());
        let is_running = state == "running";
        let state = format!("{state} · {} steps · return {mean}", format::count(row.env_steps));
        let what = if env.is_empty() { id.clone() } else { format!("{env} · {algo} · seed {seed}") };
        Self { id: id.clone(), what, state, error: error.clone(), can_resume: can_resume(row), is_running }
    }
}

fn rows(state: &State) -> Vec<Row> {
    state.saved.as_ref().map(|saved| saved.runs.iter().map(Row::of).collect()).unwrap_or_default()
}

#[component]
fn SavedRun(
    /// The run.
    row: Row,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let Row { id, what, state, error, can_resume, is_running } = row;
    let delete = Action::DeleteSaved { id: id.clone() };
    let wanted = delete.clone();
    let obstacle = store.select(move |state| state.obstacle(&wanted));
    let has_error = !error.is_empty();
    // The current run always has a line of its own.
    let is_comparable = !is_running;
    view! {
        <li data-testid=format!("saved-{id}") title=id.clone()>
            <p class="run-name">
                {is_comparable.then(|| view! { <Compare run=RunKey::Saved(id.clone())/> })}
                {what}
            </p>
            <p class="detail">{state}</p>
            <p class="field-error" hidden=!has_error>{error}</p>
            <div class="buttons">
                {can_resume.then(|| view! {
                    <ActionButton action=Action::ResumeSaved { id: id.clone() } id="saved-resume" class="button small">
                        "Resume"
                    </ActionButton>
                })}
                <ActionButton action=Action::CloneSaved { id: id.clone() } id="saved-clone" class="button small">
                    "Clone"
                </ActionButton>
                <AskFirst id="saved-delete" text="Delete…" keep="Keep" obstacle class="button small">
                    <ActionButton action=delete.clone() id="saved-delete-confirm" class="button small danger">
                        "Delete with all files"
                    </ActionButton>
                </AskFirst>
            </div>
        </li>
    }
}
