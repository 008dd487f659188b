//! The one port: the page, and WebSockets at `/ws`.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderMap, HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rollmesh_core::{
    hub::Record,
    protocol::{MAX_FRAME_BYTES, handshake::shortened},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::derive_accept_key,
        protocol::{Role as Side, WebSocketConfig},
    },
};

use super::{
    access::Names,
    actor::Event,
    assets::{self, Assets, HttpResponse, text},
    client::ClientsState,
    handshake_limiter::{HandshakeLimiter, Pass},
    limits::{
        DASHBOARD_SOCKET_BYTES, MAX_CONNECTIONS_PER_S, MAX_HEAD_BYTES, MAX_HEADERS, PRE_AUTH_SOCKET_BYTES,
        REQUEST_DEADLINE,
    },
    memory_budget::MemoryBudget,
    movable::{Movable, SocketControl},
    peer::{self, Unauthenticated},
    prometheus,
    rate_limiter::RateLimiter,
    read_allowance::{LimitedReads, ReadAllowance},
    tls::Tls,
};
use crate::net::Io;

/// Maximum size of one read from a socket in bytes.
pub(super) const READ_BYTES: usize = 16 << 10;
/// Delay before accepting again after the listener failed, for example for lack of file descriptors.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// State shared by all connections.
pub(super) struct ServerState {
    pub(super) tls: Option<Tls>,
    /// Names of the hub, in addition to its addresses.
    pub(super) hosts: Vec<String>,
    pub(super) allow_origins: Vec<String>,
    /// Origins of pages that may show the hub's page in a frame.
    pub(super) frame_origins: Vec<String>,
    pub(super) assets: Assets,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) clients: Option<Arc<ClientsState>>,
    pub(super) limiter: Arc<HandshakeLimiter>,
    pub(super) budget: MemoryBudget,
    /// The event loop for the sockets of workers and clients.
    pub(super) inside: Handle,
}

impl ServerState {
    /// Adds an audit record if the channel has space: a flood of connections must not fill the memory with records.
    fn try_record(&self, record: Record) {
        let _ = self.events.try_send(Event::Record(record));
    }

    /// Adds an audit record and charges its failure to the address.
    fn record_failure(&self, from: SocketAddr, record: Record) {
        self.limiter.fail(from.ip());
        self.try_record(record);
    }
}

pub(super) async fn serve(listener: TcpListener, shared: Arc<ServerState>) {
    let mut rate_limiter = RateLimiter::new(MAX_CONNECTIONS_PER_S);
    loop {
        rate_limiter.next().await;
        match listener.accept().await {
            Ok((stream, from)) => drop(tokio::spawn(connection(stream, from, shared.clone()))),
            Err(_) => sleep(LISTEN_AGAIN).await,
        }
    }
}

/// Serves one connection until its request is answered or it has become a peer's socket, which has a task of its own.
async fn connection(stream: TcpStream, from: SocketAddr, shared: Arc<ServerState>) {
    // Small messages are sent immediately. A socket that refuses the option works all the same.
    let _ = stream.set_nodelay(true);
    let Ok(address) = stream.local_addr() else { return };
    // If waiting fails, the next use of the socket fails, too.
    let speaks = async { _ = stream.readable().await };
    let Some(pass) = shared.limiter.enter(from.ip(), speaks).await else {
        return shared.try_record(Record::Limit { from, what: "waiting" });
    };
    let control = SocketControl::default();
    let stream = Movable::new(stream, control.clone());
    let (deadline, lost) = (pass.deadline, pass.lost());
    let answered = async {
        let stream: Box<dyn Io> = match &shared.tls {
            None => Box::new(stream),
            Some(tls) => match timeout_at(deadline, tls.accept(stream, (from.ip(), address.ip()))).await {
                Ok(Ok(stream)) => Box::new(stream),
                Ok(Err(error)) => {
                    return shared.record_failure(from, Record::NoTls { from, why: shortened(&error.to_string()) });
                }
                Err(_) => return shared.try_record(Record::Limit { from, what: "handshake deadline" }),
            },
        };
        let visit = Visit {
            shared: &shared,
            from,
            address,
            allowance: ReadAllowance::new(usize::MAX),
            control,
            pass: Mutex::new(Some(pass)),
        };
        let io = TokioIo::new(LimitedReads::new(stream, visit.allowance.clone()));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(io, service_fn(|request| visit.answer(request)))
            .with_upgrades();
        if let Ok(Err(error)) = timeout(REQUEST_DEADLINE, served).await
            && (error.is_timeout() || error.is_parse_too_large())
        {
            let what = if error.is_timeout() { "handshake deadline" } else { "request head" };
            shared.try_record(Record::Limit { from, what });
        }
    };
    tokio::select! {
        () = answered => {}
        () = lost => shared.try_record(Record::Limit { from, what: "pending" }),
    }
}

/// The answer to other pages, and to requests for another address.
const FOREIGN: &str = "This hub answers its own pages and local programs only; if this is its address behind a tunnel, start it with \
                       --public-host HOST:PORT\n";

/// A connection that may send a request.
struct Visit<'a> {
    shared: &'a Arc<ServerState>,
    from: SocketAddr,
    /// The hub's address, as seen by the connection.
    address: SocketAddr,
    allowance: ReadAllowance,
    control: SocketControl,
    /// Passed on to the socket, if the connection becomes one.
    pass: Mutex<Option<Pass>>,
}

impl Visit<'_> {
    /// Rejects foreign requests before anything else processes them, and adds the common headers to every answer.
    async fn answer(&self, request: Request<Incoming>) -> Result<HttpResponse, Infallible> {
        let ServerState { hosts, allow_origins, frame_origins, tls, .. } = &**self.shared;
        let names = Names::new(self.address, tls.is_some(), hosts, allow_origins);
        let mut answer = if !names.is_own(request.headers()) {
            self.shared.record_failure(self.from, Record::Foreign { from: self.from });
            text(StatusCode::FORBIDDEN, FOREIGN)
        } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
            text(StatusCode::METHOD_NOT_ALLOWED, "There is nothing here but files to get.\n")
        } else if request.uri().path() == "/ws" {
            self.socket(request)
        } else if request.uri().path() == "/metrics" {
            self.metrics(request.headers()).await
        } else {
            if let Some(pass) = &*self.pass() {
                pass.ask();
            }
            self.shared.assets.answer(request.uri().path(), request.headers()).await
        };
        let headers = [
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            // One request per connection, so that a finished one does not keep its place.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let no_cache = HeaderValue::from_static("no-cache");
        answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(no_cache);
        let policy = content_security_policy(&names, frame_origins);
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        for (name, value) in headers {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Ok(answer)
    }

    /// Answers with the hub's numbers for Prometheus, if the request has the token of a viewer or an operator.
    async fn metrics(&self, headers: &HeaderMap) -> HttpResponse {
        if let Some(pass) = &*self.pass() {
            pass.ask();
        }
        let (reply, answer) = oneshot::channel();
        let known = match prometheus::bearer(headers) {
            Some(token) if self.shared.events.send(Event::Metrics { token, reply }).await.is_ok() => answer.await.ok(),
            _ => Some(None),
        };
        match known {
            Some(Some(metrics)) => assets::answer(StatusCode::OK, prometheus::CONTENT_TYPE, metrics.into()),
            Some(None) => {
                self.shared.try_record(Record::Refused { from: self.from, why: "token" });
                // Delays the answer, to slow down guessing of tokens.
                sleep(self.shared.limiter.fail(self.from.ip())).await;
                text(
                    StatusCode::UNAUTHORIZED,
                    "Metrics need a token: Authorization: Bearer TOKEN, of a viewer or an operator.\n",
                )
            }
            None => text(StatusCode::SERVICE_UNAVAILABLE, "The hub is shutting down.\n"),
        }
    }

    fn pass(&self) -> MutexGuard<'_, Option<Pass>> {
        // No code panics while holding the lock.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Upgrades the connection to a peer's WebSocket.
    fn socket(&self, mut request: Request<Incoming>) -> HttpResponse {
        let Some(key) = upgrade_key(request.headers()) else {
            return text(StatusCode::BAD_REQUEST, "This is for WebSockets, version 13.\n");
        };
        let Some(pass) = self.pass().take() else {
            return text(StatusCode::BAD_REQUEST, "One socket is enough.\n");
        };
        pass.record_activity();
        self.shared.try_record(Record::Connected { from: self.from });
        let (shared, from, allowance, control) =
            (self.shared.clone(), self.from, self.allowance.clone(), self.control.clone());
        let is_of_page = request.headers().contains_key(header::ORIGIN);
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(Ok(upgraded)) = timeout_at(pass.deadline, upgrade).await else { return };
            allowance.allow(PRE_AUTH_SOCKET_BYTES);
            let limits = WebSocketConfig::default()
                .read_buffer_size(READ_BYTES)
                .max_frame_size(Some(MAX_FRAME_BYTES as usize))
                .max_message_size(Some(MAX_FRAME_BYTES as usize))
                .max_write_buffer_size(4 * MAX_FRAME_BYTES as usize);
            let io = TokioIo::new(upgraded);
            let socket = WebSocketStream::from_raw_socket(io, Side::Server, Some(limits)).await;
            let (limiter, budget) = (shared.limiter.clone(), shared.budget.clone());
            let unauthenticated = Unauthenticated { from, is_of_page, pass, allowance, limiter, budget };
            let (events, clients) = (shared.events.clone(), shared.clients.clone());
            let Some(authenticated) = peer::receive(socket, unauthenticated, events, clients).await else { return };
            if authenticated.only_watches() {
                control.send_buffer(DASHBOARD_SOCKET_BYTES);
                return authenticated.stay().await;
            }
            control.go_to(shared.inside.clone());
            shared.inside.spawn(authenticated.stay());
        });
        let mut answer = Response::new(Full::new(Bytes::new()));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        answer.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, key);
        answer
    }
}

/// Returns the `Sec-WebSocket-Accept` value for an upgrade request; `None` if it is not one.
fn upgrade_key(headers: &HeaderMap) -> Option<HeaderValue> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let has = |name: HeaderName, wanted: &str| {
        text(name).is_some_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted)))
    };
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    let is_request = has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
        && text(header::SEC_WEBSOCKET_VERSION) == Some("13")
        && key.len() == 24;
    is_request.then(|| HeaderValue::try_from(derive_accept_key(key.as_bytes())).ok()).flatten()
}

/// Returns the page's content security policy: it may load its own files, run its own wasm and talk to its own hub. Pages of
/// `frames` may show it in a frame.
fn content_security_policy(names: &Names, frames: &[String]) -> HeaderValue {
    let frames = if frames.is_empty() { "'none'".to_owned() } else { frames.join(" ") };
    let policy = format!(
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self' {}; worker-src 'self'; object-src 'none'; base-uri 'self'; form-action 'none'; \
         frame-ancestors {frames}",
        names.sockets().join(" ")
    );
    // Consists of hosts, origins and constants; should it be invalid nevertheless, the policy denies everything.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}
