//! Connecting to a hub.

use std::{io, net::IpAddr, time::Duration};

use rollmesh_core::protocol::MAX_FRAME_BYTES;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, pki_types::ServerName};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        self,
        error::ProtocolError,
        http::{StatusCode, Uri},
        protocol::WebSocketConfig,
    },
};

use super::{Io, RelayAddress, Trust, trust::OtherFingerprint};

/// Size of a socket read in bytes. The buffer is zeroed before each read, so a larger one would cost more.
const READ_BYTES: usize = 64 << 10;

/// Timeout of a connection attempt.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// A socket to a hub.
pub(crate) type HubSocket = WebSocketStream<Box<dyn Io>>;

/// Checks that a text is the address of a hub: `ws://HOST:PORT` or `wss://HOST:PORT`.
pub(crate) fn is_hub_url(text: &str) -> Result<String, String> {
    parse(text).map(|_| text.to_owned())
}

/// Returns whether the address of a hub leads to the machine that uses it.
pub(crate) fn is_on_loopback(hub: &str) -> bool {
    parse(hub).is_ok_and(|address| is_this_machine(&address.host))
}

/// An error of connecting to a hub.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Its certificate is not trusted: another attempt would fail in the same way.
    #[error(
        "no TLS: invalid peer certificate: UnknownIssuer; give its fingerprint, which the hub prints, with \
         --tls-fingerprint, or its authority with --tls-ca"
    )]
    UnknownIssuer,
    /// Its certificate is not the one with the trusted fingerprint: likewise.
    #[error(
        "no TLS: the hub's certificate has another fingerprint; take the one that it prints now, with --tls-fingerprint"
    )]
    OtherFingerprint,
    /// The reason, for users; another attempt may succeed.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for ConnectError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// The way to a hub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    /// `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub(crate) hub: &'a str,
    /// The verification of the hub.
    pub(crate) trust: &'a Trust,
    /// A relay on the way.
    pub(crate) relay: Option<&'a RelayAddress>,
}

impl<'a> Route<'a> {
    /// Returns the direct way.
    pub(crate) fn direct(hub: &'a str, trust: &'a Trust) -> Self {
        Self { hub, trust, relay: None }
    }
}

/// Connects to a hub; the caller authenticates afterwards.
///
/// # Errors
/// [`ConnectError`], with a message for users.
pub(crate) async fn connect(route: Route<'_>) -> Result<HubSocket, ConnectError> {
    let Route { hub, trust, relay } = route;
    let late = || ConnectError::from(format!("no answer within {} s", CONNECT_DEADLINE.as_secs()));
    let opening = async {
        match relay {
            Some(relay) => {
                trust.check(hub)?;
                upgrade(relay.to_hub().await?, hub, trust).await
            }
            None => open(hub, trust).await,
        }
    };
    timeout(CONNECT_DEADLINE, opening).await.unwrap_or_else(|_| Err(late()))
}

/// Converts the error of a TLS handshake.
fn tls_failure(error: &io::Error) -> ConnectError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        // `BadSignature` results from an authority with the name of a known one.
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            ConnectError::UnknownIssuer
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) if other.0.is::<OtherFingerprint>() => {
            ConnectError::OtherFingerprint
        }
        // The peer rejects this side's client certificate; `DecryptError` is its `BadSignature`.
        Some(&rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::CertificateExpired
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::BadCertificate),
        )) => format!(
            "it asks for a valid certificate of its authorities ({alert:?}): name one with --tls-client-cert and \
             --tls-client-key"
        )
        .into(),
        Some(rustls::Error::InvalidMessage(_)) => {
            "no TLS: the answer is not encrypted; a hub without a certificate is at ws://".to_owned().into()
        }
        _ => format!("no TLS: {error}").into(),
    }
}

struct HubAddress {
    uri: Uri,
    host: String,
    port: u16,
    is_encrypted: bool,
}

/// Parses the address that users write.
fn parse(hub: &str) -> Result<HubAddress, String> {
    let expected = || "the address of a hub is ws://HOST:PORT or wss://HOST:PORT".to_owned();
    let url = hub.trim_end_matches('/');
    let url = if url.ends_with("/ws") { url.to_owned() } else { format!("{url}/ws") };
    let uri: Uri = url.parse().map_err(|_| expected())?;
    let is_encrypted = match uri.scheme_str() {
        Some("wss") => true,
        Some("ws") => false,
        _ => return Err(expected()),
    };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(expected)?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
    if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("tokens have no place in an address; set ROLLMESH_TOKEN".into());
    }
    Ok(HubAddress { uri, host, port, is_encrypted })
}

fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl Trust {
    /// Checks for mistakes that would make every attempt fail.
    ///
    /// # Errors
    /// The mistake, as a message for users.
    pub(crate) fn check(&self, hub: &str) -> Result<(), String> {
        let HubAddress { host, is_encrypted, .. } = parse(hub)?;
        if is_encrypted {
            return self.connector().map(|_| ()).map_err(|error| error.to_string());
        }
        if is_this_machine(&host) || self.allow_unencrypted {
            return Ok(());
        }
        Err(format!("{host} is another machine, and ws:// shows the token to anyone on the network path: use wss://"))
    }
}

/// Opens a socket to the address of a hub, without encryption.
pub(crate) async fn dial_plain(url: &str) -> io::Result<TcpStream> {
    let HubAddress { host, port, .. } = parse(url).map_err(io::Error::other)?;
    let stream = TcpStream::connect((&*host, port)).await?;
    // Small messages are sent immediately. A socket that refuses the option works all the same.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Opens a stream to a hub or relay, encrypted if its address says so.
pub(super) async fn dial(url: &str, trust: &Trust) -> Result<Box<dyn Io>, ConnectError> {
    trust.check(url)?;
    let stream = dial_plain(url).await.map_err(|error| error.to_string())?;
    encrypted(Box::new(stream), url, trust).await
}

async fn encrypted(stream: Box<dyn Io>, url: &str, trust: &Trust) -> Result<Box<dyn Io>, ConnectError> {
    let HubAddress { host, is_encrypted, .. } = parse(url)?;
    if !is_encrypted {
        return Ok(stream);
    }
    let connector = trust.connector().map_err(|error| error.to_string())?;
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    Ok(Box::new(connector.connect(name, stream).await.map_err(|error| tls_failure(&error))?))
}

async fn open(hub: &str, trust: &Trust) -> Result<HubSocket, ConnectError> {
    upgrade_encrypted(dial(hub, trust).await?, hub).await
}

/// Opens the socket of a hub over a stream that leads to it.
async fn upgrade(stream: Box<dyn Io>, hub: &str, trust: &Trust) -> Result<HubSocket, ConnectError> {
    upgrade_encrypted(encrypted(stream, hub, trust).await?, hub).await
}

async fn upgrade_encrypted(stream: Box<dyn Io>, hub: &str) -> Result<HubSocket, ConnectError> {
    let HubAddress { uri, .. } = parse(hub)?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(MAX_FRAME_BYTES as usize))
        .max_frame_size(Some(MAX_FRAME_BYTES as usize))
        .max_write_buffer_size(4 * MAX_FRAME_BYTES as usize);
    match client_async_with_config(uri, stream, Some(limits)).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(answer)) if answer.status() == StatusCode::FORBIDDEN => {
            let advice = "start it with --public-host HOST:PORT of the address that is used here";
            let reason = "it answered 403 Forbidden, as a hub does behind a tunnel or a name that it does not know";
            Err(format!("{reason}: {advice}").into())
        }
        Err(tungstenite::Error::Http(answer)) => Err(format!("it answered {}", answer.status()).into()),
        Err(tungstenite::Error::Protocol(ProtocolError::HttparseError(_))) if hub.starts_with("ws://") => {
            Err("it does not answer as a hub does; one with a certificate is at wss://".to_owned().into())
        }
        // With TLS 1.3 the hub checks a client's certificate after the client's handshake.
        Err(tungstenite::Error::Io(error)) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            Err(tls_failure(&error))
        }
        Err(error) => Err(error.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_hubs() {
        let of = |text: &str| parse(text).map(|address| (address.uri.to_string(), address.host, address.port));
        let plain = Ok(("ws://127.0.0.1:7878/ws".to_owned(), "127.0.0.1".to_owned(), 7878));
        for text in ["ws://127.0.0.1:7878", "ws://127.0.0.1:7878/", "ws://127.0.0.1:7878/ws"] {
            assert_eq!(of(text), plain);
        }
        assert_eq!(of("wss://[::1]"), Ok(("wss://[::1]/ws".into(), "::1".into(), 443)));
        for text in ["", "ws://", "http://a:1", "127.0.0.1:7878", "ws://a:1/?token=ab", "ws://token@a:1"] {
            assert!(of(text).is_err(), "{text}");
        }
        for (host, own) in [("localhost", true), ("127.0.0.9", true), ("::1", true), ("10.0.0.1", false), ("h", false)]
        {
            assert_eq!(is_this_machine(host), own, "{host}");
        }
    }
}
