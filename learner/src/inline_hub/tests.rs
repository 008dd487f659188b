//! Hubs in memory, with workers and operators at their ports.

mod ports;

use std::{cell::Cell, collections::BTreeMap};

use rollmesh_core::{
    kernels::Kernels,
    protocol::{
        FrameBytes, Message, Phase, Role, Token,
        handshake::Identity,
        message::{Reply, Request, RunStatus, StartRun, Watch, WorkerLog, WorkerRequest},
    },
    run::RunConfig,
    time::Micros,
    worker::{Registry, WorkerSession, core_fingerprint},
};

use super::{HubOutput, InlineHub, PortId};
use crate::{InlineRun, InlineWork};

const SMALL: &str = r#"{"env": "CartPole-v1", "num_slots": 4, "seed": 5, "rollout_fragment_length": 20,
    "model_config": {"fcnet_hiddens": [8]}, "stop": {"env_steps": 400}}"#;

/// The time of day when a page is opened.
const EPOCH: u64 = 1_800_000_000;

/// A page without JavaScript: its hub, its workers, and an operator.
struct Page {
    hub: InlineHub,
    workers: BTreeMap<PortId, WorkerSession>,
    operator: PortId,
    /// The messages to the operator.
    shown: Vec<Message>,
    trained: Vec<(u32, String)>,
    closed: Vec<PortId>,
    /// The frames that the workers sent.
    said: Vec<Vec<u8>>,
    /// The last frames to ports without a worker.
    last: BTreeMap<PortId, FrameBytes>,
    now: Micros,
    /// The time that drawing a fragment takes.
    drawing_takes: Micros,
    drawn: usize,
}

fn identity(role: Role, token: Token) -> Identity {
    let core_fingerprint = core_fingerprint(Kernels::PORTABLE);
    Identity { core_fingerprint, ..Identity::new(role, token, "browser", "it", "wasm") }
}

impl Page {
    fn new(num_workers: u32) -> Self {
        let hub = InlineHub::new(0, num_workers, "{}".into(), Registry::builtin(), Kernels::PORTABLE);
        let mut hub = hub.with_epoch(EPOCH);
        let (operator, token) = hub.open_port(Role::Operator);
        hub.handle_frame(operator, &identity(Role::Operator, token).hello().encode(), Micros(0));
        let (workers, shown, trained, closed, said, last) = Default::default();
        let (now, drawing_takes, drawn) = (Micros(0), Micros(0), 0);
        let mut page = Self { hub, workers, operator, shown, trained, closed, said, last, now, drawing_takes, drawn };
        page.exchange();
        page
    }

    fn exchange(&mut self) {
        while let Some(output) = self.hub.poll_output() {
            match output {
                HubOutput::Frame { port, bytes } if port == self.operator => {
                    self.shown.push(Message::decode(&bytes).expect("a message"));
                }
                HubOutput::Frame { port, bytes } => match self.workers.get_mut(&port) {
                    Some(worker) => worker.handle_frame(&bytes),
                    None => _ = self.last.insert(port, bytes),
                },
                HubOutput::Start { port, token } => {
                    let identity = identity(Role::Worker, token);
                    let session = WorkerSession::new(identity, Registry::builtin(), Kernels::PORTABLE);
                    self.workers.insert(port, session);
                }
                HubOutput::Closed { port } => {
                    self.workers.remove(&port);
                    self.closed.push(port);
                }
                HubOutput::Trained { run, weights_hash } => self.trained.push((run, weights_hash)),
            }
        }
    }

    fn ask(&mut self, message: &Message) -> String {
        let before = self.shown.len();
        self.hub.handle_frame(self.operator, &message.encode(), self.now);
        self.exchange();
        let reply = |message: &Message| {
            if let Message::Reply(Reply { error, .. }) = message { Some(error.clone()) } else { None }
        };
        self.shown[before..].iter().find_map(reply).unwrap_or_default()
    }

    fn start(&mut self, settings: &str) -> String {
        self.ask(&Message::StartRun(StartRun { request: 1, settings: settings.into() }))
    }

    /// Lets hub and workers work for a millisecond.
    fn work(&mut self) {
        self.now = Micros(self.now.0 + 1_000);
        // A failed update ends the run, which reports it.
        let _ = self.hub.learn(self.now);
        self.draw();
        for (&port, worker) in &mut self.workers {
            worker.work(5, self.now);
            while let Some(frame) = worker.poll_frame() {
                self.said.push(frame.to_vec());
                self.hub.handle_frame(port, &frame, self.now);
            }
        }
        self.hub.handle_timeout(self.now);
        self.exchange();
    }

    fn draw(&mut self) {
        if !self.hub.has_drawing() {
            return;
        }
        let clock = Cell::new(self.now);
        self.hub.draw(|| clock.replace(clock.get() + self.drawing_takes));
        (self.now, self.drawn) = (clock.get(), self.drawn + 1);
    }

    fn work_until(&mut self, is_there: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_there(self) {
                return;
            }
            self.work();
        }
        panic!("it does not come: {:?}", self.status());
    }

    fn finish(&mut self) -> String {
        self.work_until(|page| page.hub.state().is_some_and(|run| run.is_over()));
        self.trained.last().map(|(_, hash)| hash.clone()).unwrap_or_default()
    }

    fn phase(&self) -> Phase {
        self.hub.state().map_or(Phase::Idle, |run| run.phase())
    }

    fn status(&self) -> RunStatus {
        let status =
            |message: &Message| if let Message::RunStatus(status) = message { Some(status.clone()) } else { None };
        self.shown.iter().rev().find_map(status).unwrap_or_default()
    }

    fn count(&self, is: impl Fn(&Message) -> bool) -> usize {
        self.shown.iter().filter(|message| is(message)).count()
    }
}

/// Returns the hash of the weights that a run learns in one thread.
fn hash_of(settings: &str) -> String {
    let config = RunConfig::of_wire_settings(settings).expect("settings");
    let mut run = InlineRun::new(1, config, &Registry::builtin(), Kernels::PORTABLE, Micros(0)).expect("a run");
    while run.work(7, Micros(0)).expect("work") != InlineWork::Over {}
    run.state().weights_hash().to_string()
}

#[test]
fn run_is_shown_until_it_ends_and_has_the_hash_of_any_number_of_workers() {
    let wanted = hash_of(SMALL);
    for workers in [1, 3] {
        let mut page = Page::new(workers);
        assert!(matches!(page.shown[..2], [Message::Welcome(_), Message::RunSchema(_)]), "{:?}", page.shown);
        assert_eq!(page.start(SMALL), "");
        assert_eq!((page.finish(), page.trained.len()), (wanted.clone(), 1));
        let status = page.status();
        assert_eq!((status.phase, status.env_steps, status.iteration), (Phase::Finished.to_wire(), 400, 5));
        assert_eq!(page.count(|message| matches!(message, Message::Iteration(_))), 5);
        let is_dated = |log: &WorkerLog| log.lines.iter().all(|line| (EPOCH..EPOCH + 60).contains(&line.seconds));
        assert!(page.count(|message| matches!(message, Message::WorkerLog(log) if is_dated(log))) > 0);
        assert!(page.count(|message| matches!(message, Message::SlotClip(clip) if !clip.film.is_empty())) > 0);
        assert!(page.count(|message| matches!(message, Message::WorkerRow(row) if row.local)) >= workers as usize);
        assert_eq!(page.hub.policy_file().map(|file| file.weights_hash), Some(wanted.clone()));
    }
}

#[test]
fn drawing_takes_a_tenth_of_the_time_and_none_while_the_page_is_hidden() {
    let mut page = Page::new(1);
    page.drawing_takes = Micros::from_secs(1);
    assert_eq!(page.start(&SMALL.replace("400", "80000")), "");
    let pass = |page: &mut Page, seconds| {
        let before = page.drawn;
        for _ in 0..4 * seconds {
            page.now = page.now + Micros::from_millis(250);
            page.work();
        }
        page.drawn - before
    };
    let drawn = pass(&mut page, 60);
    assert!((4..=9).contains(&drawn), "{drawn} in a minute");
    page.hub.set_hidden(true);
    assert_eq!(pass(&mut page, 30), 0);
    page.hub.set_hidden(false);
    assert_eq!(pass(&mut page, 5), 1, "what was due is drawn immediately");
    assert_eq!(page.phase(), Phase::Running);
}

#[test]
fn worker_that_is_removed_or_dies_changes_nothing() {
    let settings = SMALL.replace("400", "8000");
    let wanted = hash_of(&settings);
    let mut page = Page::new(2);
    assert_eq!(page.start(&settings), "");
    page.work_until(|page| page.count(|message| matches!(message, Message::Iteration(_))) > 0);
    let mut ids: Vec<u32> = page.workers.values().filter_map(|worker| worker.worker_id()).map(|id| id.0).collect();
    assert_eq!(page.ask(&Message::RemoveWorker(WorkerRequest { request: 2, worker: ids.remove(0) })), "");
    page.work_until(|page| page.workers.len() == 1);
    // One is restarted, as the page asks.
    let ids = |page: &Page| page.workers.values().filter_map(|worker| worker.worker_id()).map(|id| id.0).next();
    page.work_until(|page| ids(page).is_some());
    let worker = ids(&page).expect("a worker");
    assert_eq!(page.ask(&Message::RestartWorker(WorkerRequest { request: 3, worker })), "");
    page.work_until(|page| ids(page).is_some_and(|id| id != worker));
    // The worker exits in the middle of a lease, and another one takes its place.
    page.work_until(|page| page.workers.values().all(|worker| worker.lease().is_some()));
    let (port, _) = page.workers.pop_first().expect("a worker");
    page.hub.handle_closed(port, "out of memory", page.now);
    page.exchange();
    assert_eq!((page.workers.len(), page.finish()), (1, wanted));
    assert_eq!(page.hub.hub.num_worker_restarts, 2);
}

#[test]
fn run_whose_workers_end_as_soon_as_they_start_fails() {
    let mut page = Page::new(1);
    assert_eq!(page.start(SMALL), "");
    while let Some((port, _)) = page.workers.pop_first() {
        page.work();
        assert_eq!(page.phase(), Phase::Running, "another one is on its way");
        page.hub.handle_closed(port, "out of memory", page.now);
        page.exchange();
    }
    page.work();
    assert_eq!(page.phase(), Phase::Failed);
    assert_eq!(page.status().error, "no worker can continue, none of them starts");
}

#[test]
fn operator_adds_workers_pauses_resumes_drains_and_stops() {
    let mut page = Page::new(1);
    let request = |request| Request { request };
    let endless = SMALL.replace("400", "100000000");
    assert_eq!(page.start(&endless), "");
    assert_eq!(page.start(SMALL), "a run is in progress; stop it first");
    assert_eq!(page.ask(&Message::AddWorker(request(2))), "");
    page.work_until(|page| page.workers.values().filter(|worker| worker.lease().is_some()).count() == 2);
    assert_eq!(page.ask(&Message::Watch(Watch { request: 3, slot: 3 })), "");
    assert!(page.ask(&Message::Watch(Watch { request: 3, slot: 4 })).contains("no slot 4"));
    assert_eq!(page.ask(&Message::Pause(request(4))), "");
    page.work_until(|page| page.workers.values().all(|worker| worker.lease().is_none()) && !page.hub.has_batch());
    let steps = page.hub.state().map(|run| run.env_steps());
    (0..100).for_each(|_| page.work());
    assert_eq!((page.phase(), page.hub.state().map(|run| run.env_steps())), (Phase::Paused, steps));
    assert_eq!(page.ask(&Message::Resume(request(5))), "");
    page.work_until(|page| page.hub.state().map(|run| run.env_steps()) > steps);
    assert_eq!(page.ask(&Message::Drain(request(6))), "");
    let hash = page.finish();
    assert_eq!((page.phase(), page.trained.last()), (Phase::Drained, Some(&(1, hash))));
    // A start that is refused leaves the policy of the last run.
    assert!(page.start(r#"{"env": "CartPole-v1", "policy_config": {"lr": -1}}"#).contains("lr"));
    assert!(page.hub.policy_file().is_some());
    assert_eq!(page.start(&endless), "");
    page.work();
    assert_eq!(page.ask(&Message::Stop(request(7))), "");
    assert_eq!((page.phase(), page.status().run), (Phase::Stopped, 2));
    assert!(page.ask(&Message::Checkpoint(request(8))).contains("no files"));
    assert_eq!(page.ask(&Message::Pause(request(9))), "there is no run to pause");
}

#[test]
fn settings_that_cannot_be_run_are_answered() {
    for (settings, wanted) in [
        ("{", "settings"),
        (r#"{"env": "None-v0"}"#, "None-v0"),
        (r#"{"num_slots": 0}"#, "num_slots"),
        (r#"{"algorithm": "bc"}"#, "logged experience"),
    ] {
        let mut page = Page::new(1);
        let error = page.start(settings);
        assert!(error.contains(wanted) && page.hub.state().is_none(), "{settings}: {error}");
    }
}
