//! Keeps work at the hub going: connects, works in slices, connects again.

use std::{cell::RefCell, rc::Rc};

use rollmesh_core::{protocol::reconnect_delay, time::Micros};
use wasm_bindgen::prelude::*;

use crate::{
    page::{self, Status, Task},
    rate::Rate,
    scope,
    slices::Slices,
    socket::{Heard, Socket},
    work::AtHub,
};

/// A slice of work ends after this, so that messages are heard.
const SLICE: Micros = Micros::from_millis(10);
/// How often the page is told, and it is looked again for room in the socket and for deadlines.
const TICK_MS: i32 = 250;

/// What this tab does at a hub.
pub(crate) struct Agent {
    url: String,
    work: AtHub,
    /// None between two connections.
    socket: Option<Socket>,
    slices: Slices,
    /// Failed tries in a row.
    failed: u32,
    rate: Rate,
    told: Option<Status>,
    is_over: bool,
}

type Shared = Rc<RefCell<Agent>>;

impl Agent {
    /// Begins; it goes on until the Web Worker is terminated or another try would not help.
    pub(crate) fn start(task: &Task) {
        let work = match AtHub::new(task) {
            Ok(work) => work,
            Err(reason) => return page::post_end(&reason),
        };
        let Some(slices) = Slices::new() else {
            return page::post_end("this browser has no message channels");
        };
        let agent = Rc::new(RefCell::new(Self {
            url: task.url.clone(),
            work,
            socket: None,
            slices,
            failed: 0,
            rate: Rate::default(),
            told: None,
            is_over: false,
        }));
        let working = agent.clone();
        agent.borrow().slices.on_slice(move || working.borrow_mut().work());
        connect(&agent);
        every(TICK_MS, move || agent.borrow_mut().tick());
    }

    fn handle_frame(&mut self, frame: &[u8]) {
        self.work.handle_frame(frame);
        if self.work.is_welcome() {
            self.failed = 0;
        }
        self.go_on();
    }

    /// A slice of work.
    fn work(&mut self) {
        self.slices.begin();
        if self.is_over {
            return;
        }
        let begun = scope::now();
        let mut now = begun;
        while self.work.has_work() && now.since(begun) < SLICE {
            self.work.work(now);
            now = scope::now();
        }
        self.go_on();
    }

    /// Sends what there is to say, and sees whether it goes on.
    fn go_on(&mut self) {
        self.pump();
        match self.work.end() {
            Some(reason) => self.end(&reason),
            None => self.ask_for_slice(),
        }
    }

    fn ask_for_slice(&mut self) {
        if self.work.has_work() {
            self.slices.ask();
        }
    }

    /// Sends as far as there is room.
    fn pump(&mut self) {
        let Some(socket) = &self.socket else { return };
        while socket.has_room() && self.work.send_next(socket) {}
    }

    fn end(&mut self, reason: &str) {
        self.is_over = true;
        self.socket = None;
        page::post_end(reason);
    }

    /// The connection is gone. Returns how long to wait before the next.
    fn lose_socket(&mut self) -> Micros {
        self.socket = None;
        self.work.disconnect();
        self.ask_for_slice();
        self.failed = self.failed.saturating_add(1);
        reconnect_delay(self.failed, (js_sys::Math::random() * 4_294_967_296.0) as u32)
    }

    fn tick(&mut self) {
        if self.is_over {
            return;
        }
        self.pump();
        self.ask_for_slice();
        let mut status = self.work.status();
        self.rate.note(scope::now(), status.env_steps);
        status.steps_per_s = self.rate.per_second();
        if self.socket.is_none() {
            status.state = "waiting";
        }
        if self.told.as_ref() != Some(&status) {
            page::post_status(&status);
            self.told = Some(status);
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
    this.work.connect();
    match Socket::open(&this.url, hear) {
        Some(socket) => this.socket = Some(socket),
        None => {
            let reason = format!("{} is no address of a hub", this.url);
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
        agent.lose_socket()
    };
    let agent = agent.clone();
    after((delay.0 / 1_000) as i32, move || connect(&agent));
}

fn after(ms: i32, run: impl FnOnce() + 'static) {
    let run = Closure::once_into_js(run);
    // Fails only for code given as text, where a policy forbids that.
    let _ = scope::scope().set_timeout_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}

fn every(ms: i32, run: impl FnMut() + 'static) {
    let run = Closure::<dyn FnMut()>::new(run).into_js_value();
    let _ = scope::scope().set_interval_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}
