//! The scope, clock and messages of a Web Worker.

use js_sys::{Object, Reflect};
use rollmesh_core::time::Micros;
use wasm_bindgen::prelude::*;
use web_sys::DedicatedWorkerGlobalScope;

/// Returns this Web Worker's scope.
pub(crate) fn scope() -> DedicatedWorkerGlobalScope {
    js_sys::global().unchecked_into()
}

/// Returns the time on this Web Worker's clock.
pub(crate) fn now() -> Micros {
    let ms = scope().performance().map_or_else(js_sys::Date::now, |clock| clock.now());
    Micros((ms * 1_000.0) as u64)
}

/// Posts text, bytes or a plain object to the page.
pub(crate) fn post(data: &JsValue) {
    // All of these can be posted.
    let _ = scope().post_message(data);
}

/// Posts a plain object with these fields.
pub(crate) fn post_object(fields: &[(&str, JsValue)]) {
    let object = Object::new();
    for (name, value) in fields {
        // A fresh object takes any property.
        let _ = Reflect::set(&object, &(*name).into(), value);
    }
    post(&object);
}
