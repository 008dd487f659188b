//! Encryption: trusted certificates, and that no token is sent before they are verified.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rollmesh::{
    Registry,
    control::{Control, ControlConfig, Trust},
    hub::{Hub, HubError, TlsConfig},
    train::{RunConfig, RunEnd},
};
use rollmesh_core::protocol::{Message, Role, Token};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use super::{TestHub, config, create};
use crate::support::{Process, client::Client, soon, until};

/// An authority, and the certificates that it has signed.
struct Authority {
    directory: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsConfig {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        let at = |kind: &str| self.directory.path().join(format!("{name}-{kind}.pem"));
        fs::write(at("cert"), made.pem()).unwrap();
        fs::write(at("key"), key.serialize_pem()).unwrap();
        TlsConfig::Files { cert: at("cert"), key: at("key") }
    }
}

async fn hub_with(tls: TlsConfig) -> TestHub {
    TestHub::start_with(|config, _| config.security.tls = Some(tls)).await
}

async fn join(url: &str, token: Token, trust: Trust) -> Result<Control, String> {
    let patience = Duration::from_secs(20);
    let config = ControlConfig { hub: url.parse().unwrap(), token, role: Role::Operator, trust, patience };
    soon("an answer", Control::connect(&config)).await.map_err(|error| error.to_string())
}

fn by_ca(path: &Path) -> Trust {
    Trust { ca: Some(path.to_owned()), ..Trust::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_certificate_is_trusted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = hub_with(authority.sign("localhost", |_| {})).await;
    let url = |hub: &TestHub| format!("wss://localhost:{}", hub.hub.address().port());
    assert!(join(&url(&good), good.operator_token(), by_ca(&authority.ca())).await.is_ok());
    let fingerprint = good.hub.fingerprint().unwrap().parse().unwrap();
    let pinned = Trust { fingerprint: Some(fingerprint), ..Trust::default() };
    assert!(join(&url(&good), good.operator_token(), pinned.clone()).await.is_ok());

    // Signed by another issuer; by one that the system does not know; for another name; expired; not yet valid; another than pinned.
    let expired = authority.sign("localhost", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let expired = hub_with(expired).await;
    let early = authority.sign("localhost", |params| params.not_before = date_time_ymd(2999, 1, 1));
    let early = hub_with(early).await;
    let elsewhere = hub_with(authority.sign("hub.example", |_| {})).await;
    let own = tempfile::tempdir().unwrap();
    let own = hub_with(TlsConfig::SelfSigned(own.path().to_owned())).await;
    let cases = [
        (&good, by_ca(&other.ca()), "invalid peer certificate"),
        (&good, Trust::default(), ""),
        (&elsewhere, by_ca(&authority.ca()), "not valid for name"),
        (&expired, by_ca(&authority.ca()), "expired"),
        (&early, by_ca(&authority.ca()), "not valid yet"),
        (&own, by_ca(&authority.ca()), ""),
        (&own, pinned, "another fingerprint"),
    ];
    for (hub, trust, reason) in cases {
        let error = join(&url(hub), hub.operator_token(), trust).await.expect_err("no hub to be believed");
        assert!(error.contains("no TLS") || error.contains("no trusted certificates"), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    let fingerprint = Some(own.hub.fingerprint().unwrap().parse().unwrap());
    assert!(join(&url(&own), own.operator_token(), Trust { fingerprint, ..Trust::default() }).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_warns_about_a_certificate_that_is_about_to_expire_or_has_expired() {
    let authority = Authority::new();
    let now = date_time_ymd(1970, 1, 1) + std::time::UNIX_EPOCH.elapsed().unwrap();
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    for (expires, level, text) in [
        (now + hours(9 * 24 + 12), 1, "the hub's certificate expires in 9 days: renew it"),
        (now - hours(3 * 24 + 12), 2, "the hub's certificate expired 3 days ago, "),
    ] {
        let mut hub = hub_with(authority.sign("localhost", |params| params.not_after = expires)).await;
        let notice = soon("a warning", hub.hub.next_notice()).await.unwrap();
        assert!(notice.level == level && notice.text.starts_with(text), "{notice:?}");
        let fingerprint = hub.hub.fingerprint().unwrap();
        for (args, said) in [(&[][..], text), (&["--json"], "\"certificate_expires\":")] {
            let address = hub.hub.worker_url();
            let args = [&["status", "--hub", &address, "--tls-fingerprint", &fingerprint], args].concat();
            let token = hub.operator_token().to_hex();
            let status = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", &token));
            let status = status.finish_with(0).await;
            assert!(status.stdout.contains(said), "{}", status.stdout);
            assert!(!status.stdout.contains("\"certificate_expires\":null"), "{}", status.stdout);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_does_not_trust_the_hub_ends_and_names_the_fingerprint() {
    let own = tempfile::tempdir().unwrap();
    let hub = hub_with(TlsConfig::SelfSigned(own.path().to_owned())).await;
    let (other, token) = (Authority::new(), hub.hub.worker_token().to_hex());
    for (flag, trusted, advice) in [
        (
            "--tls-ca",
            other.ca().display().to_string(),
            "give its fingerprint, which the hub prints, with --tls-fingerprint",
        ),
        ("--tls-fingerprint", "00".repeat(32), "take the one that it prints now, with --tls-fingerprint"),
    ] {
        let args = ["worker".into(), "--hub".into(), hub.hub.worker_url(), flag.into(), trusted];
        let end = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", &token)).finish_with(2).await;
        assert!(end.stderr.contains("is not trusted: ") && end.stderr.contains(advice), "{}", end.stderr);
    }
    until("the reason in the audit log", || hub.audit().contains(r#""event":"no_tls""#)).await;
    assert!(hub.audit().contains("alert"), "{}", hub.audit());
}

/// Connects as an operator to a hub with this certificate, which is all that it trusts.
async fn operator_by(hub: &TestHub, certificate: &Path) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let trust = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let trust =
        trust.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    let address = hub.hub.address();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    let mut encrypted = TlsConnector::from(Arc::new(trust)).connect(name, stream).await.unwrap();
    let (plain, mut other) = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (plain, listener.accept().await.unwrap().0)
    };
    tokio::spawn(async move { copy_bidirectional(&mut other, &mut encrypted).await });
    Client::over(plain, address).await.unwrap().introduced(Role::Operator, hub.operator_token()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_joins_by_the_certificate_that_dashboards_are_sent() {
    let own = tempfile::tempdir().unwrap();
    let hub = hub_with(TlsConfig::SelfSigned(own.path().to_owned())).await;
    let mut operator = operator_by(&hub, &own.path().join("hub-cert.pem")).await;
    let certificate = operator.wait_for(|message| match message {
        Message::HubCertificate(certificate) => Some(certificate.to_hex()),
        _ => None,
    });
    let certificate = certificate.await;
    assert_eq!(Some(&certificate), hub.hub.fingerprint().as_ref());
    let token = create(&mut operator, Role::Worker, 3_600).await.to_hex();
    let address = hub.hub.worker_url();
    let args = ["worker", "--hub", &address, "--tls-fingerprint", &certificate, "--name", "invited"];
    let _worker = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", &token));
    let joined = operator.wait_for(|message| match message {
        Message::WorkerRow(row) => Some(row.name.clone()),
        _ => None,
    });
    assert_eq!(joined.await, "invited");
}

/// Starts a server that records the bytes that it receives, and answers nothing.
async fn recorder() -> (SocketAddr, tokio::task::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let recorded = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; 4096];
        let mut all = Vec::new();
        // The first bytes, an answer that is no TLS, and the bytes after it.
        for answer in [&b"HTTP/1.1 101 Switching Protocols\r\n\r\n"[..], b""] {
            let Ok(count) = stream.read(&mut bytes).await else { break };
            all.extend_from_slice(&bytes[..count]);
            let _ = stream.write_all(answer).await;
        }
        drop(stream);
        all
    });
    (address, recorded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_sent_before_the_hub_is_trusted() {
    let (address, recorded) = recorder().await;
    let token = Token::new(*b"0123456789abcdef0123456789abcdef");
    let error = join(&format!("wss://{address}"), token, Trust::default()).await.expect_err("no hub");
    assert!(error.contains("no TLS"), "{error}");
    let heard = soon("the record", recorded).await.unwrap();
    assert!(!heard.is_empty() && !heard.windows(8).any(|part| part == b"01234567"), "the token was said");

    // Without encryption no connection to another machine is even opened.
    for hub in ["ws://192.0.2.1:7878", "ws://hub.example"] {
        let error = join(hub, token, Trust::default()).await.expect_err("no encryption");
        assert!(error.contains("use wss://"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_port_speaks_only_tls_and_waits_for_no_handshake() {
    let state = tempfile::tempdir().unwrap();
    let hub = hub_with(TlsConfig::SelfSigned(state.path().to_owned())).await;
    let address = hub.hub.address();
    let error = join(&format!("ws://{address}"), hub.operator_token(), Trust::default()).await;
    assert!(error.is_err(), "plain words");
    let began = Instant::now();
    // The first bytes of a ClientHello, and then nothing.
    let mut stalled = TcpStream::connect(address).await.unwrap();
    stalled.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await.unwrap();
    let mut rest = Vec::new();
    let _ = soon("the end of the connection", stalled.read_to_end(&mut rest)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // TLS 1.1, which is obsolete: an alert, and the end.
    let mut old = TcpStream::connect(address).await.unwrap();
    let hello =
        [&[0x16, 0x03, 0x01, 0x00, 0x2d, 0x01, 0x00, 0x00, 0x29, 0x03, 0x02][..], &[7; 32], &[0, 0, 2, 0, 0x2f, 1, 0]];
    old.write_all(&hello.concat()).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon("the end of the connection", old.read_to_end(&mut answer)).await;
    assert!(answer.first().is_none_or(|kind| *kind == 0x15), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_beyond_loopback_encrypts_or_does_not_start() {
    let mut open = config();
    open.listen = "0.0.0.0:0".parse().unwrap();
    let error = Hub::start(open.clone(), &Registry::builtin()).await.unwrap_err();
    assert!(matches!(error, HubError::NotEncrypted(_)) && error.to_string().contains("--tls-self-signed"), "{error}");

    // Its own workers connect to the same listener.
    let hub = TestHub::start_with(|config, directory| {
        config.listen = "0.0.0.0:0".parse().unwrap();
        config.security.tls = Some(TlsConfig::SelfSigned(directory.join("state")));
    })
    .await;
    let config = RunConfig::new("CartPole-v1").num_workers(1).stop_after(500);
    let summary = soon("the end of the run", hub.hub.train(config).await.unwrap()).await.unwrap();
    assert_eq!(summary.end, RunEnd::Finished);
    assert!(hub.hub.worker_url().starts_with("wss://") && hub.hub.dashboard_url().starts_with("https://"));

    // With the flag that permits it, a warning names the consequence.
    open.security.allow_unencrypted = true;
    let mut hub = Hub::start(open, &Registry::builtin()).await.unwrap();
    let notice = soon("a warning", hub.next_notice()).await.unwrap();
    assert!(notice.level == 1 && notice.text.contains("is not encrypted"), "{notice:?}");
}

/// Returns an address of this machine besides the loopback device's: the system chooses it for a way out, and nothing
/// is sent. `None` on a machine without a network.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().unwrap().ip())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_workers_need_no_certificate_at_a_hub_that_listens_at_one_address() {
    let Some(own_address) = own_address() else { return eprintln!("left out: this machine has no network") };
    let authority = Authority::new();
    let hub = TestHub::start_with(|config, directory| {
        config.listen = (own_address, 0).into();
        config.security.tls = Some(TlsConfig::SelfSigned(directory.join("state")));
        config.security.client_ca = Some(authority.ca());
    });
    let hub = hub.await;
    let config = RunConfig::new("CartPole-v1").num_workers(1).stop_after(500);
    let summary = soon("the end of the run", hub.hub.train(config).await.unwrap()).await.unwrap();
    assert_eq!(summary.end, RunEnd::Finished);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_does_not_open_a_hub_on_its_machine_to_others() {
    let args = ["relay", "--hub", "wss://localhost:1", "--listen", "0.0.0.0:0", "--i-know-this-is-not-encrypted"];
    let relay = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", Token::new([1; 32]).to_hex()));
    let end = relay.finish_with(2).await;
    assert!(end.stderr.contains("--tls-client-ca"), "{}", end.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_elsewhere_gets_no_token_in_the_clear() {
    let args = ["worker", "--hub", "ws://127.0.0.1:1", "--relay", "wss://192.0.2.1:7879"];
    let worker = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", Token::new([1; 32]).to_hex()));
    let end = worker.finish_with(2).await;
    assert!(end.stderr.contains("use wss:// for the hub"), "{}", end.stderr);
}
