//! The hub's certificate.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
        version::{TLS12, TLS13},
    },
    server::TlsStream,
};

use crate::{
    net::{Fingerprint, expiry},
    private_file,
};

/// The encryption of a hub.
#[derive(Clone, Debug)]
pub enum TlsConfig {
    /// With a certificate from an authority: PEM files with its chain, the hub's own certificate first, and with its key.
    Files {
        /// The chain.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// With a self-signed certificate kept in this directory; peers need its fingerprint.
    SelfSigned(PathBuf),
}

/// An error of setting up a hub's encryption.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file does not have the expected content.
    #[error("cannot use {path}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// The certificate cannot be used, for example because key and certificate do not match.
    #[error("this certificate cannot be used: {0}")]
    Unusable(String),
}

/// The TLS acceptors and their certificate's fingerprint.
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    /// Accepts only clients with a certificate.
    strict: Option<TlsAcceptor>,
    pub(crate) fingerprint: Fingerprint,
    /// The time at which the certificate expires, in seconds since 1970, if that can be read.
    pub(crate) expires: Option<u64>,
}

const SELF_SIGNED_CERT: &str = "hub-cert.pem";
const SELF_SIGNED_KEY: &str = "hub-key.pem";

impl Tls {
    /// Reads the certificate, or creates one for these names.
    ///
    /// With `client_ca`, a PEM file of authorities, clients on other machines need a certificate of one of them.
    pub(crate) fn open(
        config: &TlsConfig,
        listen: SocketAddr,
        names: &[String],
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        match config {
            TlsConfig::Files { cert, key } => Self::read(cert, key, client_ca),
            TlsConfig::SelfSigned(directory) => {
                let (cert, key) = (directory.join(SELF_SIGNED_CERT), directory.join(SELF_SIGNED_KEY));
                if !cert.exists() || !key.exists() {
                    make(&cert, &key, listen, names)?;
                }
                Self::read(&cert, &key, client_ca)
            }
        }
    }

    /// Accepts a connection; one from another machine only with a certificate, if clients need one. Both ends of a connection
    /// of this machine have the same address, or that of the loopback device: the system routes no others so.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        (from, here): (IpAddr, IpAddr),
    ) -> io::Result<TlsStream<S>> {
        let strict = self.strict.as_ref().filter(|_| !is_of_one_machine(from, here));
        strict.unwrap_or(&self.acceptor).accept(stream).await
    }

    fn read(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(error.to_string());
        let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| file(cert, error))?;
        let own = chain.first().ok_or_else(|| file(cert, "there is no certificate in it"))?;
        let (fingerprint, expires) = (Fingerprint::of(own), expiry(own));
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| file(key, error))?;
        let provider = Arc::new(ring::default_provider());
        let acceptor = |verifier: Arc<dyn ClientCertVerifier>| {
            let config = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13, &TLS12])?
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.clone(), key.clone_key())?;
            Ok(TlsAcceptor::from(Arc::new(config)))
        };
        let strict = client_ca.map(|path| {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider.clone());
            let verifier = verifier.build().map_err(|error| file(path, error))?;
            acceptor(verifier).map_err(|error: rustls::Error| unusable(&error))
        });
        let strict = strict.transpose()?;
        let acceptor = acceptor(WebPkiClientVerifier::no_client_auth()).map_err(|error| unusable(&error))?;
        Ok(Self { acceptor, strict, fingerprint, expires })
    }
}

/// Returns whether a connection between these addresses does not leave this machine.
pub(crate) fn is_of_one_machine(from: IpAddr, here: IpAddr) -> bool {
    from.to_canonical().is_loopback() || from.to_canonical() == here.to_canonical()
}

/// Reads the authorities of clients.
fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| file(path, error))? {
        roots.add(certificate.map_err(|error| file(path, error))?).map_err(|error| file(path, error))?;
    }
    Ok(roots)
}

fn file(path: &Path, what: impl ToString) -> TlsError {
    TlsError::File { path: path.to_owned(), what: what.to_string() }
}

/// Creates a certificate for this machine's names that is valid as long as the files exist.
fn make(cert: &Path, key: &Path, listen: SocketAddr, names: &[String]) -> Result<(), TlsError> {
    let mut all = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !listen.ip().is_unspecified() {
        all.push(listen.ip().to_string());
    }
    all.extend(names.iter().map(|name| host_of(name).to_owned()));
    let unusable = |error: rcgen::Error| TlsError::Unusable(error.to_string());
    let made = rcgen::generate_simple_self_signed(all).map_err(unusable)?;
    if let Some(directory) = cert.parent() {
        fs::create_dir_all(directory).map_err(|error| file(directory, error))?;
    }
    private_file::write(key, made.signing_key.serialize_pem().as_bytes()).map_err(|error| file(key, error))?;
    private_file::write(cert, made.cert.pem().as_bytes()).map_err(|error| file(cert, error))
}

/// Returns the host of `HOST` or `HOST:PORT`.
fn host_of(name: &str) -> &str {
    let host = match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.ends_with(':') => host,
        _ => name,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair};
    use tokio::net::TcpListener;

    use super::*;
    use crate::net::{ClientCertificate, ConnectError, RelayAddress, Route, Trust, connect};

    #[test]
    fn a_certificate_is_made_once_and_its_key_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let config = TlsConfig::SelfSigned(directory.path().join("state"));
        let listen = "10.1.2.3:7878".parse().unwrap();
        let first = Tls::open(&config, listen, &["hub.example:7878".into()], None).unwrap();
        let again = Tls::open(&config, listen, &[], None).unwrap();
        assert_eq!(first.fingerprint, again.fingerprint);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let key = directory.path().join("state").join(SELF_SIGNED_KEY);
            assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    /// Writes a certificate for `name` that `issuer` has signed.
    fn sign(issuer: &Issuer<'_, KeyPair>, directory: &Path, name: &str) -> ClientCertificate {
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(vec![name.into()]).unwrap().signed_by(&key, issuer).unwrap();
        let [cert, file] = ["cert", "key"].map(|kind| directory.join(format!("{name}-{kind}.pem")));
        fs::write(&cert, signed.pem()).unwrap();
        fs::write(&file, key.serialize_pem()).unwrap();
        ClientCertificate { cert, key: file }
    }

    #[tokio::test]
    async fn hub_that_asks_for_certificates_admits_other_machines_with_theirs_only() {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        let [issuer, other] = [(); 2].map(|()| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        });
        fs::write(&ca, issuer.pem()).unwrap();
        let (own, foreign) = (sign(&issuer, directory.path(), "own"), sign(&other, directory.path(), "foreign"));
        let config = TlsConfig::SelfSigned(directory.path().join("state"));
        let tls = Tls::open(&config, "10.0.0.1:0".parse().unwrap(), &[], Some(&ca)).unwrap();
        let [here, elsewhere, loopback] = [[10, 0, 0, 1], [10, 0, 0, 2], [127, 0, 0, 1]].map(IpAddr::from);
        for (from, client, is_admitted) in [
            (loopback, None, true),
            (here, None, true),
            (elsewhere, None, false),
            (elsewhere, Some(foreign), false),
            (elsewhere, Some(own), true),
        ] {
            let trust = Trust { fingerprint: Some(tls.fingerprint), client, ..Trust::default() };
            let (listener, url) = listen().await;
            // The connection ends in any case, since no hub answers.
            let accepting = async { tls.accept(listener.accept().await.unwrap().0, (from, here)).await.is_ok() };
            let (is_accepted, connected) = tokio::join!(accepting, connect(Route::direct(&url, &trust)));
            let error = connected.err().expect("no hub answers").to_string();
            let has_advice = error.contains("name one with --tls-client-cert and --tls-client-key");
            assert_eq!((is_accepted, has_advice), (is_admitted, !is_admitted), "{from}: {error}");
        }
    }

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("wss://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    #[tokio::test]
    async fn certificate_with_another_fingerprint_is_explained_by_whose_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let config = TlsConfig::SelfSigned(directory.path().to_owned());
        let tls = Tls::open(&config, "127.0.0.1:0".parse().unwrap(), &[], None).unwrap();
        let trust = Trust { fingerprint: "00".repeat(32).parse().ok(), ..Trust::default() };
        let (listener, url) = listen().await;
        let accept = async || {
            let (stream, from) = listener.accept().await.unwrap();
            assert!(tls.accept(stream, (from.ip(), from.ip())).await.is_err());
        };
        let ((), hub) = tokio::join!(accept(), connect(Route::direct(&url, &trust)));
        let hub = hub.err().expect("it is not trusted");
        assert!(
            matches!(hub, ConnectError::OtherFingerprint) && hub.to_string().contains("--tls-fingerprint"),
            "{hub}"
        );
        let relay = RelayAddress { url: url.clone(), trust };
        let ((), relay) = tokio::join!(accept(), relay.to_hub());
        let Err(ConnectError::Failed(relay)) = relay else { panic!("the hub can still be used directly") };
        assert!(relay.contains("the relay's certificate") && relay.contains("--relay-fingerprint"), "{relay}");
    }

    #[test]
    fn unusable_certificate_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
        let open = |cert: &Path, key: &Path| {
            let config = TlsConfig::Files { cert: cert.to_owned(), key: key.to_owned() };
            Tls::open(&config, "127.0.0.1:0".parse().unwrap(), &[], None).err().expect("an error").to_string()
        };
        assert!(open(&cert, &key).contains("cert.pem"));
        fs::write(&cert, "nothing").unwrap();
        assert!(open(&cert, &key).contains("there is no certificate in it"));
        let [one, other] = [(); 2].map(|()| rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap());
        fs::write(&cert, one.cert.pem()).unwrap();
        fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert!(open(&cert, &key).contains("cannot be used"), "{}", open(&cert, &key));
    }

    #[test]
    fn hosts_of_names() {
        for (name, host) in
            [("a.b", "a.b"), ("a.b:80", "a.b"), ("[::1]:80", "::1"), ("::1", "::1"), ("10.0.0.1:7", "10.0.0.1")]
        {
            assert_eq!(host_of(name), host);
        }
    }
}
