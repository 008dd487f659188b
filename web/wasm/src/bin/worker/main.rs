//! The Web Worker of a tab that works for a run.

use wasm_bindgen::prelude::*;

fn main() {
    console_error_panic_hook::set_once();
    let status = js_sys::Object::new();
    let fields = [("state", "ended"), ("reason", "this build of the page cannot work for a run yet")];
    for (name, value) in fields {
        let _ = js_sys::Reflect::set(&status, &name.into(), &value.into());
    }
    let scope: web_sys::DedicatedWorkerGlobalScope = js_sys::global().unchecked_into();
    let _ = scope.post_message(&status);
}
