//! The Web Worker in which this tab trains: to the page a hub, which exchanges the protocol's messages.

use std::{cell::Cell, rc::Rc};

use js_sys::{Reflect, Uint8Array};
use rollmesh_core::protocol::Message;
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use web_sys::{ErrorEvent, MessageEvent, Worker};

use crate::{save, shell::Store, state::Event, tab_worker::spawn};

/// Beside the page; it loads the module that `web/wasm` has.
const SCRIPT: &str = "./trainer.js";

/// A running trainer. Dropping it ends it, with its run.
pub(crate) struct Trainer {
    worker: Worker,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

impl Trainer {
    /// Starts the Web Worker. It speaks first.
    pub(crate) fn start(store: Store) -> Option<Self> {
        let Ok(worker) = spawn(SCRIPT, "rollmesh trainer") else {
            store.dispatch(Event::TrainerFailed("this browser does not start module workers".into()));
            return None;
        };
        // A panic is posted, and ends the module with an error: it counts once.
        let has_failed = Rc::new(Cell::new(false));
        let failed = has_failed.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let event = read(&event.data());
            if let Some(event) =
                event.filter(|event| !matches!(event, Event::TrainerFailed(_)) || !failed.replace(true))
            {
                store.dispatch(event);
            }
        });
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            let message = event.message();
            let reason = if message.is_empty() { format!("{SCRIPT} could not be loaded") } else { message };
            if !has_failed.replace(true) {
                store.dispatch(Event::TrainerFailed(reason));
            }
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        Some(Self { worker, _on_message: on_message, _on_error: on_error })
    }

    /// Sends a request.
    pub(crate) fn send(&self, message: &Message) {
        self.post(&Uint8Array::from(&*message.encode()));
    }

    /// Asks for a file of the policy, which is offered to be saved when it comes.
    pub(crate) fn save(&self, file: &str) {
        self.post(&file.into());
    }

    fn post(&self, data: &JsValue) {
        // Bytes and texts can be posted.
        let _ = self.worker.post_message(data);
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        self.worker.terminate();
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
