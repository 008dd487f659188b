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

/// Where a hub is.
#[derive(Clone)]
pub(crate) enum HubAddress {
    /// The URL of its WebSocket.
    Url(String),
    /// A port of a hub in a page.
    Port(MessagePort),
}

/// What the page wants done.
pub(crate) struct Task {
    /// The hub.
    pub(crate) hub: HubAddress,
    /// A token of a worker.
    pub(crate) token: Token,
    /// Name for people, and of the evaluation worker if it is to be one.
    pub(crate) name: String,
    /// The run whose policy that evaluates, of which the page posts the settings; without it the tab samples for the hub's run.
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

    /// What the tab says of itself to a hub.
    pub(crate) fn identity(&self, role: Role, core_fingerprint: [u8; 16]) -> Identity {
        Identity { core_fingerprint, ..Identity::new(role, self.token, "browser", &self.name, "wasm") }
    }
}

/// How the work goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// `connecting`, `waiting`, `idle`, `unable`, `sampling` or `evaluating`.
    pub(crate) state: &'static str,
    /// Why this tab is unable to run the hub's run, else empty.
    pub(crate) reason: String,
    /// The id that the hub gave, 0 before.
    pub(crate) worker: u32,
    /// Env steps done, over all connections.
    pub(crate) env_steps: u64,
    /// Leases done, over all connections.
    pub(crate) fragments: u64,
    /// Evaluations that came to a result.
    pub(crate) evaluations: u64,
    /// Version of the weights that act.
    pub(crate) weights_version: u64,
    /// Env steps per second over the last seconds.
    pub(crate) steps_per_s: f64,
}

/// Tells how it goes.
pub(crate) fn post_status(status: &Status) {
    // Numbers of JavaScript hold whole numbers up to 2^53.
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

/// Tells that the work is over and will not continue by itself.
pub(crate) fn post_end(reason: &str) {
    post_object(&[("state", "ended".into()), ("reason", reason.into())]);
}
