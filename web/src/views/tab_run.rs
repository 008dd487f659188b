//! The result of a run in this tab.

use leptos::prelude::*;

use super::action_button::ActionButton;
use crate::{
    shell::Store,
    state::{Action, State},
};

/// The hash of the weights with the command that reproduces it, and the policy as files.
#[component]
pub(crate) fn TabResult() -> impl IntoView {
    let store = expect_context::<Store>();
    let proof = store.select(proof);
    let has_run = store.select(|state| state.run.as_ref().is_some_and(|run| run.run > 0));
    let has_learned = store.select(|state| state.run.as_ref().is_some_and(|run| run.iteration > 0));
    let note = move || if has_run.get() { "There is one when the run has ended." } else { "There is no run yet." };
    view! {
        <section class="card" aria-labelledby="result-title">
            <div class="card-head">
                <h2 id="result-title">"Weights"</h2>
            </div>
            {move || match proof.get() {
                Some((hash, command)) => view! {
                    <p class="hint">"Their hash"</p>
                    <p class="code" data-testid="weights-hash">{hash}</p>
                    <p class="hint">"The program learns the same, bit for bit, on any machine"</p>
                    <p class="code" data-testid="proof">{command}</p>
                }.into_any(),
                None => view! { <p class="hint">"Every run has a hash of what it has learned. " {note}</p> }.into_any(),
            }}
            <div class="buttons">
                <ActionButton action=Action::Save { file: "weights.safetensors" } id="save-weights">
                    "Save weights"
                </ActionButton>
                <ActionButton action=Action::Save { file: "policy.json" } id="save-policy">"Save policy.json"</ActionButton>
                <button
                    type="button"
                    class="button"
                    data-testid="play-policy"
                    disabled=move || !has_learned.get()
                    on:click=move |_| store.play_run()
                >
                    "Let it play"
                </button>
            </div>
            <p class="hint after" hidden=move || !has_run.get()>
                "In one directory the two files are a policy for the program; dropped on this page they play. The address of this page restores the settings."
            </p>
        </section>
    }
}

/// Returns the hash of a run that has ended, and the command that reproduces it.
fn proof(state: &State) -> Option<(String, String)> {
    let run = state.run.as_ref()?;
    let hash = state.tab_run.hash_of(run)?;
    Some((hash.to_owned(), state.tab_run.command(run)))
}
