//! Ends of sessions.

use super::*;

#[test]
fn a_refused_worker_says_why_and_does_nothing_more() {
    let mut hub = Hub::new();
    hub.tokens = TokenTable::new();
    hub.shake_hands();
    let reason = "the token is not valid for this role".to_string();
    assert_eq!(
        hub.session.connection().end(),
        Some(&ConnectionEnd::Refused { code: Some(RefusalCode::Token), reason })
    );
    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
    assert_eq!(hub.session.run(), None);
    assert_eq!(hub.receive(), []);
}

#[test]
fn a_hub_that_breaks_the_protocol_ends_the_session() {
    let frame = |message: &Message| message.encode();
    let mut broken = convert::weights_update(RUN, &weights(1));
    broken.values.pop();
    let cases = [
        (b"HTTP/1.1".to_vec(), "a frame starts with [72, 84], not with \"RM\": this is no rollmesh peer"),
        (
            frame(&Message::Progress(Progress { lease: 1, env_steps: 1 })),
            "the hub sent Progress, which a peer with role Worker does not expect",
        ),
        (frame(&Message::Refused(handshake::busy("late"))), "Refused has no place in a session"),
        (frame(&Message::WeightsUpdate(broken)), "the values of tensor 'value.1.weight' are missing"),
    ];
    for (frame, expected) in cases {
        let mut hub = Hub::with_run();
        hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
        hub.session.handle_frame(&frame);
        assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Violated { reason: expected.into() }));
        assert_eq!(hub.work(), [Message::Goodbye(Goodbye { reason: expected.into() })]);
    }
}

#[test]
fn either_side_can_say_goodbye() {
    let mut hub = Hub::with_run();
    hub.send(&Message::Goodbye(Goodbye { reason: "the hub stops".into() }));
    assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Closed { reason: "the hub stops".into() }));
    let mut hub = Hub::with_run();
    hub.session.leave("the tab closes");
    assert_eq!(hub.receive(), [Message::Goodbye(Goodbye { reason: "the tab closes".into() })]);
}

#[test]
fn a_wish_to_leave_waits_for_the_hub_and_for_the_leases_that_it_gave() {
    let mut hub = Hub::new();
    hub.session.leave_when_done("asked to leave");
    assert!(!hub.session.connection().is_ready());
    hub.shake_hands();
    assert_eq!(hub.receive(), [Message::Goodbye(Goodbye { reason: "asked to leave".into() })]);
    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
    hub.set_weights(1);
    assert_eq!(hub.run(&lease(1, 0, 1, &new_slots(&[0]))).len(), 1);
    hub.send(&Message::Goodbye(Goodbye { reason: "farewell".into() }));
    assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Closed { reason: "farewell".into() }));
}
