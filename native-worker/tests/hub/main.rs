//! The hub among peers that behave, misbehave, lie and vanish: real sockets, and workers as processes.
#![cfg(target_os = "linux")]

mod access;
mod checkpoints;
mod evaluations;
mod evaluator_names;
mod hand_made;
mod in_process;
mod launching;
mod liars;
mod lies_at_the_end;
mod lies_found_later;
mod matrix;
mod operators;
mod peers;
mod replacing;
mod sampling;
#[path = "../support/mod.rs"]
mod support;
mod workers;

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, HubError},
    kernels::AUTO,
    train::{RunConfig, RunEnd, RunRequest, Summary},
};
use rollmesh_core::protocol::{Role, Token, message::RunStatus};
use support::{Process, client::Client, soon};
use tokio::sync::oneshot;

/// A hub in this process, whose local workers are others.
struct TestHub {
    hub: Hub,
    seen: Vec<String>,
    assets: tempfile::TempDir,
}

impl TestHub {
    async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    async fn start_at(listen: &str) -> Self {
        Self::start_by(listen, |config| async { Hub::start(config, &Registry::builtin()).await }).await
    }

    async fn start_watchful(security: rollmesh::hub::SecurityConfig) -> Self {
        let secured = |config| HubConfig { security, ..config };
        Self::start_by("127.0.0.1:0", |config| async { Hub::start(secured(config), &Registry::builtin()).await }).await
    }

    async fn start_by<F: Future<Output = Result<Hub, HubError>>>(
        listen: &str,
        start: impl FnOnce(HubConfig) -> F,
    ) -> Self {
        let assets = tempfile::tempdir().unwrap();
        std::fs::write(assets.path().join("secret"), "secret").unwrap();
        std::fs::create_dir(assets.path().join("page")).unwrap();
        std::fs::write(assets.path().join("page/index.html"), "<title>page</title>").unwrap();
        let config = HubConfig {
            listen: listen.parse().unwrap(),
            dashboard: true,
            assets: Some(assets.path().join("page")),
            runs_dir: None,
            worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
            kernels: AUTO,
            external: None,
            allow_origins: Vec::new(),
            security: rollmesh::hub::SecurityConfig::default(),
        };
        let hub = start(config).await.unwrap();
        Self { hub, seen: Vec::new(), assets }
    }

    fn operator_token(&self) -> Token {
        let url = self.hub.dashboard_url();
        Token::from_hex(url.split_once("#token=").unwrap().1).unwrap()
    }

    async fn connect(&self) -> Client {
        Client::connect(self.hub.address()).await
    }

    async fn operator(&self) -> Client {
        Client::join(self.hub.address(), Role::Operator, self.operator_token()).await
    }

    async fn viewer(&self) -> Client {
        Client::join(self.hub.address(), Role::Viewer, self.operator_token()).await
    }

    async fn hand_made_worker(&self) -> Client {
        Client::join(self.hub.address(), Role::Worker, self.hub.worker_token()).await
    }

    fn worker(&self) -> Process {
        Process::worker(&self.hub.address().to_string(), &self.hub.worker_token().to_hex())
    }

    /// Waits until people were told something with this text.
    async fn notice(&mut self, text: &str) -> String {
        loop {
            let line = soon(text, self.hub.next_notice()).await.expect("the hub goes on").text;
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    async fn status(&self, what: &str, is_so: impl FnMut(&RunStatus) -> bool) -> RunStatus {
        soon(what, self.hub.status().wait_for(is_so)).await.unwrap().clone()
    }

    async fn train(&self, request: RunRequest) -> oneshot::Receiver<Summary> {
        self.hub.train(request).await.unwrap()
    }

    async fn train_with(
        &self,
        mut request: RunRequest,
        change: impl FnOnce(&mut RunConfig),
    ) -> oneshot::Receiver<Summary> {
        change(&mut request.config);
        self.train(request).await
    }
}

/// Twelve environments and a small network, as in the tests of the command line. Without local workers the run waits for
/// those that join.
fn small(num_workers: u32, max_env_steps: u64) -> RunRequest {
    let run = RunConfig::new("CartPole-v1").num_workers(num_workers).num_envs(12 / num_workers.max(1)).seed(1);
    let run = run.fcnet_hiddens(&[16, 16]).rollout_fragment_length(16).stop_after(max_env_steps);
    RunRequest { remote_only: num_workers == 0, ..run.into() }
}

/// The same, saved after every iteration.
fn saved_often(mut request: RunRequest) -> RunRequest {
    request.config.checkpoint_interval = 1;
    request
}

async fn end(summary: oneshot::Receiver<Summary>) -> Summary {
    soon("the end of the run", summary).await.expect("a summary")
}

/// What comes of 2,000 steps without anything that disturbs.
async fn undisturbed() -> String {
    let hub = TestHub::start().await;
    let summary = end(hub.train(small(1, 2_000)).await).await;
    hub.hub.shutdown().await;
    assert_eq!(summary.end, RunEnd::Finished);
    summary.weights_hash.to_string()
}
