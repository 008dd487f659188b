//! The Web Worker of a tab that works for a run.
//!
//! The page starts it, hears `ready`, and posts a task: the hub's URL and a worker's token. From then on the Web
//! Worker speaks to the hub by itself and posts its status to the page; to end it, the page terminates it.

mod agent;
mod page;
mod rate;
mod slices;
mod socket;

use wasm_bindgen::prelude::*;
use web_sys::MessageEvent;

use self::{agent::Agent, page::Task};

fn main() {
    console_error_panic_hook::set_once();
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(|event: MessageEvent| match Task::read(&event.data()) {
        Some(task) => Agent::start(task),
        None => page::post_end("the page gave no task that can be read; reload it"),
    });
    page::scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    // Lives as long as the Web Worker.
    on_message.forget();
    page::post_ready();
}
