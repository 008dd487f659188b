//! The work for a hub: connects, works in slices, reconnects.

use std::{cell::RefCell, rc::Rc};

use rollmesh_core::{protocol::Retry, time::Micros};
use wasm_bindgen::prelude::*;

use super::{
    page::{self, HubAddress, Status, Task},
    rate::Rate,
    scope,
    slices::Slices,
    socket::{Socket, SocketEvent},
    work::Work,
};

/// The length of a slice of work, after which messages are handled.
const SLICE: Micros = Micros::from_millis(10);
/// The interval at which the page gets a status, and the socket's buffer and deadlines are checked.
const TICK_MS: i32 = 250;

/// The tab's work for a hub, over all its connections.
pub(crate) struct Agent {
    hub: HubAddress,
    work: Work,
    /// The socket, `None` between two connections.
    socket: Option<Socket>,
    slices: Slices,
    rate: Rate,
    reported: Option<Status>,
    is_over: bool,
}

type Shared = Rc<RefCell<Agent>>;

impl Agent {
    /// Starts the work, which continues until the Web Worker is terminated or a retry could not succeed.
    pub(crate) fn start(task: &Task) {
        let work = match Work::new(task) {
            Ok(work) => work,
            Err(reason) => return page::post_end(&reason),
        };
        let Some(slices) = Slices::new() else {
            return page::post_end("this browser has no message channels");
        };
        let agent = Rc::new(RefCell::new(Self {
            hub: task.hub.clone(),
            work,
            socket: None,
            slices,
            rate: Rate::default(),
            reported: None,
            is_over: false,
        }));
        let working = agent.clone();
        agent.borrow().slices.on_slice(move || working.borrow_mut().work());
        connect(&agent);
        every(TICK_MS, move || {
            agent.borrow_mut().tick();
            leave_if_over(&agent);
        });
    }

    /// Works for one slice.
    fn work(&mut self) {
        self.slices.begin();
        if self.is_over {
            return;
        }
        let begun = scope::now();
        let mut now = begun;
        while self.work.session.has_work() && now.since(begun) < SLICE {
            self.work.work(now);
            now = scope::now();
        }
        self.advance();
    }

    /// Sends pending frames, then ends if a handle has stopped the work, or asks for another slice.
    fn advance(&mut self) {
        self.pump();
        if self.work.is_stopped() {
            self.end("a handle has shut it down");
        } else {
            self.ask_for_slice();
        }
    }

    fn ask_for_slice(&mut self) {
        if self.work.session.has_work() {
            self.slices.ask();
        }
    }

    /// Sends as much as the socket takes.
    fn pump(&mut self) {
        self.work.session.set_time(scope::now());
        let Some(socket) = &self.socket else { return };
        while socket.takes_frames()
            && let Some(frame) = self.work.session.poll_frame()
        {
            socket.send(&frame);
        }
    }

    fn end(&mut self, reason: &str) {
        self.is_over = true;
        self.socket = None;
        page::post_end(reason);
    }

    /// Closes the socket. Returns the delay before the next one, if there is one.
    fn lose_socket(&mut self) -> Option<Micros> {
        if self.is_over {
            return None;
        }
        self.socket = None;
        let random = (js_sys::Math::random() * 4_294_967_296.0) as u32;
        match self.work.session.handle_close("the hub closed the connection", random) {
            Ok(Retry { delay, .. }) => {
                self.ask_for_slice();
                Some(delay)
            }
            Err(end) => {
                self.end(end.reason());
                None
            }
        }
    }

    fn tick(&mut self) {
        if self.is_over {
            return;
        }
        self.pump();
        self.ask_for_slice();
        let mut status = self.work.status();
        self.rate.record(scope::now(), status.env_steps);
        status.steps_per_s = self.rate.per_second();
        if self.socket.is_none() {
            status.state = "waiting";
        }
        if self.reported.as_ref() != Some(&status) {
            page::post_status(&status);
            self.reported = Some(status);
        }
    }
}

fn connect(agent: &Shared) {
    let hearing = agent.clone();
    let hear = move |heard| match heard {
        SocketEvent::Open => hearing.borrow_mut().pump(),
        SocketEvent::Frame(frame) => {
            let mut agent = hearing.borrow_mut();
            agent.work.session.handle_frame(&frame);
            agent.advance();
            drop(agent);
            leave_if_over(&hearing);
        }
        SocketEvent::Closed => reconnect(&hearing),
    };
    let mut this = agent.borrow_mut();
    match Socket::open(&this.hub, hear) {
        Ok(socket) => {
            this.socket = Some(socket);
            // A port is open already.
            this.pump();
        }
        Err(reason) => this.end(&reason),
    }
}

/// Closes the connection if the hub refused this tab, or either side said goodbye.
fn leave_if_over(agent: &Shared) {
    if agent.borrow().work.session.connection().end().is_some() {
        reconnect(agent);
    }
}

fn reconnect(agent: &Shared) {
    let Some(delay) = agent.borrow_mut().lose_socket() else { return };
    let agent = agent.clone();
    after((delay.0 / 1_000) as i32, move || connect(&agent));
}

fn after(ms: i32, run: impl FnOnce() + 'static) {
    let run = Closure::once_into_js(run);
    // Fails only for code given as a string, if the page's content security policy forbids it.
    let _ = scope::scope().set_timeout_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}

fn every(ms: i32, run: impl FnMut() + 'static) {
    let run = Closure::<dyn FnMut()>::new(run).into_js_value();
    let _ = scope::scope().set_interval_with_callback_and_timeout_and_arguments_0(run.unchecked_ref(), ms);
}
