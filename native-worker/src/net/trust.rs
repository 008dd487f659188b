//! The verification that a hub is the intended one.

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

use super::Fingerprint;

/// The hubs that are trusted: by default those with a certificate of an authority that the system trusts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Trust {
    /// Trust these authorities instead, from a PEM file.
    pub ca: Option<PathBuf>,
    /// Trust this one certificate instead, whatever its names and dates.
    pub fingerprint: Option<Fingerprint>,
    /// Allow unencrypted connections beyond this machine.
    pub allow_unencrypted: bool,
    /// The certificate with which this side proves who it is, for hubs that ask for one.
    pub client: Option<ClientCertificate>,
}

/// PEM files with the certificate of a client and with its key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// The chain, the client's own certificate first.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// An error of reading the trusted certificates.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("cannot read certificates from {0}: {1}")]
    Ca(PathBuf, String),
    #[error("cannot read a key from {0}: {1}")]
    Key(PathBuf, String),
    #[error("the system has no trusted certificates: name the hub's with --tls-ca or --tls-fingerprint")]
    NoRoots,
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl Trust {
    pub(crate) fn connector(&self) -> Result<TlsConnector, TrustError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match self.fingerprint {
            Some(fingerprint) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Pinned { fingerprint, provider }))
            }
            None => builder.with_root_certificates(self.roots()?),
        };
        let config = match &self.client {
            Some(client) => {
                let (chain, key) = client.read()?;
                builder.with_client_auth_cert(chain, key)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn roots(&self) -> Result<RootCertStore, TrustError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                let failed = |error: &dyn std::fmt::Display| TrustError::Ca(path.clone(), error.to_string());
                for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                    roots.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
                }
                if roots.is_empty() {
                    return Err(failed(&"there is none in it"));
                }
            }
            None => {
                // Unreadable certificates are skipped; the handshake fails if one of them is needed.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TrustError::NoRoots);
                }
            }
        }
        Ok(roots)
    }
}

impl ClientCertificate {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TrustError> {
        let chain = CertificateDer::pem_file_iter(&self.cert).and_then(Iterator::collect);
        let chain = chain.map_err(|error| TrustError::Ca(self.cert.clone(), error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok((chain, key.map_err(|error| TrustError::Key(self.key.clone(), error.to_string()))?))
    }
}

/// The certificate of a hub or relay is another than the trusted one.
#[derive(Debug, thiserror::Error)]
#[error("its certificate has another fingerprint")]
pub(super) struct OtherFingerprint;

/// Verifies that the peer has exactly this certificate and proves to have its key.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if Fingerprint::of(certificate) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::Other(OtherError(Arc::new(OtherFingerprint))).into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
