//! Pages of other origins, and names that contain markup.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::{
    group::Ledger,
    protocol::{
        Message, Phase, WorkerState,
        message::{LedgerReport, Notice, RunStatus, Welcome, WorkerRow},
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_tungstenite::{accept_async, tungstenite::Message as Frame};

use super::{
    browser::{Browser, DESKTOP, PHONE},
    built,
    dashboard::Dashboard,
    front::Front,
    program::Program,
};

/// A name with markup: a page that does not escape it runs its script, or shows bold text.
const MARKUP: &str = "<img src=x onerror=window.hurt=1><b>bold</b>";

/// A script that tries to open the hub's socket with a valid token and to read its page, and returns the outcomes.
const ATTACK: &str = "const [hub, hello, done] = arguments;
    const socket = () => new Promise((resolve) => {
        const socket = new WebSocket(`ws://${hub}/ws`);
        socket.binaryType = 'arraybuffer';
        socket.onopen = () => resolve('open');
        socket.onerror = () => resolve('refused');
    });
    const page = () => fetch(`http://${hub}/`).then(() => 'read', () => 'refused');
    const blind = () => fetch(`http://${hub}/`, { mode: 'no-cors', method: 'POST', body: hello })
        .then((answer) => answer.type, () => 'refused');
    const frame = () => new Promise((resolve) => {
        const frame = document.createElement('iframe');
        frame.src = `http://${hub}/`;
        frame.onload = () => {
            try { resolve(frame.contentWindow.document.body.innerText) } catch { resolve('refused') }
        };
        document.body.append(frame);
    });
    Promise.all([socket(), socket(), page(), blind(), frame()]).then(done)";

/// A server of another origin. Dropping it stops it.
struct Foreign {
    port: u16,
    server: JoinHandle<()>,
}

impl Foreign {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // The response does not depend on the request.
                    let _ = stream.read(&mut [0; 8192]).await;
                    let body = "<!doctype html><title>win a prize</title><body>";
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                });
            }
        });
        Self { port, server }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn count(audit: &Path, event: &str) -> usize {
    let text = fs::read_to_string(audit).expect("an audit log");
    text.matches(&format!(r#""event":"{event}""#)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_have_no_access() {
    let browser = Browser::start().await;
    let state = TempDir::new().expect("a directory");
    let audit = state.path().join("audit.jsonl");
    let hub = Program::start("hub", ["--audit-log".as_ref(), audit.as_os_str()]);
    let foreign = Foreign::start().await;
    let token = hub.url().split_once("#token=").expect("a token").1;
    let port = hub.address().split_once(':').expect("a port").1;
    let origins = [
        format!("http://127.0.0.1:{}/", foreign.port),
        format!("http://localhost:{}/", foreign.port),
        // An origin that is `null`.
        "data:text/html,<title>other</title><body>".to_owned(),
    ];
    for origin in &origins {
        for hub in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
            browser.client.goto(origin).await.expect("the page loads");
            let said = browser.client.execute_async(ATTACK, vec![json!(hub), json!(token)]).await.expect("it is tried");
            let said: Vec<&str> = said.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
            assert_eq!(said[..3], ["refused"; 3], "{origin}: {said:?}");
            assert!(matches!(said[3], "opaque" | "refused"), "{origin}: {said:?}");
            assert_eq!(said[4], "refused", "{origin}: {said:?}");
        }
    }
    assert_eq!((count(&audit, "connected"), count(&audit, "admitted")), (0, 0));
    assert!(count(&audit, "foreign") > 0);
    // The hub's own page can connect.
    browser.client.goto(hub.url()).await.expect("the page loads");
    let open = "const [hub, done] = arguments;
        const socket = new WebSocket(`ws://${hub}/ws`);
        socket.onopen = () => done('open');
        socket.onerror = () => done('refused')";
    let said = browser.client.execute_async(open, vec![json!(hub.address())]).await.expect("it is tried");
    assert_eq!(said, "open");
    assert!(count(&audit, "connected") > 0);
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a file with a new token, and returns the token.
fn token_in(file: &Path, role: &str) -> String {
    let mut rollmesh = Command::new(built("ROLLMESH_BIN"));
    let made = rollmesh.args(["tokens", "create", "--role", role, "--file"]).arg(file).output();
    let made = made.expect("the binary starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("a token").trim().to_owned()
}

/// Asserts that the page shows markup as text only.
async fn shows_as_text(page: &Dashboard, texts: &[String]) {
    page.wait("all is shown as it is", async || {
        // The document contains texts in full that the page truncates visually.
        let shown = page.run("return document.body.textContent", vec![]).await;
        let shown = shown.as_str().unwrap_or_default();
        texts.iter().all(|text| shown.contains(text.as_str()))
    })
    .await;
    let hurt = page.run("return [window.hurt ?? null, document.querySelectorAll('img, b').length]", vec![]).await;
    assert_eq!(hurt, json!([null, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_name_is_shown_as_text_and_a_page_asks_for_its_token() {
    let page = Dashboard::start().await;
    let state = TempDir::new().expect("a directory");
    let tokens = state.path().join("tokens.json");
    let (token, operator) = (token_in(&tokens, "worker"), token_in(&tokens, "operator"));
    let hub = Program::start("hub", ["--tokens".as_ref(), tokens.as_os_str()]);
    // The output is not a terminal, so the program prints no tokens.
    let address = format!("{}#token={operator}", hub.url());
    page.go_to(&address).await;
    let mut worker = Command::new(built("ROLLMESH_BIN"));
    worker.args(["worker", "--name", MARKUP, "--hub", &format!("ws://{}", hub.address())]);
    worker.env("ROLLMESH_TOKEN", token).stdin(Stdio::null()).stderr(Stdio::null());
    let _worker = Killed(worker.spawn().expect("the binary starts"));
    shows_as_text(&page, &[MARKUP.to_owned()]).await;

    // The page removes the token from its address; without one it asks for a token, also by keyboard.
    let url = async || page.browser.client.current_url().await.expect("it has an address");
    assert_eq!(url().await.fragment(), None);
    let forget = async || {
        page.run("sessionStorage.clear(); return null", vec![]).await;
        page.go_to(&format!("http://{}/?again", hub.address())).await;
    };
    forget().await;
    page.browser.screenshot("token-form", DESKTOP).await;
    page.browser.screenshot("token-form-phone", PHONE).await;
    page.browser.emulate(DESKTOP).await;
    let enter = async |text: &str| {
        page.run("document.querySelector('[data-testid=token-input]').focus(); return null", vec![]).await;
        let input = page.browser.client.active_element().await.expect("it has the focus");
        input.clear().await.expect("it can be emptied");
        input.send_keys(&format!("{text}\u{e007}")).await.expect("it takes keys");
    };
    enter("not a token").await;
    page.wait("the page says what a token is", async || {
        let error = page.run("return document.querySelector('.token-form .field-error').innerText", vec![]).await;
        error.as_str().is_some_and(|text| text.contains("64 hexadecimal digits"))
    })
    .await;
    enter(&"ab".repeat(32)).await;
    page.wait("the hub refuses a wrong one", async || {
        let banner = page.text("banner").await;
        banner.is_some_and(|text| text.contains("the token is not valid for this role"))
    })
    .await;
    page.browser.screenshot("token-refused", DESKTOP).await;
    // The page accepts the whole address as well as the token, and puts neither into its own address.
    enter(&address).await;
    page.wait_for("connection", "data-state", "online").await;
    assert_eq!((url().await.fragment(), url().await.query()), (None, Some("again")));
}

#[tokio::test(flavor = "multi_thread")]
async fn viewer_sees_all_state_and_changes_none() {
    let page = Dashboard::start().await;
    let state = TempDir::new().expect("a directory");
    let tokens = state.path().join("tokens.json");
    let token = token_in(&tokens, "viewer");
    let run_dir = state.path().join("run");
    let args = ["--workers", "1", "--max-env-steps", "1000000000", "--tokens"].map(std::ffi::OsStr::new);
    let args = args.into_iter().chain([tokens.as_os_str(), "--run-dir".as_ref(), run_dir.as_os_str()]);
    let hub = Program::start("train", args);
    page.go_to(&format!("http://{}/#token={token}", hub.address())).await;
    page.wait_for("connection", "data-state", "online").await;
    page.wait_for("banner", "data-kind", "viewer").await;
    page.wait_for_more("kpi-env-steps", 0).await;
    page.wait("its worker is shown", async || !page.workers().await.is_empty()).await;
    let controls =
        "return ['pause', 'stop', 'checkpoint', 'add-worker', 'remove-worker', 'restart-worker', 'join'].map(id => {
        const button = document.querySelector(`[data-testid=${id}]`);
        return button ? [button.disabled, button.title.includes('viewer')] : id;
    })";
    let disabled = page.run(controls, vec![]).await;
    assert!(disabled.as_array().expect("a list").iter().all(|button| *button == json!([true, true])), "{disabled}");
    assert_eq!(page.run("return document.querySelector('[data-testid=token-input]')", vec![]).await, Value::Null);
    page.browser.screenshot("viewer", DESKTOP).await;
    page.assert_accessible("a viewer's page").await;
    // The page is still a viewer's after a reload.
    page.reload().await;
    page.wait_for("banner", "data-kind", "viewer").await;
    page.assert_quiet_console().await;
}

/// Starts a hub that sends messages that no correct hub would send.
async fn bad_hub() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it has an address").to_string();
    let text = |name: &str| format!("{name} {MARKUP}");
    let row = WorkerRow {
        worker: 7,
        kind: text("kind"),
        name: text("name"),
        device: text("device"),
        state: WorkerState::Quarantined.to_wire(),
        reason: text("reason"),
        ..WorkerRow::default()
    };
    let status = RunStatus {
        run: 1,
        phase: Phase::Failed.to_wire(),
        env: text("env"),
        algo: text("algo"),
        error: text("error"),
        num_slots: 4,
        ..RunStatus::default()
    };
    // The ledger does not balance: nine env steps have no outcome.
    let ledger = Ledger { granted: 9, ..Ledger::default() };
    let ledger = LedgerReport { ledger, ..LedgerReport::default() };
    let messages = [
        Message::Welcome(Welcome { protocol: 1, peer: 1, resume_id: [0; 16], credit: 1, server: text("server") }),
        Message::RunStatus(status),
        Message::WorkerRow(row),
        Message::LedgerReport(ledger),
        Message::Notice(Notice { level: 2, text: text("notice") }),
    ];
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let messages = messages.clone();
            tokio::spawn(async move {
                // A browser may close a connection at any time.
                let Ok(mut socket) = accept_async(stream).await else { return };
                socket.next().await;
                for message in messages {
                    let _ = socket.send(Frame::Binary(message.encode().into())).await;
                }
                while socket.next().await.is_some() {}
            });
        }
    });
    (address, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_of_a_hub_are_shown_as_text() {
    let page = Dashboard::start().await;
    let (hub, server) = bad_hub().await;
    let front = Front::start(&hub).await;
    front.bring_hub_in_reach(true);
    page.go_to(&format!("{}#token={}", front.url(), "ab".repeat(32))).await;
    let texts = ["kind", "name", "env", "error", "reason", "notice"].map(|name| format!("{name} {MARKUP}"));
    shows_as_text(&page, &texts).await;
    page.wait_for("ledger-balance", "data-tone", "bad").await;
    assert_eq!(page.text("ledger-balance").await.as_deref(), Some("does not balance"));
    page.browser.screenshot("markup", DESKTOP).await;
    server.abort();
}
