//! The runs of the hub: ended, in progress and queued.

use leptos::prelude::*;
use rollmesh_core::protocol::{Phase, message::RunRow};

use super::action_button::ActionButton;
use crate::{
    shell::Store,
    state::{Action, RunKey, State},
};

/// A list of the runs, newest first.
#[component]
pub(crate) fn Runs() -> impl IntoView {
    let store = expect_context::<Store>();
    // NaN is unequal to itself, so only the values that are shown are compared.
    let rows = store.select(|state: &State| {
        let shown = |row: &RunRow| {
            let is_comparable = row.place == 0 && !state.is_current(&RunKey::Hub(row.run));
            (row.run, row.place, row.env.clone(), row.seed, row.phase, row.error.clone(), is_comparable)
        };
        state.runs.runs.iter().rev().map(shown).collect::<Vec<_>>()
    });
    view! {
        <Show when=move || rows.with(|rows| !rows.is_empty())>
            <ul class="runs" data-testid="runs" aria-label="Runs of the hub">
                {move || rows.get().into_iter().map(|(run, place, env, seed, phase, error, is_comparable)| {
                    let state = match place {
                        0 => Phase::try_from(phase).unwrap_or(Phase::Idle).name().to_owned(),
                        place => format!("waits, place {place}"),
                    };
                    view! {
                        <li data-testid=format!("run-{run}") title=error>
                            {is_comparable.then(|| view! { <Compare run=RunKey::Hub(run)/> })}
                            <span class="run-name">{format!("{run}  {env}, seed {seed}")}</span>
                            <span class="detail">{state}</span>
                            {(place == 0).then(|| view! {
                                <ActionButton
                                    action=Action::Clone { run }
                                    id="clone-run"
                                    class="button small"
                                    label=format!("Clone run {run}")
                                >
                                    "Clone"
                                </ActionButton>
                            })}
                            {(place > 0).then(|| view! {
                                <ActionButton
                                    action=Action::RemoveRun { run }
                                    id="remove-run"
                                    class="button icon"
                                    label=format!("Remove run {run}")
                                >
                                    "×"
                                </ActionButton>
                            })}
                        </li>
                    }
                }).collect_view()}
            </ul>
        </Show>
    }
}

/// A checkbox that shows or hides the curves of another run.
#[component]
pub(crate) fn Compare(
    /// The run.
    run: RunKey,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let name = match &run {
        RunKey::Hub(run) => format!("compare-{run}"),
        RunKey::Saved(id) => format!("compare-{id}"),
    };
    let label = format!("Compare {run}");
    let action = Action::Compare { run: run.clone() };
    let wanted = action.clone();
    let is_compared = store.select(move |state| state.comparison.has(&run));
    let obstacle = store.select(move |state| state.obstacle(&wanted));
    view! {
        <input
            type="checkbox"
            data-testid=name
            aria-label=label
            title=move || obstacle.get().unwrap_or("Show its curves and settings, too")
            prop:checked=is_compared
            disabled=move || obstacle.get().is_some()
            on:change=move |_| store.act(action.clone())
        />
    }
}
