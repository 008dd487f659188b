//! The runs of the hub: those that are over, the one that goes on, and those that wait.

use leptos::prelude::*;
use rollmesh_core::protocol::{Phase, message::RunRow};

use super::action_button::ActionButton;
use crate::{
    shell::Store,
    state::{Action, State},
};

/// A list of the runs, newest first; nothing where there is one at most.
#[component]
pub(crate) fn Runs() -> impl IntoView {
    let store = expect_context::<Store>();
    // NaN is unequal to itself: only what is shown counts.
    let rows = store.select(|state: &State| {
        let shown = |row: &RunRow| (row.run, row.place, row.env.clone(), row.seed, row.phase, row.error.clone());
        state.runs.runs.iter().rev().map(shown).collect::<Vec<_>>()
    });
    view! {
        <Show when=move || rows.with(|rows| rows.len() > 1)>
            <ul class="runs" data-testid="runs" aria-label="Runs of the hub">
                {move || rows.get().into_iter().map(|(run, place, env, seed, phase, error)| {
                    let state = match place {
                        0 => Phase::try_from(phase).unwrap_or(Phase::Idle).name().to_owned(),
                        place => format!("waits, place {place}"),
                    };
                    view! {
                        <li data-testid=format!("run-{run}") title=error>
                            <span class="run-name">{format!("{run}  {env}, seed {seed}")}</span>
                            <span class="detail">{state}</span>
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
