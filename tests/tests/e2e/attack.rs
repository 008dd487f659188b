//! Pages of others, and names that would like to be more than text.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};

use super::{browser::Browser, built, dashboard::Dashboard, program::Program};

/// Tries to open the hub's socket with a true token and to read its page; says what came of it.
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

/// A server of somebody else. Dropping it ends it.
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
                    // Whatever is asked for.
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
async fn pages_of_others_do_not_get_in() {
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
        "data:text/html,<title>nobody</title><body>".to_owned(),
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
    // Its own page does.
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

#[tokio::test(flavor = "multi_thread")]
async fn names_are_text_and_nothing_else() {
    const NAME: &str = "<img src=x onerror=window.hurt=1><b>bold</b>";
    let page = Dashboard::start().await;
    let state = TempDir::new().expect("a directory");
    let tokens = state.path().join("tokens.json");
    let rollmesh = || Command::new(built("ROLLMESH_BIN"));
    let made = rollmesh().args(["tokens", "create", "--role", "worker", "--file"]).arg(&tokens).output();
    let token = String::from_utf8(made.expect("the binary starts").stdout).expect("a token");
    let hub = Program::start("hub", ["--tokens".as_ref(), tokens.as_os_str()]);
    page.go_to(hub.url()).await;
    let mut worker = rollmesh();
    worker.args(["worker", "--name", NAME, "--hub", &format!("ws://{}", hub.address())]);
    worker.env("ROLLMESH_TOKEN", token.trim()).stdin(Stdio::null()).stderr(Stdio::null());
    let _worker = Killed(worker.spawn().expect("the binary starts"));
    page.wait("the name is shown as it is", async || {
        let shown = page.run("return document.body.innerText", vec![]).await;
        shown.as_str().is_some_and(|text| text.contains(NAME))
    })
    .await;
    let hurt = page.run("return [window.hurt ?? null, document.querySelectorAll('img, b').length]", vec![]).await;
    assert_eq!(hurt, json!([null, 0]));

    // The address forgets the token; without one the page asks for one, by the keyboard too.
    let url = page.browser.client.current_url().await.expect("it has an address");
    assert_eq!(url.fragment(), None);
    page.run("sessionStorage.clear(); return null", vec![]).await;
    page.go_to(&format!("http://{}/?again", hub.address())).await;
    page.run("document.querySelector('[data-testid=token-input]').focus(); return null", vec![]).await;
    let input = page.browser.client.active_element().await.expect("it has the focus");
    input.send_keys(&format!("{}\u{e007}", "ab".repeat(32))).await.expect("it takes keys");
    page.wait("the hub refuses a wrong one", async || {
        let banner = page.text("banner").await;
        banner.is_some_and(|text| text.contains("the token is not valid for this role"))
    })
    .await;
}
