//! TLS between ranks of several machines.
//!
//! The certificate of rank 0 follows from the token: its key is an Ed25519 key whose seed is a hash of the token, and a
//! signature of it is always the same. So every rank knows the certificate, and a peer without the token can neither present
//! nor use it. Ranks read and write on threads of their own, so a connection is encrypted by a thread between the rank's socket and
//! the network.

use std::{
    future::Future,
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    pin::pin,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use futures_util::future::{Either, select};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rollmesh_core::protocol::Token;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split},
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector, TlsStream,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName},
        version::TLS13,
    },
};

use super::SILENCE;
use crate::net::{Fingerprint, Trust};

/// The name in the certificate, which no rank compares.
const NAME: &str = "rank-0";
/// An Ed25519 key in PKCS #8, up to its seed (RFC 8410).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// Time for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Time for the threads to send the remaining bytes when a rank leaves.
const FAREWELL: Duration = Duration::from_millis(500);

/// Encrypts the connections of a group of ranks. Dropping the last clone ends the encrypting threads, after they have
/// sent the remaining bytes.
#[derive(Clone)]
pub(super) struct RankTls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    threads: Arc<TlsThreads>,
}

/// The threads of open connections.
#[derive(Default)]
struct TlsThreads(Mutex<Vec<TlsThread>>);

struct TlsThread {
    thread: JoinHandle<()>,
    /// Disconnected once the thread has ended.
    ended: mpsc::Receiver<()>,
    /// The encrypted side, to end a thread whose peer has stopped reading.
    network: TcpStream,
}

impl TlsThreads {
    fn add(&self, thread: TlsThread) {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|earlier| !earlier.thread.is_finished());
        threads.push(thread);
    }
}

impl Drop for TlsThreads {
    fn drop(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        for TlsThread { thread, ended, network } in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Nothing is sent: the end of the thread disconnects it.
            let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let _ = network.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }
}

impl RankTls {
    /// Returns how the ranks with this token encrypt, `None` if they meet on the loopback device.
    pub(super) fn of(address: SocketAddr, token: &Token) -> io::Result<Option<Self>> {
        if address.ip().is_loopback() {
            return Ok(None);
        }
        let (certificate, key) = certificate(token).map_err(io::Error::other)?;
        let trust = Trust { fingerprint: Some(Fingerprint::of(&certificate)), ..Trust::default() };
        let connector = trust.connector().map_err(io::Error::other)?;
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key.into()));
        let acceptor = TlsAcceptor::from(Arc::new(server.map_err(io::Error::other)?));
        Ok(Some(Self { acceptor, connector, threads: Arc::default() }))
    }

    /// Encrypts a connection that rank 0 has accepted. Returns the socket on which its bytes are plain.
    pub(super) fn accept(&self, stream: TcpStream) -> io::Result<TcpStream> {
        let acceptor = self.acceptor.clone();
        self.between(stream, async move |stream| Ok(acceptor.accept(stream).await?.into()))
    }

    /// Encrypts a connection to rank 0, and verifies that it has the token.
    pub(super) fn connect(&self, stream: TcpStream) -> io::Result<TcpStream> {
        let connector = self.connector.clone();
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        self.between(stream, async move |stream| Ok(connector.connect(name, stream).await?.into()))
    }

    /// Shakes hands, and starts the thread that encrypts.
    fn between<F>(
        &self,
        stream: TcpStream,
        handshake: impl FnOnce(tokio::net::TcpStream) -> F + Send + 'static,
    ) -> io::Result<TcpStream>
    where
        F: Future<Output = io::Result<TlsStream<tokio::net::TcpStream>>>,
    {
        let (near, far) = pair()?;
        for socket in [&stream, &far] {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        let network = stream.try_clone()?;
        let (alive, ended) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shaken, result) = mpsc::channel::<io::Result<()>>();
        let encrypt = async move || {
            let opened = async {
                let far = tokio::net::TcpStream::from_std(far)?;
                let stream = tokio::net::TcpStream::from_std(stream)?;
                Ok::<_, io::Error>((far, timeout(HANDSHAKE, handshake(stream)).await??))
            };
            match opened.await {
                Ok((far, encrypted)) => {
                    // The caller waits for it.
                    let _ = shaken.send(Ok(()));
                    transport(far, encrypted).await;
                }
                Err(error) => _ = shaken.send(Err(error)),
            }
        };
        let encrypt = move || {
            runtime.block_on(encrypt());
            drop(alive);
        };
        let thread = thread::Builder::new().name("rank TLS".into()).spawn(encrypt)?;
        self.threads.add(TlsThread { thread, ended, network });
        result.recv().map_err(io::Error::other)??;
        Ok(near)
    }
}

/// Returns whether a handshake failed since the sides have different tokens.
pub(super) fn is_other_token(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)))
}

fn certificate(token: &Token) -> Result<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>), rcgen::Error> {
    let seed = Sha256::new().chain_update("rollmesh ranks ").chain_update(token.to_hex()).finalize();
    let key = PrivatePkcs8KeyDer::from([&PKCS8[..], &seed].concat());
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?;
    Ok((CertificateParams::new(vec![NAME.into()])?.self_signed(&pair)?.into(), key))
}

/// Copies bytes in both directions. Once one has ended, the other one has a little more time: its sender may have hung.
async fn transport(one: impl AsyncRead + AsyncWrite, other: impl AsyncRead + AsyncWrite) {
    let ((mut from_one, mut to_one), (mut from_other, mut to_other)) = (split(one), split(other));
    // Errors end a direction as its end does.
    let forth = async {
        let _ = copy(&mut from_one, &mut to_other).await;
        let _ = to_other.shutdown().await;
    };
    let back = async {
        let _ = copy(&mut from_other, &mut to_one).await;
        let _ = to_one.shutdown().await;
    };
    match select(pin!(forth), pin!(back)).await {
        Either::Left(((), back)) => _ = timeout(SILENCE, back).await,
        Either::Right(((), forth)) => _ = timeout(SILENCE, forth).await,
    }
}

/// Returns two sockets of this process that are connected to each other.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (far, from) = listener.accept()?;
        // Another process may have connected.
        if from == near.local_addr()? {
            return Ok((near, far));
        }
    }
}
