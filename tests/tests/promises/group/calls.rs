//! A call manager and two workers' sessions, which exchange frames in memory. A worker group builds on both.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::AnyBatch,
    calls::{CallCommand, CallConfig, CallError, CallManager, CallRequest, CallResult, ForEach, UnhealthyCause},
    config::Config,
    filter::FilterKind,
    ids::{CallId, PolicyId, WeightsVersion, WorkerId},
    kernels::Kernels,
    protocol::{
        CHUNK_BYTES, INITIAL_CREDIT, Inbox, Message, Outbox, Role, Token,
        handshake::Identity,
        message::{Goodbye, Welcome},
    },
    time::Micros,
    weights::{Tensor, Weights},
    worker::{
        CommandError, CommandErrorKind, NamedFn, Registry, RolloutConfig, RolloutWorker, RolloutWorkerBuilder,
        WorkerAnswer, WorkerCommand, WorkerPlace, WorkerSession, WorkerSetup,
    },
};

/// A request of the hub: to set a worker up, or a command.
#[derive(Debug)]
enum Ask {
    SetUp(Box<WorkerSetup>),
    Command(Box<WorkerCommand>),
}

impl CallRequest for Ask {
    fn is_sample(&self) -> bool {
        matches!(self, Self::Command(command) if command.is_sample())
    }
}

impl Ask {
    fn message(&self, call: CallId) -> Result<Message, CommandError> {
        match self {
            Self::SetUp(setup) => setup.message(call),
            Self::Command(command) => command.message(call),
        }
    }
}

/// One worker, and the hub's side of its connection.
struct Peer {
    session: WorkerSession,
    inbox: Inbox,
    outbox: Outbox,
}

impl Peer {
    fn new(worker: WorkerId) -> Self {
        let identity = Identity::new(Role::Worker, Token::new([1; 32]), "native", "test", "cpu");
        let session = WorkerSession::new(identity, Registry::builtin(), Kernels::PORTABLE)
            .with_workers(|| RolloutWorkerBuilder::new(registry()));
        let mut peer = Self { session, inbox: Inbox::of_hub(), outbox: Outbox::default() };
        peer.session.poll_frame().expect("Hello");
        peer.inbox.admit(Role::Worker);
        let (resume_id, credit, server) = ([0; 16], INITIAL_CREDIT, "test".into());
        peer.send(&Message::Welcome(Welcome { protocol: 1, peer: worker.0, resume_id, credit, server }));
        peer
    }

    fn send(&mut self, message: &Message) {
        self.outbox.push(message).unwrap();
    }

    /// Forwards frames in both directions and lets the worker work, until both sides are idle.
    fn exchange(&mut self) -> Vec<Message> {
        let mut messages = vec![];
        loop {
            let mut is_quiet = true;
            while let Some(frame) = self.outbox.poll_frame() {
                self.session.handle_frame(&frame);
                is_quiet = false;
            }
            self.session.work(8, Micros(0));
            while let Some(frame) = self.session.poll_frame() {
                is_quiet = false;
                match self.inbox.handle_frame(&frame).unwrap() {
                    Some(Message::Credit(credit)) => self.outbox.grant(credit.bytes),
                    message => messages.extend(message),
                }
                if let Some(credit) = self.inbox.take_credit_due() {
                    self.outbox.push(&Message::Credit(credit)).unwrap();
                }
            }
            if is_quiet && !self.session.has_work() {
                return messages;
            }
        }
    }
}

/// Returns a registry with functions that return a worker's place, an environment's index and a policy's id.
fn registry() -> Registry {
    Registry::builtin()
        .with_worker_fn("place", |worker, _| {
            let place = worker.place();
            Ok(Config::new().with("index", place.worker_index)?.with("recreated", place.recreated_worker)?)
        })
        .with_env_fn("index", |_, context, _| Ok(Config::new().with("index", context.home.vector_index)?))
        .with_policy_fn("id", |id, _, _| Ok(Config::new().with("id", id.as_str())?))
}

/// A hub that calls workers.
struct Hub {
    calls: CallManager<Ask, WorkerAnswer>,
    peers: BTreeMap<WorkerId, Peer>,
    now: Micros,
}

type FragmentOutcome = (u32, Result<WorkerAnswer, CallError>);

impl Hub {
    fn new(workers: u32, config: &RolloutConfig) -> Self {
        let mut hub = Self { calls: CallManager::new(CallConfig::default()), peers: BTreeMap::new(), now: Micros(0) };
        for _ in 0..workers {
            let worker = hub.calls.add_worker();
            hub.peers.insert(worker, Peer::new(worker));
        }
        let setups = (1..=workers).map(|index| set_up(config, WorkerPlace::remote(index, workers)));
        let done = hub.foreach(ForEach::each(setups));
        assert!(done.iter().all(|(_, result)| *result == Ok(WorkerAnswer::Done)), "{done:?}");
        hub
    }

    /// Sends pending messages, and passes the answers to the call manager.
    fn exchange(&mut self) {
        while let Some(CallCommand { worker, call, request }) = self.calls.poll_command() {
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.send(&request.message(call).unwrap());
            }
        }
        for (worker, peer) in &mut self.peers {
            for message in peer.exchange() {
                let Message::CallResult(result) = message else { panic!("{message:?}") };
                self.calls.handle_result(*worker, CallId(result.call), WorkerAnswer::read(&result), self.now);
            }
        }
    }

    fn foreach(&mut self, what: ForEach<Ask>) -> Vec<FragmentOutcome> {
        let set = self.calls.foreach(what, self.now).unwrap();
        self.exchange();
        outcomes(self.calls.poll_results(set).expect("all have answered"))
    }

    fn ask(&mut self, command: WorkerCommand) -> Vec<FragmentOutcome> {
        self.foreach(ForEach::new(Ask::Command(command.into())))
    }

    /// Samples a batch from every worker.
    fn sample(&mut self) -> Vec<AnyBatch> {
        self.ask(WorkerCommand::Sample).into_iter().map(|(_, result)| batch(result.unwrap())).collect()
    }

    fn healthy(&self) -> Vec<u32> {
        self.calls.healthy_worker_ids().map(|id| id.0).collect()
    }
}

fn set_up(config: &RolloutConfig, place: WorkerPlace) -> Ask {
    Ask::SetUp(Box::new(WorkerSetup { config: config.clone(), place }))
}

fn outcomes(results: Vec<CallResult<WorkerAnswer>>) -> Vec<FragmentOutcome> {
    results.into_iter().map(|result| (result.worker.0, result.result)).collect()
}

fn batch(answer: WorkerAnswer) -> AnyBatch {
    let WorkerAnswer::Sample(batch) = answer else { panic!("{answer:?}") };
    batch
}

fn config() -> RolloutConfig {
    RolloutConfig { observation_filter: FilterKind::MeanStdFilter, ..RolloutConfig::new("CartPole-v1") }
        .num_envs(2)
        .rollout_fragment_length(20)
        .seed(3)
}

/// Returns the same worker without a connection.
fn alone(config: &RolloutConfig, place: WorkerPlace) -> RolloutWorker {
    RolloutWorker::from_config(config.clone(), &registry(), place).unwrap()
}

/// Returns weights with every value shifted.
fn shifted(weights: &BTreeMap<PolicyId, Weights>, by: f32) -> BTreeMap<PolicyId, Weights> {
    let shift = |weights: &Weights| {
        let tensors = weights.tensors().iter().map(|tensor| {
            let values = tensor.values.iter().map(|value| value + by).collect();
            Tensor { values, ..tensor.clone() }
        });
        Weights::new(WeightsVersion(1), tensors.collect()).unwrap()
    };
    weights.iter().map(|(id, weights)| (id.clone(), shift(weights))).collect()
}

#[test]
fn samples_of_called_workers_equal_those_of_standalone_ones() {
    let mut hub = Hub::new(2, &config());
    let mut alone = [1, 2].map(|index| alone(&config(), WorkerPlace::remote(index, 2)));
    for _ in 0..3 {
        assert_eq!(hub.sample(), alone.each_mut().map(|worker| worker.sample().unwrap()));
    }
    let metrics = hub.ask(WorkerCommand::Metrics);
    for ((_, result), worker) in metrics.into_iter().zip(&mut alone) {
        assert_eq!(result, Ok(WorkerAnswer::Metrics(Box::new(worker.metrics()))));
    }
}

/// A sample that is requested after new weights uses them, even if their message is much larger than the request.
#[test]
fn large_weights_are_not_overtaken() {
    let config = config().fcnet_hiddens(&[256, 256]);
    let mut hub = Hub::new(2, &config);
    let mut alone = [1, 2].map(|index| alone(&config, WorkerPlace::remote(index, 2)));
    let weights = shifted(&alone[0].weights(None).unwrap(), 0.1);
    let set = WorkerCommand::SetWeights { weights: weights.clone(), global_vars: None, weights_seq_no: Some(1) };
    assert!(set.encode().unwrap().len() > CHUNK_BYTES as usize);
    let unawaited = ForEach::new(Ask::Command(set.into())).timeout(Micros(0));
    hub.calls.foreach(unawaited, hub.now).unwrap();
    alone.iter_mut().for_each(|worker| worker.set_weights(&weights, None, Some(1)).unwrap());
    assert_eq!(hub.sample(), alone.each_mut().map(|worker| worker.sample().unwrap()));
    let back = hub.ask(WorkerCommand::Weights { policies: None });
    assert!(back.iter().all(|(_, result)| *result == Ok(WorkerAnswer::Weights(weights.clone()))));
}

#[test]
fn asynchronous_samples_are_fetched_when_they_are_ready() {
    let mut hub = Hub::new(2, &config());
    let sample = || ForEach::new(Ask::Command(WorkerCommand::Sample.into()));
    let begun: Vec<usize> =
        (0..3).map(|_| hub.calls.foreach_async(sample(), Some("sample"), hub.now).unwrap()).collect();
    assert_eq!(begun, [2, 2, 0]);
    assert!(hub.calls.fetch_ready_async(&[], false).is_empty());
    hub.exchange();
    let fetched = hub.calls.fetch_ready_async(&["sample"], false);
    let mut alone = alone(&config(), WorkerPlace::remote(2, 2));
    let of_second = fetched.into_iter().filter(|result| result.worker == WorkerId(2));
    for result in of_second {
        assert_eq!(batch(result.result.unwrap()), alone.sample().unwrap());
    }
}

#[test]
fn functions_are_called_where_they_are_known() {
    let mut hub = Hub::new(2, &config());
    let json = |text: &str| text.parse::<Config>().unwrap();
    let places = hub.ask(WorkerCommand::Apply(NamedFn::new("place")));
    let place = |index| Ok(WorkerAnswer::Value(json(&format!(r#"{{"index":{index},"recreated":false}}"#))));
    assert_eq!(places, [(1, place(1)), (2, place(2))]);
    let values = |texts: &[&str]| Ok(WorkerAnswer::Values(texts.iter().map(|text| json(text)).collect()));
    let indices = hub.ask(WorkerCommand::ForEachEnv(NamedFn::new("index")));
    assert_eq!(indices[1], (2, values(&[r#"{"index":0}"#, r#"{"index":1}"#])));
    let ids = hub.ask(WorkerCommand::ForEachPolicy(NamedFn::new("id")));
    assert_eq!(ids[0], (1, values(&[r#"{"id":"default_policy"}"#])));
}

#[test]
fn errors_are_answers_and_workers_stay_healthy() {
    let mut hub = Hub::new(2, &config());
    let failed = |result: &FragmentOutcome| match &result.1 {
        Err(CallError::Failed(error)) => (error.kind, error.message.clone()),
        other => panic!("{other:?}"),
    };
    for _ in 0..5 {
        let (kind, why) = failed(&hub.ask(WorkerCommand::Apply(NamedFn::new("unknown")))[1]);
        let expected = "there is no worker function 'unknown'; known are: place";
        assert_eq!((kind, &why[..]), (CommandErrorKind::UnknownName, expected));
    }
    let weights = BTreeMap::from([(PolicyId::new("q"), Weights::new(WeightsVersion(0), vec![]).unwrap())]);
    let set = WorkerCommand::SetWeights { weights, global_vars: None, weights_seq_no: None };
    assert_eq!(failed(&hub.ask(set)[0]).0, CommandErrorKind::Policy);
    assert_eq!(hub.healthy(), [1, 2]);

    // A worker that cannot be created reports the reason, and then cannot sample.
    let broken = RolloutConfig { env: Some("Pong-v9".into()), ..config() };
    let why = registry().env("Pong-v9").err().unwrap().to_string();
    let set_up = hub.foreach(ForEach::new(set_up(&broken, WorkerPlace::remote(1, 2))).workers([WorkerId(1)]));
    assert_eq!(failed(&set_up[0]), (CommandErrorKind::UnknownName, why));
    for _ in 0..3 {
        assert_eq!(hub.ask(WorkerCommand::Sample).len(), 2);
    }
    assert_eq!((hub.healthy(), hub.ask(WorkerCommand::Sample).len()), (vec![2], 1));
}

/// A worker exits during a call. Another one takes its place, gets its settings and a state, and counts as healthy
/// again.
#[test]
fn worker_that_dies_is_replaced_and_restored() {
    let mut hub = Hub::new(2, &config());
    let mut calm = Hub::new(2, &config());
    assert_eq!(hub.sample(), calm.sample());
    let states: Vec<WorkerAnswer> =
        hub.ask(WorkerCommand::State).into_iter().map(|(_, result)| result.unwrap()).collect();

    let (dead, sample) = (WorkerId(1), ForEach::new(Ask::Command(WorkerCommand::Sample.into())));
    let set = hub.calls.foreach(sample, hub.now).unwrap();
    let last_words = hub.peers.remove(&dead);
    hub.calls.handle_left(dead);
    hub.exchange();
    let results = outcomes(hub.calls.poll_results(set).unwrap());
    assert_eq!(results[0], (1, Err(CallError::Lost(UnhealthyCause::Left))));
    assert!(results[1].1.is_ok());
    assert_eq!((hub.healthy(), hub.ask(WorkerCommand::Ping).len()), (vec![2], 1));
    drop(last_words);

    hub.peers.insert(dead, Peer::new(dead));
    hub.calls.handle_joined(dead);
    let ping = Ask::Command(WorkerCommand::Ping.into());
    let probe = hub.calls.probe_unhealthy(ping, Some(Micros::from_secs(60)), false, hub.now);
    hub.exchange();
    let restored: Vec<WorkerId> =
        hub.calls.poll_results(probe).unwrap().into_iter().filter(|it| it.result.is_ok()).map(|it| it.worker).collect();
    assert_eq!(restored, [dead]);
    let place = WorkerPlace { recreated_worker: true, ..WorkerPlace::remote(1, 2) };
    let to_dead = |ask| ForEach::new(ask).workers([dead]).healthy_only(false);
    assert_eq!(hub.foreach(to_dead(set_up(&config(), place))), [(1, Ok(WorkerAnswer::Done))]);
    let WorkerAnswer::State(state) = &states[0] else { panic!("no state") };
    let set_state = Ask::Command(WorkerCommand::SetState(state.clone()).into());
    assert_eq!(hub.foreach(to_dead(set_state)), [(1, Ok(WorkerAnswer::Done))]);
    assert_eq!(hub.healthy(), [2], "no worker counts before it is reported healthy");
    hub.calls.set_worker_state(dead, true).unwrap();
    assert_eq!((hub.healthy(), hub.calls.num_restarts()), (vec![1, 2], 1));
    let WorkerAnswer::Value(placement) = hub.ask(WorkerCommand::Apply(NamedFn::new("place")))[0].1.clone().unwrap()
    else {
        panic!("no value")
    };
    assert_eq!(placement.get::<bool>("recreated"), Ok(Some(true)));
    assert_eq!(hub.sample().len(), 2);
    let counters = hub.calls.counters();
    assert_eq!((counters.lost, counters.late, counters.started), (1, 0, counters.ended()));
}

#[test]
fn disconnected_worker_sends_nothing_more() {
    let mut hub = Hub::new(2, &config());
    let leaving = hub.peers.get_mut(&WorkerId(2)).unwrap();
    leaving.session.leave("enough");
    assert_eq!(leaving.exchange(), [Message::Goodbye(Goodbye { reason: "enough".into() })]);
    hub.calls.handle_left(WorkerId(2));
    assert_eq!(hub.sample().len(), 1);
}
