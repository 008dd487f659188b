//! A trained policy that plays in this tab.

use leptos::{ev::KeyboardEvent, html, prelude::*};

use crate::shell::Store;

/// The environment in which the policy plays. While it has the focus, keys can choose the actions instead.
#[component]
pub(crate) fn Player() -> impl IntoView {
    let store = expect_context::<Store>();
    let is_open = store.select(|state| state.played.is_some());
    let said = store.select(|state| state.played.as_ref().map(|played| played.say()).unwrap_or_default());
    let has_keys = store.select(|state| state.played.as_ref().is_some_and(|played| played.actions > 0));
    let has_no_picture = store.select(|state| !state.played.as_ref().is_some_and(|played| played.picture));
    let node = NodeRef::<html::Canvas>::new();
    Effect::new(move |_| node.get().iter().for_each(|canvas| store.draw_player(canvas)));
    let on_key = move |event: KeyboardEvent, is_down: bool| {
        let action = store.peek(|state| state.played.as_ref()?.action_of(&event.key()));
        if action.is_some() {
            event.prevent_default();
            store.take_over(action.filter(|_| is_down));
        }
    };
    view! {
        <Show when=move || is_open.get()>
            <section class="card" aria-labelledby="player-title" data-testid="player">
                <div class="card-head">
                    <h2 id="player-title">"A policy plays"</h2>
                    <button type="button" class="button small" data-testid="player-close" on:click=move |_| store.close_player()>
                        "Close"
                    </button>
                </div>
                <canvas
                    node_ref=node
                    class="policy-player"
                    data-testid="player-canvas"
                    tabindex="0"
                    role="img"
                    aria-label="The environment in which the policy plays"
                    hidden=move || has_no_picture.get()
                    on:keydown=move |event| on_key(event, true)
                    on:keyup=move |event| on_key(event, false)
                    on:blur=move |_| store.take_over(None)
                ></canvas>
                <p class="hint" data-testid="player-said" aria-live="off">{said}</p>
                <p class="hint" hidden=move || !has_keys.get()>
                    "Take over: focus the picture, and hold an arrow key, or the digit of an action."
                </p>
            </section>
        </Show>
    }
}
