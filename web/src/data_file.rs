//! The Web Worker that reads a file of logged experience, and what it posts.

use js_sys::Reflect;
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use web_sys::{ErrorEvent, File, MessageEvent, Worker};

use crate::{
    shell::Store,
    state::{Event, FileReport, FileStatus, OpenedFile},
    tab_worker::spawn,
};

/// Beside the page; it loads the module that reads.
const SCRIPT: &str = "./reader.js";

/// A file that is being read. Dropping it ends that.
pub(crate) struct DataFile {
    /// None in a browser without module workers, which is told.
    worker: Option<Worker>,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

impl DataFile {
    /// Begins to read. The store is notified of the progress.
    pub(crate) fn start(store: Store, file: &File) -> Self {
        let (name, bytes) = (file.name(), file.size() as u64);
        let opened = OpenedFile { name, bytes, ..OpenedFile::default() };
        let fail = {
            let opened = opened.clone();
            move |reason: String| {
                store.dispatch(Event::FileRead(OpenedFile { status: FileStatus::Failed(reason), ..opened.clone() }));
            }
        };
        let failed = fail.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            match read(&event.data(), opened.clone()) {
                Ok(opened) => store.dispatch(Event::FileRead(opened)),
                Err(reason) => failed(reason),
            }
        });
        let failed = fail.clone();
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            let message = event.message();
            failed(if message.is_empty() { format!("{SCRIPT} could not be loaded") } else { message });
        });
        let worker = spawn(SCRIPT, "rollmesh reader").ok();
        match &worker {
            Some(worker) => {
                worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
                worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
                // Files can be posted.
                let _ = worker.post_message(file);
            }
            None => fail("this browser does not start module workers".into()),
        }
        Self { worker, _on_message: on_message, _on_error: on_error }
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            worker.set_onmessage(None);
            worker.set_onerror(None);
            worker.terminate();
        }
    }
}

/// Reads what the Web Worker has posted.
fn read(data: &JsValue, file: OpenedFile) -> Result<OpenedFile, String> {
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let report = field("report").as_string().unwrap_or_default();
    let report: FileReport = serde_json::from_str(&report).map_err(|error| error.to_string())?;
    let read = field("read").as_f64().unwrap_or_default() as u64;
    let status = match field("error").as_string().or_else(|| report.gave_up.clone()) {
        Some(reason) => FileStatus::Failed(reason),
        None if read == file.bytes => FileStatus::Read,
        None => FileStatus::Reading,
    };
    Ok(OpenedFile { read, report: report.into(), status, ..file })
}
