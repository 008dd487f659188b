//! Fingerprints of certificates.

use std::{fmt, str::FromStr};

use rollmesh_core::protocol::{bytes_of_hex, message::HubCertificate};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// The SHA-256 of a certificate, as browsers and `openssl x509 -fingerprint -sha256` show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

/// A text is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is a SHA-256: 64 hexadecimal digits, with or without colons; the hub prints it")]
pub struct FingerprintError;

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl From<Fingerprint> for HubCertificate {
    fn from(Fingerprint(sha256): Fingerprint) -> Self {
        Self { sha256 }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        bytes_of_hex(&text.replace(':', "")).map(Self).ok_or(FingerprintError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_people_write_them() {
        let fingerprint = Fingerprint([0xab; 32]);
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert_eq!(["AB"; 32].join(":").parse(), Ok(fingerprint));
        for bad in ["", "ab", &"g".repeat(64), &"a".repeat(65), &"é".repeat(32)] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(FingerprintError));
        }
    }
}
