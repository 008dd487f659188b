//! A button that asks for something, or says why it cannot.

use leptos::prelude::*;

use crate::{shell::Store, state::Action};

/// Sends an action. Disabled, with the reason as its title, while something stands in the way.
#[component]
pub(crate) fn ActionButton(
    /// What it asks for.
    action: Action,
    /// Name for tests.
    id: &'static str,
    /// Its look.
    #[prop(default = "button")]
    class: &'static str,
    /// Accessible name.
    #[prop(optional, into)]
    label: Option<String>,
    /// Its text.
    children: Children,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let wanted = action.clone();
    let obstacle = store.select(move |state| state.obstacle(&wanted));
    view! {
        <button
            type="button"
            class=class
            data-testid=id
            aria-label=label
            disabled=move || obstacle.get().is_some()
            title=move || obstacle.get()
            on:click=move |_| store.act(action.clone())
        >
            {children()}
        </button>
    }
}
