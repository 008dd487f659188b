//! Benchmark of a hub's state machine, for each fragment and each synchronisation of weights, with up to 1,000 workers
//! in this process: the bytes of all messages, and the time of one core. Workers are real sessions, links are queues;
//! sockets, encryption and learning are not part of it.
//!
//! `cargo bench -p rollmesh-core --bench many_workers`; figures are in `docs/performance.md`.

use std::{
    cell::RefCell,
    iter,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use rollmesh_core::{
    hub::{
        Arrival, BatchConsumer, CloseReason, Hub, HubEffect, HubRun, HubSetup, HubTokens, Observed, PeerConnection,
        RunFacts, RunLoop, RunLoopConfig, RunStep, WorkerUpload,
    },
    ids::{FragmentNo, WeightsVersion},
    kernels::Kernels,
    policy::Postprocessing,
    protocol::{Message, MessageFrame, Outbox, Role, Token, TokenGrant, handshake::Identity},
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder, WorkerSession},
};

const SLOTS_OF_WORKER: u32 = 4;
const FRAGMENT_LENGTH: u32 = 50;
const ITERATIONS: u64 = 20;

/// The messages that the hub has queued for a worker.
#[derive(Clone, Debug, Default)]
struct Link(Rc<RefCell<Outbox>>);

impl PeerConnection for Link {
    fn send_frame(&self, frame: MessageFrame) {
        self.0.borrow_mut().push_frame(frame);
    }

    fn queued_bytes(&self) -> usize {
        self.0.borrow().queued_bytes()
    }

    fn close(&self, _: CloseReason, reason: &str) {
        panic!("the hub closes a connection: {reason}");
    }

    fn expel(&self, reason: &str) {
        panic!("the hub expels a worker: {reason}");
    }

    fn hang_up(&self) {
        panic!("the hub takes a worker for a slow consumer");
    }
}

struct Run {
    state: RunLoop,
    num_workers: u32,
}

impl HubRun for Run {
    fn state(&self) -> &RunLoop {
        &self.state
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.state
    }

    fn facts(&mut self, _: Option<FragmentNo>, _: Micros) -> RunFacts {
        RunFacts { num_workers: self.num_workers, ..RunFacts::default() }
    }

    fn keep_for_undoing(&mut self, _: Micros) {}
}

/// Messages of one kind of work: their bytes, and the time that each took. Medians are those of an undisturbed process, also while
/// others take its core.
#[derive(Clone, Debug, Default)]
struct Cost {
    bytes: u64,
    times: Vec<Duration>,
}

impl Cost {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.times.push(began.elapsed());
        done
    }

    fn median_us(&mut self) -> f64 {
        self.times.sort_unstable();
        self.times[self.times.len() / 2].as_secs_f64() * 1e6
    }
}

struct Swarm {
    hub: Hub<Link, Run>,
    workers: Vec<(u32, Link, WorkerSession)>,
    /// Beginnings of iterations, with weights and grants for all workers.
    begins: Cost,
    /// Sends to a worker.
    sends: Cost,
    /// Workers' other messages, such as that they act with the weights.
    answers: Cost,
    /// Uploads, decoded and committed.
    uploads: Cost,
    is_over: bool,
}

impl Swarm {
    fn start(num_workers: u32) -> Self {
        let num_slots = num_workers * SLOTS_OF_WORKER;
        let steps = ITERATIONS * u64::from(num_slots * FRAGMENT_LENGTH);
        let config = RunConfig::sampling("CartPole-v1", num_slots)
            .rollout_fragment_length(FRAGMENT_LENGTH)
            .fcnet_hiddens(&[64, 64])
            .stop_after(steps);
        let parts = RolloutWorkerBuilder::new(Registry::builtin()).learning_parts(&config).expect("a run");
        let loop_config = RunLoopConfig::sampling(1, config, &parts).expect("weights");
        let loop_config = RunLoopConfig { consumer: BatchConsumer::Learner(Postprocessing::None), ..loop_config };
        let token = Token::new([1; 32]);
        let mut tokens = HubTokens::default();
        tokens.add(&token, TokenGrant { role: Role::Worker, child: None, expires: None });
        let mut hub = Hub::new(HubSetup { life: 1, ..HubSetup::default() }, tokens);
        hub.run = Some(Run { state: RunLoop::new(loop_config, Micros(0)).expect("slots"), num_workers });
        let mut swarm = Self {
            hub,
            workers: Vec::new(),
            begins: Cost::default(),
            sends: Cost::default(),
            answers: Cost::default(),
            uploads: Cost::default(),
            is_over: false,
        };
        for number in 0..num_workers {
            let identity = Identity::new(Role::Worker, token, "native", &format!("worker-{number}"), "cpu");
            swarm.join(WorkerSession::new(identity, Registry::builtin(), Kernels::PORTABLE));
        }
        swarm
    }

    fn join(&mut self, mut session: WorkerSession) {
        let hello = Message::decode(&session.poll_frame().expect("a hello")).expect("what was encoded");
        let Message::Hello(hello) = hello else { panic!("Hello comes first") };
        let accepted = self.hub.check(&hello).expect("the token is valid");
        let (link, from) = (Link::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
        let (launcher, is_spare) = (String::new(), false);
        let arrival = Arrival { from, link: link.clone(), session: [1; 16], launcher, is_spare };
        let id = self.hub.admit(accepted, arrival);
        self.workers.push((id, link, session));
    }

    /// Delivers what the hub has sent, lets all workers do all their work, and delivers what they have sent.
    fn exchange(&mut self, now: Micros) {
        for worker in 0..self.workers.len() {
            let (id, link, session) = &mut self.workers[worker];
            let id = *id;
            let frames: Vec<_> = self.sends.time(|| iter::from_fn(|| link.0.borrow_mut().poll_frame()).collect());
            for frame in frames {
                self.sends.bytes += frame.len() as u64;
                session.handle_frame(&frame);
            }
            loop {
                while let Some(frame) = self.workers[worker].2.poll_frame() {
                    self.receive(id, &frame);
                }
                let session = &mut self.workers[worker].2;
                if !session.has_work() {
                    break;
                }
                session.work(u32::MAX, now);
            }
        }
    }

    fn receive(&mut self, id: u32, frame: &[u8]) {
        let mut cost = Cost { bytes: frame.len() as u64, ..Cost::default() };
        let is_upload = cost.time(|| match Message::decode(frame).expect("what was encoded") {
            Message::FragmentUpload(upload) => {
                self.hub.handle_upload(id, WorkerUpload::Lanes(upload));
                true
            }
            other => {
                assert_eq!(self.hub.handle_message(id, other), None);
                false
            }
        });
        let kind = if is_upload { &mut self.uploads } else { &mut self.answers };
        kind.bytes += cost.bytes;
        kind.times.append(&mut cost.times);
        self.settle();
    }

    /// Executes the hub's effects. New weights are those of before.
    fn settle(&mut self) {
        while let Some(effect) = self.hub.poll_effect() {
            match effect {
                HubEffect::Step(RunStep::Begin) => self.begins.time(|| self.hub.begin_iteration()),
                HubEffect::Step(RunStep::End(end)) => {
                    self.hub.run.as_mut().expect("a run").state.end(&end, Micros(0));
                    self.is_over = true;
                }
                HubEffect::Consume(Ok(_)) => {
                    let run = self.hub.run.as_mut().expect("a run").state_mut();
                    let version = WeightsVersion(run.weights().version().0 + 1);
                    run.handle_learned(run.weights().with_version(version), Observed::default(), Micros(0));
                    self.hub.course.handle_counted();
                }
                HubEffect::Consume(Err(error)) => panic!("{error}"),
                HubEffect::Reply { peer, kind, request } => self.hub.reply(peer, kind, request, Ok(0)),
                _ => {}
            }
        }
    }
}

fn main() {
    println!(
        "{:>8} {:>16} {:>14} {:>14} {:>16} {:>14} {:>14}",
        "workers", "bytes/fragment", "us/fragment", "begin us", "sent KB/sync", "send us/worker", "answer us"
    );
    for num_workers in [10, 100, 1_000] {
        let mut swarm = Swarm::start(num_workers);
        let mut now = Micros(0);
        while !swarm.is_over {
            // An iteration a second: nothing is late.
            now = now + Micros::from_secs(1);
            swarm.hub.set_time(now, now.0 / 1_000_000);
            swarm.exchange(now);
        }
        let ledger = swarm.hub.run.as_ref().expect("a run").state.group.ledger();
        assert!(ledger.balances(), "{ledger:?}");
        let fragments = ITERATIONS * u64::from(num_workers * SLOTS_OF_WORKER);
        println!(
            "{num_workers:>8} {:>16} {:>14.2} {:>14.1} {:>16.1} {:>14.2} {:>14.2}",
            swarm.uploads.bytes / fragments,
            swarm.uploads.median_us() / f64::from(SLOTS_OF_WORKER),
            swarm.begins.median_us(),
            swarm.sends.bytes as f64 / 1e3 / ITERATIONS as f64,
            swarm.sends.median_us(),
            swarm.answers.median_us(),
        );
    }
}
