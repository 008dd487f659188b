//! The banner: the unusual state of the whole page, with advice.

use leptos::{html, prelude::*};
use rollmesh_core::protocol::Phase;

use crate::{
    format,
    shell::Store,
    state::{Connection, Source, State},
    token::{self, Pasted},
};

#[derive(Clone, PartialEq)]
struct Text {
    kind: &'static str,
    tone: &'static str,
    title: &'static str,
    text: String,
}

/// A line above the page, present only in an unusual state.
#[component]
pub(crate) fn Banner() -> impl IntoView {
    let store = expect_context::<Store>();
    let text = store.select(text);
    move || {
        text.get().map(|text| {
            view! {
                <section class="banner" role="status" data-testid="banner" data-kind=text.kind data-tone=text.tone>
                    <p><strong>{text.title}</strong> " " {text.text.clone()}</p>
                    {text.asks_for_token().then(|| view! { <TokenForm has_token=text.kind != "no-token"/> })}
                </section>
            }
        })
    }
}

#[component]
fn TokenForm(
    /// True if the page has a token, which the user may want to remove.
    has_token: bool,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let input = NodeRef::<html::Input>::new();
    let is_bad = RwSignal::new(false);
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let location = window().location();
        let origin = location.origin().unwrap_or_default();
        let found = input.get_untracked().and_then(|input| token::pasted(&input.value(), &origin));
        is_bad.set(found.is_none());
        match found {
            Some(Pasted::Token(token)) => store.use_token(token),
            // A browser that refuses the address reports that itself.
            Some(Pasted::Address(address)) => _ = location.set_href(&address),
            None => {}
        }
    };
    view! {
        <form class="token-form" on:submit=submit>
            <input
                node_ref=input
                type="text"
                autocomplete="off"
                spellcheck="false"
                placeholder="Dashboard URL or token"
                aria-label="Dashboard URL or token"
                aria-invalid=move || is_bad.get().then_some("true")
                data-testid="token-input"
            />
            <button type="submit" class="button" data-testid="token-connect">"Connect"</button>
            <button type="button" class="button" data-testid="token-forget" hidden=!has_token on:click=move |_| store.forget_token()>
                "Forget the token"
            </button>
            <p class="field-error" role="alert" hidden=move || !is_bad.get()>
                "This holds no token: the URL ends in #token= and 64 hexadecimal digits."
            </p>
        </form>
    }
}

impl Text {
    fn new(kind: &'static str, tone: &'static str, title: &'static str, text: impl Into<String>) -> Self {
        Self { kind, tone, title, text: text.into() }
    }

    /// Returns whether a token can help.
    fn asks_for_token(&self) -> bool {
        matches!(self.kind, "refused" | "no-token" | "tab")
    }
}

fn text(state: &State) -> Option<Text> {
    match &state.connection {
        Connection::NoToken => ending(state).or_else(|| (!state.phase().is_active()).then(training)),
        Connection::Refused { reason } => {
            let advice = if state.is_tab() { " This tab can train without it." } else { "" };
            Some(Text::new("refused", "bad", "The hub has refused this page.", format!("{reason}{advice}")))
        }
        Connection::Connecting { attempt } | Connection::Waiting { attempt } => match state.source {
            Source::None => None,
            Source::Tab => ending(state).or_else(|| {
                let text = "This tab can train without one. The page looks for it a few times, and whenever it is shown \
                            again. When the hub appears, a run in this tab ends.";
                Some(Text::new("tab", "info", "No hub is in reach.", text))
            }),
            Source::Hub => {
                let attempt = attempt.max(&1);
                let text = format!("These are the hub's last numbers. Trying again by itself (try {attempt}).");
                Some(Text::new("lost", "warning", "Connection lost.", text))
            }
        },
        Connection::Online { .. } => ending(state).or_else(|| state.is_viewer.then(viewing)),
    }
}

fn training() -> Text {
    let text = "Choose an environment and start: no server is needed. To follow a hub, open the dashboard URL that it \
                prints in its terminal, or paste it here.";
    Text::new("no-token", "info", "Train in this tab.", text)
}

fn viewing() -> Text {
    let text = "This page has a viewer's token: it shows everything and changes nothing. The dashboard URL that the \
                hub prints in its terminal has an operator's.";
    Text::new("viewer", "info", "View only.", text)
}

fn ending(state: &State) -> Option<Text> {
    let run = state.run.as_ref()?;
    let steps = format::count(run.env_steps);
    Some(match state.phase() {
        Phase::Solved => {
            let mean = format::mean(f64::from(run.episode_return_mean));
            let text = format!("Mean return {mean} over the last 100 episodes after {steps} env steps.");
            Text::new("solved", "good", "Solved.", text)
        }
        Phase::Finished => {
            let text = format!("All {steps} env steps were used without solving it.");
            Text::new("finished", "info", "Finished.", text)
        }
        Phase::Failed => Text::new("failed", "bad", "The run has failed.", &*run.error),
        Phase::Draining => {
            let text = "No more leases are granted; the run ends when those that are out have.";
            Text::new("draining", "warning", "Draining.", text)
        }
        Phase::Idle | Phase::Running | Phase::Paused | Phase::Stopped | Phase::Drained => return None,
    })
}
