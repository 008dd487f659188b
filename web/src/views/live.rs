//! One environment, live or replayed.

use leptos::prelude::*;

use super::live_picture::LivePicture;
use crate::{
    shell::Store,
    state::{Action, ClipSource, State},
};

/// The watched source of clips. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct Watched(pub(crate) RwSignal<ClipSource>);

/// The watched slot, an evaluated episode or an opened file, with controls to choose another one.
#[component]
pub(crate) fn Live() -> impl IntoView {
    let store = expect_context::<Store>();
    let slot = store.select(|state| state.run.as_ref().map_or(0, |run| run.watched_slot));
    let slots = store.select(|state| state.run.as_ref().map_or(0, |run| run.num_slots));
    let Watched(source) = expect_context::<Watched>();
    let known = store.select(|state| {
        ClipSource::ALL[1..].iter().copied().filter(|source| state.clip(*source).is_some()).collect::<Vec<_>>()
    });
    // The chosen source stays in the list while the page reconnects.
    let others = Memo::new(move |_| {
        let is_offered = |offered: &ClipSource| known.with(|all| all.contains(offered)) || source.get() == *offered;
        ClipSource::ALL[1..].iter().copied().filter(is_offered).collect::<Vec<_>>()
    });
    let run = store.select(|state| state.run.as_ref().map(|run| run.run));
    Effect::new(move |before: Option<Option<u32>>| {
        let (now, before) = (run.get(), before.flatten());
        if before.is_some() && now.is_some() && now != before && source.get_untracked() != ClipSource::File {
            source.set(ClipSource::Slot);
        }
        now.or(before)
    });
    let is_open = store.select(|state| state.file.is_some());
    Effect::new(move |_| {
        if !is_open.get() && source.get_untracked() == ClipSource::File {
            source.set(ClipSource::Slot);
        }
    });
    let watch = move |event: leptos::ev::Event| {
        if let Ok(wanted) = event_target_value(&event).parse() {
            store.act(Action::Watch { slot: wanted });
        }
    };
    let choose = move |event: leptos::ev::Event| {
        let name = event_target_value(&event);
        ClipSource::ALL.into_iter().filter(|choice| choice.name() == name).for_each(|choice| source.set(choice));
    };
    view! {
        <section class="card" id="live" aria-labelledby="live-title">
            <div class="card-head">
                <h2 id="live-title">"Live environment"</h2>
                <label class="inline-field">
                    "Slot"
                    <select
                        data-testid="live-slot"
                        disabled=move || slots.get() == 0 || source.get() != ClipSource::Slot
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
            <Show when=move || others.with(|all| !all.is_empty())>
                <label class="inline-field">
                    "Watch"
                    <select data-testid="live-source" prop:value=move || source.get().name() on:change=choose>
                        {move || [ClipSource::Slot].into_iter().chain(others.get()).map(|choice| view! {
                            <option value=choice.name() selected=move || source.get() == choice>{choice.name()}</option>
                        }).collect_view()}
                    </select>
                </label>
            </Show>
            <LivePicture source/>
        </section>
    }
}

fn of_slots(state: &State) -> String {
    state.run.as_ref().filter(|run| run.num_slots > 0).map_or_else(String::new, |run| format!("of {}", run.num_slots))
}
