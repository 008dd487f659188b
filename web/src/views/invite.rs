//! Ways for other machines and browsers to connect: each gets a token of its own.

use leptos::{html, prelude::*};
use rollmesh_core::protocol::{Role, Token};

use super::action_button::ActionButton;
use crate::{shell::Store, socket::hub_url, state::Action, token};

/// Buttons that create a token, and what to do with the latest one.
#[component]
pub(crate) fn Invite() -> impl IntoView {
    let store = expect_context::<Store>();
    let invitation = store.select(|state| state.invitation);
    view! {
        <details class="more">
            <summary data-testid="invite">"Add workers and viewers"</summary>
            <div class="buttons">
                <ActionButton action=Action::Invite(Role::Worker) id="invite-worker" class="button small">
                    "For a machine or browser that works"
                </ActionButton>
                <ActionButton action=Action::Invite(Role::Operator) id="invite-operator" class="button small">
                    "Link for a browser that controls"
                </ActionButton>
                <ActionButton action=Action::Invite(Role::Viewer) id="invite-viewer" class="button small">
                    "Link for a browser that watches"
                </ActionButton>
            </div>
            {move || invitation.get().map(|(role, token)| view! { <Invitation role token/> })}
        </details>
    }
}

#[component]
fn Invitation(
    /// What may be done with the token.
    role: Role,
    /// The token.
    token: Token,
) -> impl IntoView {
    let hub = hub_url();
    let texts = match role {
        Role::Worker => vec![
            (
                format!("ROLLMESH_TOKEN={} rollmesh worker --hub {}", token.to_hex(), hub.trim_end_matches("/ws")),
                "Run it on the other machine, with an address under which that machine reaches the hub.",
            ),
            (
                token::link("join", &token),
                "Or open this link in the other browser: its tab works, and can do nothing else.",
            ),
        ],
        Role::Operator => {
            vec![(
                token::link("token", &token),
                "Open it in the other browser: it can do everything that this page can.",
            )]
        }
        _ => vec![(
            token::link("token", &token),
            "Open it in the other browser: it shows everything and changes nothing.",
        )],
    };
    let invitation = |(text, hint)| {
        let input = NodeRef::<html::Input>::new();
        let select = move |_| {
            if let Some(input) = input.get_untracked() {
                input.select();
            }
        };
        view! {
            <label class="invitation">
                <span class="hint">{hint} " The token is valid for a day."</span>
                <input node_ref=input type="text" readonly class="code" data-testid="invitation" prop:value=text on:focus=select/>
            </label>
        }
    };
    texts.into_iter().map(invitation).collect_view()
}
