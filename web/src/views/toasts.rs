//! Temporary messages.

use leptos::prelude::*;

use crate::{
    shell::Store,
    state::{Event, Toast},
};

/// The messages, over the page.
#[component]
pub(crate) fn Toasts() -> impl IntoView {
    let store = expect_context::<Store>();
    let toasts = store.select(|state| state.toasts.clone());
    let item = move |toast: Toast| {
        view! {
            <div class="toast" data-testid="toast" data-level=toast.level.class()>
                <p>{toast.text}</p>
                <button
                    type="button"
                    class="button icon"
                    aria-label="Close"
                    data-testid="toast-close"
                    on:click=move |_| store.dispatch(Event::ToastGone(toast.id))
                >
                    "×"
                </button>
            </div>
        }
    };
    view! {
        <section aria-label="Messages">
            <div class="toasts" role="log" aria-live="polite" aria-label="Messages">
                <For each=move || toasts.get() key=|toast| toast.id children=item/>
            </div>
        </section>
    }
}
