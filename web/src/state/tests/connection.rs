//! The connection to a hub, and requests to it.

use super::*;

#[test]
fn only_what_the_page_does_not_show_by_itself_is_confirmed() {
    let mut state = online();
    assert_eq!(reduce(&mut state, Event::Act(Action::Checkpoint)), [send(Message::Checkpoint(Request { request: 1 }))]);
    let effects = reduce(&mut state, reply(1, ""));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]), "{effects:?}");
    assert_eq!(state.toasts.last().unwrap().text, "A checkpoint was written.");
    assert_eq!(reduce(&mut state, Event::Act(Action::Drain)), [send(Message::Drain(Request { request: 2 }))]);
    assert_eq!(reduce(&mut state, reply(2, "")), []);
    reduce(&mut state, Event::Act(Action::Checkpoint));
    reduce(&mut state, reply(3, "this run has no run directory"));
    assert_eq!(state.toasts.last().unwrap().text, "No checkpoint was written: this run has no run directory");
}

#[test]
fn page_without_a_token_trains_and_does_not_connect() {
    let mut state = State::default();
    assert_eq!(reduce(&mut state, Event::Started { token: false }), [Effect::StartTrainer]);
    assert_eq!(state.connection, Connection::NoToken);
    assert_eq!(reduce(&mut state, Event::Woke), []);
    assert_eq!(reduce(&mut state, Event::TokenFound), [connect(Role::Operator)]);
}

#[test]
fn without_a_hub_this_tab_trains_until_one_appears() {
    let mut state = after([Event::Started { token: true }]);
    let effects = reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(effects, [retry_in(200), Effect::StartTrainer]);

    reduce(&mut state, trainer(schema()));
    reduce(&mut state, trainer(Message::Iteration(Iteration { iteration: 1, ..Iteration::default() })));
    assert_eq!(state.curves.points().len(), 1);
    let start = Action::Start(Config::new());
    let message = Message::StartRun(StartRun { request: 1, settings: "{}".into() });
    assert_eq!(reduce(&mut state, Event::Act(start.clone())), [Effect::Send(Box::new(message))]);

    // Requests to the trainer stay pending when the connection to the hub fails.
    assert_eq!(reduce(&mut state, Event::RetryDue), [connect(Role::Operator)]);
    assert_eq!(reduce(&mut state, Event::Closed { random: 0 }), [retry_in(400)]);
    assert!(state.requests.is_waiting(&start));
    assert_eq!(reduce(&mut state, Event::Woke), [connect(Role::Operator)]);
    assert_eq!(reduce(&mut state, welcome()), [Effect::StopTrainer]);
    assert_eq!((state.source, state.requests.is_waiting(&start)), (Source::Hub, false));
    assert_eq!(state.curves.points(), []);

    reduce(&mut state, trainer(Message::Iteration(Iteration { iteration: 2, ..Iteration::default() })));
    assert_eq!(state.curves.points(), []);
}

#[test]
fn unseen_hub_is_retried_a_few_times_and_a_lost_one_forever() {
    let closed = |state: &mut State| {
        let effects = reduce(state, Event::Closed { random: 0 });
        effects.iter().any(|effect| matches!(effect, Effect::RetryIn { .. }))
    };
    let mut state = after([Event::Started { token: true }]);
    let mut tries = 1;
    while closed(&mut state) {
        reduce(&mut state, Event::RetryDue);
        tries += 1;
        assert!(tries < 100);
    }
    assert_eq!(tries, 12);
    // A page that becomes visible or receives another token tries again.
    assert_eq!(reduce(&mut state, Event::Woke), [connect(Role::Operator)]);
    assert!(!closed(&mut state));
    assert_eq!(reduce(&mut state, Event::TokenFound), [connect(Role::Operator)]);
    assert!(closed(&mut state));
    let mut state = online();
    assert!((0..100).all(|_| closed(&mut state)));
}

#[test]
fn discarded_token_is_not_retried() {
    let mut state = after([Event::Started { token: true }]);
    assert_eq!(reduce(&mut state, Event::TokenForgotten), [Effect::Disconnect, Effect::StartTrainer]);
    for event in [Event::RetryDue, Event::Woke, Event::Closed { random: 0 }] {
        assert_eq!(reduce(&mut state, event), []);
    }
    assert_eq!(state.connection, Connection::NoToken);
    assert_eq!(reduce(&mut state, Event::TokenFound), [connect(Role::Operator)]);
}

#[test]
fn forgotten_token_of_a_hub_that_refuses_it_starts_the_trainer() {
    let refused = || {
        let code = RefusalCode::Token.to_wire();
        Event::Received(Message::Refused(Refused { code, reason: "wrong token".into() }))
    };
    let mut state = online();
    for event in [worker(3), iteration(1, 1), Event::Closed { random: 0 }, Event::RetryDue, refused(), refused()] {
        reduce(&mut state, event);
    }
    assert!(matches!(state.connection, Connection::Refused { .. }), "{:?}", state.connection);
    assert_eq!((state.source, state.curves.points().len()), (Source::Hub, 1));
    assert_eq!(reduce(&mut state, Event::TokenForgotten), [Effect::Disconnect, Effect::StartTrainer]);
    assert_eq!((state.source, &state.connection), (Source::Tab, &Connection::NoToken));
    assert_eq!((&state.run, state.curves.points().len(), state.workers.len()), (&None, 0, 0));
    reduce(&mut state, trainer(schema()));
    assert!(state.schema.is_some());
}

#[test]
fn the_page_knows_its_number_among_the_peers_of_its_hub() {
    assert_eq!(online().peer, 9);
    let mut state = after([Event::Started { token: false }]);
    let Event::Received(message) = welcome() else { panic!("a message") };
    reduce(&mut state, trainer(message));
    assert_eq!((state.peer, state.source), (9, Source::Tab));
}

#[test]
fn numbers_of_a_lost_hub_stay_on_the_page_until_it_sends_new_ones() {
    let mut state = online();
    reduce(&mut state, iteration(1, 1));
    assert_eq!(reduce(&mut state, Event::Closed { random: 0 }), [retry_in(200)]);
    assert_eq!(state.connection, Connection::Waiting { attempt: 1 });
    assert_eq!(state.curves.points().len(), 1);

    reduce(&mut state, Event::RetryDue);
    reduce(&mut state, welcome());
    assert_eq!((state.curves.points().len(), state.run), (0, None));
}

#[test]
fn lines_of_another_hub_take_the_place_of_as_many_of_the_one_before() {
    let log = |text: &str| {
        let line = LogLine { text: text.into(), ..LogLine::default() };
        Event::Received(Message::WorkerLog(WorkerLog { worker: 3, first: 0, lines: vec![line] }))
    };
    let mut state = online();
    let mut seen = vec![state.monitoring.num_messages()];
    for event in [log("before"), welcome(), log("after")] {
        reduce(&mut state, event);
        seen.push(state.monitoring.num_messages());
    }
    assert!(seen.is_sorted_by(|before, now| before < now), "the shown lines follow this number: {seen:?}");
}

#[test]
fn messages_touch_the_workers_that_they_change() {
    let mut state = after([Event::Started { token: true }, welcome(), worker(3), worker(5)]);
    let log = |worker| Message::WorkerLog(WorkerLog { worker, ..WorkerLog::default() });
    // The number of logs reaches its limit: the next one evicts that of worker 1,000.
    (1_000..1_256).for_each(|worker| _ = reduce(&mut state, Event::Received(log(worker))));
    state.take_touched();
    for (message, touched) in [
        (Message::WorkerRow(WorkerRow { worker: 7, ..WorkerRow::default() }), &[7][..]),
        (Message::WorkerLocation(WorkerLocation { worker: 8, ..WorkerLocation::default() }), &[8]),
        (Message::HostReport(HostReport { worker: 9, ..HostReport::default() }), &[9]),
        (log(10), &[10, 1_000]),
        (Message::WorkerGone(WorkerGone { worker: 7 }), &[7]),
        (Message::LedgerReport(LedgerReport::default()), &[]),
    ] {
        let text = format!("{message:?}");
        reduce(&mut state, Event::Received(message));
        assert_eq!(Vec::from_iter(state.take_touched()), touched, "{text}");
    }
    reduce(&mut state, welcome());
    assert_eq!(Vec::from_iter(state.take_touched()), [3, 5], "another hub's workers are others");
}

#[test]
fn refusals_end_the_tries_except_when_the_hub_is_only_busy() {
    let refused = |code: RefusalCode| {
        Event::Received(Message::Refused(Refused { code: code as u8, reason: "wrong token".into() }))
    };
    let mut state = after([Event::Started { token: true }, refused(RefusalCode::Token), refused(RefusalCode::Token)]);
    assert_eq!(state.connection, Connection::Refused { reason: "wrong token".into() });
    assert_eq!(reduce(&mut state, Event::Closed { random: 0 }), []);
    assert_eq!(reduce(&mut state, Event::Woke), []);

    let mut state = after([Event::Started { token: true }, refused(RefusalCode::Busy)]);
    reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(state.connection, Connection::Waiting { attempt: 1 });
}

#[test]
fn a_token_that_is_no_operators_may_be_a_viewers() {
    let refused = || {
        let code = RefusalCode::Token.to_wire();
        Event::Received(Message::Refused(Refused { code, reason: "wrong token".into() }))
    };
    let mut state = after([Event::Started { token: true }]);
    assert_eq!(reduce(&mut state, refused()), [connect(Role::Viewer)]);
    reduce(&mut state, welcome());
    assert!(state.is_online() && state.is_viewer);
    // The page stays a viewer while the hub is unreachable.
    reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(reduce(&mut state, Event::RetryDue), [connect(Role::Viewer)]);
    // Another token may be an operator's.
    assert_eq!(reduce(&mut state, Event::TokenFound), [connect(Role::Operator)]);
    assert_eq!(reduce(&mut state, refused()), [connect(Role::Viewer)]);
    reduce(&mut state, refused());
    assert!(matches!(state.connection, Connection::Refused { .. }) && !state.is_viewer);
}

#[test]
fn a_message_that_cannot_be_read_ends_the_connection_with_a_reason() {
    let mut state = online();
    assert_eq!(reduce(&mut state, Event::Unreadable("bad magic".into())), [Effect::Disconnect]);
    assert!(matches!(&state.connection, Connection::Refused { reason } if reason.contains("bad magic")));
}

#[test]
fn an_equal_request_is_not_sent_twice_and_an_error_is_reported() {
    let mut state = online();
    let effects = reduce(&mut state, Event::Act(Action::Pause));
    assert_eq!(effects, [send(Message::Pause(Request { request: 1 }))]);
    assert!(state.requests.is_waiting(&Action::Pause));
    assert_eq!(reduce(&mut state, Event::Act(Action::Pause)), []);

    let effects = reduce(&mut state, reply(1, "only operators may"));
    assert_eq!(effects, [Effect::ExpireToast { id: 0, delay: Micros::from_secs(15) }]);
    assert_eq!(state.toasts[0].text, "The run was not paused: only operators may");
    assert!(!state.requests.is_waiting(&Action::Pause));
    assert_eq!(reduce(&mut state, reply(1, "again")), []);
}

#[test]
fn requests_without_a_hub_are_not_sent() {
    let mut state = online();
    reduce(&mut state, Event::Act(Action::AddWorker));
    reduce(&mut state, Event::Closed { random: 0 });
    assert!(!state.requests.is_waiting(&Action::AddWorker));
    assert!(state.toasts[0].text.starts_with("Not confirmed"));

    let effects = reduce(&mut state, Event::Act(Action::Stop));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]));
    assert!(state.toasts[1].text.ends_with("No hub is in reach."));
}

#[test]
fn toasts_are_few_and_not_repeated() {
    let mut state = online();
    for text in ["a", "a", "b", "c", "d", "e"] {
        reduce(&mut state, Event::Received(Message::Notice(Notice { level: 1, text: text.into() })));
    }
    let texts: Vec<&str> = state.toasts.iter().map(|toast| toast.text.as_str()).collect();
    assert_eq!(texts, ["b", "c", "d", "e"]);
    assert!(state.toasts.iter().all(|toast| toast.level == Level::Warning));
    let id = state.toasts[1].id;
    reduce(&mut state, Event::ToastGone(id));
    assert_eq!(state.toasts.len(), 3);
}

#[test]
fn token_for_another_machine_is_shown_until_the_hub_is_another_one() {
    let mut state = online();
    let effects = reduce(&mut state, Event::Act(Action::Invite(Role::Worker)));
    let asked = |message: &Message| matches!(message, Message::ManageTokens(ManageTokens { request: 1, role, .. }) if *role == Role::Worker.to_wire());
    assert!(matches!(&effects[..], [Effect::Send(message)] if asked(message)), "{effects:?}");
    let token = NewToken { request: 1, role: Role::Worker.to_wire(), expires: 5, token: Token::new([7; 32]) };
    assert_eq!(reduce(&mut state, Event::Received(Message::NewToken(token.clone()))), []);
    let certificate = HubCertificate { sha256: [7; 32] };
    reduce(&mut state, Event::Received(Message::HubCertificate(certificate)));
    assert_eq!((state.invitation, state.certificate), (Some((Role::Worker, token.token)), Some(certificate)));
    reduce(&mut state, welcome());
    assert_eq!((state.invitation, state.certificate), (None, None));
}
