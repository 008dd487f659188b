//! The Web Worker of a tab that works at a hub.
//!
//! The page starts it, hears `ready`, and posts a task: the hub's URL, a token and a name; and if it is to evaluate, what
//! it is made of. From then on the Web Worker speaks to the hub by itself and posts its status to the page; to end it, the
//! page terminates it.

mod agent;
mod page;
mod rate;
mod scope;
mod slices;
mod socket;
mod work;

use wasm_bindgen::prelude::*;
use web_sys::MessageEvent;

use self::{agent::Agent, page::Task};

fn main() {
    console_error_panic_hook::set_once();
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(|event: MessageEvent| match Task::read(&event.data()) {
        Ok(task) => Agent::start(&task),
        Err(reason) => page::post_end(&reason),
    });
    scope::scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    // Lives as long as the Web Worker.
    on_message.forget();
    page::post_ready();
}
