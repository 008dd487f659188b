//! The Web Worker in which this tab works for the hub.

use js_sys::{Object, Reflect};
use leptos::prelude::document;
use rollmesh_core::protocol::Token;
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use web_sys::{ErrorEvent, MessageEvent, Url, Worker, WorkerOptions, WorkerType};

use crate::{
    shell::Store,
    socket::hub_url,
    state::{Event, TabJob, TabStatus},
};

/// Built beside the page from `web/wasm`.
const SCRIPT: &str = "./rollmesh_worker_loader.js";

/// A running Web Worker. Dropping it ends it.
pub(crate) struct TabWorkerHandle {
    worker: Worker,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

impl TabWorkerHandle {
    /// Starts the Web Worker with a token for its job.
    pub(crate) fn start(store: Store, job: &TabJob, token: Token) -> Option<Self> {
        let task = task(job, token);
        let Ok(worker) = spawn(SCRIPT, "rollmesh worker") else {
            store.dispatch(ended("this browser does not start module workers".into()));
            return None;
        };
        let peer = worker.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let status = status(&event.data());
            // It listens only once its module has loaded; then it says so, and gets its task.
            if status.state == "ready" {
                let _ = peer.post_message(&task);
            } else {
                store.dispatch(Event::Tab(status));
            }
        });
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            let message = event.message();
            store.dispatch(ended(if message.is_empty() { format!("{SCRIPT} could not be loaded") } else { message }));
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        Some(Self { worker, _on_message: on_message, _on_error: on_error })
    }
}

impl Drop for TabWorkerHandle {
    fn drop(&mut self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        // Its socket closes with it; the hub leases its slots again.
        self.worker.terminate();
    }
}

/// Starts a Web Worker of this name by the script that loads its module.
pub(crate) fn spawn(script: &str, name: &str) -> Result<Worker, JsValue> {
    let base = document().base_uri()?.unwrap_or_default();
    let url = Url::new_with_base(script, &base)?;
    let options = WorkerOptions::new();
    options.set_type(WorkerType::Module);
    options.set_name(name);
    Worker::new_with_options(&url.href(), &options)
}

fn task(job: &TabJob, token: Token) -> JsValue {
    let (name, run) = match job {
        TabJob::Sample => ("browser tab".to_owned(), None),
        TabJob::Evaluate(evaluator) => (evaluator.name.clone(), Some(evaluator.run.to_string())),
    };
    let task = Object::new();
    let fields = [("url", Some(hub_url())), ("token", Some(token.to_hex())), ("name", Some(name)), ("run", run)];
    for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        // A fresh object takes any property.
        let _ = Reflect::set(&task, &name.into(), &value.into());
    }
    task.into()
}

fn status(data: &JsValue) -> TabStatus {
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let text = |name| field(name).as_string().unwrap_or_default();
    let number = |name| field(name).as_f64().unwrap_or_default();
    TabStatus {
        state: text("state"),
        reason: text("reason"),
        worker: number("worker") as u32,
        env_steps: number("env_steps") as u64,
        fragments: number("fragments") as u64,
        evaluations: number("evaluations") as u64,
        weights_version: number("weights_version") as u64,
        steps_per_s: number("steps_per_s"),
    }
}

fn ended(reason: String) -> Event {
    Event::Tab(TabStatus { state: "ended".into(), reason, ..TabStatus::default() })
}
