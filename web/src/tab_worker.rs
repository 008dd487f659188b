//! The Web Workers in which this tab works for the hub.

use js_sys::JSON;
use rollmesh_core::protocol::Token;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::Worker;

use crate::{
    shell::Store,
    socket::hub_url,
    state::{Event, TabJob, TabStatus},
    web_worker::{WebWorker, object},
};

/// The script next to the page that loads the module of `web/wasm`.
pub(crate) const SCRIPT: &str = "./worker.js";

/// A running Web Worker. Dropping it terminates the Web Worker and closes its socket; the hub re-grants its leases.
pub(crate) struct TabWorkerHandle {
    _worker: WebWorker,
}

impl TabWorkerHandle {
    /// Starts the Web Worker with a token for its job.
    pub(crate) fn start(store: Store, worker: u32, job: &TabJob, token: Token) -> Option<Self> {
        let (number, task) = (worker, task(worker, job, token));
        let hear = move |heard: Result<web_sys::MessageEvent, String>| {
            let status = heard.map_or_else(ended, |event| {
                let status = status(&event.data());
                // The Web Worker posts when its module has loaded; only then does it listen, and gets its task.
                let worker = event.target().and_then(|target| target.dyn_into::<Worker>().ok());
                if let Some(worker) = worker.filter(|_| status.state == "ready") {
                    let _ = worker.post_message(&task);
                }
                status
            });
            if status.state != "ready" {
                store.dispatch(Event::Tab { worker: number, status });
            }
        };
        WebWorker::start(SCRIPT, "rollmesh worker", hear).map(|worker| Self { _worker: worker })
    }
}

fn task(worker: u32, job: &TabJob, token: Token) -> JsValue {
    let (name, run) = match job {
        TabJob::Sample if worker == 1 => ("browser tab".to_owned(), None),
        TabJob::Sample => (format!("browser tab {worker}"), None),
        TabJob::Evaluate(evaluator) => (evaluator.name.clone(), Some(evaluator.run.to_string())),
    };
    let fields = [("url", Some(hub_url())), ("token", Some(token.to_hex())), ("name", Some(name)), ("run", run)];
    let fields: Vec<_> = fields.into_iter().filter_map(|(name, value)| Some((name, value?.into()))).collect();
    object(&fields).into()
}

fn status(data: &JsValue) -> TabStatus {
    let text = JSON::stringify(data).map_or_else(|_| String::new(), String::from);
    serde_json::from_str(&text).unwrap_or_default()
}

fn ended(reason: String) -> TabStatus {
    TabStatus { state: "ended".into(), reason, ..TabStatus::default() }
}
