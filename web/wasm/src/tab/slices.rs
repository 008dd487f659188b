//! Work in slices, between which messages are handled.

use wasm_bindgen::prelude::*;
use web_sys::MessageChannel;

/// A callback that runs after the events that are already queued. Browsers slow timers down to 4 ms and, in hidden
/// tabs, to a second; a message to oneself arrives immediately.
pub(crate) struct Slices {
    channel: MessageChannel,
    is_waiting: bool,
}

impl Slices {
    /// Creates the message channel; `None` in a browser without message channels.
    pub(crate) fn new() -> Option<Self> {
        Some(Self { channel: MessageChannel::new().ok()?, is_waiting: false })
    }

    /// Sets the callback that runs in every slice.
    pub(crate) fn on_slice(&self, run: impl FnMut() + 'static) {
        // The closure lives as long as the Web Worker.
        let run = Closure::<dyn FnMut()>::new(run).into_js_value();
        self.channel.port1().set_onmessage(Some(run.unchecked_ref()));
    }

    /// Asks for a slice, unless one was asked for already.
    pub(crate) fn ask(&mut self) {
        if !self.is_waiting {
            self.is_waiting = self.channel.port2().post_message(&JsValue::NULL).is_ok();
        }
    }

    /// Records that the requested slice has begun.
    pub(crate) fn begin(&mut self) {
        self.is_waiting = false;
    }
}
