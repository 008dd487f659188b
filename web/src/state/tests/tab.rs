//! The run in this tab, and the work of this tab for a hub.

use super::*;

#[test]
fn tab_shows_why_it_is_unable_and_stays() {
    let mut state = online();
    join(&mut state, 1, 1);
    let status = TabStatus { state: "unable".into(), reason: "unknown environment".into(), ..TabStatus::default() };
    assert_eq!(reduce(&mut state, Event::Tab { worker: 1, status: status.clone() }), []);
    assert_eq!((state.tab.job(), state.tab.total()), (Some(&TabJob::Sample), Some(status)));
}

/// Lets the tab join with more Web Workers, and gives it their token; returns the numbers of those that start.
fn join(state: &mut State, request: u32, workers: u32) -> Vec<u32> {
    let effects = reduce(state, Event::Act(Action::Join { workers }));
    assert_eq!(effects, [send(Message::WorkerTokenRequest(Request { request }))]);
    assert!(state.tab.is_joining() && state.obstacle(&Action::Join { workers: 1 }).is_some());
    let token = Event::Received(Message::WorkerToken(WorkerToken { request, token: Token::new([7; 32]) }));
    let started = reduce(state, token.clone());
    assert_eq!(reduce(state, token), []);
    let number = |effect| match effect {
        Effect::StartTab { worker, job: TabJob::Sample, token } if token == Token::new([7; 32]) => worker,
        other => panic!("{other:?}"),
    };
    started.into_iter().map(number).collect()
}

#[test]
fn this_tab_joins_with_several_workers_which_leave_one_by_one_or_all() {
    let mut state = online();
    assert_eq!(join(&mut state, 1, 1), [1]);
    assert_eq!(join(&mut state, 2, 3), [2, 3, 4]);
    let sampling =
        |env_steps, steps_per_s| TabStatus { state: "sampling".into(), env_steps, steps_per_s, ..TabStatus::default() };
    for (worker, status) in [(1, sampling(512, f64::NAN)), (2, sampling(64, 7.0)), (4, sampling(8, 5.0))] {
        assert_eq!(reduce(&mut state, Event::Tab { worker, status }), []);
    }
    let total = state.tab.total().expect("workers");
    assert_eq!((&*total.state, total.env_steps, total.steps_per_s), ("sampling", 584, 12.0));

    let leave = |state: &mut State, worker| reduce(state, Event::Act(Action::Leave { worker }));
    assert_eq!(leave(&mut state, Some(2)), [Effect::StopTab { worker: 2 }]);
    // The Web Worker posted this before its end.
    reduce(&mut state, Event::Tab { worker: 2, status: sampling(64, 7.0) });
    assert_eq!((state.tab.count(), state.tab.latest()), (3, Some(4)));
    assert_eq!(join(&mut state, 3, 1), [2], "the lowest free number");
    assert_eq!(leave(&mut state, None), [1, 2, 3, 4].map(|worker| Effect::StopTab { worker }));
    assert!(state.tab.is_out() && state.obstacle(&Action::Leave { worker: None }).is_some());
}

#[test]
fn this_tab_evaluates_under_a_name_with_a_token_of_its_own() {
    let mut state = online();
    let judge = evaluator("CartPole-v1", ["judge", "1", "7", "64"]).expect("valid");
    let effects = reduce(&mut state, Event::Act(Action::Evaluate(judge.clone())));
    let (role, action) = (Role::Worker.to_wire(), TokenAction::Create.to_wire());
    let wish = ManageTokens { request: 1, action, role, token: 0, seconds: 24 * 60 * 60 };
    assert_eq!(effects, [send(Message::ManageTokens(wish))]);
    assert!(state.obstacle(&Action::Join { workers: 1 }).is_some(), "a tab does one thing");

    let token = Token::new([7; 32]);
    let made = Event::Received(Message::NewToken(NewToken { request: 1, role, expires: 0, token }));
    let job = TabJob::Evaluate(judge.clone());
    assert_eq!(reduce(&mut state, made.clone()), [Effect::StartTab { worker: 1, job: job.clone(), token }]);
    assert_eq!(reduce(&mut state, made), []);
    let status = TabStatus { state: "idle".into(), evaluations: 3, ..TabStatus::default() };
    reduce(&mut state, Event::Tab { worker: 1, status: status.clone() });
    assert_eq!((state.tab.evaluator(), state.tab.job(), state.tab.total()), (Some(&judge), Some(&job), Some(status)));

    let revoked = |request| {
        let (action, token) = (TokenAction::Revoke.to_wire(), TokenHash::of(&token).id().0);
        send(Message::ManageTokens(ManageTokens { request, action, token, ..ManageTokens::default() }))
    };
    let status =
        TabStatus { state: "ended".into(), reason: "the name 'judge' is taken".into(), ..TabStatus::default() };
    let ended = reduce(&mut state, Event::Tab { worker: 1, status });
    assert_eq!(ended[..2], [Effect::StopTab { worker: 1 }, revoked(2)]);
    let said = state.toasts.last().map(|toast| toast.text.as_str());
    assert_eq!(said, Some("This tab no longer evaluates: the name 'judge' is taken"));
    // The hub refuses a token.
    reduce(&mut state, Event::Act(Action::Evaluate(judge.clone())));
    reduce(&mut state, reply(3, "there are 64 tokens already"));
    assert_eq!((state.tab.is_out(), state.tab_token), (true, None));

    // The token of a tab that leaves is revoked once, as soon as a hub is connected.
    let token_of = |request| Event::Received(Message::NewToken(NewToken { request, role, expires: 0, token }));
    reduce(&mut state, Event::Act(Action::Evaluate(judge.clone())));
    reduce(&mut state, token_of(4));
    assert_eq!(
        reduce(&mut state, Event::Act(Action::Leave { worker: None })),
        [Effect::StopTab { worker: 1 }, revoked(5)]
    );
    assert_eq!(reduce(&mut state, reply(5, "")), []);
    reduce(&mut state, Event::Act(Action::Evaluate(judge.clone())));
    reduce(&mut state, token_of(6));
    let status = TabStatus { state: "idle".into(), ..TabStatus::default() };
    reduce(&mut state, Event::Tab { worker: 1, status });
    reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(reduce(&mut state, Event::Act(Action::Leave { worker: None })), [Effect::StopTab { worker: 1 }]);
    reduce(&mut state, Event::RetryDue);
    assert!(reduce(&mut state, welcome()).contains(&revoked(7)));
    assert!(!reduce(&mut state, welcome()).contains(&revoked(8)));
    // A token that arrives after the tab has left is revoked, too.
    reduce(&mut state, Event::Act(Action::Evaluate(judge)));
    reduce(&mut state, Event::Act(Action::Leave { worker: None }));
    assert_eq!(reduce(&mut state, token_of(8)), [revoked(9)]);
}

#[test]
fn a_refused_or_ended_tab_worker_says_why() {
    let mut state = online();
    reduce(&mut state, Event::Act(Action::Join { workers: 1 }));
    reduce(&mut state, reply(1, "no run"));
    assert!(state.tab.is_out());

    assert_eq!(join(&mut state, 2, 2), [1, 2]);
    let status = TabStatus { state: "ended".into(), reason: "removed".into(), ..TabStatus::default() };
    for (worker, expected) in [
        (2, "A worker of this tab no longer works for the run: removed"),
        (1, "This tab no longer works for the run: removed"),
    ] {
        let effects = reduce(&mut state, Event::Tab { worker, status: status.clone() });
        assert_eq!(effects[0], Effect::StopTab { worker });
        assert_eq!(state.toasts.last().map(|toast| &*toast.text), Some(expected));
    }
    assert!(state.tab.is_out());
}

#[test]
fn a_run_in_this_tab_has_a_link_and_ends_with_a_hash_and_its_proof() {
    let mut state = after([Event::Started { token: false }, trainer(schema())]);
    let settings = Config::new().with_at("seed", 3.into()).with_at("stop.env_steps", 100.into());
    let effects = reduce(&mut state, Event::Act(Action::Start(settings.clone())));
    let link = [("seed", "3"), ("stop.env_steps", "100"), ("stop.episode_return_mean", "")];
    let link: Texts = link.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
    let message = Message::StartRun(StartRun { request: 1, settings: settings.to_string() });
    assert_eq!(effects, [Effect::Send(Box::new(message))]);
    assert_eq!(state.linked, Texts::new(), "it may be refused");
    let effects = reduce(&mut state, trainer(Message::Reply(Reply { request: 1, error: String::new(), run: 1 })));
    assert_eq!(effects.first(), Some(&Effect::ShowLink(link.clone())));

    let run = RunStatus { run: 1, phase: Phase::Finished.to_wire(), env_steps: 128, ..RunStatus::default() };
    reduce(&mut state, trainer(Message::RunStatus(run.clone())));
    reduce(&mut state, Event::Trained { run: 1, weights_hash: "5a".into() });
    assert_eq!(state.tab_run.hash_of(&run), Some("5a"));
    assert_eq!(state.tab_run.command(&run), "rollmesh train --set seed=3 --set stop.env_steps=128");
    // The next form begins with these settings, as does a page that is opened with the link.
    assert_eq!(state.linked, link);
    let mut state = after([Event::Linked(link), Event::Started { token: false }, trainer(schema())]);
    let schema = state.schema.take().expect("a schema");
    assert_eq!(schema.settings(&schema.first_texts(&state.linked)), Ok(settings));
    assert_eq!(schema.first_texts(&Texts::new())["stop.episode_return_mean"], "475.0");
}

#[test]
fn refused_start_is_explained_in_the_form_until_another_one() {
    let mut state = after([Event::Started { token: false }, trainer(schema())]);
    let start = || Event::Act(Action::Start(Config::new().with_at("num_slots", 0.into())));
    reduce(&mut state, start());
    let refusal = Reply { request: 1, error: "num_slots is 0".into(), run: 0 };
    assert_eq!(reduce(&mut state, trainer(Message::Reply(refusal))), []);
    assert_eq!(state.start_error.as_deref(), Some("num_slots is 0"));
    assert!(state.toasts.is_empty());
    reduce(&mut state, start());
    assert_eq!(state.start_error, None);
}

#[test]
fn a_trainer_that_fails_is_shown_and_replaced_unless_it_would_fail_again() {
    let mut state = after([Event::Started { token: false }, trainer(schema())]);
    reduce(&mut state, trainer(Message::RunStatus(RunStatus { run: 1, phase: 1, ..RunStatus::default() })));
    assert_eq!(state.phase(), Phase::Running);
    let place = WorkerLocation { worker: 2, ..WorkerLocation::default() };
    let log = WorkerLog { worker: 2, ..WorkerLog::default() };
    for message in
        [Message::WorkerLocation(place), Message::WorkerLog(log), Message::LedgerReport(LedgerReport::default())]
    {
        reduce(&mut state, trainer(message));
    }
    let Event::Received(row) = worker(2) else { unreachable!("the hub sends it") };
    reduce(&mut state, trainer(row));
    let failed = || Event::TrainerFailed("out of memory".into());
    assert_eq!(reduce(&mut state, failed()), [Effect::StartTrainer]);
    // The trainer's workers have ended with it.
    assert!(state.workers.is_empty() && state.places.is_empty());
    assert_eq!((&state.ledger, state.monitoring.logs().next()), (&None, None));
    let run = state.run.clone().expect("a run");
    assert_eq!((state.phase(), run.error.as_str()), (Phase::Failed, "out of memory"));
    // Without a run, too, a failed trainer is replaced if it had started.
    reduce(&mut state, trainer(schema()));
    let effects = reduce(&mut state, failed());
    assert!(matches!(effects[..], [Effect::StartTrainer, Effect::ExpireToast { .. }]), "{effects:?}");
    let effects = reduce(&mut state, failed());
    assert!(matches!(effects[..], [Effect::StopTrainer, Effect::ExpireToast { .. }]), "{effects:?}");
    assert_eq!(
        (state.toasts.last().map(|toast| &*toast.text), state.schema),
        (Some("This tab cannot train: out of memory"), None)
    );
}

#[test]
fn requests_before_the_trainer_is_ready_are_not_sent() {
    let mut state = after([Event::Started { token: false }]);
    let effects = reduce(&mut state, Event::Act(Action::AddWorker));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]), "{effects:?}");
    reduce(&mut state, trainer(schema()));
    let effects = reduce(&mut state, Event::Act(Action::AddWorker));
    assert!(matches!(effects[..], [Effect::Send(_)]), "{effects:?}");
}
