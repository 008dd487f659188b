//! The one port: the page, and sockets at `/ws`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State, WebSocketUpgrade},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
    serve::ListenerExt as _,
};
use rollmesh_core::protocol::MAX_FRAME_BYTES;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
};

use super::{access, actor::Event, assets::Assets, client::Clients, peer};

/// Peers that may wait for their Hello at a time.
const MAX_PENDING: usize = 64;

/// What the page may do: load its own files, run its own wasm and talk to its own hub.
fn content_security_policy(address: SocketAddr) -> HeaderValue {
    // A policy has no words for IPv6 addresses: browsers complain and ignore them. 'self' covers a page from there.
    let hosts = access::own_hosts(address).into_iter().filter(|host| !host.starts_with('['));
    let sockets: Vec<String> = hosts.map(|host| format!("ws://{host}")).collect();
    let policy = format!(
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self' {}; worker-src 'self'; object-src 'none'; base-uri 'self'; form-action 'none'; \
         frame-ancestors 'none'",
        sockets.join(" ")
    );
    // Made of addresses and constants; a policy that could not be sent must not become none.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

#[derive(Clone)]
pub(super) struct Shared {
    address: SocketAddr,
    assets: Arc<Assets>,
    events: mpsc::Sender<Event>,
    clients: Option<Arc<Clients>>,
    allow_origins: Arc<[String]>,
    pending: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn new(
        address: SocketAddr,
        assets: Arc<Assets>,
        events: mpsc::Sender<Event>,
        clients: Option<Arc<Clients>>,
        allow_origins: Vec<String>,
    ) -> Self {
        let pending = Arc::new(Semaphore::new(MAX_PENDING));
        Self { address, assets, events, clients, allow_origins: allow_origins.into(), pending }
    }
}

pub(super) async fn serve(listener: TcpListener, shared: Shared) {
    let app = Router::new()
        .route("/ws", get(socket))
        .fallback(get(page))
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared);
    // Small messages go out at once. A socket that refuses the option works all the same.
    let listener = listener.tap_io(|stream| _ = stream.set_nodelay(true));
    // Ends only with the task: accept errors are retried by axum.
    let _ = axum::serve(listener, app).await;
}

/// Turns foreign requests away before anything else looks at them, and puts the usual headers on every answer.
async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = if access::is_own(request.headers(), shared.address, &shared.allow_origins) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "This hub answers its own pages and local programs only.\n").into_response()
    };
    let headers = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, content_security_policy(shared.address));
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn socket(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    let Ok(pending) = shared.pending.try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many peers are about to connect.\n").into_response();
    };
    upgrade
        .max_frame_size(MAX_FRAME_BYTES as usize)
        .max_message_size(MAX_FRAME_BYTES as usize)
        .max_write_buffer_size(4 * MAX_FRAME_BYTES as usize)
        .on_upgrade(move |socket| peer::serve(socket, shared.events, shared.clients, pending))
}

async fn page(State(shared): State<Shared>, request: Request) -> Response {
    shared.assets.answer(request.uri().path()).await
}
