//! Access control: tokens authenticate peers, the Host and Origin headers authenticate HTTP requests.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
};

use hyper::header::{self, HeaderMap, HeaderValue};
use rollmesh_core::{
    group::Party,
    protocol::{Role, Token, TokenGrant, TokenHash, TokenId, TokenTable},
};

use super::{
    limits::{MAX_PAGE_TOKENS, MAX_TOKENS},
    run_tokens::RunTokens,
    token_file::{TokenFile, TokenFileError, now},
};

/// Returns a new token from the system's random number generator.
pub(crate) fn random_token() -> Result<Token, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(Token::new(bytes))
}

/// Lifetime of a token that the dashboard page requested, in seconds.
const PAGE_TOKEN_SECONDS: u64 = 24 * 60 * 60;

/// The tokens that authenticate peers: the hub's own, which end with the hub, and those of the token file.
#[derive(Default)]
pub(super) struct Tokens {
    own: TokenTable,
    file: Option<TokenFile>,
    /// The hub's own tokens that are kept in the run directory, so that a restarted hub accepts them as well.
    kept: RunTokens,
    /// The hub's own tokens and the file's, merged for lookup at the handshake.
    all: TokenTable,
    of_pages: VecDeque<TokenId>,
    /// The hub's own worker token, which many workers may share, and its successors after rotation.
    shared: BTreeSet<TokenId>,
}

impl Tokens {
    pub(super) fn new(file: Option<TokenFile>, kept: RunTokens) -> Self {
        let mut tokens = Self { file, kept, ..Self::default() };
        tokens.join();
        tokens
    }

    fn join(&mut self) {
        self.all = self.own.clone();
        let rows = self.file.iter().flat_map(TokenFile::rows);
        rows.for_each(|(hash, grant)| self.all.insert(*hash, *grant));
    }

    pub(super) fn add(&mut self, token: &Token, grant: TokenGrant) -> TokenId {
        let hash = TokenHash::of(token);
        self.own.insert(hash, grant);
        self.all.insert(hash, grant);
        hash.id()
    }

    /// Adds a token for a worker in a browser tab. Returns its id and its expiry in seconds since 1970.
    pub(super) fn add_for_page(&mut self, token: &Token) -> (TokenId, Option<u64>) {
        while self.of_pages.len() >= MAX_PAGE_TOKENS
            && let Some(oldest) = self.of_pages.pop_front()
        {
            self.forget(oldest);
        }
        let expires = Some(now().saturating_add(PAGE_TOKEN_SECONDS));
        let id = self.add(token, TokenGrant { role: Role::Worker, child: None, expires });
        self.of_pages.push_back(id);
        (id, expires)
    }

    /// Marks this token as shared: many workers may present it.
    pub(super) fn share(&mut self, token: &Token) {
        self.shared.insert(TokenHash::of(token).id());
    }

    pub(super) fn is_shared(&self, id: TokenId) -> bool {
        self.shared.contains(&id)
    }

    /// Returns the token that a principal stands for, if the principal is a token and that token still exists.
    pub(super) fn of_party(&self, party: Party) -> Option<TokenId> {
        let id = u32::try_from(party.0).ok().map(TokenId)?;
        self.all.iter().any(|(hash, _)| hash.id() == id).then_some(id)
    }

    /// True if a dashboard page requested this token.
    pub(super) fn is_of_page(&self, id: TokenId) -> bool {
        self.of_pages.contains(&id)
    }

    /// Revokes one of the hub's own tokens. Returns whether it existed.
    pub(super) fn forget(&mut self, id: TokenId) -> bool {
        let was_there = self.own.revoke(id);
        self.kept.replace(id, None);
        self.join();
        was_there
    }

    /// Lets one of the hub's own tokens be valid until it is revoked.
    pub(super) fn keep(&mut self, id: TokenId) {
        self.own.keep(id);
        self.join();
    }

    /// Creates a token that expires after `seconds`, or never; it is stored in the token file if there is one.
    pub(super) fn create(&mut self, role: Role, seconds: Option<u64>) -> Result<(Token, TokenGrant), TokenFileError> {
        let made = match &mut self.file {
            Some(file) => file.create(role, seconds)?,
            None => {
                self.own.forget_over(now());
                if self.own.iter().len() >= MAX_TOKENS {
                    return Err(TokenFileError::Full);
                }
                let token = random_token().map_err(TokenFileError::Randomness)?;
                let expires = seconds.map(|seconds| now().saturating_add(seconds));
                let grant = TokenGrant { role, child: None, expires };
                self.add(&token, grant);
                (token, grant)
            }
        };
        self.join();
        Ok(made)
    }

    /// Revokes any token, the hub's own or one of the file.
    pub(super) fn revoke(&mut self, id: TokenId) -> Result<(), TokenFileError> {
        if self.forget(id) {
            return Ok(());
        }
        let revoked = match &mut self.file {
            Some(file) => file.revoke(id),
            None => Err(TokenFileError::Unknown(id)),
        };
        self.join();
        revoked
    }

    /// Creates a token with the same role and expiry; the old one expires after `seconds`.
    pub(super) fn rotate(&mut self, id: TokenId, seconds: u64) -> Result<(Token, TokenGrant), TokenFileError> {
        let own =
            self.own.iter().find(|(hash, grant)| hash.id() == id && grant.child.is_none()).map(|(_, grant)| *grant);
        let made = match (own, &mut self.file) {
            (Some(grant), _) => {
                let token = random_token().map_err(TokenFileError::Randomness)?;
                self.own.expire_at(id, now().saturating_add(seconds));
                self.kept.replace(id, Some(&token));
                let new = self.add(&token, grant);
                // The new token has the same holders as the old one.
                if self.is_shared(id) {
                    self.shared.insert(new);
                }
                if self.is_of_page(id) {
                    self.of_pages.push_back(new);
                }
                (token, grant)
            }
            (None, Some(file)) => file.rotate(id, seconds)?,
            (None, None) => return Err(TokenFileError::Unknown(id)),
        };
        self.join();
        Ok(made)
    }

    /// Reloads the token file if it has changed on disk.
    pub(super) fn follow(&mut self) -> Result<(), TokenFileError> {
        let changed = self.file.as_mut().map_or(Ok(false), TokenFile::follow)?;
        if changed {
            self.join();
        }
        Ok(())
    }

    pub(super) fn table(&self) -> &TokenTable {
        &self.all
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
    /// Returns the names of a hub that a connection reached at this address.
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

    /// True if a request was meant for this hub and comes from one of its own pages, from an allowed origin, or from a
    /// program that is not a page.
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

/// True if the text is a valid host, with or without a port, for which the hub may serve pages.
pub(super) fn is_host(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

/// True if the text is an origin as browsers write it: scheme and host in lower case, a port unless it is the default one,
/// nothing after it.
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
    fn pages_cannot_fill_the_table() {
        let mut tokens = Tokens::default();
        let token = |i: usize| Token::new(std::array::from_fn(|byte| (i >> (8 * (byte % 2))) as u8));
        (0..MAX_PAGE_TOKENS + 2).for_each(|i| _ = tokens.add_for_page(&token(i)));
        assert_eq!(tokens.table().find(&token(1), 0), None);
        assert!(tokens.table().find(&token(2), now()).is_some());
        assert!(tokens.table().find(&token(2), now() + 2 * PAGE_TOKEN_SECONDS).is_none());
    }

    #[test]
    fn what_comes_of_a_token_is_for_whom_it_was_for() {
        let mut tokens = Tokens::default();
        let (of_all, of_page) = (Token::new([1; 32]), Token::new([2; 32]));
        tokens.add(&of_all, TokenGrant { role: Role::Worker, child: None, expires: None });
        tokens.share(&of_all);
        tokens.add_for_page(&of_page);
        let mut rotate = |token: &Token| {
            let (new, grant) = tokens.rotate(TokenHash::of(token).id(), 5).unwrap();
            assert_eq!(grant.role, Role::Worker);
            (tokens.is_shared(TokenHash::of(&new).id()), tokens.is_of_page(TokenHash::of(&new).id()))
        };
        assert_eq!(rotate(&of_all), (true, false));
        assert_eq!(rotate(&of_page), (false, true));
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
    fn pages_of_an_allowed_origin_get_in_and_nobody_who_resembles_them() {
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
    fn everybody_else_stays_out() {
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
