//! The Web Worker that reads a file of logged experience, and what it posts.

use std::sync::Arc;

use js_sys::Reflect;
use rollmesh_data::survey::Found;
use wasm_bindgen::JsValue;
use web_sys::{File, MessageEvent};

use crate::{
    shell::Store,
    state::{Event, FileStatus, OpenedFile},
    web_worker::WebWorker,
};

/// Next to the page; it loads the module that reads.
const SCRIPT: &str = "./reader.js";

/// A file that is being read. Dropping it ends that.
pub(crate) struct DataFile {
    _worker: Option<WebWorker>,
}

impl DataFile {
    /// Begins to read. The store is notified of the progress.
    pub(crate) fn start(store: Store, file: &File) -> Self {
        let (name, bytes) = (file.name(), file.size() as u64);
        let opened = OpenedFile { name, bytes, ..OpenedFile::default() };
        let hear = move |heard: Result<MessageEvent, String>| {
            let read = heard.and_then(|event| read(&event.data(), opened.clone()));
            let failed = |reason| OpenedFile { status: FileStatus::Failed(reason), ..opened.clone() };
            store.dispatch(Event::FileRead(read.unwrap_or_else(failed)));
        };
        let worker = WebWorker::start(SCRIPT, "rollmesh reader", hear);
        worker.iter().for_each(|worker| worker.post(file));
        Self { _worker: worker }
    }
}

/// Reads what the Web Worker has posted.
fn read(data: &JsValue, file: OpenedFile) -> Result<OpenedFile, String> {
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let found = match field("report").as_string() {
        Some(report) => serde_json::from_str(&report).map_err(|error| error.to_string())?,
        None => Found::default(),
    };
    let read = field("read").as_f64().unwrap_or_default() as u64;
    let status = match field("error").as_string().or_else(|| found.gave_up.clone()) {
        Some(reason) => FileStatus::Failed(reason),
        None if read == file.bytes => FileStatus::Read,
        None => FileStatus::Reading,
    };
    Ok(OpenedFile { read, found: Arc::new(found), status, ..file })
}
