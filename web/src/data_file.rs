//! The Web Worker that reads a file of logged experience, and its messages.

use std::{cell::OnceCell, rc::Rc, sync::Arc};

use js_sys::{Reflect, Uint8Array};
use rollmesh_core::encoding::decode;
use rollmesh_data::survey::Found;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{File, MessageEvent};

use crate::{
    shell::Store,
    state::{Clip, Event, FileStatus, OpenedFile},
    web_worker::{WebWorker, object},
};

/// The script next to the page that loads the reader's module.
const SCRIPT: &str = "./reader.js";

/// A file that is being read. Dropping it ends the reading.
pub(crate) struct DataFile {
    file: File,
    _worker: Option<WebWorker>,
}

impl DataFile {
    /// Begins to read, and to look for the steps from an episode on. Notifies the store of the progress. If the file's
    /// content is `known`, the file is read only up to these steps.
    pub(crate) fn start(store: Store, file: File, episode: u32, known: Option<Arc<Found>>) -> Self {
        let (name, bytes, again) = (file.name(), file.size() as u64, known.is_some());
        let opened = OpenedFile { name, bytes, episode, found: known.unwrap_or_default(), ..OpenedFile::default() };
        if !again {
            // This file replaces the previous one, which can no longer be replayed.
            store.dispatch(Event::FileRead(opened.clone()));
        }
        // The clip is in one message, and belongs to all later ones.
        let clip = Rc::new(OnceCell::new());
        let hear = move |heard: Result<MessageEvent, String>| {
            let read = heard.and_then(|event| {
                read_clip(&event.data()).into_iter().for_each(|found| _ = clip.set(found));
                read(&event.data(), OpenedFile { clip: clip.get().cloned(), ..opened.clone() })
            });
            let failed = |reason| {
                let (found, status) = (Arc::default(), FileStatus::Failed(reason));
                OpenedFile { found, status, ..opened.clone() }
            };
            store.dispatch(Event::FileRead(read.unwrap_or_else(failed)));
        };
        let worker = WebWorker::start(SCRIPT, "rollmesh reader", hear);
        let task = object(&[("file", file.clone().into()), ("episode", episode.into()), ("again", again.into())]);
        worker.iter().for_each(|worker| worker.post(&task));
        Self { file, _worker: worker }
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> File {
        self.file.clone()
    }
}

/// Reads the steps to be replayed from a message, if it has them.
fn read_clip(data: &JsValue) -> Option<Arc<Clip>> {
    let bytes: Uint8Array = Reflect::get(data, &"clip".into()).ok()?.dyn_into().ok()?;
    decode(&bytes.to_vec()).map(|clip| Arc::new(Clip::read(clip)))
}

/// Reads a message of the Web Worker.
fn read(data: &JsValue, file: OpenedFile) -> Result<OpenedFile, String> {
    let field = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    if let Some(reason) = field("error").as_string() {
        return Err(reason);
    }
    let found = match field("report").as_string() {
        Some(report) => Arc::new(serde_json::from_str::<Found>(&report).map_err(|error| error.to_string())?),
        None => file.found.clone(),
    };
    let read = field("read").as_f64().unwrap_or_default() as u64;
    let status = match found.gave_up.clone() {
        Some(reason) => FileStatus::Failed(reason),
        None if read == file.bytes => FileStatus::Read,
        None => FileStatus::Reading,
    };
    Ok(OpenedFile { read, found, status, ..file })
}
