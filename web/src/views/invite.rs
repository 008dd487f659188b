//! Ways for other machines and browsers to connect: each gets a token of its own.

use leptos::{html, prelude::*};
use rollmesh_core::protocol::{Role, Token, message::HubCertificate};

use super::action_button::ActionButton;
use crate::{shell::Store, socket::hub_url, state::Action, token};

/// Buttons that create a token, and instructions for the latest one.
#[component]
pub(crate) fn Invite() -> impl IntoView {
    let store = expect_context::<Store>();
    let invitation = store.select(|state| state.invitation.map(|(role, token)| (role, token, state.certificate)));
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
            {move || invitation.get().map(|(role, token, certificate)| view! { <Invitation role token certificate/> })}
        </details>
    }
}

#[component]
fn Invitation(
    /// The token's role.
    role: Role,
    /// The token.
    token: Token,
    /// The hub's certificate.
    certificate: Option<HubCertificate>,
) -> impl IntoView {
    let texts = match role {
        Role::Worker => vec![
            (
                worker_command(&hub_url(), &token, certificate),
                match certificate {
                    None => "Run it on the other machine, with an address under which that machine reaches the hub.",
                    Some(_) => {
                        "Run it on the other machine, with an address under which that machine reaches the hub; without \
                         --tls-fingerprint, if an authority that it knows has signed the certificate."
                    }
                },
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

/// Returns the command with which a machine joins the hub at this socket's address. Its workers verify the hub by its
/// certificate.
fn worker_command(socket: &str, token: &Token, certificate: Option<HubCertificate>) -> String {
    let hub = socket.trim_end_matches("/ws");
    // An address without TLS is that of a proxy, which has no certificate of the hub.
    let certificate = certificate.filter(|_| hub.starts_with("wss://"));
    let trust = certificate.map_or_else(String::new, |known| format!(" --tls-fingerprint {}", known.to_hex()));
    format!("ROLLMESH_TOKEN={} rollmesh worker --hub {hub}{trust}", token.to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_a_worker_names_the_certificate_of_an_encrypted_hub() {
        let (token, sha256) = (Token::new([0x5a; 32]), [0xcd; 32]);
        let token_text = "5a".repeat(32);
        assert_eq!(
            worker_command("wss://hub.example:7878/ws", &token, Some(HubCertificate { sha256 })),
            format!(
                "ROLLMESH_TOKEN={token_text} rollmesh worker --hub wss://hub.example:7878 --tls-fingerprint {}",
                "cd".repeat(32)
            )
        );
        for certificate in [None, Some(HubCertificate { sha256 })] {
            assert_eq!(
                worker_command("ws://127.0.0.1:7878/ws", &token, certificate),
                format!("ROLLMESH_TOKEN={token_text} rollmesh worker --hub ws://127.0.0.1:7878")
            );
        }
    }
}
