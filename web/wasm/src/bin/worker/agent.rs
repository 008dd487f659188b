//! Keeps a session with the hub going: connects, works in slices, connects again.

use std::{cell::RefCell, rc::Rc};

use rollmesh_core::{
    kernels::Kernels,
    protocol::{RefusalCode, Role, handshake::Identity, reconnect_delay},
    time::Micros,
    worker::{RolloutWorkerBuilder, SessionState, WorkerSession, core_fingerprint},
};
use rollmesh_web_registry::registry;
use wasm_bindgen::prelude::*;

use crate::{
    page::{self, Status, Task},
    rate::Rate,
    slices::Slices,
    socket::{Heard, Socket},
};

/// A slice of work ends after this, so that messages are heard.
const SLICE: Micros = Micros::from_millis(10);
/// Steps of all slots of a lease between two looks at the clock.
const VECTOR_STEPS: u32 = 16;
/// How often the page is told, and a full socket is looked at again.
const TICK_MS: i32 = 250;

/// The worker that this tab is.
pub(crate) struct Agent {
    task: Task,
    fingerprint: [u8; 16],
    /// None between two connections.
    link: Option<Link>,
    slices: Slices,
    /// Failed tries in a row.
    failed: u32,
    resume: Option<[u8; 16]>,
    /// Env steps and leases of connections that are gone.
    earlier: (u64, u64),
    has_sampled: bool,
    rate: Rate,
    told: Option<Status>,
    is_over: bool,
}

/// A connection.
struct Link {
    socket: Socket,
    session: WorkerSession,
}

type Shared = Rc<RefCell<Agent>>;

impl Agent {
    /// Begins; it goes on until the Web Worker is terminated or the hub wants it no more.
    pub(crate) fn start(task: Task) {
        let Some(slices) = Slices::new() else {
            return page::post_end("this browser has no message channels");
        };
        let agent = Rc::new(RefCell::new(Self {
            task,
            fingerprint: core_fingerprint(Kernels::PORTABLE),
            link: None,
            slices,
            failed: 0,
            resume: None,
            earlier: (0, 0),
            has_sampled: false,
            rate: Rate::default(),
            told: None,
            is_over: false,
        }));
        let working = agent.clone();
        agent.borrow().slices.on_slice(move || working.borrow_mut().work());
        connect(&agent);
        every(TICK_MS, move || agent.borrow_mut().tick());
    }

    fn identity(&self) -> Identity {
        Identity {
            role: Role::Worker,
            token: self.task.token,
            resume: self.resume,
            core_fingerprint: self.fingerprint,
            kind: "browser".into(),
            name: self.task.name.clone(),
            device: "wasm".into(),
        }
    }

    fn handle_frame(&mut self, frame: &[u8]) {
        let Some(link) = &mut self.link else { return };
        link.session.handle_frame(frame);
        if let Some(resume) = link.session.resume_id() {
            self.resume = Some(resume);
            self.failed = 0;
        }
        self.pump();
        self.check_end();
        self.ask_for_slice();
    }

    /// A slice of work.
    fn work(&mut self) {
        self.slices.begin();
        let Some(link) = &mut self.link else { return };
        let begun = page::now();
        let mut now = begun;
        while link.session.has_work() && now.since(begun) < SLICE {
            link.session.work(VECTOR_STEPS, now);
            self.has_sampled = true;
            now = page::now();
        }
        self.pump();
        self.check_end();
        self.ask_for_slice();
    }

    fn ask_for_slice(&mut self) {
        if self.link.as_ref().is_some_and(|link| link.session.has_work()) {
            self.slices.ask();
        }
    }

    /// Sends what the session has to say, as far as there is room.
    fn pump(&mut self) {
        let Some(link) = &mut self.link else { return };
        while link.socket.has_room() {
            match link.session.poll_frame() {
                Some(frame) => link.socket.send(&frame),
                None => break,
            }
        }
    }

    /// Ends everything if the session has ended with a reason that another try would not change.
    fn check_end(&mut self) {
        let reason = match self.link.as_ref().map(|link| link.session.state()) {
            Some(SessionState::Refused { code, reason }) if *code != Some(RefusalCode::Busy) => reason.clone(),
            Some(SessionState::Closed { reason }) => reason.clone(),
            _ => return,
        };
        self.end(&reason);
    }

    fn end(&mut self, reason: &str) {
        self.is_over = true;
        self.link = None;
        page::post_end(reason);
    }

    /// The connection is gone; its counts are kept. Returns how long to wait before the next.
    fn lose_link(&mut self) -> Micros {
        self.earlier = self.counts();
        self.link = None;
        self.failed = self.failed.saturating_add(1);
        reconnect_delay(self.failed, (js_sys::Math::random() * 4_294_967_296.0) as u32)
    }

    /// Env steps and leases over all connections.
    fn counts(&self) -> (u64, u64) {
        let counters = self.link.as_ref().map(|link| link.session.counters()).unwrap_or_default();
        (self.earlier.0 + counters.env_steps, self.earlier.1 + counters.leases_done)
    }

    fn tick(&mut self) {
        if self.is_over {
            return;
        }
        self.pump();
        self.ask_for_slice();
        self.rate.note(page::now(), self.counts().0);
        let status = self.status();
        self.has_sampled = false;
        if self.told != Some(status) {
            page::post_status(&status);
            self.told = Some(status);
        }
    }

    fn status(&self) -> Status {
        let session = self.link.as_ref().map(|link| &link.session);
        let state = match session.map(WorkerSession::state) {
            None => "waiting",
            Some(SessionState::Ready) if self.has_sampled => "sampling",
            Some(SessionState::Ready) => "idle",
            Some(_) => "connecting",
        };
        let (env_steps, fragments) = self.counts();
        Status {
            state,
            worker: session.and_then(WorkerSession::worker_id).map_or(0, |id| id.0),
            env_steps,
            fragments,
            weights_version: session.and_then(WorkerSession::weights_version).map_or(0, |version| version.0),
            steps_per_s: self.rate.per_second(),
        }
    }
}

fn connect(agent: &Shared) {
    let hearing = agent.clone();
    let hear = move |heard| match heard {
        Heard::Open => hearing.borrow_mut().pump(),
        Heard::Frame(frame) => hearing.borrow_mut().handle_frame(&frame),
        Heard::Closed => reconnect(&hearing),
    };
    let mut this = agent.borrow_mut();
    // With a clock, samples are made in spans, between which messages are heard and sent.
    let session = WorkerSession::new(this.identity(), registry().envs, Kernels::PORTABLE)
        .with_workers(|| RolloutWorkerBuilder::new(registry()).clock(page::now));
    match Socket::open(&this.task.url, hear) {
        Some(socket) => this.link = Some(Link { socket, session }),
        None => {
            let reason = format!("{} is no address of a hub", this.task.url);
            this.end(&reason);
        }
    }
}

fn reconnect(agent: &Shared) {
    let delay = {
        let mut agent = agent.borrow_mut();
        if agent.is_over {
            return;
        }
        agent.lose_link()
    };
    let agent = agent.clone();
    after((delay.0 / 1_000) as i32, move || connect(&agent));
}

fn after(ms: i32, run: impl FnOnce() + 'static) {
    let run = Closure::once_into_js(run);
    // Fails only for code given as text, where a policy forbids that.
    let _ = page::scope().set_timeout_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}

fn every(ms: i32, run: impl FnMut() + 'static) {
    let run = Closure::<dyn FnMut()>::new(run).into_js_value();
    let _ = page::scope().set_interval_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}
