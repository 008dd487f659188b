//! A button that sends an action.

use leptos::prelude::*;

use crate::{shell::Store, state::Action};

/// A button that sends an action. While there is an obstacle, it is disabled and has the obstacle as its title.
#[component]
pub(crate) fn ActionButton(
    /// The action.
    action: Action,
    /// Name for tests.
    id: &'static str,
    /// Its CSS classes.
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
