//! One environment, live.

use leptos::prelude::*;

use super::live_picture::LivePicture;
use crate::{
    shell::Store,
    state::{Action, State},
};

/// The watched slot and the way to watch another.
#[component]
pub(crate) fn Live() -> impl IntoView {
    let store = expect_context::<Store>();
    let slot = store.select(|state| state.run.as_ref().map_or(0, |run| run.watched_slot));
    let slots = store.select(|state| state.run.as_ref().map_or(0, |run| run.num_slots));
    let is_evaluated = store.select(|state| state.evaluated().is_some());
    let evaluation = RwSignal::new(false);
    // A run without one has nothing of that kind to show.
    Effect::new(move |_| {
        if !is_evaluated.get() {
            evaluation.set(false);
        }
    });
    let watch = move |event: leptos::ev::Event| {
        if let Ok(wanted) = event_target_value(&event).parse() {
            store.act(Action::Watch { slot: wanted });
        }
    };
    view! {
        <section class="card" aria-labelledby="live-title">
            <div class="card-head">
                <h2 id="live-title">"Live environment"</h2>
                <label class="inline-field">
                    "Slot"
                    <select
                        data-testid="live-slot"
                        disabled=move || slots.get() == 0 || evaluation.get()
                        prop:value=move || slot.get().to_string()
                        on:change=watch
                    >
                        <For each=move || 0..slots.get() key=|slot| *slot let:choice>
                            <option value=choice selected=move || slot.get() == choice>{choice}</option>
                        </For>
                    </select>
                    <span class="detail">{store.select(of_slots)}</span>
                </label>
            </div>
            <Show when=move || is_evaluated.get()>
                <label class="inline-field">
                    <input
                        type="checkbox"
                        data-testid="live-evaluation"
                        prop:checked=move || evaluation.get()
                        on:change=move |event| evaluation.set(event_target_checked(&event))
                    />
                    "Latest evaluation"
                </label>
            </Show>
            <LivePicture evaluation=evaluation/>
        </section>
    }
}

fn of_slots(state: &State) -> String {
    state.run.as_ref().filter(|run| run.num_slots > 0).map_or_else(String::new, |run| format!("of {}", run.num_slots))
}
