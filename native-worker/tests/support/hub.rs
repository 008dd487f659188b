//! A hub in the tests' process, whose workers are processes of the program under test.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, HubError, PendingSummary, SecurityConfig},
    kernels::AUTO,
    train::{RunConfig, RunRequest},
};
use rollmesh_core::protocol::{Role, Token, message::RunStatus};

use super::{Process, client::Client, process::PROGRAM, soon};

/// A hub in this process, whose local workers are others.
pub(crate) struct TestHub {
    pub(crate) hub: Hub,
    pub(crate) seen: Vec<String>,
    pub(crate) assets: tempfile::TempDir,
}

impl TestHub {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    pub(crate) async fn start_at(listen: &str) -> Self {
        Self::start_by(listen, |config| async { Hub::start(config, &Registry::builtin()).await }).await
    }

    pub(crate) async fn start_watchful(security: SecurityConfig) -> Self {
        let secured = |config| HubConfig { security, ..config };
        Self::start_by("127.0.0.1:0", |config| async { Hub::start(secured(config), &Registry::builtin()).await }).await
    }

    pub(crate) async fn start_by<F: Future<Output = Result<Hub, HubError>>>(
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
            worker_program: PROGRAM.into(),
            kernels: AUTO,
            external: None,
            allow_origins: Vec::new(),
            security: SecurityConfig::default(),
        };
        let hub = start(config).await.unwrap();
        Self { hub, seen: Vec::new(), assets }
    }

    pub(crate) fn operator_token(&self) -> Token {
        let url = self.hub.dashboard_url();
        Token::from_hex(url.split_once("#token=").unwrap().1).unwrap()
    }

    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.hub.address()).await
    }

    pub(crate) async fn operator(&self) -> Client {
        Client::join(self.hub.address(), Role::Operator, self.operator_token()).await
    }

    pub(crate) async fn viewer(&self) -> Client {
        Client::join(self.hub.address(), Role::Viewer, self.operator_token()).await
    }

    pub(crate) async fn hand_made_worker(&self) -> Client {
        Client::join(self.hub.address(), Role::Worker, self.hub.worker_token()).await
    }

    pub(crate) fn worker(&self) -> Process {
        Process::worker(&self.hub.address().to_string(), &self.hub.worker_token().to_hex())
    }

    /// Waits for a notice with this text.
    pub(crate) async fn notice(&mut self, text: &str) -> String {
        loop {
            let line = soon(text, self.hub.next_notice()).await.expect("the hub continues").text;
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) async fn status(&self, what: &str, is_so: impl FnMut(&RunStatus) -> bool) -> RunStatus {
        soon(what, self.hub.status().wait_for(is_so)).await.unwrap()
    }

    pub(crate) async fn train(&self, request: RunRequest) -> PendingSummary {
        self.hub.train(request).await.unwrap()
    }

    pub(crate) async fn train_with(
        &self,
        mut request: RunRequest,
        change: impl FnOnce(&mut RunConfig),
    ) -> PendingSummary {
        change(&mut request.config);
        self.train(request).await
    }
}
