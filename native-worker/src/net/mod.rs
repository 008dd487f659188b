//! Connections of peers to a hub: encrypted beyond this machine, and authenticated only after that.

mod connect;
mod fingerprint;
mod peer;
mod relay;
mod token;
mod trust;

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use connect::{ConnectError, HubSocket, Route, connect, dial_plain, is_hub_url, is_on_loopback};
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
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}
