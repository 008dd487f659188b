//! The Web Worker in which a policy plays.

use js_sys::{Array, JSON, Reflect};
use wasm_bindgen::JsValue;
use web_sys::{File, HtmlCanvasElement, MessageEvent};

use crate::{
    shell::Store,
    state::{Event, Played},
    web_worker::{WebWorker, object},
};

/// The script next to the page that loads the sampler's module.
const SCRIPT: &str = "./player.js";

/// A policy that plays. Dropping it ends the playing.
pub(crate) struct Player {
    worker: Option<WebWorker>,
}

impl Player {
    /// Starts the Web Worker, which waits for a policy and a canvas.
    pub(crate) fn start(store: Store) -> Self {
        let hear = move |heard: Result<MessageEvent, String>| {
            let played = heard.map_or_else(|error| Played { error, ..Played::default() }, |event| read(&event.data()));
            store.dispatch(Event::Played(played));
        };
        Self { worker: WebWorker::start(SCRIPT, "rollmesh player", hear) }
    }

    /// Gives the player a file of a policy, which plays once the player has both of its files.
    pub(crate) fn open(&self, file: &File) {
        self.post(&[("name", file.name().into()), ("file", file.into())]);
    }

    /// Gives the player a file of a policy as bytes.
    pub(crate) fn take(&self, name: JsValue, bytes: JsValue) {
        self.post(&[("name", name), ("bytes", bytes)]);
    }

    /// Plays the policy of a folder on this page's origin.
    pub(crate) fn fetch(&self, folder: &str) {
        self.post(&[("folder", folder.into())]);
    }

    /// Takes an action in place of the policy, until `None`.
    pub(crate) fn act(&self, action: Option<u32>) {
        self.post(&[("action", action.map_or(JsValue::UNDEFINED, JsValue::from))]);
    }

    /// Draws on this canvas, which must not have been drawn on before.
    pub(crate) fn draw_on(&self, canvas: &HtmlCanvasElement) {
        let Ok(canvas) = Reflect::get(canvas, &"transferControlToOffscreen".into())
            .and_then(|transfer| js_sys::Function::from(transfer).call0(canvas))
        else {
            // The canvas was transferred already, or this browser has no offscreen canvas: the page shows only the
            // numbers.
            return;
        };
        let task = object(&[("canvas", canvas.clone())]);
        self.worker.iter().for_each(|worker| worker.give(&task, &Array::of1(&canvas)));
    }

    fn post(&self, fields: &[(&str, JsValue)]) {
        self.worker.iter().for_each(|worker| worker.post(&object(fields)));
    }
}

fn read(data: &JsValue) -> Played {
    let text = JSON::stringify(data).map_or_else(|_| String::new(), String::from);
    serde_json::from_str(&text).unwrap_or_default()
}
