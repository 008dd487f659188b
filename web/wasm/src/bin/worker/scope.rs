//! What every Web Worker has.

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
