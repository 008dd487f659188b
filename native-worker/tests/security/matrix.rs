//! Every kind of message from every role.

use futures_util::{StreamExt as _, stream};
use rollmesh_core::protocol::{HEADER_BYTES, Kind, MAGIC, Message, RefusalCode, Role, Token, allow};

use super::{TestHub, create, fresh_address, id_of, revoke};
use crate::support::{
    client::{Client, Frame, hello},
    until,
};

/// Returns a message of this kind without a body, which no kind has: a peer that may send it is answered that it does
/// not decode.
fn bare(kind: Kind) -> Frame {
    let frame = [MAGIC[0], MAGIC[1], 1, 0, kind.to_wire(), 0, 0, 0];
    assert_eq!(frame.len(), HEADER_BYTES);
    Frame::Binary(frame.to_vec().into())
}

/// Returns the hub's answer to this message of a peer of this role; `None` if it has disconnected without a message.
async fn reason(hub: &TestHub, role: Role, token: Token, kind: Kind) -> Option<String> {
    let mut client = Client::join_from(fresh_address(), hub.hub.address(), role, token).await;
    client.send(bare(kind)).await.unwrap();
    let mut reason = None;
    while let Some(message) = client.receive().await {
        if let Message::Goodbye(goodbye) = message {
            reason = Some(goodbye.reason);
        }
    }
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_sends_only_permitted_messages() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let client = create(&mut operator, Role::Client, 0).await;
    let launcher = create(&mut operator, Role::Launcher, 0).await;
    let relay = create(&mut operator, Role::Relay, 0).await;
    let holders = [
        (Role::Viewer, hub.viewer_token()),
        (Role::Operator, hub.operator_token()),
        (Role::Worker, hub.hub.worker_token()),
        (Role::Client, client),
        (Role::Launcher, launcher),
        (Role::Relay, relay),
    ];
    let cases = holders.iter().flat_map(|holder| Kind::ALL.iter().map(move |kind| (*holder, *kind)));
    let asked = stream::iter(cases).map(|((role, token), kind)| {
        let hub = &hub;
        async move { (role, kind, reason(hub, role, token, kind).await) }
    });
    let wrong: Vec<_> = asked
        .buffer_unordered(8)
        .filter(|(role, kind, reason)| {
            let said = reason.as_deref().unwrap_or_default();
            let expected = if allow(*role, *kind) { "does not decode" } else { "may not send" };
            let is_wrong = !said.contains(expected);
            async move { is_wrong }
        })
        .collect()
        .await;
    assert!(wrong.is_empty(), "{wrong:?}");
    let forbidden =
        Role::ALL.iter().flat_map(|role| Kind::ALL.iter().filter(move |kind| !allow(*role, **kind))).count();
    let denied = || hub.audit().matches(r#""event":"denied""#).count();
    until("each of them is in the audit log", || denied() == forbidden).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_without_a_valid_token_send_no_message() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let revoked = create(&mut operator, Role::Operator, 0).await;
    assert_eq!(revoke(&mut operator, id_of(&revoked)).await, "");
    // The hub disconnects its holder when it expires.
    let expired = create(&mut operator, Role::Operator, 3).await;
    let holder = Client::join_from(fresh_address(), hub.hub.address(), Role::Operator, expired).await;
    holder.refusal().await;

    let (hub, address) = (&hub, hub.hub.address());
    let cases = [None, Some(revoked), Some(expired)].into_iter();
    let cases = cases.flat_map(|token| Kind::ALL.iter().map(move |kind| (token, *kind)));
    let answers: Vec<_> = stream::iter(cases)
        .map(|(token, kind)| async move {
            let mut client = Client::connect_from(fresh_address(), address).await;
            if let Some(token) = token {
                client.say(&Message::Hello(hello(Role::Operator, token))).await;
            }
            // The hub may have disconnected by now.
            let _ = client.send(bare(kind)).await;
            (token.is_some(), kind, client.refusal().await)
        })
        .buffer_unordered(8)
        .collect()
        .await;
    assert_eq!(answers.len(), 3 * Kind::ALL.len());
    for (has_token, kind, refused) in answers {
        let expected = if has_token { RefusalCode::Token } else { RefusalCode::Malformed };
        assert_eq!(refused.map(|refused| refused.code), Some(expected.to_wire()), "{kind:?}");
    }
    assert_eq!(hub.audit().matches(r#""event":"admitted""#).count(), 2, "the operator and the peer that came in time");
}
