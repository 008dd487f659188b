//! Name, run, phase, connection, theme.

use leptos::prelude::*;
use rollmesh_core::protocol::Phase;

use super::shortcuts::Shortcuts;
use crate::{
    shell::Store,
    state::{Connection, State},
    theme::Theme,
};

/// The top of the page.
#[component]
pub(crate) fn Header() -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let run = store.select(run_name);
    let phase = store.select(State::phase);
    let connection = store.select(connection);
    let theme_label = move || if theme.is_dark() { "Use the light theme" } else { "Use the dark theme" };
    view! {
        <header class="top">
            <h1 class="brand">
                <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
                    <path d="M5 17.5 12 5l7 12.5M5 17.5h14M8.5 11.25h7" fill="none" stroke="currentColor" stroke-width="1.6"/>
                    <circle cx="12" cy="5" r="2.4"/>
                    <circle cx="5" cy="17.5" r="2.4"/>
                    <circle cx="19" cy="17.5" r="2.4"/>
                </svg>
                "rollmesh"
            </h1>
            <p class="run-name" data-testid="run-name">{run}</p>
            <p class="pill" data-testid="phase" data-phase=move || phase.get().name() data-tone=move || tone(phase.get())>
                {move || phase.get().name()}
            </p>
            <p
                class="connection"
                role="status"
                data-testid="connection"
                data-state=move || connection.get().0
                title=move || connection.get().2
            >
                <span class="dot" aria-hidden="true"></span>
                {move || connection.get().1}
            </p>
            <Shortcuts/>
            <button
                type="button"
                class="button icon"
                data-testid="theme-toggle"
                aria-label=theme_label
                title=theme_label
                on:click=move |_| theme.toggle()
            >
                <svg viewBox="0 0 24 24" aria-hidden="true">
                    <circle cx="12" cy="12" r="8" fill="none" stroke="currentColor" stroke-width="1.8"/>
                    <path d="M12 4a8 8 0 0 1 0 16z"/>
                </svg>
            </button>
        </header>
    }
}

fn run_name(state: &State) -> String {
    match state.run.as_ref().filter(|run| !run.env.is_empty()) {
        Some(run) if run.algo.is_empty() => format!("{} · seed {}", run.env, run.seed),
        Some(run) => format!("{} · {} · seed {}", run.env, run.algo.to_uppercase(), run.seed),
        None => String::new(),
    }
}

fn tone(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle | Phase::Finished | Phase::Stopped | Phase::Drained => "quiet",
        Phase::Running => "info",
        Phase::Paused | Phase::Draining => "warning",
        Phase::Solved => "good",
        Phase::Failed => "bad",
    }
}

/// Returns the connection's name for tests and styles, text, and detail.
fn connection(state: &State) -> (&'static str, &'static str, String) {
    match &state.connection {
        Connection::NoToken => ("none", "no hub", "The page has no token for a hub.".into()),
        Connection::Connecting { .. } => ("connecting", "connecting", String::new()),
        Connection::Online { server } if state.is_viewer => ("online", "view only", server.clone()),
        Connection::Online { server } => ("online", "connected", server.clone()),
        Connection::Waiting { .. } => {
            ("waiting", "no hub", "Trying again, at the latest when the page is shown again.".into())
        }
        Connection::Refused { reason } => ("refused", "refused", reason.clone()),
    }
}
