//! The address at which ranks meet.

use std::net::{SocketAddr, ToSocketAddrs as _};

use rollmesh_core::worker::DataParallelError;

/// Resolves `HOST:PORT`, with or without `tcp://`.
pub(crate) fn resolve(url: &str) -> Result<SocketAddr, DataParallelError> {
    let bad = |reason: String| DataParallelError::Address { url: url.to_owned(), reason };
    let address = url.strip_prefix("tcp://").unwrap_or(url);
    let mut found = address.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
    found.next().ok_or_else(|| bad("the host has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_with_and_without_a_scheme() {
        for url in ["127.0.0.1:29500", "tcp://127.0.0.1:29500"] {
            assert_eq!(resolve(url), Ok(([127, 0, 0, 1], 29500).into()));
        }
        assert_eq!(resolve("[::1]:5").unwrap().port(), 5);
    }

    #[test]
    fn others_are_refused() {
        for url in ["", "127.0.0.1", "127.0.0.1:70000", "udp://127.0.0.1:5"] {
            let error = resolve(url).unwrap_err();
            assert!(matches!(error, DataParallelError::Address { .. }), "{url}");
            assert!(error.to_string().ends_with("write HOST:PORT, for example 127.0.0.1:29500"), "{error}");
        }
    }
}
