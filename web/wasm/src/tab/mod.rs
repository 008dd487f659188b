//! This Web Worker at work for a hub.
//!
//! The page posts it a task: the hub, which is a URL or the `MessagePort` of a hub in a page, a token and a name; and if it is to
//! evaluate, what it is made of. From then on the Web Worker speaks to the hub by itself and posts its status to the page; to end
//! it, the page terminates it.

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
