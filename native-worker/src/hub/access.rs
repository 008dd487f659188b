//! Access control: tokens authenticate peers, the Host and Origin headers authenticate HTTP requests.

use std::{io, net::SocketAddr};

use hyper::header::{self, HeaderMap, HeaderValue};
use rollmesh_core::{
    hub::HubTokens,
    protocol::{Role, Token, TokenGrant, TokenId},
};

use super::{
    run_tokens::RunTokens,
    token_file::{TokenFile, TokenFileError, now},
};

/// Returns a new token from the system's random number generator.
pub(crate) fn random_token() -> io::Result<Token> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Token::new(bytes))
}

/// The files that keep tokens.
#[derive(Default)]
pub(super) struct TokenFiles {
    file: Option<TokenFile>,
    /// The hub's own tokens that are kept in the run directory, so that a restarted hub accepts them as well.
    kept: RunTokens,
}

impl TokenFiles {
    pub(super) fn new(file: Option<TokenFile>, kept: RunTokens, tokens: &mut HubTokens) -> Self {
        let files = Self { file, kept };
        files.join(tokens);
        files
    }

    fn join(&self, tokens: &mut HubTokens) {
        if let Some(file) = &self.file {
            tokens.set_stored(file.rows());
        }
    }

    /// Creates a token that expires after `seconds`, or never; it is stored in the token file if there is one.
    pub(super) fn create(
        &mut self,
        tokens: &mut HubTokens,
        role: Role,
        seconds: Option<u64>,
    ) -> Result<(Token, TokenGrant), TokenFileError> {
        let Some(file) = &mut self.file else {
            let token = random_token().map_err(TokenFileError::Randomness)?;
            return Ok((token, tokens.create(&token, role, seconds, now())?));
        };
        let made = file.create(role, seconds)?;
        self.join(tokens);
        Ok(made)
    }

    /// Revokes any token, the hub's own or one of the file.
    pub(super) fn revoke(&mut self, tokens: &mut HubTokens, id: TokenId) -> Result<(), TokenFileError> {
        self.kept.replace(id, None);
        if tokens.revoke(id) {
            return Ok(());
        }
        let revoked = self.file.as_mut().map_or(Err(TokenFileError::Unknown(id)), |file| file.revoke(id));
        self.join(tokens);
        revoked
    }

    /// Creates a token with the same role and expiry; the old one expires after `seconds`.
    pub(super) fn rotate(
        &mut self,
        tokens: &mut HubTokens,
        id: TokenId,
        seconds: u64,
    ) -> Result<(Token, TokenGrant), TokenFileError> {
        let token = random_token().map_err(TokenFileError::Randomness)?;
        if let Some(grant) = tokens.rotate(id, &token, seconds, now())? {
            self.kept.replace(id, Some(&token));
            return Ok((token, grant));
        }
        let made = self.file.as_mut().map_or(Err(TokenFileError::Unknown(id)), |file| file.rotate(id, seconds));
        self.join(tokens);
        made
    }

    /// Reloads the token file if it has changed on disk.
    pub(super) fn follow(&mut self, tokens: &mut HubTokens) -> Result<(), TokenFileError> {
        if self.file.as_mut().map_or(Ok(false), TokenFile::follow)? {
            self.join(tokens);
        }
        Ok(())
    }
}

/// The hub's web identity: hosts and origins of its own pages, and further allowed origins.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// `HOST:PORT`.
    hosts: Vec<String>,
    scheme: &'static str,
    /// Further origins that are allowed.
    allowed: Vec<String>,
}

impl Names {
    /// Returns the names of a hub for a connection that reached it at this address.
    pub(super) fn new(address: SocketAddr, encrypted: bool, hosts: &[String], allowed: &[String]) -> Self {
        let port = address.port();
        let usual_port = if encrypted { 443 } else { 80 };
        let mut own = own_hosts(address).to_vec();
        for host in hosts {
            let has_port =
                host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
            if has_port {
                own.push(host.clone());
            } else {
                own.push(format!("{host}:{port}"));
            }
        }
        if port == usual_port {
            let short = |host: &String| host.strip_suffix(&format!(":{port}")).map(str::to_owned);
            own.extend(own.iter().filter_map(short).collect::<Vec<_>>());
        }
        Self { hosts: own, scheme: if encrypted { "https://" } else { "http://" }, allowed: allowed.to_vec() }
    }

    /// Returns whether a request was meant for this hub and comes from one of its own pages, from an allowed origin, or
    /// from a program that is not a page.
    ///
    /// The Host check stops DNS rebinding: names of a foreign site that resolve to this machine. The Origin check stops
    /// foreign pages. Programs send no Origin; they still need a token.
    pub(super) fn is_own(&self, headers: &HeaderMap) -> bool {
        let is_host = |value: &[u8]| self.hosts.iter().any(|host| value.eq_ignore_ascii_case(host.as_bytes()));
        let is_own_origin =
            |value: &HeaderValue| value.as_bytes().strip_prefix(self.scheme.as_bytes()).is_some_and(is_host);
        let is_allowed = |value: &HeaderValue| self.allowed.iter().any(|origin| value.as_bytes() == origin.as_bytes());
        let mut host = headers.get_all(header::HOST).iter();
        let one_host = host.next().is_some_and(|value| is_host(value.as_bytes())) && host.next().is_none();
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let one_origin = origins.next().is_none_or(|value| is_own_origin(value) || is_allowed(value));
        one_host && one_origin && origins.next().is_none()
    }

    /// Returns the WebSocket URLs for the page's content security policy.
    pub(super) fn sockets(&self) -> Vec<String> {
        let scheme = if self.scheme == "https://" { "wss" } else { "ws" };
        // A policy cannot name IPv6 addresses: browsers warn about them and ignore them. 'self' covers a page from there.
        let hosts = self.hosts.iter().filter(|host| !host.starts_with('['));
        hosts.map(|host| format!("{scheme}://{host}")).collect()
    }
}

/// Returns whether the text is a valid host, with or without a port, for which the hub may serve pages.
pub(super) fn is_host(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

/// Returns whether the text is an origin as browsers write it: scheme and host in lower case, a port unless it is the
/// default one, nothing after it.
pub(super) fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let usual_port = if text.starts_with("https:") { ":443" } else { ":80" };
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    host.is_some_and(|host| !host.is_empty() && host.chars().all(is_part) && !host.ends_with(usual_port))
}

/// Returns this machine's own names; its address may be another one of 127.0.0.0/8.
pub(super) fn own_hosts(address: SocketAddr) -> [String; 4] {
    let port = address.port();
    // A dual-stack socket reports IPv4 addresses in IPv6-mapped form; clients write them as IPv4.
    let address = SocketAddr::new(address.ip().to_canonical(), port);
    [address.to_string(), format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(host: &[&str], origin: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        host.iter().for_each(|value| _ = headers.append(header::HOST, value.parse().unwrap()));
        origin.iter().for_each(|value| _ = headers.append(header::ORIGIN, value.parse().unwrap()));
        let names = Names::new(([127, 0, 0, 1], 7878).into(), false, &[], &["https://game.example".into()]);
        names.is_own(&headers)
    }

    #[test]
    fn a_hub_for_both_kinds_of_addresses_has_the_usual_names() {
        let names = Names::new("[::ffff:10.0.0.1]:7878".parse().unwrap(), false, &[], &[]);
        let headers = [(header::HOST, "10.0.0.1:7878".parse().unwrap())].into_iter().collect();
        assert!(names.is_own(&headers));
    }

    #[test]
    fn a_hub_beyond_this_machine_has_the_names_it_was_given() {
        let hosts = ["hub.example".to_owned(), "hub.example:8443".to_owned()];
        let names = Names::new(([10, 0, 0, 1], 443).into(), true, &hosts, &[]);
        let asks = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
            names.is_own(&headers)
        };
        for host in ["10.0.0.1:443", "10.0.0.1", "hub.example", "hub.example:443", "hub.example:8443"] {
            assert!(asks(host, None) && asks(host, Some("https://hub.example")), "{host}");
        }
        assert!(!asks("hub.example", Some("http://hub.example")), "not encrypted");
        assert!(!asks("a.hub.example", None) && !asks("10.0.0.2:443", None) && !asks("hub.example:80", None));
    }

    #[test]
    fn own_pages_and_programs_get_in() {
        assert!(asks(&["127.0.0.1:7878"], &[]));
        assert!(asks(&["LocalHost:7878"], &["http://localhost:7878"]));
        assert!(asks(&["[::1]:7878"], &["http://127.0.0.1:7878"]));
    }

    #[test]
    fn pages_of_allowed_origins_get_in_and_lookalikes_do_not() {
        let own = &["127.0.0.1:7878"];
        assert!(asks(own, &["https://game.example"]));
        for origin in
            ["http://game.example", "https://game.example:8443", "https://a.game.example", "https://GAME.example"]
        {
            assert!(!asks(own, &[origin]), "{origin}");
        }
        assert!(!asks(own, &["https://game.example", "https://evil.example"]));
        assert!(!asks(&["game.example"], &["https://game.example"]), "the hub has another name");
        for origin in ["https://game.example", "http://localhost:8000", "http://[::1]:8000"] {
            assert!(is_origin(origin), "{origin}");
        }
        for text in
            ["game.example", "https://", "https://game.example/", "https://Game.example", "null", "*", "http://a:80"]
        {
            assert!(!is_origin(text), "{text}");
        }
    }

    #[test]
    fn other_origins_stay_out() {
        for host in ["evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:7878.evil.example", ""] {
            assert!(!asks(&[host], &[]), "{host}");
        }
        assert!(!asks(&[], &[]));
        assert!(!asks(&["127.0.0.1:7878", "127.0.0.1:7878"], &[]));
        for origin in
            ["null", "", "https://127.0.0.1:7878", "http://127.0.0.1:8080", "http://evil.example", "http://localhost"]
        {
            assert!(!asks(&["127.0.0.1:7878"], &[origin]), "{origin}");
        }
    }
}
