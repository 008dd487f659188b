//! Workers that a hub sets up and calls.

use super::*;
use crate::env::{EnvSpec, classic::Pendulum};

/// Returns a call of the hub.
fn call(id: u64, command: &WorkerCommand) -> Message {
    command.message(CallId(id)).unwrap()
}

/// Returns ids and results of the session's messages, which must all be call results.
fn results(messages: &[Message]) -> Vec<(u64, Result<WorkerAnswer, CommandError>)> {
    let result = |message: &Message| match message {
        Message::CallResult(result) => (result.call, WorkerAnswer::read(result)),
        other => panic!("{other:?}"),
    };
    messages.iter().map(result).collect()
}

fn set_up(id: u64, config: RolloutConfig) -> Message {
    WorkerSetup { config, place: WorkerPlace::remote(1, 2) }.message(CallId(id)).unwrap()
}

fn cart_pole() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(30).seed(2)
}

#[test]
fn calls_are_done_in_order_by_a_worker_that_the_hub_sets_up() {
    let mut hub = Hub::new();
    hub.shake_hands();
    hub.send(&call(1, &WorkerCommand::Sample));
    hub.send(&set_up(2, cart_pole()));
    hub.send(&call(3, &WorkerCommand::Sample));
    hub.send(&call(4, &WorkerCommand::Ping));
    assert_eq!(hub.receive(), []);
    let mut alone = RolloutWorker::from_config(cart_pole(), &Registry::builtin(), WorkerPlace::remote(1, 2)).unwrap();
    let results = results(&hub.work());
    assert_eq!((results[0].0, results[0].1.as_ref().unwrap_err().kind), (1, CommandErrorKind::NotSetUp));
    let sample = WorkerAnswer::Sample(alone.sample().unwrap());
    assert_eq!(results[1..], [(2, Ok(WorkerAnswer::Done)), (3, Ok(sample)), (4, Ok(WorkerAnswer::Pong))]);
    let counters = SessionCounters { calls_done: 3, calls_failed: 1, ..SessionCounters::default() };
    assert_eq!(hub.session.counters(), counters);
}

#[test]
fn called_worker_takes_settings_of_its_machine_only_from_the_process_that_started_it() {
    let with = |change: fn(&mut RolloutConfig)| {
        let mut config = cart_pole();
        change(&mut config);
        config
    };
    let cases = [
        ("output", with(|config| config.output = Some("/etc".into()))),
        ("log_dir", with(|config| config.log_dir = Some("/etc".into()))),
        ("monitor_path", with(|config| config.monitor_path = Some("/etc".into()))),
        ("input", with(|config| config.input = InputSource::Files(vec!["/etc/passwd".into()]))),
        ("extra_environs", with(|config| _ = config.extra_environs.insert("LD_PRELOAD".into(), "x".into()))),
        ("remote_env_memory_mb", with(|config| config.remote_env_memory_mb = 0)),
        ("io_config.paths", with(|config| config.io_config = r#"{"paths": "/etc"}"#.parse().unwrap())),
    ];
    let answer = |hub: &mut Hub, config: &RolloutConfig| {
        hub.shake_hands();
        hub.send(&set_up(1, config.clone()));
        results(&hub.work()).remove(0).1
    };
    for (name, config) in cases {
        let error = answer(&mut Hub::new(), &config).unwrap_err();
        assert_eq!(error.kind, CommandErrorKind::Malformed, "{error}");
        let reason = format!("{name} belongs to one machine and is not taken from the wire");
        assert!(error.message.contains(&reason), "{error}");
    }
    let log_dir = with(|config| config.log_dir = Some("/tmp/nowhere".into()));
    let mut hub = Hub::new();
    hub.session = hub.session.with_host_settings(HostSettings::Taken);
    assert_eq!(answer(&mut hub, &log_dir), Ok(WorkerAnswer::Done));
    let below_root = |config: &RolloutConfig| {
        let mut hub = Hub::new();
        hub.session = hub.session.with_host_settings(HostSettings::Below("/tmp/nowhere".into()));
        answer(&mut hub, config)
    };
    let error = below_root(&with(|config| config.output = Some("../rows".into()))).unwrap_err();
    assert!(error.message.contains("output is \"../rows\"; it must be at most 64 letters"), "{error}");
    // A name is taken; recordings are written by a shell, which this program has not.
    let error = below_root(&with(|config| config.monitor_path = Some("films".into()))).unwrap_err();
    assert!(error.message.contains("'monitor_path' needs files"), "{error}");
}

#[test]
fn failed_commands_are_answered_and_the_session_stays_ready() {
    let mut hub = Hub::new();
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig::new("Pong-v9")));
    hub.send(&Message::Call(message::Call { call: 2, body: vec![250, 1] }));
    let text = "{".into();
    let (worker_index, num_workers, recreated_worker, in_evaluation) = (1, 1, false, false);
    let odd =
        message::WorkerSetup { call: 3, config: text, worker_index, num_workers, recreated_worker, in_evaluation };
    hub.send(&Message::WorkerSetup(odd));
    hub.send(&call(4, &WorkerCommand::Ping));
    let results = results(&hub.work());
    let errors: Vec<CommandError> = results[..3].iter().map(|(_, result)| result.clone().unwrap_err()).collect();
    assert!(
        errors[0]
            .message
            .starts_with("there is no environment 'Pong-v9'; Gymnasium's would be gym:Pong-v9; known are: "),
        "{}",
        errors[0]
    );
    assert!(errors[1..].iter().all(|error| error.kind == CommandErrorKind::Malformed), "{errors:?}");
    assert_eq!(results[3], (4, Ok(WorkerAnswer::Pong)));
    assert!(hub.session.connection().is_ready());
}

#[test]
fn calls_are_done_between_the_slices_of_a_lease() {
    let calm = Hub::with_run().run(&lease(1, 0, 0, &new_slots(&[0])));
    let mut hub = Hub::with_run();
    hub.send(&set_up(1, cart_pole()));
    hub.work();
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.session.work(10, hub.now);
    hub.send(&call(2, &WorkerCommand::Sample));
    hub.send(&call(3, &WorkerCommand::Ping));
    let messages = hub.work();
    let [Message::CallResult(sample), Message::CallResult(pong), Message::FragmentUpload(upload)] = &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((sample.call, pong.call), (2, 3));
    let lease = lease(1, 0, 0, &new_slots(&[0]));
    assert_eq!(convert::slot_fragments(upload, RUN, &lease, &limits(&hub.spec)).unwrap(), calm);
    // The end of a run does not affect the worker that was set up.
    hub.send(&Message::RunEnd(RunEnd { run: RUN }));
    hub.send(&call(4, &WorkerCommand::AssertHealthy));
    assert_eq!(results(&hub.work()), [(4, Ok(WorkerAnswer::Done))]);
}

#[test]
fn sample_is_made_in_slices_between_which_the_session_handles_messages() {
    let mut hub = Hub::new();
    let ticks = AtomicU64::new(0);
    // Every reading of this clock is 15 ms later.
    let clock = Arc::new(move || Micros::from_millis(15 * ticks.fetch_add(1, Ordering::Relaxed)));
    hub.session = hub.session.with_workers(move || {
        let clock = clock.clone();
        RolloutWorkerBuilder::new(Registry::builtin()).clock(move || clock())
    });
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig { callbacks: vec![], ..cart_pole() }));
    hub.work();
    hub.send(&call(2, &WorkerCommand::Sample));
    let (mut slices, mut reported) = (0, vec![]);
    let mut messages = vec![];
    while hub.session.has_work() {
        hub.session.work(1, START + Micros::from_millis(100 * slices));
        messages.extend(hub.receive());
        if let Some(Message::CallProgress(progress)) = messages.last() {
            reported.push((slices, progress.call));
            messages.pop();
        }
        slices += 1;
    }
    assert!(slices > 5, "{slices}");
    // Every quarter of a second, while there is more to do.
    let expected: Vec<(u64, u64)> = (0..slices - 1).step_by(3).map(|slice| (slice, 2)).collect();
    assert_eq!(reported, expected);
    let results = results(&messages);
    let mut alone = RolloutWorker::from_config(cart_pole(), &Registry::builtin(), WorkerPlace::remote(1, 2)).unwrap();
    assert_eq!(results, [(2, Ok(WorkerAnswer::Sample(alone.sample().unwrap())))]);
}

#[test]
fn workers_know_what_their_program_has_registered() {
    let mut hub = Hub::new();
    hub.session =
        hub.session.with_workers(|| {
            RolloutWorkerBuilder::new(Registry::builtin().with_worker_fn("place", |worker, _| {
                Ok(Config::new().with("worker_index", worker.place().worker_index)?)
            }))
        });
    hub.shake_hands();
    hub.send(&set_up(1, cart_pole()));
    hub.send(&call(2, &WorkerCommand::Apply(NamedFn::new("place"))));
    let place = Config::new().with("worker_index", 1).unwrap();
    assert_eq!(results(&hub.work())[1], (2, Ok(WorkerAnswer::Value(place))));
}

/// Neither a run nor the settings of a called worker have a limit.
#[test]
fn environments_have_the_memory_limit_of_the_workers_machine() {
    let limit = Arc::new(AtomicU64::new(0));
    let seen = limit.clone();
    let env = EnvSpec::new("Limited-v0", move |contexts, _| {
        seen.store(contexts[0].limits.memory_mb.into(), Ordering::Relaxed);
        Box::new(Pendulum::new(contexts.len()))
    });
    let mut hub = Hub::new();
    hub.session = hub
        .session
        .with_workers(move || RolloutWorkerBuilder::new(Registry::builtin().with_env(env.clone())))
        .with_env_memory(Some(77));
    hub.shake_hands();
    let run = RunConfig::new("Limited-v0").num_workers(1);
    hub.send(&Message::RunStart(RunStart { run: RUN, config: run.to_wire() }));
    hub.work();
    assert_eq!((limit.swap(0, Ordering::Relaxed), &hub.answers[..]), (77, &[Ok(())][..]));
    hub.send(&set_up(1, RolloutConfig::new("Limited-v0")));
    assert_eq!(results(&hub.work()), [(1, Ok(WorkerAnswer::Done))]);
    assert_eq!(limit.load(Ordering::Relaxed), 77);
}

#[test]
fn a_hub_that_calls_too_often_gets_an_error() {
    let mut hub = Hub::new();
    hub.shake_hands();
    (0..2_048).for_each(|id| hub.send(&call(id, &WorkerCommand::Ping)));
    assert_eq!(hub.receive(), []);
    hub.send(&call(9_999, &WorkerCommand::Ping));
    let refused = results(&hub.receive());
    assert_eq!((refused[0].0, refused[0].1.as_ref().unwrap_err().kind), (9_999, CommandErrorKind::Busy));
    assert_eq!(results(&hub.work()).len(), 2_048);
}

#[test]
fn the_worker_ends_with_the_session() {
    let stopped = Arc::new(AtomicU64::new(0));
    let seen = stopped.clone();
    struct Output(Arc<AtomicU64>);
    impl OutputWriter for Output {
        fn write(&mut self, _batch: &AnyBatch) -> Result<(), SampleError> {
            Ok(())
        }
        fn close(&mut self) -> Result<(), SampleError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
    let mut hub = Hub::new();
    hub.session = hub.session.with_workers(move || {
        let seen = seen.clone();
        RolloutWorkerBuilder::new(Registry::builtin().with_output("own", move |_| Ok(Box::new(Output(seen.clone())))))
    });
    hub.session = hub.session.with_host_settings(HostSettings::Taken);
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig { output: Some("own".into()), ..cart_pole() }));
    assert_eq!(results(&hub.work()), [(1, Ok(WorkerAnswer::Done))]);
    hub.send(&set_up(2, RolloutConfig { output: Some("own".into()), ..cart_pole() }));
    assert_eq!(results(&hub.work()), [(2, Ok(WorkerAnswer::Done))]);
    assert_eq!(stopped.load(Ordering::Relaxed), 1, "another one has taken its place");
    hub.send(&call(3, &WorkerCommand::Sample));
    hub.session.leave("enough");
    assert_eq!((stopped.load(Ordering::Relaxed), hub.session.has_work()), (2, false));
}
