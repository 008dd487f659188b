//! Connections to a hub, for whoever is a peer of one: encrypted beyond this machine, and never a token before that.

mod connect;
mod fingerprint;
mod trust;

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use connect::{ConnectError, HubSocket, connect, is_hub_url};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use trust::Trust;

/// Bytes both ways, encrypted or not.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}
