//! Scripted sequences through the reducer.

use rollmesh_core::{
    config::Config,
    protocol::{
        Message, Phase, RefusalCode, Role, Token, TokenAction, TokenHash, WorkerState,
        message::{
            EnvClip, EvaluationPoint, Iteration, LedgerReport, ManageTokens, NewToken, Notice, Refused, Reply, Request,
            RunHistory, RunHistoryRequest, RunList, RunRow, RunSchema, RunStatus, SavedRunRequest, StartRun, Welcome,
            WorkerGone, WorkerLocation, WorkerLog, WorkerRow, WorkerToken,
        },
    },
    run::schema::{json_schema, object_schema},
    time::Micros,
};

use super::{
    Action, ClipSource, Connection, Differences, Effect, Event, FileStatus, Level, OpenedFile, RunKey, Source, State,
    TabJob, TabStatus, Texts, ViewChange, XAxis, evaluator, reduce,
};

fn welcome() -> Event {
    Event::Received(Message::Welcome(Welcome {
        protocol: 1,
        peer: 9,
        resume_id: [0; 16],
        credit: 0,
        server: "rollmesh 0.1.0".into(),
    }))
}

fn status(run: u32, phase: Phase) -> Event {
    Event::Received(Message::RunStatus(RunStatus { run, phase: phase as u8, ..RunStatus::default() }))
}

fn iteration(run: u32, iteration: u64) -> Event {
    let env_steps = iteration * 2_048;
    Event::Received(Message::Iteration(Iteration { run, iteration, env_steps, ..Iteration::default() }))
}

fn worker(worker: u32) -> Event {
    Event::Received(Message::WorkerRow(WorkerRow { worker, ..WorkerRow::default() }))
}

fn worker_in(worker: u32, state: WorkerState, reason: &str) -> Event {
    let (state, reason) = (state.to_wire(), reason.into());
    Event::Received(Message::WorkerRow(WorkerRow { worker, state, reason, ..WorkerRow::default() }))
}

fn clip(run: u32) -> EnvClip {
    EnvClip { run, steps: vec![0; 8], ..EnvClip::default() }
}

fn reply(request: u32, error: &str) -> Event {
    Event::Received(Message::Reply(Reply { request, error: error.into(), run: 0 }))
}

fn send(message: Message) -> Effect {
    Effect::Send(Box::new(message))
}

fn connect(role: Role) -> Effect {
    Effect::Connect { role }
}

fn retry_in(ms: u64) -> Effect {
    Effect::RetryIn { delay: Micros::from_millis(ms) }
}

fn after(events: impl IntoIterator<Item = Event>) -> State {
    let mut state = State::default();
    for event in events {
        reduce(&mut state, event);
    }
    state
}

fn online() -> State {
    after([Event::Started { token: true }, welcome(), status(1, Phase::Running)])
}

#[test]
fn a_page_with_a_token_connects_and_follows_the_run() {
    let mut state = State::default();
    assert_eq!(reduce(&mut state, Event::Started { token: true }), [connect(Role::Operator)]);
    assert_eq!(state.connection, Connection::Connecting { attempt: 0 });

    for event in [welcome(), status(1, Phase::Running), worker(1), worker(2), iteration(1, 1), iteration(1, 2)] {
        assert_eq!(reduce(&mut state, event), []);
    }
    assert!(state.is_online());
    assert_eq!(state.phase(), Phase::Running);
    assert_eq!(state.workers.keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(state.curves.points().len(), 2);

    reduce(&mut state, Event::Received(Message::WorkerGone(WorkerGone { worker: 1 })));
    assert_eq!(state.workers.keys().copied().collect::<Vec<_>>(), [2]);
}

#[test]
fn the_ledger_and_why_workers_make_no_rows_are_shown_until_another_hub_answers() {
    let mut state = online();
    let ledger = LedgerReport { num_worker_restarts: 8, ..LedgerReport::default() };
    assert_eq!(reduce(&mut state, Event::Received(Message::LedgerReport(ledger.clone()))), []);
    reduce(&mut state, worker(1));
    reduce(&mut state, worker_in(2, WorkerState::Hung, "no progress for 3 s"));
    assert_eq!((state.reason(2).as_deref(), state.reason(1)), (Some("no progress for 3 s"), None));
    assert_eq!(state.ledger, Some(ledger));
    reduce(&mut state, welcome());
    assert_eq!((state.reason(2), state.ledger), (None, None));
}

#[test]
fn settings_of_a_run_are_those_of_the_hub_that_the_page_is_connected_to() {
    let mut state = online();
    let schema = rollmesh_core::run::schema::json_schema(&[].into(), &[]).to_string();
    assert_eq!(reduce(&mut state, Event::Received(Message::RunSchema(RunSchema { schema }))), []);
    assert_eq!(state.schema.as_ref().map(|schema| schema.frequent().count()), Some(11));
    reduce(&mut state, Event::Received(Message::RunSchema(RunSchema { schema: "{".into() })));
    assert!(state.toasts.last().unwrap().text.starts_with("The settings of runs cannot be read"));
    reduce(&mut state, welcome());
    assert_eq!(state.schema, None);
    assert_eq!(reduce(&mut state, status(1, Phase::Stopped)), []);
    let settings = Config::new().with_at("seed", 7.into());
    reduce(&mut state, status(1, Phase::Running));
    assert!(state.obstacle(&Action::Start(settings.clone())).is_some(), "this hub has one run");
    reduce(&mut state, Event::Received(Message::RunList(RunList { may_wait: true, runs: vec![] })));
    assert_eq!(state.obstacle(&Action::Start(settings.clone())), None);
    let start = StartRun { request: 1, settings: r#"{"seed":7}"#.into() };
    assert_eq!(reduce(&mut state, Event::Act(Action::Start(settings))), [send(Message::StartRun(start))]);
}

#[test]
fn page_hints_at_too_few_slots_and_at_workers_that_are_all_unable() {
    let mut state = after([Event::Started { token: true }, welcome()]);
    let run = |num_slots, phase: Phase| {
        let status = RunStatus { run: 1, phase: phase as u8, num_slots, slots_per_worker: 1, ..RunStatus::default() };
        Event::Received(Message::RunStatus(status))
    };
    let unable = "unknown environment: there is no environment 'My-v0'";
    for event in [run(1, Phase::Running), worker_in(1, WorkerState::Sampling, "")] {
        reduce(&mut state, event);
    }
    assert_eq!(state.workers_hint(), None);
    reduce(&mut state, worker_in(2, WorkerState::Unable, unable));
    assert_eq!(
        (state.workers_hint(), state.reason(2).as_deref()),
        (None, Some(unable)),
        "a slot for each that is able"
    );
    reduce(&mut state, worker_in(3, WorkerState::Idle, "no free slot"));
    let hint = "Slots, not workers, are the limit: the run has 1 slots for 2 workers that could have 1 each; raise num_slots to 2, or use fewer workers.";
    assert_eq!(state.workers_hint().as_deref(), Some(hint));
    for worker in [1, 3] {
        reduce(&mut state, Event::Received(Message::WorkerGone(WorkerGone { worker })));
    }
    let hint = "No worker can run this. The run ends unless one that can comes soon.";
    assert_eq!(state.workers_hint().as_deref(), Some(hint));
    reduce(&mut state, run(1, Phase::Stopped));
    assert_eq!(state.workers_hint(), None);
}

#[test]
fn page_tells_what_failed_on_workers() {
    let last_failure = "slot 3, episode 2, step 17: the environment failed: no fuel (worker 1)";
    let status = RunStatus {
        run: 1,
        phase: Phase::Running as u8,
        num_slots: 4,
        failures: 2,
        last_failure: last_failure.into(),
        ..RunStatus::default()
    };
    let state = after([Event::Started { token: true }, welcome(), Event::Received(Message::RunStatus(status))]);
    assert_eq!(state.workers_hint(), Some(format!("Fragments have failed: 2. The last: {last_failure}.")));
}

#[test]
fn page_tells_what_run_waits_for() {
    let status = RunStatus {
        run: 1,
        phase: Phase::Running as u8,
        waiting: "waiting for workers: none is connected".into(),
        ..RunStatus::default()
    };
    let state = after([Event::Started { token: true }, welcome(), Event::Received(Message::RunStatus(status))]);
    assert_eq!(state.workers_hint().as_deref(), Some("The run is waiting for workers: none is connected."));
}

#[test]
fn tab_shows_why_it_is_unable_and_stays() {
    let mut state = online();
    join(&mut state, 1, 1);
    let status = TabStatus { state: "unable".into(), reason: "unknown environment".into(), ..TabStatus::default() };
    assert_eq!(reduce(&mut state, Event::Tab { worker: 1, status: status.clone() }), []);
    assert_eq!((state.tab.job(), state.tab.total()), (Some(&TabJob::Sample), Some(status)));
}

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

    // What was asked of the trainer is answered, whatever becomes of the hub.
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
fn a_lost_hub_leaves_its_numbers_on_the_page_until_it_tells_them_anew() {
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
fn a_new_run_clears_the_old_ones_curves_and_clips() {
    let mut state = online();
    reduce(&mut state, iteration(1, 1));
    reduce(&mut state, Event::Received(Message::SlotClip(clip(1))));
    assert!(!state.clips.is_empty());
    reduce(&mut state, status(2, Phase::Running));
    assert_eq!(state.curves.points(), []);
    assert!(state.clips.is_empty());
}

#[test]
fn evaluations_have_a_curve_and_an_episode_of_their_own() {
    let mut state = online();
    reduce(&mut state, status(1, Phase::Running));
    let point = |iteration| EvaluationPoint { run: 1, iteration, episode_return_mean: 9.0, ..Default::default() };
    for iteration in [10, 20, 20] {
        reduce(&mut state, Event::Received(Message::Evaluation(point(iteration))));
    }
    reduce(&mut state, Event::Received(Message::EvaluationClip(clip(1))));
    let returns: Vec<(u64, f32)> =
        state.evaluations.points().iter().map(|point| (point.iteration, point.episode_return_mean)).collect();
    assert_eq!(returns, [(10, 9.0), (20, 9.0)]);
    let has = |state: &State, source| state.clip(source).is_some();
    assert!(has(&state, ClipSource::LatestEvaluation) && !has(&state, ClipSource::Slot));
    reduce(&mut state, status(1, Phase::Solved));
    assert!(has(&state, ClipSource::LatestEvaluation), "it stays when the run is over");
    reduce(&mut state, status(2, Phase::Running));
    assert!(!has(&state, ClipSource::LatestEvaluation) && state.evaluations.points().is_empty());
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
    // It stays one when the hub is away for a while.
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
fn nothing_is_asked_of_a_hub_that_is_not_there() {
    let mut state = online();
    reduce(&mut state, Event::Act(Action::AddWorker));
    reduce(&mut state, Event::Closed { random: 0 });
    assert!(!state.requests.is_waiting(&Action::AddWorker));
    assert!(state.toasts[0].text.starts_with("Not confirmed"));

    let effects = reduce(&mut state, Event::Act(Action::Stop));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]));
    assert!(state.toasts[1].text.ends_with("No hub is in reach."));
}

/// Lets the tab join with Web Workers more, and gives it their token; returns the numbers of those that start.
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
    // It was posted before its end.
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
    // A hub that gives no token.
    reduce(&mut state, Event::Act(Action::Evaluate(judge.clone())));
    reduce(&mut state, reply(3, "there are 64 tokens already"));
    assert_eq!((state.tab.is_out(), state.tab_token), (true, None));

    // Its token goes with it, as soon as a hub hears of that, once.
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
    // Who leaves before it comes has no use for it either.
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
    for (worker, told) in [
        (2, "A worker of this tab no longer works for the run: removed"),
        (1, "This tab no longer works for the run: removed"),
    ] {
        let effects = reduce(&mut state, Event::Tab { worker, status: status.clone() });
        assert_eq!(effects[0], Effect::StopTab { worker });
        assert_eq!(state.toasts.last().map(|toast| &*toast.text), Some(told));
    }
    assert!(state.tab.is_out());
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

fn trainer(message: Message) -> Event {
    Event::Trainer(message)
}

fn schema() -> Message {
    let schema = json_schema(&[("CartPole-v1".into(), Some(475.0))].into(), &[("ppo".into(), object_schema([]))]);
    Message::RunSchema(RunSchema { schema: schema.to_string() })
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
fn view_of_the_charts_is_in_the_link_with_the_settings_and_comes_from_there() {
    let texts = |all: &[(&str, &str)]| -> Texts {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    let mut state = after([Event::Linked(texts(&[("seed", "3"), ("chart.x", "time"), ("chart.window", "2..4")]))]);
    assert_eq!(state.linked, texts(&[("seed", "3")]), "the form of a run has no such settings");
    assert_eq!((state.charts.x, state.charts.window), (XAxis::Time, Some((2.0, 4.0))));
    let effects = reduce(&mut state, Event::Charts(ViewChange::Smoothing(50)));
    let link = [("seed", "3"), ("chart.x", "time"), ("chart.window", "2..4"), ("chart.smoothing", "50")];
    assert_eq!(effects, [Effect::ShowLink(texts(&link))]);
    let effects = reduce(&mut state, Event::Charts(ViewChange::Axis(XAxis::Steps)));
    assert_eq!(effects, [Effect::ShowLink(texts(&[("seed", "3"), ("chart.smoothing", "50")]))]);
}

fn hub_run(run: u32) -> RunKey {
    RunKey::Hub(run)
}

fn compare(run: u32) -> Action {
    Action::Compare { run: hub_run(run) }
}

fn listed(runs: &[u32]) -> Event {
    let runs = runs.iter().map(|run| RunRow { run: *run, ..RunRow::default() }).collect();
    Event::Received(Message::RunList(RunList { may_wait: true, runs }))
}

fn history(request: u32, run: u32, config: &str) -> Event {
    let iterations = vec![Iteration { run, iteration: 1, env_steps: 100, wall_ms: 5, ..Iteration::default() }];
    let evaluations = vec![EvaluationPoint { run, iteration: 1, env_steps: 100, ..EvaluationPoint::default() }];
    Event::Received(Message::RunHistory(RunHistory { request, run, config: config.into(), iterations, evaluations }))
}

fn asked(request: u32, run: u32) -> Effect {
    send(Message::RunHistoryRequest(RunHistoryRequest { request, run }))
}

#[test]
fn runs_are_compared_with_the_current_one_in_groups_of_seeds_and_by_settings() {
    let mut state = online();
    reduce(&mut state, status(3, Phase::Running));
    reduce(&mut state, listed(&[1, 2, 3]));
    reduce(&mut state, iteration(3, 7));
    let link = |runs: &str| Effect::ShowLink([("chart.runs".to_owned(), runs.to_owned())].into());
    let effects = reduce(&mut state, Event::Act(compare(1)));
    assert_eq!(effects, [asked(1, 1), link("1")]);
    let effects = reduce(&mut state, Event::Act(compare(2)));
    assert_eq!(effects, [link("1,2")], "one is asked for at a time");
    let config = |seed, lr| format!(r#"{{"seed": {seed}, "policy_config": {{"lr": {lr}}}, "env": "E"}}"#);
    assert_eq!(reduce(&mut state, history(1, 1, &config(1, 0.5))), [asked(2, 2)]);
    assert_eq!(reduce(&mut state, history(2, 2, &config(2, 0.5))), [asked(3, 3)], "the current run for its settings");
    assert_eq!(reduce(&mut state, history(3, 3, &config(3, 0.1))), []);
    assert_eq!(state.run_groups(), [vec![hub_run(1), hub_run(2)], vec![hub_run(3)]]);
    let iterations = |run| state.curves_of(&hub_run(run)).map(|curves| curves.points()[0].iteration);
    assert_eq!([1, 3, 4].map(iterations), [Some(1), Some(7), None], "the current run's own curves are newer");
    let Differences { runs, rows } = state.differences();
    let row = |path: &str, values: [&str; 3]| (path.to_owned(), values.map(str::to_owned).to_vec());
    assert_eq!(runs, [1, 2, 3].map(hub_run));
    assert_eq!(rows, [row("policy_config.lr", ["0.5", "0.5", "0.1"]), row("seed", ["1", "2", "3"])]);
    assert!(state.csv().contains("\n1,evaluation,1,100,0.005,"));

    assert_eq!(reduce(&mut state, Event::Act(compare(2))), [link("1")]);
    assert_eq!(state.run_groups(), [vec![hub_run(1)], vec![hub_run(3)]]);
    reduce(&mut state, Event::Act(compare(1)));
    assert_eq!((state.run_groups(), state.differences()), (vec![], Differences::default()));
}

#[test]
fn compared_runs_are_asked_for_again_after_a_reconnect_and_when_the_current_one_is_over() {
    let runs: Texts = [("chart.runs".to_owned(), "1,2".to_owned())].into();
    let mut state = after([Event::Linked(runs), Event::Started { token: true }, welcome()]);
    assert_eq!(reduce(&mut state, listed(&[1, 2])), [asked(1, 1)], "a link restores them");
    assert_eq!(reduce(&mut state, listed(&[1, 2])), [], "one is asked for at a time");
    assert_eq!(reduce(&mut state, status(2, Phase::Running)), []);
    let effects = reduce(&mut state, reply(1, "the hub has no run 1 that has begun"));
    assert!(matches!(&effects[..], [ask, Effect::ExpireToast { .. }] if *ask == asked(2, 2)), "{effects:?}");
    assert!(!state.comparison.has(&hub_run(1)));
    reduce(&mut state, history(2, 2, "{}"));
    reduce(&mut state, listed(&[1, 2, 3]));
    assert_eq!(reduce(&mut state, status(3, Phase::Running)), [asked(3, 2)], "run 2 continued meanwhile");
    reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(state.toasts.len(), 1, "unanswered ones need no notice");
    reduce(&mut state, welcome());
    assert_eq!(reduce(&mut state, listed(&[1, 2, 3])), [asked(4, 2)]);
}

#[test]
fn run_that_the_hub_refused_is_asked_for_again_only_if_the_person_compares_it_again() {
    let mut state = online();
    reduce(&mut state, listed(&[1, 2]));
    let again = || Event::Act(compare(2));
    let link = Effect::ShowLink([("chart.runs".to_owned(), "2".to_owned())].into());
    assert_eq!(reduce(&mut state, again()), [asked(1, 1), link.clone()], "the current run first");
    let effects = reduce(&mut state, reply(1, "it is too large"));
    assert!(matches!(&effects[..], [ask, Effect::ExpireToast { .. }] if *ask == asked(2, 2)), "{effects:?}");
    let effects = reduce(&mut state, reply(2, "it is too large"));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]), "{effects:?}");
    assert_eq!(reduce(&mut state, listed(&[1, 2])), []);
    assert_eq!(reduce(&mut state, again()), [asked(3, 2), link]);
}

#[test]
fn saved_runs_are_compared_as_those_of_the_hub_and_are_in_the_link() {
    let mut state = online();
    reduce(&mut state, listed(&[1]));
    reduce(&mut state, status(1, Phase::Running));
    let saved = RunKey::Saved("CartPole 2".into());
    let effects = reduce(&mut state, Event::Act(Action::Compare { run: saved.clone() }));
    let texts: Texts = [("chart.saved".to_owned(), "CartPole 2".to_owned())].into();
    assert_eq!(effects, [asked(1, 1), Effect::ShowLink(texts.clone())], "the current run's settings first");
    let request = SavedRunRequest { request: 2, id: "CartPole 2".into() };
    assert_eq!(reduce(&mut state, history(1, 1, "{}")), [send(Message::SavedRunRequest(request))]);
    reduce(&mut state, history(2, 0, r#"{"env": "E"}"#));
    assert_eq!(state.run_groups(), [vec![hub_run(1)], vec![saved.clone()]]);
    assert!(state.csv().contains("\nCartPole 2,training,1,100,"), "{}", state.csv());
    let state = after([Event::Linked(texts)]);
    assert!(state.comparison.has(&saved));
}

#[test]
fn token_for_another_machine_is_shown_until_the_hub_is_another_one() {
    let mut state = online();
    let effects = reduce(&mut state, Event::Act(Action::Invite(Role::Worker)));
    let asked = |message: &Message| matches!(message, Message::ManageTokens(ManageTokens { request: 1, role, .. }) if *role == Role::Worker.to_wire());
    assert!(matches!(&effects[..], [Effect::Send(message)] if asked(message)), "{effects:?}");
    let token = NewToken { request: 1, role: Role::Worker.to_wire(), expires: 5, token: Token::new([7; 32]) };
    assert_eq!(reduce(&mut state, Event::Received(Message::NewToken(token.clone()))), []);
    assert_eq!(state.invitation, Some((Role::Worker, token.token)));
    reduce(&mut state, welcome());
    assert_eq!(state.invitation, None);
}

#[test]
fn viewer_may_compare_a_limited_number_of_runs() {
    let mut state = online();
    state.is_viewer = true;
    let many: Vec<u32> = (1..=20).collect();
    reduce(&mut state, listed(&many));
    many.iter().for_each(|run| drop(reduce(&mut state, Event::Act(compare(*run)))));
    assert!(state.comparison.has(&hub_run(16)) && !state.comparison.has(&hub_run(17)));
    assert_eq!(state.obstacle(&compare(17)), Some("Sixteen runs are compared already."));
}

#[test]
fn evaluation_has_the_wall_time_of_its_iteration() {
    let mut state = online();
    let point = Iteration { run: 1, iteration: 2, env_steps: 200, wall_ms: 1_500, ..Iteration::default() };
    reduce(&mut state, Event::Received(Message::Iteration(point)));
    let point = EvaluationPoint { run: 1, iteration: 2, env_steps: 200, ..EvaluationPoint::default() };
    reduce(&mut state, Event::Received(Message::Evaluation(point)));
    assert_eq!(state.evaluations.last().map(|point| point.wall_ms), Some(1_500));
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
    // Its workers have ended with it.
    assert!(state.workers.is_empty() && state.places.is_empty() && state.revisions.is_empty());
    assert_eq!((&state.ledger, state.monitoring.logs().next()), (&None, None));
    let run = state.run.clone().expect("a run");
    assert_eq!((state.phase(), run.error.as_str()), (Phase::Failed, "out of memory"));
    // Without a run, too, it is replaced once it has come up.
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
fn nothing_is_asked_of_a_trainer_that_is_not_ready() {
    let mut state = after([Event::Started { token: false }]);
    let effects = reduce(&mut state, Event::Act(Action::AddWorker));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]), "{effects:?}");
    reduce(&mut state, trainer(schema()));
    let effects = reduce(&mut state, Event::Act(Action::AddWorker));
    assert!(matches!(effects[..], [Effect::Send(_)]), "{effects:?}");
}

#[test]
fn a_clip_is_shown_of_its_own_run_only() {
    let mut state = online();
    reduce(&mut state, Event::Received(Message::SlotClip(clip(2))));
    assert!(state.clip(ClipSource::Slot).is_none());
    reduce(&mut state, Event::Received(Message::SlotClip(clip(1))));
    assert_eq!(state.clip(ClipSource::Slot).map(|clip| clip.steps.len()), Some(1));
}

#[test]
fn a_file_is_on_the_page_until_it_is_closed_whatever_the_hub_does() {
    let file = |read, status: FileStatus| {
        Event::FileRead(OpenedFile { name: "logged.json".into(), bytes: 100, read, status, ..OpenedFile::default() })
    };
    let mut state = after([Event::Started { token: false }, file(40, FileStatus::Reading)]);
    assert_eq!(state.file.as_ref().map(OpenedFile::say).as_deref(), Some("Reading"));
    reduce(&mut state, welcome());
    assert_eq!(reduce(&mut state, file(100, FileStatus::Read)), []);
    let said = state.file.as_ref().map(OpenedFile::say).expect("it is open");
    assert!(said.starts_with("There is no batch in it"), "{said}");
    reduce(&mut state, file(40, FileStatus::Failed("the browser cannot read it".into())));
    let said = state.file.as_ref().map(OpenedFile::say);
    assert_eq!(said.as_deref(), Some("logged.json was not read: the browser cannot read it."));
    assert_eq!(reduce(&mut state, Event::FileClosed), [Effect::CloseFile]);
    assert_eq!(state.file, None);
}
