//! The hub of a page, in a Web Worker: the ports of the core's hub are `MessagePort`s.

use std::{cell::RefCell, collections::BTreeMap, mem, panic, rc::Rc};

use js_sys::{Array, Object, Reflect, Uint8Array};
use rollmesh_core::{
    kernels::Kernels,
    protocol::{Role, Token},
    time::Micros,
};
use rollmesh_learner::{HubOutput, InlineHub, PortId};
use wasm_bindgen::prelude::*;
use web_sys::{MessageChannel, MessageEvent, MessagePort};

use crate::{
    envs::registry,
    schema::tab_schema,
    scope::{now, post, post_object, scope},
    slices::Slices,
};

/// The interval at which deadlines are handled.
const TICK_MS: i32 = 100;
/// If two ticks are at least this far apart, as in a frozen tab, messages that have arrived meanwhile are handled
/// before deadlines.
const LATE: Micros = Micros::from_secs(1);

/// The event of a `MessagePort` whose other end was closed.
const CLOSE: &str = "close";

/// The two files of a policy, as a run's directory has them.
const POLICY_FILE: &str = "policy.json";
const WEIGHTS_FILE: &str = "weights.safetensors";

struct PageHub {
    hub: InlineHub,
    /// The port of the page, whose frames it posts to the Web Worker itself.
    page: PortId,
    ports: BTreeMap<PortId, Port>,
    slices: Slices,
    ticked: Micros,
    /// Whether the next slice handles deadlines.
    is_late: bool,
}

type Shared = Rc<RefCell<PageHub>>;

/// The hub's end of a `MessagePort`. Dropping it closes the port.
struct Port {
    port: MessagePort,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    on_close: Closure<dyn FnMut()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.port.set_onmessage(None);
        // Never fails for a listener that was added.
        let _ = self.port.remove_event_listener_with_callback(CLOSE, self.on_close.as_ref().unchecked_ref());
        self.port.close();
    }
}

/// Makes this Web Worker the hub of its page, whose runs begin with the given number of Web Workers.
#[wasm_bindgen]
pub fn serve(workers: u32) {
    panic::set_hook(Box::new(|panic| {
        post(&panic.to_string().into());
        console_error_panic_hook::hook(panic);
    }));
    let Some(slices) = Slices::new() else { return post(&"this browser has no message channels".into()) };
    let registry = registry();
    let schema = tab_schema(&registry).to_string();
    // Another hub of the same page gets another number, unless it starts a multiple of 10,000 seconds later.
    let number = (js_sys::Date::now() / 1_000.0 % 10_000.0) as u32;
    let epoch = (js_sys::Date::now() / 1_000.0) as u64 - now().0 / 1_000_000;
    let mut hub = InlineHub::new(number, workers, schema, registry, Kernels::PORTABLE).with_epoch(epoch);
    let (page, token) = hub.open_port(Role::Operator);
    let shared =
        Rc::new(RefCell::new(PageHub { hub, page, ports: BTreeMap::new(), slices, ticked: now(), is_late: false }));
    let working = shared.clone();
    shared.borrow().slices.on_slice(move || {
        working.borrow_mut().work();
        pump(&working);
    });
    let heard = shared.clone();
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        handle_page(&heard, &event.data());
        pump(&heard);
    });
    scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    let ticking = shared.clone();
    let on_tick = Closure::<dyn FnMut()>::new(move || {
        ticking.borrow_mut().tick();
        pump(&ticking);
    });
    let on_tick_function = on_tick.as_ref().unchecked_ref();
    // Fails only for code given as a string, if the page's content security policy forbids it.
    let _ = scope().set_interval_with_callback_and_timeout_and_arguments_0(on_tick_function, TICK_MS);
    // Both live as long as the Web Worker.
    on_message.forget();
    on_tick.forget();
    post_object(&[("token", token.to_hex().into())]);
}

impl PageHub {
    /// Handles deadlines that a late tick deferred, then learns and draws.
    fn work(&mut self) {
        self.slices.begin();
        if mem::take(&mut self.is_late) {
            self.hub.handle_timeout(now());
        }
        // The run's status reports failures.
        let _ = self.hub.learn(now());
        self.hub.draw(now);
    }

    fn tick(&mut self) {
        let now = now();
        let late = now.since(self.ticked);
        self.ticked = now;
        if late < LATE {
            self.hub.handle_timeout(now);
        } else {
            // Browsers also throttle the timers of hidden tabs, where every tick is late.
            self.is_late = true;
            self.slices.ask();
        }
    }

    fn give_file(&mut self, name: &str, plays: bool) {
        let file = match (name, self.hub.state(), self.hub.policy_file()) {
            (WEIGHTS_FILE, Some(run), Some(_)) => run.weights().to_safetensors().map_err(|error| error.to_string()),
            (POLICY_FILE, _, Some(file)) => serde_json::to_vec_pretty(&file).map_err(|error| error.to_string()),
            (POLICY_FILE | WEIGHTS_FILE, ..) => Err("it was lost with the hub of its run".into()),
            _ => Err(format!("there is no file '{name}', but {POLICY_FILE} and {WEIGHTS_FILE}")),
        };
        let found = match file {
            Ok(bytes) => ("bytes", Uint8Array::from(&*bytes).into()),
            Err(error) => ("error", format!("the policy cannot be saved: {error}").into()),
        };
        post_object(&[("name", name.into()), found, ("plays", plays.into())]);
    }
}

/// Handles a message of the page.
fn handle_page(shared: &Shared, data: &JsValue) {
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let mut this = shared.borrow_mut();
    if let Some(frame) = data.dyn_ref::<Uint8Array>() {
        let page = this.page;
        this.hub.handle_frame(page, &frame.to_vec(), now());
    } else if let Some(is_hidden) = field("hidden").as_bool() {
        this.hub.set_hidden(is_hidden);
    } else if let Some(name) = field("file").as_string() {
        this.give_file(&name, field("plays").is_truthy());
    } else if let Some(ended) = field("ended").as_f64() {
        let reason = field("reason").as_string().unwrap_or_default();
        this.hub.handle_closed(PortId(ended as u32), &reason, now());
    } else if let Some(role) = field("invite").as_string() {
        let role = match &*role {
            "worker" => Role::Worker,
            "viewer" => Role::Viewer,
            "operator" => Role::Operator,
            _ => {
                let error = format!("there is no role '{role}', but worker, viewer and operator");
                return post_object(&[("invited", JsValue::NULL), ("error", error.into())]);
            }
        };
        let (port, token) = this.hub.open_port(role);
        drop(this);
        connect(shared, "invited", port, &token);
    }
}

/// Performs the hub's outputs, and asks for a slice if work remains.
fn pump(shared: &Shared) {
    loop {
        let mut this = shared.borrow_mut();
        let Some(output) = this.hub.poll_output() else {
            if this.hub.has_batch() || this.hub.has_drawing() {
                this.slices.ask();
            }
            return;
        };
        match output {
            HubOutput::Frame { port, bytes } if port == this.page => post(&frame(&bytes)),
            HubOutput::Frame { port, bytes } => {
                // Bytes can always be posted.
                this.ports.get(&port).into_iter().for_each(|to| _ = to.port.post_message(&frame(&bytes)));
            }
            HubOutput::Closed { port } => {
                this.ports.remove(&port);
                post_object(&[("closed", port.0.into())]);
            }
            HubOutput::Trained { run, weights_hash } => {
                post_object(&[("run", run.into()), ("weights_hash", weights_hash.into())]);
            }
            HubOutput::Start { port, token } => {
                drop(this);
                connect(shared, "start", port, &token);
            }
        }
    }
}

/// Posts the other end of a new channel to the page.
fn connect(shared: &Shared, what: &str, id: PortId, token: &Token) {
    let Ok(channel) = MessageChannel::new() else { return };
    let (port, theirs) = (channel.port1(), channel.port2());
    let heard = shared.clone();
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        // Anything else becomes an empty frame, which is not a message: the hub closes the port.
        let bytes = event.data().dyn_ref::<Uint8Array>().map(Uint8Array::to_vec).unwrap_or_default();
        heard.borrow_mut().hub.handle_frame(id, &bytes, now());
        pump(&heard);
    });
    port.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    // In browsers without this event the hub detects a peer's end when its leases expire.
    let closed = shared.clone();
    let on_close = Closure::<dyn FnMut()>::new(move || {
        closed.borrow_mut().hub.handle_closed(id, "its Web Worker has ended", now());
        pump(&closed);
    });
    // Does not fail for any event name.
    let _ = port.add_event_listener_with_callback(CLOSE, on_close.as_ref().unchecked_ref());
    shared.borrow_mut().ports.insert(id, Port { port, _on_message: on_message, on_close });
    let object = Object::new();
    let fields = [(what, id.0.into()), ("token", token.to_hex().into()), ("port", theirs.clone().into())];
    for (name, value) in &fields {
        // A fresh object takes any property.
        let _ = Reflect::set(&object, &(*name).into(), value);
    }
    // A new port can be transferred.
    let _ = scope().post_message_with_transfer(&object, &Array::of1(&theirs));
}

fn frame(bytes: &[u8]) -> JsValue {
    Uint8Array::from(bytes).into()
}
