//! Messages between the page and its Web Worker: plain objects with named fields.

use std::fmt::Display;

use js_sys::Reflect;
use rollmesh_core::{
    protocol::{Role, Token, handshake::Identity},
    run::RunConfig,
};
use wasm_bindgen::prelude::*;
use web_sys::MessagePort;

use super::scope::post_object;

/// The address of a hub.
#[derive(Clone)]
pub(crate) enum HubAddress {
    /// The URL of its WebSocket.
    Url(String),
    /// A port of a hub in a page.
    Port(MessagePort),
}

/// A task that the page posts.
pub(crate) struct Task {
    /// The hub.
    pub(crate) hub: HubAddress,
    /// A token of a worker.
    pub(crate) token: Token,
    /// The name for display, and of the evaluation worker if the tab is one.
    pub(crate) name: String,
    /// The run whose policy the evaluation worker evaluates, from settings that the page posts; without it the tab
    /// samples for the hub's run.
    pub(crate) run: Option<RunConfig>,
}

impl Task {
    /// Reads the page's message.
    pub(crate) fn read(data: &JsValue) -> Result<Self, String> {
        let field = |name: &str| Reflect::get(data, &name.into()).ok().and_then(|value| value.as_string());
        let text = |name: &str| field(name).ok_or_else(|| format!("the page's task has no '{name}'"));
        let wrong = |name: &str, error: &dyn Display| format!("the page's task has a wrong '{name}': {error}");
        let run = field("run").map(|run| RunConfig::of_wire_settings(&run)).transpose();
        Ok(Self {
            hub: match Reflect::get(data, &"port".into()).map(JsCast::dyn_into) {
                Ok(Ok(port)) => HubAddress::Port(port),
                _ => HubAddress::Url(text("url")?),
            },
            token: Token::from_hex(&text("token")?).map_err(|error| wrong("token", &error))?,
            name: text("name")?,
            run: run.map_err(|error| wrong("run", &error))?,
        })
    }

    /// Returns the tab's identity for the handshake with the hub.
    pub(crate) fn identity(&self, role: Role, core_fingerprint: [u8; 16]) -> Identity {
        Identity { core_fingerprint, ..Identity::new(role, self.token, "browser", &self.name, "wasm") }
    }
}

/// The status of the work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// `connecting`, `waiting`, `idle`, `unable`, `sampling` or `evaluating`.
    pub(crate) state: &'static str,
    /// The reason why this tab is unable to sample for the hub's run, else empty.
    pub(crate) reason: String,
    /// The id that the hub assigned, 0 before.
    pub(crate) worker: u32,
    /// The number of env steps done, over all connections.
    pub(crate) env_steps: u64,
    /// The number of leases done, over all connections.
    pub(crate) fragments: u64,
    /// The number of evaluations with a result.
    pub(crate) evaluations: u64,
    /// The version of the weights in use.
    pub(crate) weights_version: u64,
    /// The env steps per second over the last seconds.
    pub(crate) steps_per_s: f64,
}

/// Posts the status to the page.
pub(crate) fn post_status(status: &Status) {
    // JavaScript's numbers represent integers up to 2^53 exactly.
    post_object(&[
        ("state", status.state.into()),
        ("reason", status.reason.as_str().into()),
        ("worker", status.worker.into()),
        ("env_steps", (status.env_steps as f64).into()),
        ("fragments", (status.fragments as f64).into()),
        ("evaluations", (status.evaluations as f64).into()),
        ("weights_version", (status.weights_version as f64).into()),
        ("steps_per_s", status.steps_per_s.into()),
    ]);
}

/// Posts to the page that the work has ended and will not resume by itself.
pub(crate) fn post_end(reason: &str) {
    post_object(&[("state", "ended".into()), ("reason", reason.into())]);
}
