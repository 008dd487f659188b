//! A button that asks for confirmation before an action that cannot be undone.

use leptos::{html, prelude::*};

/// A button that shows its children, which confirm, once it is pressed. Hides them when the user cancels or an obstacle
/// appears.
#[component]
pub(crate) fn AskFirst(
    /// Name for tests; that of the cancel button is `ID-cancel`.
    id: &'static str,
    /// Its text.
    text: &'static str,
    /// Text of the cancel button.
    keep: &'static str,
    /// The reason why the action is impossible now.
    obstacle: RwSignal<Option<&'static str>>,
    /// CSS classes of both buttons.
    #[prop(default = "button")]
    class: &'static str,
    /// The buttons that confirm.
    children: ChildrenFn,
) -> impl IntoView {
    let is_asking = RwSignal::new(false);
    Effect::new(move |_| {
        if obstacle.get().is_some() {
            is_asking.set(false);
        }
    });
    let children = StoredValue::new(children);
    // The focus follows: to the cancel button, and after that back to the first button.
    let (first, back) = (NodeRef::<html::Button>::new(), NodeRef::<html::Button>::new());
    let has_asked = StoredValue::new(false);
    Effect::new(move |_| back.get().into_iter().for_each(|button| _ = button.focus()));
    Effect::new(move |_| {
        first.get().filter(|_| has_asked.get_value()).into_iter().for_each(|button| _ = button.focus());
    });
    let ask = move |_| {
        has_asked.set_value(true);
        is_asking.set(true);
    };
    view! {
        <Show
            when=move || is_asking.get()
            fallback=move || view! {
                <button
                    node_ref=first
                    type="button"
                    class=class
                    data-testid=id
                    disabled=move || obstacle.get().is_some()
                    title=move || obstacle.get()
                    on:click=ask
                >
                    {text}
                </button>
            }
        >
            <div class="confirm" role="group" aria-label=text.trim_end_matches('…')>
                {children.with_value(|children| children())}
                <button
                    node_ref=back
                    type="button"
                    class=class
                    data-testid=format!("{id}-cancel")
                    on:click=move |_| is_asking.set(false)
                >
                    {keep}
                </button>
            </div>
        </Show>
    }
}
