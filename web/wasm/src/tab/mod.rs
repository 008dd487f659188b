//! A Web Worker that works for a hub.
//!
//! The page posts it a task: the hub, which is a URL or the `MessagePort` of a hub in a page, a token and a name; and
//! for an evaluation worker, the run's settings. From then on the Web Worker communicates with the hub directly and
//! posts its status to the page; to end it, the page terminates it.

mod agent;
mod page;
mod rate;
pub(crate) mod scope;
mod slices;
mod socket;
mod work;

use wasm_bindgen::prelude::*;

use self::{agent::Agent, page::Task};

/// Works for a hub, as the page's task says.
#[wasm_bindgen]
pub fn work(task: &JsValue) {
    match Task::read(task) {
        Ok(task) => Agent::start(&task),
        Err(reason) => page::post_end(&reason),
    }
}
