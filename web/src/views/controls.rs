//! What a person can do with the run.

use leptos::prelude::*;
use rollmesh_core::protocol::Phase;

use super::{action_button::ActionButton, start_form::StartRunForm};
use crate::{
    shell::Store,
    state::{Action, State},
};

/// Pause, resume, add a worker, stop; and the form for the next run when none is going on.
#[component]
pub(crate) fn Controls() -> impl IntoView {
    let store = expect_context::<Store>();
    let phase = store.select(State::phase);
    let note = store.select(|state| state.obstacle(&Action::Stop));
    let can_start = store.select(|state| state.is_online() && !matches!(state.phase(), Phase::Running | Phase::Paused));
    view! {
        <section class="card" aria-labelledby="controls-title">
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
                <ActionButton action=Action::AddWorker id="add-worker">"Add local worker"</ActionButton>
                <StopButton/>
            </div>
            <Show when=move || can_start.get()>
                <StartRunForm/>
            </Show>
        </section>
    }
}

/// Stops only when asked twice: a stopped run does not come back.
#[component]
fn StopButton() -> impl IntoView {
    let store = expect_context::<Store>();
    let obstacle = store.select(|state| state.obstacle(&Action::Stop));
    let is_asking = RwSignal::new(false);
    Effect::new(move |_| {
        if obstacle.get().is_some() {
            is_asking.set(false);
        }
    });
    view! {
        <Show
            when=move || is_asking.get()
            fallback=move || view! {
                <button
                    type="button"
                    class="button"
                    data-testid="stop"
                    disabled=move || obstacle.get().is_some()
                    title=move || obstacle.get()
                    on:click=move |_| is_asking.set(true)
                >
                    "Stop…"
                </button>
            }
        >
            <span class="confirm" role="group" aria-label="Stop the run for good?">
                <ActionButton action=Action::Stop id="stop-confirm" class="button danger">"Stop for good"</ActionButton>
                <button type="button" class="button" data-testid="stop-cancel" on:click=move |_| is_asking.set(false)>
                    "Keep running"
                </button>
            </span>
        </Show>
    }
}
