//! A Web Worker of the page.

use js_sys::{Array, Object, Reflect};
use leptos::prelude::document;
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use web_sys::{ErrorEvent, MessageEvent, Url, Worker, WorkerOptions, WorkerType};

/// A running Web Worker. Dropping it ends it.
pub(crate) struct WebWorker {
    worker: Worker,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

impl WebWorker {
    /// Starts the script that loads a Web Worker's module. `hear` receives its messages, or the reason why it cannot
    /// work.
    pub(crate) fn start(
        script: &'static str,
        name: &str,
        hear: impl Fn(Result<MessageEvent, String>) + Clone + 'static,
    ) -> Option<Self> {
        let Ok(worker) = spawn(script, name) else {
            hear(Err("this browser does not start module workers".into()));
            return None;
        };
        let heard = hear.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event| heard(Ok(event)));
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            let message = event.message();
            hear(Err(if message.is_empty() { format!("{script} could not be loaded") } else { message }));
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        Some(Self { worker, _on_message: on_message, _on_error: on_error })
    }

    /// Posts bytes, a string, a file or a plain object.
    pub(crate) fn post(&self, data: &JsValue) {
        let _ = self.worker.post_message(data);
    }

    /// Posts an object, and transfers the given objects.
    pub(crate) fn give(&self, data: &JsValue, transfer: &Array) {
        let _ = self.worker.post_message_with_transfer(data, transfer);
    }
}

impl Drop for WebWorker {
    fn drop(&mut self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        self.worker.terminate();
    }
}

/// Returns a plain object with these fields.
pub(crate) fn object(fields: &[(&str, JsValue)]) -> Object {
    let object = Object::new();
    for (name, value) in fields {
        // A fresh object takes any property.
        let _ = Reflect::set(&object, &(*name).into(), value);
    }
    object
}

fn spawn(script: &str, name: &str) -> Result<Worker, JsValue> {
    let base = document().base_uri()?.unwrap_or_default();
    let url = Url::new_with_base(script, &base)?;
    let options = WorkerOptions::new();
    options.set_type(WorkerType::Module);
    options.set_name(name);
    Worker::new_with_options(&url.href(), &options)
}
