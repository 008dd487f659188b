//! The keys of the page, as a sheet.

use leptos::{html, prelude::*};

/// Keys, the places in which they work, and their effects.
const KEYS: [(&str, &str, &str); 13] = [
    ("?", "anywhere", "show this sheet"),
    ("Escape", "this sheet", "close it"),
    ("← →", "a chart", "move the crosshair by a point"),
    ("Home End", "a chart", "move it to the first or the last point"),
    ("+ −", "a chart", "zoom in and out"),
    ("Shift ← →", "a chart", "pan"),
    ("Shift drag", "a chart", "pan with the mouse; without Shift, zoom into the part"),
    ("0", "a chart", "show everything"),
    ("Escape", "a chart", "remove the crosshair"),
    ("← →", "the player", "go a step back or on"),
    ("← →", "the playing policy", "act instead of it while held: the first or the last action"),
    ("0 … 9", "the playing policy", "act instead of it while held: the action of this number"),
    ("Tab", "anywhere", "go to the next control"),
];

/// A dialog that `?` opens, and the button in the corner.
#[component]
pub(crate) fn Shortcuts() -> impl IntoView {
    let dialog = NodeRef::<html::Dialog>::new();
    let show = move || {
        // It fails only if the dialog is open already.
        dialog.get_untracked().into_iter().for_each(|dialog| _ = dialog.show_modal());
    };
    let close = move |_| dialog.get_untracked().into_iter().for_each(|dialog| dialog.close());
    // The listener lives as long as the page.
    let _ = window_event_listener(leptos::ev::keydown, move |event| {
        let is_typing = event_target::<web_sys::Element>(&event).matches("input, textarea, select").unwrap_or(false);
        if event.key() == "?" && !is_typing {
            show();
        }
    });
    view! {
        <button
            type="button"
            class="button icon shortcuts-button"
            aria-label="Keyboard shortcuts"
            title="Keyboard shortcuts (?)"
            data-testid="shortcuts-show"
            on:click=move |_| show()
        >
            "?"
        </button>
        <dialog node_ref=dialog class="shortcuts" aria-labelledby="shortcuts-title" data-testid="shortcuts">
            <div class="card-head">
                <h2 id="shortcuts-title">"Keys"</h2>
                <button type="button" class="button icon" aria-label="Close" data-testid="shortcuts-close" on:click=close>"×"</button>
            </div>
            <table>
                <thead>
                    <tr><th scope="col">"Key"</th><th scope="col">"What it does"</th></tr>
                </thead>
                <tbody>
                    {KEYS.map(|(key, place, what)| view! {
                        <tr>
                            <th scope="row">
                                {key.split(' ').map(|key| view! { <kbd>{key}</kbd> " " }).collect_view()}
                                <span class="detail">{place}</span>
                            </th>
                            <td>{what}</td>
                        </tr>
                    })}
                </tbody>
            </table>
        </dialog>
    }
}
