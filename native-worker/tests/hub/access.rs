//! Access control.

use rollmesh::{
    Registry,
    hub::{Hub, HubConfig, SecurityConfig},
    kernels::AUTO,
};
use rollmesh_core::{
    protocol::{
        Message, RefusalCode, Role, Token,
        message::{Hello, Refused},
    },
    worker::core_fingerprint,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::TestHub;
use crate::support::{client::hello, soon};

/// Sends a request as text and reads the whole answer.
async fn http(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon("an answer", socket.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")
}

const UPGRADE: &str = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn assert_has_security_headers(answer: &str) {
    let answer = answer.to_lowercase();
    for header in [
        "content-security-policy: default-src 'self'; script-src 'self' 'wasm-unsafe-eval';",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(answer.contains(header), "{header} in {answer}");
    }
}

#[tokio::test]
async fn foreign_pages_and_names_are_turned_away_before_anything_else() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let own = format!("Host: {address}\r\n");
    let foreign = [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: evil.example:{}\r\n", address.port()),
        String::new(),
        format!("{own}Origin: null\r\n"),
        format!("{own}Origin: http://evil.example\r\n"),
        format!("{own}Origin: https://{address}\r\n"),
    ];
    for headers in foreign {
        for request in [get("/", &headers), format!("GET /ws HTTP/1.1\r\n{headers}{UPGRADE}\r\n")] {
            let answer = http(address, &request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}{answer}");
            assert!(answer.contains("behind a tunnel, start it with --public-host HOST:PORT\n"), "{answer}");
            assert_has_security_headers(&answer);
        }
    }
    let page = http(address, &get("/", &own)).await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("<title>page</title>"), "{page}");
    assert_has_security_headers(&page);
}

#[tokio::test]
async fn the_page_is_sent_compressed_and_kept_where_names_have_hashes() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let page = hub.assets.path().join("page");
    let script = "export const rollmesh = 1;\n".repeat(200);
    for name in ["page-87e6ec63ca331b3b.js", "worker.js"] {
        std::fs::write(page.join(name), &script).unwrap();
    }
    let ask = async |path: &str, headers: &str| {
        let answer = http(address, &get(path, &format!("Host: {address}\r\n{headers}"))).await;
        assert_has_security_headers(&answer);
        answer
    };
    let header = |answer: &str, name: &str| {
        let line = answer.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.map(|line| line[name.len() + 1..].trim().to_owned())
    };
    const GZIP: &str = "Accept-Encoding: gzip, br\r\n";

    let hashed = ask("/page-87e6ec63ca331b3b.js", GZIP).await;
    assert_eq!(header(&hashed, "content-encoding").as_deref(), Some("gzip"));
    assert_eq!(header(&hashed, "vary").as_deref(), Some("accept-encoding"));
    assert_eq!(header(&hashed, "cache-control").as_deref(), Some("public, max-age=31536000, immutable"));
    assert_eq!(header(&hashed, "content-type").as_deref(), Some("text/javascript; charset=utf-8"));
    let sent: usize = header(&hashed, "content-length").unwrap().parse().unwrap();
    assert!(sent < script.len() / 10, "{sent} of {} bytes", script.len());

    // Without the header nothing is compressed; other names are asked for again, and not sent again.
    let other = ask("/worker.js", "").await;
    assert!(other.ends_with(&script));
    assert_eq!(
        (header(&other, "content-encoding"), header(&other, "cache-control").as_deref()),
        (None, Some("no-cache"))
    );
    let tag = header(&other, "etag").unwrap();
    let known = ask("/worker.js", &format!("{GZIP}If-None-Match: \"other\", {tag}\r\n")).await;
    assert!(known.starts_with("HTTP/1.1 304 ") && known.ends_with("\r\n\r\n"), "{known}");
    assert_eq!(header(&known, "etag"), Some(tag.clone()));
    std::fs::write(page.join("worker.js"), "changed").unwrap();
    let changed = ask("/worker.js", &format!("{GZIP}If-None-Match: {tag}\r\n")).await;
    assert!(changed.starts_with("HTTP/1.1 200 ") && changed.ends_with("changed"), "{changed}");
}

#[tokio::test]
async fn page_is_shown_in_frames_of_allowed_origins_only() {
    let frame_origins = vec!["http://localhost:8888".to_owned(), "https://notebook.example".to_owned()];
    let hub = TestHub::start_watchful(SecurityConfig { frame_origins, ..SecurityConfig::default() }).await;
    let address = hub.hub.address();
    let page = http(address, &get("/", &format!("Host: {address}\r\n"))).await;
    assert!(page.contains("; frame-ancestors http://localhost:8888 https://notebook.example\r\n"), "{page}");
    // A frame allows nothing else: pages of its origin cannot connect by themselves.
    let foreign = http(address, &get("/", &format!("Host: {address}\r\nOrigin: http://localhost:8888\r\n"))).await;
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
    for origin in ["*", "localhost:8888", "https://notebook.example/; script-src *"] {
        let security = SecurityConfig { frame_origins: vec![origin.into()], ..SecurityConfig::default() };
        let config = HubConfig { security, ..HubConfig::local().unwrap() };
        let refused = Hub::start(config, &Registry::builtin()).await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("'{origin}' is no origin: write it")), "{refused}");
    }
}

#[tokio::test]
async fn the_page_has_nothing_above_its_directory() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let secret = hub.assets.path().join("secret").display().to_string();
    let page = hub.assets.path().join("page");
    std::fs::create_dir(page.join(".git")).unwrap();
    for hidden in [".hidden", ".git/config"] {
        std::fs::write(page.join(hidden), "secret").unwrap();
    }
    std::os::unix::fs::symlink(&secret, page.join("link")).unwrap();
    std::os::unix::fs::symlink(hub.assets.path(), page.join("folder")).unwrap();
    let paths = [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/page/../../secret",
        "/./../secret",
        "/..\\secret",
        &secret,
        &format!("/{secret}"),
        &format!("//{secret}"),
        &format!("http://{address}/../secret"),
        "/index.html/../../secret",
        "/nothing",
        "/.hidden",
        "/.git/config",
        "/link",
        "/folder/secret",
    ];
    for path in paths {
        let answer = http(address, &get(path, &format!("Host: {address}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
        assert!(!answer.contains("\r\n\r\nsecret"), "{path}: {answer}");
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.contains("There is no such file."), "{path}: {answer}");
    }
}

/// Returns the hub's refusal of this Hello.
async fn refusal(hub: &TestHub, hello: Hello) -> Refused {
    let mut client = hub.connect().await;
    client.say(&Message::Hello(hello)).await;
    client.refusal().await.expect("a refusal")
}

#[tokio::test]
async fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let mut hub = TestHub::start().await;
    let (operator, worker) = (hub.operator_token(), hub.hub.worker_token());
    let wrong = [
        hello(Role::Worker, Token::new([0; 32])),
        hello(Role::Operator, Token::new([0x55; 32])),
        hello(Role::Operator, worker),
        hello(Role::Worker, operator),
        hello(Role::Viewer, worker),
        Hello { role: 0x77, ..hello(Role::Worker, worker) },
    ];
    for hello in wrong {
        let refused = refusal(&hub, hello).await;
        assert_eq!(refused.code, RefusalCode::Token.to_wire());
        assert_eq!(refused.reason, "the token is not valid for this role");
        hub.notice("a peer was refused: the token is not valid for this role").await;
    }
}

#[tokio::test]
async fn versions_and_fingerprints_are_named_on_both_sides() {
    let hub = TestHub::start().await;
    let good = hello(Role::Worker, hub.hub.worker_token());
    let refused = refusal(&hub, Hello { protocol_min: 7, protocol_max: 9, ..good.clone() }).await;
    assert_eq!(refused.code, RefusalCode::ProtocolVersion.to_wire());
    assert!(refused.reason.contains("1 to 1 here, 7 to 9 there"), "{}", refused.reason);
    let refused = refusal(&hub, Hello { core_fingerprint: [0xab; 16], ..good.clone() }).await;
    assert_eq!(refused.code, RefusalCode::Fingerprint.to_wire());
    let own: String = core_fingerprint(AUTO).iter().map(|byte| format!("{byte:02x}")).collect();
    let both = format!("{own} here, {} there", "ab".repeat(16));
    assert!(refused.reason.contains(&both), "{}", refused.reason);
}
