//! An operator of a hub: its requests, and the hub's messages to it.

use rollmesh_core::protocol::{
    Connection, Message, Phase, Received, Role, Token, WorkerState,
    handshake::Identity,
    message::{Request, StartRun, WorkerRequest},
};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

use crate::Failure;

/// An operator's connection, whose frames JavaScript transports.
#[wasm_bindgen]
pub struct OperatorHandle {
    connection: Connection,
    last: u32,
}

#[wasm_bindgen]
impl OperatorHandle {
    /// Creates a connection with an operator's token in hexadecimal digits.
    #[wasm_bindgen(constructor)]
    pub fn new(token: &str) -> Result<Self, Failure> {
        let token = Token::from_hex(token).map_err(Failure::config)?;
        let identity = Identity::new(Role::Operator, token, "dashboard", "npm", "browser");
        Ok(Self { connection: Connection::new(identity), last: 0 })
    }

    /// Returns the next frame for the hub.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.connection.poll_frame().map(|frame| frame.to_vec())
    }

    /// Handles a frame of the hub. Returns its message, or the end of the connection, as JSON with one field; else
    /// `undefined`.
    pub fn handle(&mut self, frame: &[u8]) -> Option<String> {
        let received = self.connection.handle_frame(frame, None);
        if let Some(end) = self.connection.end() {
            return Some(json!({ "end": end.reason() }).to_string());
        }
        let Some(Received::Message(message)) = received else { return None };
        said(message).map(|said| said.to_string())
    }

    /// Queues a request and returns its number: `start` with a run's settings, `remove` with a worker's id, or `pause`, `resume`,
    /// `stop`, `drain` and `add`.
    pub fn request(&mut self, what: &str, value: &str) -> Result<u32, Failure> {
        self.last += 1;
        let request = self.last;
        let message = match what {
            "start" => Message::StartRun(StartRun { request, settings: value.into() }),
            "remove" => {
                Message::RemoveWorker(WorkerRequest { request, worker: value.parse().map_err(Failure::config)? })
            }
            "add" => Message::AddWorker(Request { request }),
            "pause" => Message::Pause(Request { request }),
            "resume" => Message::Resume(Request { request }),
            "stop" => Message::Stop(Request { request }),
            "drain" => Message::Drain(Request { request }),
            _ => return Err(Failure::config(format!("there is no request '{what}'"))),
        };
        self.connection.push(&message).map_err(Failure::config)?;
        Ok(request)
    }
}

fn said(message: Message) -> Option<Value> {
    Some(match message {
        Message::Iteration(point) => json!({ "iteration": serde_json::to_value(point).ok()? }),
        Message::Reply(reply) => {
            json!({ "reply": { "request": reply.request, "error": reply.error, "run": reply.run } })
        }
        Message::Notice(notice) => json!({ "notice": { "level": notice.level, "text": notice.text } }),
        Message::RunStatus(status) => json!({ "status": {
            "run": status.run,
            "phase": Phase::try_from(status.phase).map_or("unknown", Phase::name),
            "iteration": status.iteration,
            "envSteps": status.env_steps,
            "error": status.error,
            "failures": status.failures,
            "lastFailure": status.last_failure,
        } }),
        Message::WorkerRow(row) => json!({ "worker": {
            "id": row.worker,
            "name": row.name,
            "state": WorkerState::try_from(row.state).map_or("unknown", WorkerState::name),
            "reason": row.reason,
            "slots": row.slots,
            "envSteps": row.env_steps,
            "stepsPerSecond": row.steps_per_s,
        } }),
        Message::WorkerGone(gone) => json!({ "gone": gone.worker }),
        _ => return None,
    })
}
