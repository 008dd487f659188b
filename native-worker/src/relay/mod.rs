//! A relay: it gets the weights of a hub's runs once and passes them on to many workers, and to other relays, while they
//! arrive. It also forwards workers' connections to the hub, without reading them: a worker's session with the hub, its
//! encryption included, is its own, and so are its leases and audits. Workers compare weights with the hash that the hub
//! sends them in that session.

mod places;
mod store;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rollmesh_core::protocol::{
    Connection, ConnectionEnd, Message, Received, RefusalCode, Role, Token,
    handshake::Identity,
    message::{WeightsNotice, WeightsRequest},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use self::{
    places::{Places, SILENCE, forward},
    store::Store,
};
use crate::{
    hub::{Tls, TlsConfig, TlsError, is_of_one_machine},
    net::{
        FOR_WEIGHTS, FollowedToken, Io, Linked, PeerEnd, RelayAddress, RelaySource, Route, TO_HUB, Trust, asked,
        dial_plain, is_on_loopback, reconnect,
    },
};

/// Time for a connection to send the bytes that announce its purpose.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time for the hub to announce weights that a worker requests: it notifies both at about the same time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for the next part of a message to arrive, and for a worker to take it. Workers give up earlier.
const STALLED: Duration = Duration::from_secs(20);
/// A worker that requests nothing for this long connects again when it does.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Pause after the system has refused a connection.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// Configuration of a relay.
pub(crate) struct RelayConfig {
    /// `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub(crate) hub: String,
    /// The verification of the hub.
    pub(crate) trust: Trust,
    /// A token of the role relay.
    pub(crate) token: Token,
    /// The file of the token, which may get another one.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<TlsConfig>,
    /// Peers on other machines need a certificate of one of these authorities.
    pub(crate) client_ca: Option<PathBuf>,
    /// Another relay, from which this one gets weights.
    pub(crate) upstream: Option<RelayAddress>,
}

/// The reason that a relay cannot begin, or has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    #[error(
        "{0} can be reached from other machines, and the relay has no certificate: --tls-cert and --tls-key name one, \
         --tls-self-signed makes one"
    )]
    NotEncrypted(SocketAddr),
    #[error(
        "the hub is on this machine, where it asks no peer for a certificate, and {0} can be reached from others: start the \
         relay on another machine, or name the authority of its peers with --tls-client-ca"
    )]
    OpensHub(SocketAddr),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the hub does not accept this token: `rollmesh tokens create --role relay` makes one")]
    Token,
    #[error("{0}")]
    Refused(String),
}

/// Relays until `leave` is true or the hub refuses it; `say` prints messages for users.
pub(crate) async fn serve(
    config: RelayConfig,
    mut leave: watch::Receiver<bool>,
    say: impl Fn(&str),
) -> Result<(), RelayError> {
    let (listener, tls) = listen(&config).await?;
    let address = listener.local_addr().map_err(|error| RelayError::Listen(config.listen, error))?;
    let store = Arc::new(Store::default());
    let mark = tls.as_ref().map(|tls| format!(", fingerprint {}", tls.fingerprint)).unwrap_or_default();
    let guards = config.client_ca.is_some();
    let shared =
        Arc::new(SharedRelay { hub: config.hub.clone(), tls, guards, store: store.clone(), places: Arc::default() });
    let serving = tokio::spawn(accept(listener, shared));
    say(&format!("relaying at {address}{mark}"));
    let identity = Identity::new(Role::Relay, config.token, "native", &config.name, "cpu");
    let identity = Identity { by_relay: config.upstream.is_some(), ..identity };
    let mut connection = Connection::new(identity).staying();
    let mut tokens = FollowedToken::new(config.token, config.token_file.clone());
    let mut lost = None;
    let end = loop {
        let route = Route { hub: &config.hub, trust: &config.trust, relay: config.upstream.as_ref() };
        let mut socket = match reconnect(route, &mut connection, lost, &mut leave, &say).await {
            Ok(socket) => socket,
            Err(end) => break end,
        };
        connection.renew(tokens.latest());
        let mut link = Linked::new(&mut socket, &mut connection);
        let reason = match link.admitted().await {
            Ok(()) => {
                say(&format!("connected to the hub at {}", config.hub));
                session(&mut link, &store, config.upstream.as_ref(), &mut tokens, &mut leave, &say).await
            }
            Err(reason) => reason,
        };
        if *leave.borrow() {
            break PeerEnd::Asked;
        }
        lost = Some(reason);
    };
    serving.abort();
    match end {
        PeerEnd::Asked => Ok(()),
        PeerEnd::Over(ConnectionEnd::Refused { code: Some(RefusalCode::Token), .. }) => Err(RelayError::Token),
        PeerEnd::Over(end) => Err(RelayError::Refused(end.to_string())),
        PeerEnd::Untrusted(reason) => Err(RelayError::Refused(reason)),
    }
}

async fn listen(config: &RelayConfig) -> Result<(TcpListener, Option<Tls>), RelayError> {
    if !config.listen.ip().is_loopback() && config.tls.is_none() && !config.trust.allow_unencrypted {
        return Err(RelayError::NotEncrypted(config.listen));
    }
    if !config.listen.ip().is_loopback() && config.client_ca.is_none() && is_on_loopback(&config.hub) {
        return Err(RelayError::OpensHub(config.listen));
    }
    let open = |tls| Tls::open(tls, config.listen, &[], config.client_ca.as_deref());
    let tls = config.tls.as_ref().map(open).transpose()?;
    let failed = |error| RelayError::Listen(config.listen, error);
    Ok((TcpListener::bind(config.listen).await.map_err(failed)?, tls))
}

/// Keeps the store up to date until the connection is lost. Returns the reason.
async fn session(
    link: &mut Linked<'_>,
    store: &Arc<Store>,
    upstream: Option<&RelayAddress>,
    tokens: &mut FollowedToken,
    leave: &mut watch::Receiver<bool>,
    say: &impl Fn(&str),
) -> String {
    let (failed, mut failures) = mpsc::channel(4);
    let wanted = watch::Sender::new(None);
    // Ends with `wanted`.
    let fetching = upstream.map(|upstream| fetch(upstream.clone(), wanted.subscribe(), store.clone(), failed));
    let fetching = fetching.map(tokio::spawn);
    let mut filling = None;
    let reason = loop {
        if let Err(reason) = link.flush().await {
            break reason;
        }
        tokio::select! {
            received = link.next_received() => match received {
                Ok(Some(Received::Message(Message::WeightsNotice(notice)))) => {
                    if store.announce(notice) {
                        wanted.send_replace(Some(notice));
                    }
                }
                Ok(Some(Received::Piece(piece))) => store.add_piece(&piece, &mut filling),
                Ok(_) => {}
                Err(reason) => break reason,
            },
            Some((run, reason)) = failures.recv() => {
                reason.into_iter().for_each(|reason| say(&format!("{reason}; the hub is asked until it works")));
                link.connection.send(&Message::WeightsRequest(WeightsRequest { run }));
            }
            token = tokens.next() => link.connection.renew(token),
            () = asked(leave) => {
                link.leave("it was asked to leave").await;
                break String::new();
            }
        }
    };
    fetching.into_iter().for_each(|fetching| fetching.abort());
    reason
}

/// Fetches announced weights from another relay, always the newest.
async fn fetch(
    upstream: RelayAddress,
    mut wanted: watch::Receiver<Option<WeightsNotice>>,
    store: Arc<Store>,
    failed: mpsc::Sender<(u32, Option<String>)>,
) {
    let mut source = RelaySource::new(upstream);
    let add = |notice: &WeightsNotice, at, data: &[u8]| store.add(&notice.hash, at, data);
    while let Some((notice, fetched)) = source.next(&mut wanted, add).await {
        let reason = match fetched {
            Ok(()) if store.has(&notice.hash) => continue,
            Ok(()) => Some("weights of the other relay are not those of the hub".into()),
            Err(reason) => reason,
        };
        // The receiver is dropped if the hub was lost meanwhile: another session begins with its newest weights.
        let _ = failed.send((notice.run, reason)).await;
    }
}

/// The state shared by all connections.
struct SharedRelay {
    hub: String,
    tls: Option<Tls>,
    /// True if peers on other machines need a certificate.
    guards: bool,
    store: Arc<Store>,
    places: Arc<Places>,
}

async fn accept(listener: TcpListener, shared: Arc<SharedRelay>) {
    loop {
        match listener.accept().await {
            // A connection beyond the limits is closed immediately: its peer uses the hub.
            Ok((stream, from)) => {
                if let Some(place) = shared.places.take(from.ip()) {
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        // A connection that fails is its peer's to open again.
                        let _ = connection(stream, from.ip(), &shared).await;
                        drop(place);
                    });
                }
            }
            Err(_) => sleep(LISTEN_AGAIN).await,
        }
    }
}

async fn connection(stream: TcpStream, from: IpAddr, shared: &SharedRelay) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let here = stream.local_addr()?.ip();
    let greeting = async {
        let mut stream: Box<dyn Io> = match &shared.tls {
            Some(tls) => Box::new(tls.accept(stream, (from, here)).await?),
            None => Box::new(stream),
        };
        let mut purpose = [0; 4];
        stream.read_exact(&mut purpose).await?;
        Ok::<_, io::Error>((stream, purpose))
    };
    let (stream, purpose) = timeout(HANDSHAKE, greeting).await??;
    match purpose {
        TO_HUB => {
            let hub = timeout(HANDSHAKE, dial_plain(&shared.hub)).await??;
            let is_near = is_of_one_machine(hub.local_addr()?.ip(), hub.peer_addr()?.ip());
            // The hub would regard a peer on another machine as one on its own, which needs no certificate.
            if is_near && !shared.guards && !is_of_one_machine(from, here) {
                return Ok(());
            }
            forward(stream, hub, SILENCE).await;
            Ok(())
        }
        FOR_WEIGHTS => serve_weights(stream, &shared.store).await,
        _ => Ok(()),
    }
}

/// Answers requests for weights until the peer closes the connection.
async fn serve_weights(mut stream: Box<dyn Io>, store: &Store) -> io::Result<()> {
    let mut reader = store.reader();
    loop {
        let mut hash = [0; 32];
        timeout(IDLE, stream.read_exact(&mut hash)).await??;
        let length = timeout(PATIENCE, reader.length(&hash)).await.ok().flatten().unwrap_or(0);
        timeout(STALLED, stream.write_u32(length)).await??;
        let mut at = 0;
        while at < length as usize {
            // A peer whose weights were dropped for newer ones sees the end of the connection.
            let Some(part) = timeout(STALLED, reader.part(&hash, at)).await? else { return Ok(()) };
            timeout(STALLED, stream.write_all(&part)).await??;
            at += part.len();
        }
        timeout(STALLED, stream.flush()).await??;
    }
}
