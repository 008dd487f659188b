//! The hub of this tab in a Web Worker, and the Web Workers that the page starts for it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use js_sys::{Array, Reflect, Uint8Array};
use leptos::prelude::{document, set_timeout};
use rollmesh_core::protocol::{Message, Role, Token, message::Notice};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{MessageEvent, Worker};

use crate::{
    save,
    shell::Store,
    socket,
    state::Event,
    tab_worker,
    web_worker::{WebWorker, object},
};

/// The script next to the page that loads the module of `web/wasm`.
const SCRIPT: &str = "./trainer.js";

/// The time within which a Web Worker must be ready; otherwise it is replaced, as in the npm package.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running hub. Dropping it ends it, with its run and its workers.
pub(crate) struct Trainer(WebWorker);

/// The Web Workers that work for the hub, by the number of their port.
type Workers = Rc<RefCell<BTreeMap<u32, WebWorker>>>;

impl Trainer {
    /// Starts the Web Worker, which posts the first message.
    pub(crate) fn start(store: Store) -> Option<Self> {
        // The Web Worker posts a panic, and its module then ends with an error: both count as one failure.
        let has_failed = Rc::new(Cell::new(false));
        let workers = Workers::default();
        let hear = move |heard: Result<MessageEvent, String>| {
            let event =
                heard.map_or_else(|reason| Some(Event::TrainerFailed(reason)), |event| read(store, &event, &workers));
            let is_new = |event: &Event| !matches!(event, Event::TrainerFailed(_)) || !has_failed.replace(true);
            event.filter(is_new).into_iter().for_each(|event| store.dispatch(event));
        };
        WebWorker::start(SCRIPT, "rollmesh hub", hear).map(Self)
    }

    /// Sends a request.
    pub(crate) fn send(&self, message: &Message) {
        self.0.post(&Uint8Array::from(&*message.encode()));
    }

    /// Notifies the hub whether the page is hidden; while it is, the hub draws nothing.
    pub(crate) fn set_hidden(&self, is_hidden: bool) {
        self.0.post(&hidden(is_hidden));
    }

    /// Requests a file of the policy, which is downloaded when it arrives.
    pub(crate) fn save(&self, file: &str) {
        self.0.post(&object(&[("file", file.into())]));
    }

    /// Requests the files of the policy, which plays when they arrive.
    pub(crate) fn play(&self) {
        for file in ["policy.json", "weights.safetensors"] {
            self.0.post(&object(&[("file", file.into()), ("plays", true.into())]));
        }
    }
}

fn hidden(is_hidden: bool) -> JsValue {
    object(&[("hidden", is_hidden.into())]).into()
}

/// Handles a message of the hub. Returns its event; `None` for a message that does not change the state.
fn read(store: Store, event: &MessageEvent, workers: &Workers) -> Option<Event> {
    let data = event.data();
    if let Some(frame) = data.dyn_ref::<Uint8Array>() {
        return Some(match Message::decode(&frame.to_vec()) {
            Ok(message) => Event::Trainer(message),
            Err(error) => Event::TrainerFailed(format!("the trainer sent something unreadable: {error}")),
        });
    }
    if let Some(reason) = data.as_string() {
        return Some(Event::TrainerFailed(reason));
    }
    let field = |name: &str| Reflect::get(&data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let hub: Worker = event.target()?.dyn_into().ok()?;
    if let Some(number) = field("start").as_f64() {
        start_worker(&hub, number as u32, &field("token"), &field("port"), workers);
    } else if let Some(number) = field("closed").as_f64() {
        workers.borrow_mut().remove(&(number as u32));
    } else if let Some(token) = field("token").as_string() {
        let hello = socket::identity(Role::Operator, Token::from_hex(&token).ok()?).hello();
        // Bytes can always be posted.
        let _ = hub.post_message(&Uint8Array::from(&*hello.encode()));
        // The page may have been opened in the background.
        let _ = hub.post_message(&hidden(document().hidden()));
    } else if let Some(text) = field("error").as_string() {
        return Some(Event::Trainer(Message::Notice(Notice { level: 2, text })));
    } else if let Ok(bytes) = field("bytes").dyn_into::<Uint8Array>() {
        if field("plays").is_truthy() {
            store.play(|player| player.take(field("name"), bytes.into()));
        } else {
            // A browser that blocks the download notifies the user itself.
            let _ = save::bytes(&bytes, &field("name").as_string()?);
        }
    } else {
        let run = field("run").as_f64()? as u32;
        return Some(Event::Trained { run, weights_hash: field("weights_hash").as_string()? });
    }
    None
}

/// Starts a Web Worker that works for the hub, and reports its end.
fn start_worker(hub: &Worker, number: u32, token: &JsValue, port: &JsValue, workers: &Workers) {
    let task = object(&[("token", token.clone()), ("port", port.clone()), ("name", format!("worker-{number}").into())]);
    let (hub, transfer, is_ready) = (hub.clone(), Array::of1(port), Rc::new(Cell::new(false)));
    let end = move |reason: &str| {
        // An object of a number and a text can be posted.
        let _ = hub.post_message(&object(&[("ended", number.into()), ("reason", reason.into())]));
    };
    let (late, started, there) = (end.clone(), is_ready.clone(), workers.clone());
    let hear = move |heard: Result<MessageEvent, String>| {
        let status = heard.as_ref().map_or_else(|_| JsValue::UNDEFINED, MessageEvent::data);
        let field = |name: &str| Reflect::get(&status, &name.into()).ok().and_then(|value| value.as_string());
        let ended = match (field("state").as_deref(), &heard) {
            (Some("ready"), Ok(event)) => {
                is_ready.set(true);
                let worker = event.target().and_then(|target| target.dyn_into::<Worker>().ok());
                worker.into_iter().for_each(|worker| _ = worker.post_message_with_transfer(&task, &transfer));
                return;
            }
            (Some("ended"), _) => field("reason").unwrap_or_default(),
            (_, Err(reason)) => reason.clone(),
            _ => return,
        };
        end(&ended);
    };
    let worker = WebWorker::start(tab_worker::SCRIPT, "rollmesh worker", hear);
    workers.borrow_mut().extend(worker.map(|worker| (number, worker)));
    let look = move || {
        if !started.get() && there.borrow().contains_key(&number) {
            late(&format!("it is not ready after {} s", START_TIMEOUT.as_secs()));
        }
    };
    set_timeout(look, START_TIMEOUT);
}
