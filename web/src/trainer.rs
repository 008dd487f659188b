//! The Web Worker in which this tab trains: to the page a hub, which exchanges the protocol's messages.

use std::{cell::Cell, rc::Rc};

use js_sys::{Reflect, Uint8Array};
use rollmesh_core::protocol::Message;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::MessageEvent;

use crate::{save, shell::Store, state::Event, web_worker::WebWorker};

/// Beside the page; it loads the module that `web/wasm` has.
const SCRIPT: &str = "./trainer.js";

/// A running trainer. Dropping it ends it, with its run.
pub(crate) struct Trainer(WebWorker);

impl Trainer {
    /// Starts the Web Worker. It speaks first.
    pub(crate) fn start(store: Store) -> Option<Self> {
        // A panic is posted, and ends the module with an error: it counts once.
        let has_failed = Rc::new(Cell::new(false));
        let hear = move |heard: Result<MessageEvent, String>| {
            let event = heard.map_or_else(|reason| Some(Event::TrainerFailed(reason)), |event| read(&event.data()));
            let is_new = |event: &Event| !matches!(event, Event::TrainerFailed(_)) || !has_failed.replace(true);
            event.filter(is_new).into_iter().for_each(|event| store.dispatch(event));
        };
        WebWorker::start(SCRIPT, "rollmesh trainer", hear).map(Self)
    }

    /// Sends a request.
    pub(crate) fn send(&self, message: &Message) {
        self.0.post(&Uint8Array::from(&*message.encode()));
    }

    /// Asks for a file of the policy, which is offered to be saved when it comes.
    pub(crate) fn save(&self, file: &str) {
        self.0.post(&file.into());
    }
}

/// What the trainer has posted; none for a file, which needs no state.
fn read(data: &JsValue) -> Option<Event> {
    if let Some(frame) = data.dyn_ref::<Uint8Array>() {
        return Some(match Message::decode(&frame.to_vec()) {
            Ok(message) => Event::Trainer(message),
            Err(error) => Event::TrainerFailed(format!("the trainer sent something unreadable: {error}")),
        });
    }
    if let Some(reason) = data.as_string() {
        return Some(Event::TrainerFailed(reason));
    }
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    if let Ok(bytes) = field("bytes").dyn_into::<Uint8Array>() {
        // A browser that does not save says so by itself.
        let _ = save::bytes(&bytes, &field("name").as_string()?);
        return None;
    }
    let run = field("run").as_f64()? as u32;
    Some(Event::Trained { run, weights_hash: field("weights_hash").as_string()? })
}
