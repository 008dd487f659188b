//! The hub and the learner: for JavaScript, and as the Web Worker in which a page without a hub trains.
//!
//! To that page it is a hub: the page posts an operator's requests as frames of the protocol, and the Web Worker posts replies
//! and reports as such frames. Two things have no message in the protocol: the hash of a run's weights when the run has
//! ended, and a file of the policy, for which the page posts the file's name. Both are objects with named fields. A text from the
//! Web Worker is the reason why it has failed.

mod algorithm;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../columns.rs"]
mod columns;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../envs/mod.rs"]
mod envs;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../failure.rs"]
mod failure;
#[path = "../worker/scope.rs"]
mod scope;
#[path = "../worker/slices.rs"]
mod slices;
mod tab_hub;

use std::{cell::RefCell, panic, rc::Rc};

use js_sys::Uint8Array;
use rollmesh_core::{protocol::Message, time::Micros};
use wasm_bindgen::prelude::*;
use web_sys::MessageEvent;

pub use self::{
    algorithm::AlgorithmHandle,
    envs::{env_random, register_env},
    failure::{Failure, use_error_class},
};
use self::{
    scope::{now, post, post_object, scope},
    slices::Slices,
    tab_hub::{Report, TabHub},
};

/// A slice of work ends after this, so that requests are heard.
const SLICE: Micros = Micros::from_millis(20);

struct Trainer {
    hub: TabHub,
    slices: Slices,
}

fn main() {
    console_error_panic_hook::set_once();
}

/// Makes this Web Worker the hub of its page.
#[wasm_bindgen]
pub fn serve() {
    panic::set_hook(Box::new(|panic| {
        post(&panic.to_string().into());
        console_error_panic_hook::hook(panic);
    }));
    let Some(slices) = Slices::new() else { return post(&"this browser has no message channels".into()) };
    let trainer = Rc::new(RefCell::new(Trainer { hub: TabHub::new((js_sys::Date::now() / 1_000.0) as u32), slices }));
    let working = trainer.clone();
    trainer.borrow().slices.on_slice(move || working.borrow_mut().work());
    let heard = trainer.clone();
    let on_message =
        Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| heard.borrow_mut().hear(&event.data()));
    scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    // Lives as long as the Web Worker.
    on_message.forget();
    trainer.borrow_mut().pump();
}

impl Trainer {
    fn hear(&mut self, data: &JsValue) {
        if let Some(frame) = data.dyn_ref::<Uint8Array>() {
            match Message::decode(&frame.to_vec()) {
                Ok(message) => self.hub.handle(message, now()),
                Err(error) => post(&format!("the page sent something unreadable: {error}").into()),
            }
        } else if let Some(name) = data.as_string() {
            self.hub.give_file(&name);
        }
        self.pump();
    }

    fn work(&mut self) {
        self.slices.begin();
        let begun = now();
        let mut time = begun;
        while self.hub.has_work() && time.since(begun) < SLICE {
            self.hub.work(time);
            time = now();
        }
        self.pump();
    }

    /// Posts what there is to say, and asks for another slice if there is work.
    fn pump(&mut self) {
        while let Some(report) = self.hub.poll() {
            match report {
                Report::Message(message) => post(&Uint8Array::from(&*message.encode())),
                Report::Hash { run, weights_hash } => {
                    post_object(&[("run", run.into()), ("weights_hash", weights_hash.into())]);
                }
                Report::File { name, bytes } => {
                    post_object(&[("name", name.into()), ("bytes", Uint8Array::from(&*bytes).into())]);
                }
            }
        }
        if self.hub.has_work() {
            self.slices.ask();
        }
    }
}
