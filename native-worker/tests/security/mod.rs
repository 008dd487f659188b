//! Attacks of unauthenticated peers, of holders of stolen tokens and of misbehaving peers on a hub: real sockets, and
//! the program if its memory is measured.

mod certificates;
mod crowd;
mod frames;
mod hostile;
mod matrix;
mod partial_messages;
mod strangers;
mod tokens;

use std::{
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::support::client::Client;
use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, SecurityConfig},
    kernels::AUTO,
};
use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction, TokenHash, TokenId,
    message::{ManageTokens, NewToken, TokenRows},
};
use tokio::sync::{RwLock, RwLockReadGuard};

/// A hub in this process, with everything that it writes in a directory of its own.
struct TestHub {
    hub: Hub,
    directory: tempfile::TempDir,
    _turn: RwLockReadGuard<'static, ()>,
}

/// Tests with crowds have the machine for themselves.
static TURN: RwLock<()> = RwLock::const_new(());

impl TestHub {
    async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut HubConfig, &std::path::Path)) -> Self {
        let turn = TURN.read().await;
        let directory = tempfile::tempdir().unwrap();
        let mut config = config();
        config.security.audit_log = Some(directory.path().join("audit.jsonl"));
        config.security.token_file = Some(directory.path().join("tokens.json"));
        change(&mut config, directory.path());
        let hub = Hub::start(config, &Registry::builtin()).await.unwrap();
        Self { hub, directory, _turn: turn }
    }

    fn operator_token(&self) -> Token {
        token_of(&self.hub.dashboard_url())
    }

    fn viewer_token(&self) -> Token {
        self.hub.viewer_token()
    }

    async fn operator(&self) -> Client {
        Client::join_from(fresh_address(), self.hub.address(), Role::Operator, self.operator_token()).await
    }

    fn audit(&self) -> String {
        fs::read_to_string(self.directory.path().join("audit.jsonl")).unwrap()
    }

    fn token_file(&self) -> PathBuf {
        self.directory.path().join("tokens.json")
    }
}

fn config() -> HubConfig {
    HubConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        dashboard: true,
        assets: None,
        runs_dir: None,
        worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
        kernels: AUTO,
        external: None,
        allow_origins: Vec::new(),
        security: SecurityConfig::default(),
    }
}

fn token_of(url: &str) -> Token {
    Token::from_hex(url.rsplit_once('=').unwrap().1).unwrap()
}

/// Returns an address of this machine that no other connection of these tests comes from.
fn fresh_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 0x00ff_0000;
    Ipv4Addr::from(0x7f01_0001 + number)
}

fn id_of(token: &Token) -> TokenId {
    TokenHash::of(token).id()
}

async fn create(operator: &mut Client, role: Role, seconds: u64) -> Token {
    let (action, role) = (TokenAction::Create.to_wire(), role.to_wire());
    operator.say(&Message::ManageTokens(ManageTokens { request: 77, action, role, token: 0, seconds })).await;
    operator
        .wait_for(|message| match message {
            Message::NewToken(NewToken { request: 77, token, .. }) => Some(*token),
            _ => None,
        })
        .await
}

async fn revoke(operator: &mut Client, token: TokenId) -> String {
    let action = TokenAction::Revoke.to_wire();
    operator
        .ask(|request| Message::ManageTokens(ManageTokens { request, action, role: 0, token: token.0, seconds: 0 }))
        .await
}

async fn list(operator: &mut Client) -> TokenRows {
    let action = TokenAction::List.to_wire();
    operator.say(&Message::ManageTokens(ManageTokens { request: 78, action, ..ManageTokens::default() })).await;
    operator
        .wait_for(|message| match message {
            Message::TokenRows(rows) if rows.request == 78 => Some(rows.clone()),
            _ => None,
        })
        .await
}

/// Returns the bytes of memory that a process occupies.
fn memory(pid: u32) -> u64 {
    bytes_of(pid, "VmRSS:")
}

/// Resets the maximum that [`peak`] returns.
fn reset_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// Returns the most bytes of memory that a process has occupied at a time.
fn peak(pid: u32) -> u64 {
    bytes_of(pid, "VmHWM:")
}

fn bytes_of(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}
