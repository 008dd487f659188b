//! The one port: the page, and sockets at `/ws`.

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
use rollmesh_core::protocol::MAX_FRAME_BYTES;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;
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
    assets::{Answer, Assets, text},
    audit::Record,
    client::Clients,
    gate::{Gate, Pass},
    limits::{
        DASHBOARD_SOCKET_BYTES, MAX_CONNECTIONS_PER_S, MAX_HEAD_BYTES, MAX_HEADERS, PRE_AUTH_SOCKET_BYTES,
        REQUEST_DEADLINE,
    },
    meter::{Meter, Metered},
    movable::{Movable, Order},
    pace::Pace,
    peer::{self, Doorstep},
    room::Room,
};
use crate::net::Io;

/// What one read from a socket takes at most.
pub(super) const READ_BYTES: usize = 16 << 10;
/// A listener that gives no connections, because there are no file descriptors left for example, is asked again after this.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// What all connections share.
pub(super) struct Shared {
    pub(super) tls: Option<TlsAcceptor>,
    /// Names of the hub, besides its addresses.
    pub(super) hosts: Vec<String>,
    pub(super) allow_origins: Vec<String>,
    pub(super) assets: Assets,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) clients: Option<Arc<Clients>>,
    pub(super) gate: Arc<Gate>,
    pub(super) room: Room,
    /// Where the sockets of workers and clients go.
    pub(super) inside: Handle,
}

impl Shared {
    /// Remembers something, if there is room: whoever floods the hub does not fill its memory with records.
    fn remember(&self, record: Record) {
        let _ = self.events.try_send(Event::Remember(record));
    }

    /// Remembers what somebody did, who has to pay for it with time.
    fn blame(&self, from: SocketAddr, record: Record) {
        self.gate.fail(from.ip());
        self.remember(record);
    }
}

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut pace = Pace::new(MAX_CONNECTIONS_PER_S);
    loop {
        pace.next().await;
        match listener.accept().await {
            Ok((stream, from)) => drop(tokio::spawn(connection(stream, from, shared.clone()))),
            Err(_) => sleep(LISTEN_AGAIN).await,
        }
    }
}

/// One connection, until it is answered or has become a peer's socket, which has a task of its own.
async fn connection(stream: TcpStream, from: SocketAddr, shared: Arc<Shared>) {
    // Small messages go out at once. A socket that refuses the option works all the same.
    let _ = stream.set_nodelay(true);
    let Ok(address) = stream.local_addr() else { return };
    // Where that fails, whatever comes next does, too.
    let speaks = async { _ = stream.readable().await };
    let Some(pass) = shared.gate.enter(from.ip(), speaks).await else {
        return shared.remember(Record::Limit { from, what: "waiting" });
    };
    let order = Order::default();
    let stream = Movable::new(stream, order.clone());
    let (deadline, lost) = (pass.deadline, pass.lost());
    let answered = async {
        let stream: Box<dyn Io> = match &shared.tls {
            None => Box::new(stream),
            Some(acceptor) => match timeout_at(deadline, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Box::new(stream),
                Ok(Err(_)) => return shared.blame(from, Record::Limit { from, what: "no TLS" }),
                Err(_) => return shared.remember(Record::Limit { from, what: "handshake deadline" }),
            },
        };
        let visit = Visit {
            shared: &shared,
            from,
            address,
            meter: Meter::new(usize::MAX),
            order,
            pass: Mutex::new(Some(pass)),
        };
        let io = TokioIo::new(Metered::new(stream, visit.meter.clone()));
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
            shared.remember(Record::Limit { from, what });
        }
    };
    tokio::select! {
        () = answered => {}
        () = lost => shared.remember(Record::Limit { from, what: "pending" }),
    }
}

/// A connection that may ask for something.
struct Visit<'a> {
    shared: &'a Arc<Shared>,
    from: SocketAddr,
    /// The hub's address, as seen by the connection.
    address: SocketAddr,
    meter: Meter,
    order: Order,
    /// Goes to the socket, if it becomes one.
    pass: Mutex<Option<Pass>>,
}

impl Visit<'_> {
    /// Turns foreign requests away before anything else looks at them, and puts the usual headers on every answer.
    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let Shared { hosts, allow_origins, tls, .. } = &**self.shared;
        let names = Names::new(self.address, tls.is_some(), hosts, allow_origins);
        let mut answer = if !names.is_own(request.headers()) {
            self.shared.blame(self.from, Record::Foreign { from: self.from });
            text(StatusCode::FORBIDDEN, "This hub answers its own pages and local programs only.\n")
        } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
            text(StatusCode::METHOD_NOT_ALLOWED, "There is nothing here but files to get.\n")
        } else if request.uri().path() == "/ws" {
            self.socket(request)
        } else {
            if let Some(pass) = &*self.pass() {
                pass.ask();
            }
            self.shared.assets.answer(request.uri().path()).await
        };
        let headers = [
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            // One request each, so that nobody holds a place that is done.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, content_security_policy(&names));
        for (name, value) in headers {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Ok(answer)
    }

    fn pass(&self) -> MutexGuard<'_, Option<Pass>> {
        // Nobody panics while holding it.
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the connection a peer's socket.
    fn socket(&self, mut request: Request<Incoming>) -> Answer {
        let Some(key) = upgrade_key(request.headers()) else {
            return text(StatusCode::BAD_REQUEST, "This is for WebSockets, version 13.\n");
        };
        let Some(pass) = self.pass().take() else {
            return text(StatusCode::BAD_REQUEST, "One socket is enough.\n");
        };
        pass.go_on();
        self.shared.remember(Record::Connected { from: self.from });
        let (shared, from, meter, order) = (self.shared.clone(), self.from, self.meter.clone(), self.order.clone());
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(Ok(upgraded)) = timeout_at(pass.deadline, upgrade).await else { return };
            meter.allow(PRE_AUTH_SOCKET_BYTES);
            let limits = WebSocketConfig::default()
                .read_buffer_size(READ_BYTES)
                .max_frame_size(Some(MAX_FRAME_BYTES as usize))
                .max_message_size(Some(MAX_FRAME_BYTES as usize))
                .max_write_buffer_size(4 * MAX_FRAME_BYTES as usize);
            let io = TokioIo::new(upgraded);
            let socket = WebSocketStream::from_raw_socket(io, Side::Server, Some(limits)).await;
            let doorstep = Doorstep { from, pass, meter, gate: shared.gate.clone(), room: shared.room.clone() };
            let (events, clients) = (shared.events.clone(), shared.clients.clone());
            let Some(guest) = peer::receive(socket, doorstep, events, clients).await else { return };
            if guest.only_watches() {
                order.send_buffer(DASHBOARD_SOCKET_BYTES);
                return guest.stay().await;
            }
            order.go_to(shared.inside.clone());
            shared.inside.spawn(guest.stay());
        });
        let mut answer = Response::new(Full::new(Bytes::new()));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        answer.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, key);
        answer
    }
}

/// The answer to the key of a request for a WebSocket; none if it is not one.
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

/// What the page may do: load its own files, run its own wasm and talk to its own hub.
fn content_security_policy(names: &Names) -> HeaderValue {
    let policy = format!(
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self' {}; worker-src 'self'; object-src 'none'; base-uri 'self'; form-action 'none'; \
         frame-ancestors 'none'",
        names.sockets().join(" ")
    );
    // Made of hosts and constants; a policy that could not be sent must not become none.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}
