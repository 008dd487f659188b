//! Reports of a hub about its run and its workers.

use super::*;

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
fn rates_of_the_first_64_workers_are_curves_from_the_latest_iteration_on() {
    let mut state = online();
    (1..=70).for_each(|id| drop(reduce(&mut state, worker(id))));
    reduce(&mut state, iteration(1, 3));
    assert_eq!(state.curves.names().count(), 0, "the run is at iteration 0: this is one of its past");
    let status = RunStatus { run: 1, phase: Phase::Running as u8, iteration: 4, ..RunStatus::default() };
    reduce(&mut state, Event::Received(Message::RunStatus(status)));
    reduce(&mut state, iteration(1, 4));
    assert_eq!(state.curves.names().count(), 64);
}

#[test]
fn page_shows_failures_of_workers() {
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
fn page_shows_what_the_run_waits_for() {
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
fn evaluation_has_the_wall_time_of_its_iteration() {
    let mut state = online();
    let point = Iteration { run: 1, iteration: 2, env_steps: 200, wall_ms: 1_500, ..Iteration::default() };
    reduce(&mut state, Event::Received(Message::Iteration(point)));
    let point = EvaluationPoint { run: 1, iteration: 2, env_steps: 200, ..EvaluationPoint::default() };
    reduce(&mut state, Event::Received(Message::Evaluation(point)));
    assert_eq!(state.evaluations.last().map(|point| point.wall_ms), Some(1_500));
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
