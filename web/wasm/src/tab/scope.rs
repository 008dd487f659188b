//! What every Web Worker has.

use js_sys::{Object, Reflect};
use rollmesh_core::time::Micros;
use wasm_bindgen::prelude::*;
use web_sys::DedicatedWorkerGlobalScope;

/// This Web Worker's own scope.
pub(crate) fn scope() -> DedicatedWorkerGlobalScope {
    js_sys::global().unchecked_into()
}

/// The time on this Web Worker's clock.
pub(crate) fn now() -> Micros {
    let ms = scope().performance().map_or_else(js_sys::Date::now, |clock| clock.now());
    Micros((ms * 1_000.0) as u64)
}

/// Posts text, bytes or a plain object to the page.
pub(crate) fn post(data: &JsValue) {
    // Each of these can be posted.
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
