//! Connections of peers to a hub: encrypted beyond this machine, and authenticated only after that.

mod connect;
mod expiry;
mod fingerprint;
mod peer;
mod relay;
mod token;
mod trust;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{client, server};

pub(crate) use connect::{ConnectError, HubSocket, Route, connect, dial_plain, is_hub_url, is_on_loopback};
pub(crate) use expiry::{ExpiryWarning, expiry, expiry_warning};
pub use fingerprint::{Fingerprint, FingerprintError};
pub(crate) use peer::{Linked, PeerEnd, asked, next_frame, reconnect};
pub(crate) use relay::{FOR_WEIGHTS, PIECE_BYTES, RelayAddress, RelaySource, TO_HUB};
pub(crate) use token::FollowedToken;
pub use token::{TokenError, token_from_env, token_from_file};
pub use trust::{ClientCertificate, Trust};

/// The environment variable that passes a peer its token.
pub(crate) const TOKEN_VARIABLE: &str = "ROLLMESH_TOKEN";

/// Time for a launcher to return after its connection was lost. Then the hub removes its workers, and the launcher ends them.
pub(crate) const LAUNCHER_ABSENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A byte stream, encrypted or not.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {
    /// Returns when the certificate of the other side expires, in seconds since 1970; `None` without one.
    fn certificate_expiry(&self) -> Option<u64> {
        None
    }
}

impl Io for TcpStream {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for server::TlsStream<S> {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for client::TlsStream<S> {
    fn certificate_expiry(&self) -> Option<u64> {
        self.get_ref().1.peer_certificates()?.first().and_then(expiry)
    }
}
