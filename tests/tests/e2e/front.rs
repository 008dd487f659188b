//! A server in front of a hub, like `trunk serve`: it serves the page, and forwards the socket if the hub is reachable.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    fs,
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::built;

/// The largest head of a request; those of a browser for a file or a socket are far shorter.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// The server. Dropping it stops it.
pub(crate) struct Front {
    address: SocketAddr,
    hub_in_reach: watch::Sender<bool>,
    server: JoinHandle<()>,
}

struct Shared {
    page: PathBuf,
    /// The hub's host and port.
    hub: String,
    hub_in_reach: watch::Receiver<bool>,
}

impl Front {
    /// Serves the page. The hub is not reachable at first.
    pub(crate) async fn start(hub: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let (hub_in_reach, receiver) = watch::channel(false);
        let shared = Arc::new(Shared { page: built("ROLLMESH_DIST"), hub: hub.to_owned(), hub_in_reach: receiver });
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A browser may close a connection at any time.
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        Self { address, hub_in_reach, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Makes the hub reachable or unreachable, together with all connections to it.
    pub(crate) fn bring_hub_in_reach(&self, in_reach: bool) {
        self.hub_in_reach.send_replace(in_reach);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    let target = head.split_whitespace().nth(1).unwrap_or("/").to_owned();
    match target.trim_start_matches('/') {
        "ws" => pass_on(stream, &head, &shared).await,
        "" => send_file(stream, &shared, "index.html").await,
        file => send_file(stream, &shared, file).await,
    }
}

async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD_BYTES {
        head.push(stream.read_u8().await?);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

async fn pass_on(mut browser: TcpStream, head: &str, shared: &Shared) -> io::Result<()> {
    let mut in_reach = shared.hub_in_reach.clone();
    if !*in_reach.borrow_and_update() {
        return browser.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    }
    let mut hub = TcpStream::connect(&shared.hub).await?;
    for line in head.lines() {
        // The hub accepts only requests of its own pages.
        let line = match line.split_once(':') {
            Some((name, _)) if name.eq_ignore_ascii_case("host") => format!("Host: {}", shared.hub),
            Some((name, _)) if name.eq_ignore_ascii_case("origin") => format!("Origin: http://{}", shared.hub),
            _ => line.to_owned(),
        };
        hub.write_all(format!("{line}\r\n").as_bytes()).await?;
    }
    tokio::select! {
        done = copy_bidirectional(&mut browser, &mut hub) => done.map(|_| ()),
        _ = in_reach.changed() => Ok(()),
    }
}

async fn send_file(mut stream: TcpStream, shared: &Shared, file: &str) -> io::Result<()> {
    let kind = match file.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    // The server also serves the example of a page with a trained policy, with the npm package inside, as its README
    // describes.
    let example = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let path = match (file.strip_prefix("tab/rollmesh/"), file.starts_with("tab/")) {
        (Some(of_package), _) => built("ROLLMESH_NPM").join(of_package),
        (None, true) => example().join(file),
        (None, false) => shared.page.join(file),
    };
    let (status, body) = match fs::read(path).await {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}
