//! Hubs that are controlled from the shell and ended by signals: programs as people run them.

mod commands;
mod deploy;
mod documented;
mod launch;
mod mistakes;
mod queue;
mod signals;

use crate::support::{
    Process,
    client::Client,
    json,
    process::{Finished, Invitation},
};
use rollmesh_core::protocol::{Message, Role, Token, message::StartRun};
use serde_json::Value;

/// A hub without a run, as a process.
struct HubProcess {
    process: Process,
    invitation: Invitation,
}

impl HubProcess {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(args: &[&str]) -> Self {
        let mut process = Process::start(["hub", "--listen", "127.0.0.1:0"].iter().chain(args));
        let invitation = process.invitation().await;
        Self { process, invitation }
    }

    async fn operator(&self) -> Client {
        let token = Token::from_hex(&self.invitation.operator_token).unwrap();
        Client::join(&self.invitation.address, Role::Operator, token).await
    }

    /// Begins a run that continues until it is stopped; its workers may still be starting.
    async fn start_run(&self, num_workers: u32) {
        let start = |request| {
            let settings = serde_json::json!({
                "seed": 1, "num_workers": num_workers, "num_envs": 4, "stop": { "env_steps": u64::MAX },
            });
            Message::StartRun(StartRun { request, settings: settings.to_string() })
        };
        assert_eq!(self.operator().await.ask(start).await, "");
    }

    async fn command(&self, args: &[&str]) -> Finished {
        command(&self.invitation, args).await
    }

    /// Runs a command, which must succeed; returns its output.
    async fn succeed(&self, args: &[&str]) -> String {
        succeed(&self.invitation, args).await
    }

    async fn status(&self) -> Value {
        json(&self.succeed(&["status", "--json"]).await)
    }

    async fn workers(&self) -> Vec<Value> {
        let Value::Array(workers) = json(&self.succeed(&["workers", "--json"]).await) else { panic!("no array") };
        workers
    }

    /// Requests the status until the condition holds.
    async fn until_status(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        crate::support::soon(what, async {
            loop {
                let status = self.status().await;
                if is_so(&status) {
                    return status;
                }
            }
        })
        .await
    }
}

/// Runs a command that controls a hub, with its operator's token.
async fn command(hub: &Invitation, args: &[&str]) -> Finished {
    let url = format!("ws://{}", hub.address);
    let args = args.iter().copied().chain(["--hub", &url]);
    let token = hub.operator_token.clone();
    Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token)).finish().await
}

async fn succeed(hub: &Invitation, args: &[&str]) -> String {
    let end = command(hub, args).await;
    assert_eq!(end.status.code(), Some(0), "{args:?}: {}\n{}", end.stdout, end.stderr);
    end.stdout
}

/// Returns a number.
fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Returns the sum of an object of counts.
fn total(counts: &Value) -> u64 {
    counts.as_object().expect("an object").values().map(count).sum()
}
