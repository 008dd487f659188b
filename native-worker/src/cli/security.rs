//! The flags for a hub's security, and for verifying a hub.

use std::{
    env,
    io::{IsTerminal as _, stderr},
    path::{self, PathBuf},
};

use clap::Args;
use rollmesh_core::group::AuditPolicy;

use super::{choices::on_divergence, exit::Failure};
use crate::{
    hub::{Distrust, OnDivergence, SecurityConfig, TlsConfig, UNENCRYPTED_FLAG},
    net::{ClientCertificate, Fingerprint, RelayAddress, Trust, is_hub_url, is_on_loopback},
};

/// The flags of every command that runs a hub.
#[derive(Args, Clone, Debug)]
pub(super) struct SecurityFlags {
    #[command(flatten)]
    tls: TlsFlags,
    /// Let other machines in with a certificate of these authorities only, a PEM file (mutual TLS)
    ///
    /// In addition to a token; peers name theirs with --tls-client-cert. Connections on this machine need none
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Listen beyond this machine without encryption: anyone on the network path can read tokens and data
    #[arg(long, hide_short_help = true)]
    i_know_this_is_not_encrypted: bool,
    /// Name by which others reach this hub
    ///
    /// HOST or HOST:PORT; may be given several times [default: its addresses]
    #[arg(long, hide_short_help = true, value_name = "HOST")]
    public_host: Vec<String>,
    /// Let pages of this origin show the dashboard in a frame
    ///
    /// A notebook's for example, `http://localhost:8888`; may be given several times [default: none]
    #[arg(long, hide_short_help = true, value_name = "ORIGIN")]
    allow_frame: Vec<String>,
    /// Tokens that outlive the hub, see `rollmesh tokens`
    ///
    /// The hub then prints its own tokens on a terminal only, since logs keep what services print
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Audit log, lines of JSON
    ///
    /// That of leases is in the same directory [default: audit.jsonl in the run or state directory]
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Share of untrusted fragments that are recomputed
    ///
    /// The hub compares them with what untrusted workers have sent. Browser tabs are not trusted
    #[arg(long, hide_short_help = true, value_name = "SHARE", default_value_t = AuditPolicy::DEFAULT_SHARE)]
    audit_share: f64,
    /// Trust no worker but the hub's own
    #[arg(long, hide_short_help = true)]
    distrust_workers: bool,
    /// What becomes of a run after a failed audit
    #[arg(long, hide_short_help = true, default_value = "roll-back", value_parser = on_divergence())]
    on_divergence: OnDivergence,
}

/// The flags of every command that listens.
#[derive(Args, Clone, Debug)]
pub(super) struct TlsFlags {
    /// Certificate for wss and https, a PEM file with its chain
    ///
    /// Needed to listen beyond this machine
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "tls_key", conflicts_with = "tls_self_signed")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate, a PEM file
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Make a certificate, and keep it in the state directory
    ///
    /// Workers need its fingerprint, which is printed
    #[arg(long, hide_short_help = true)]
    tls_self_signed: bool,
    /// Directory for the certificate and the audit log [default: rollmesh in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl TlsFlags {
    pub(super) fn config(&self) -> Result<Option<TlsConfig>, Failure> {
        Ok(match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsConfig::Files { cert: cert.clone(), key: key.clone() }),
            _ if self.tls_self_signed => Some(TlsConfig::SelfSigned(self.state_dir()?)),
            _ => None,
        })
    }

    fn state_dir(&self) -> Result<PathBuf, Failure> {
        let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || {
            Some(absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?.join("rollmesh"))
        };
        let found = self.state_dir.clone().or_else(usual);
        found.ok_or_else(|| Failure::usage("there is no home directory for the hub's files: name one with --state-dir"))
    }
}

impl SecurityFlags {
    /// Returns the configuration; a hub with a run directory keeps its audit log there.
    pub(super) fn config(&self, run_dir: Option<&PathBuf>) -> Result<SecurityConfig, Failure> {
        let tls = self.tls.config()?;
        if self.tls_client_ca.is_some() && tls.is_none() {
            return Err(Failure::usage(
                "--tls-client-ca is for a hub with a certificate: --tls-cert or --tls-self-signed",
            ));
        }
        let audit_log = match (&self.audit_log, run_dir) {
            (Some(path), _) => path.clone(),
            (None, Some(directory)) => directory.join("audit.jsonl"),
            (None, None) => self.tls.state_dir()?.join("audit.jsonl"),
        };
        Ok(SecurityConfig {
            tls,
            client_ca: self.tls_client_ca.clone(),
            allow_unencrypted: self.i_know_this_is_not_encrypted,
            hosts: self.public_host.clone(),
            frame_origins: self.allow_frame.clone(),
            token_file: self.tokens.clone(),
            run_tokens: run_dir.map(|directory| directory.join("hub_tokens.json")),
            audit_log: Some(audit_log),
            distrust: Distrust {
                audits: AuditPolicy { share: self.audit_share, ..AuditPolicy::default() },
                distrust_remote: self.distrust_workers,
                on_divergence: self.on_divergence,
            },
        })
    }

    /// Returns whether the hub's own tokens must not be printed: a service's standard error is kept in logs. Without a
    /// file of tokens there are no others to use.
    pub(super) fn hides_tokens(&self) -> bool {
        self.tokens.is_some() && !stderr().is_terminal()
    }

    /// Returns the default parent directory of runs started from a hub's page.
    pub(super) fn runs_dir(&self) -> Result<PathBuf, Failure> {
        Ok(self.tls.state_dir()?.join("runs"))
    }
}

/// The flags of every command that connects to a hub.
#[derive(Args, Clone, Debug)]
pub(super) struct TrustFlags {
    /// Certificate authorities to trust, a PEM file [default: those of the system]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", conflicts_with = "tls_fingerprint")]
    tls_ca: Option<PathBuf>,
    /// The fingerprint of the hub's certificate, which the hub prints, for any issuer
    #[arg(long, global = true, hide_short_help = true, value_name = "SHA256")]
    tls_fingerprint: Option<Fingerprint>,
    /// Show the token to a hub on another machine without encryption
    #[arg(long, global = true, hide_short_help = true)]
    i_know_this_is_not_encrypted: bool,
    /// Certificate of this peer, a PEM file, for a hub that asks for one (--tls-client-ca)
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", requires = "tls_client_key")]
    tls_client_cert: Option<PathBuf>,
    /// Key of that certificate, a PEM file
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", requires = "tls_client_cert")]
    tls_client_key: Option<PathBuf>,
}

/// The flags of every command that may use a relay.
#[derive(Args, Clone, Debug)]
pub(super) struct RelayFlags {
    /// Get weights from this relay, and reach the hub through it, ws://HOST:PORT or wss://HOST:PORT
    ///
    /// While it cannot be reached, the hub is used directly
    #[arg(long, hide_short_help = true, value_name = "URL", value_parser = is_hub_url)]
    relay: Option<String>,
    /// The fingerprint of the relay's certificate, which the relay prints [default: an authority, as for the hub]
    #[arg(long, hide_short_help = true, value_name = "SHA256", requires = "relay")]
    relay_fingerprint: Option<Fingerprint>,
}

impl RelayFlags {
    /// Returns the relay; `trust` says how the hub is verified.
    pub(super) fn address(&self, hub: &str, trust: &Trust) -> Result<Option<RelayAddress>, String> {
        let Some(url) = self.relay.clone() else { return Ok(None) };
        let trust = Trust { fingerprint: self.relay_fingerprint, ..trust.clone() };
        trust.check(&url)?;
        if hub.starts_with("ws://") && !is_on_loopback(&url) && !trust.allow_unencrypted {
            return Err("the relay on another machine would see the token, which ws:// does not encrypt: use wss:// for the hub".into());
        }
        Ok(Some(RelayAddress { url, trust }))
    }

    /// Returns the same as arguments.
    pub(super) fn arguments(&self) -> Vec<String> {
        let relay = self.relay.iter().flat_map(|url| ["--relay".into(), url.clone()]);
        let fingerprint = self.relay_fingerprint.iter();
        relay.chain(fingerprint.flat_map(|sha256| ["--relay-fingerprint".into(), sha256.to_string()])).collect()
    }
}

impl TrustFlags {
    /// Returns the same as arguments, for a process that connects to the same hub, whatever its working directory.
    pub(super) fn arguments(&self) -> Vec<String> {
        let absolute = |path: &PathBuf| path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
        let ca = self.tls_ca.iter().flat_map(|path| ["--tls-ca".into(), absolute(path)]);
        let fingerprint =
            self.tls_fingerprint.iter().flat_map(|sha256| ["--tls-fingerprint".into(), sha256.to_string()]);
        let plain = self.i_know_this_is_not_encrypted.then(|| UNENCRYPTED_FLAG.into());
        let files = [("--tls-client-cert", &self.tls_client_cert), ("--tls-client-key", &self.tls_client_key)];
        let client = files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        let client = client.flat_map(|(flag, path)| [flag.into(), absolute(path)]);
        ca.chain(fingerprint).chain(plain).chain(client).collect()
    }

    pub(super) fn trust(&self) -> Trust {
        Trust {
            ca: self.tls_ca.clone(),
            fingerprint: self.tls_fingerprint,
            allow_unencrypted: self.i_know_this_is_not_encrypted,
            client: self
                .tls_client_cert
                .clone()
                .zip(self.tls_client_key.clone())
                .map(|(cert, key)| ClientCertificate { cert, key }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn paths_are_passed_on_for_any_working_directory() {
        let flags = TrustFlags {
            tls_ca: Some("ca.pem".into()),
            tls_fingerprint: None,
            i_know_this_is_not_encrypted: false,
            tls_client_cert: Some("peer.pem".into()),
            tls_client_key: Some("/keys/peer.pem".into()),
        };
        let arguments = flags.arguments();
        let paths = arguments.iter().filter(|argument| !argument.starts_with("--")).map(Path::new);
        assert!(paths.clone().all(Path::is_absolute) && paths.count() == 3, "{arguments:?}");
    }
}
