//! Who gets in: tokens for peers, Host and Origin for requests.

use std::{collections::VecDeque, net::SocketAddr};

use axum::http::{HeaderMap, HeaderValue, header};
use rollmesh_core::protocol::{Role, Token, TokenGrant, TokenTable};

/// A token from the system's randomness.
pub(crate) fn random_token() -> Result<Token, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(Token::new(bytes))
}

/// The most tokens that pages may have asked for; of more, the oldest is no longer valid.
const MAX_PAGE_TOKENS: usize = 256;

/// The tokens that open this hub.
#[derive(Default)]
pub(super) struct Tokens {
    table: TokenTable,
    of_pages: VecDeque<Token>,
}

impl Tokens {
    pub(super) fn add(&mut self, token: Token, role: Role, child: Option<u32>) {
        self.table.insert(token, TokenGrant { role, child });
    }

    /// A token for a page's own worker.
    pub(super) fn add_for_page(&mut self, token: Token) {
        if self.of_pages.len() == MAX_PAGE_TOKENS
            && let Some(oldest) = self.of_pages.pop_front()
        {
            self.revoke(&oldest);
        }
        self.of_pages.push_back(token);
        self.add(token, Role::Worker, None);
    }

    pub(super) fn revoke(&mut self, token: &Token) {
        self.table.revoke(token);
    }

    pub(super) fn table(&self) -> &TokenTable {
        &self.table
    }
}

/// Whether a request was meant for this hub and comes from one of its own pages, from one of an allowed origin, or from no
/// page at all.
///
/// The Host check stops names that a foreign page lets point to this machine; the Origin check stops foreign pages.
/// Programs send no Origin; they still need a token.
pub(super) fn is_own(headers: &HeaderMap, address: SocketAddr, allowed_origins: &[String]) -> bool {
    let hosts = own_hosts(address);
    let is_own_host =
        |value: &HeaderValue| hosts.iter().any(|host| value.as_bytes().eq_ignore_ascii_case(host.as_bytes()));
    let is_own_origin = |value: &HeaderValue| {
        value
            .as_bytes()
            .strip_prefix(b"http://")
            .is_some_and(|host| hosts.iter().any(|own| host.eq_ignore_ascii_case(own.as_bytes())))
    };
    let mut host = headers.get_all(header::HOST).iter();
    let one_host = host.next().is_some_and(is_own_host) && host.next().is_none();
    let is_allowed = |value: &HeaderValue| allowed_origins.iter().any(|origin| value.as_bytes() == origin.as_bytes());
    one_host && headers.get_all(header::ORIGIN).iter().all(|value| is_own_origin(value) || is_allowed(value))
}

/// Whether a text is an origin as browsers write it: scheme and host in lower case, a port unless it is the usual one,
/// nothing after it.
pub(super) fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let usual_port = if text.starts_with("https:") { ":443" } else { ":80" };
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    host.is_some_and(|host| !host.is_empty() && host.chars().all(is_part) && !host.ends_with(usual_port))
}

/// The names of this machine for itself; its own address may be another one of 127.0.0.0/8.
pub(super) fn own_hosts(address: SocketAddr) -> [String; 4] {
    let port = address.port();
    [address.to_string(), format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(host: &[&str], origin: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        host.iter().for_each(|value| _ = headers.append(header::HOST, value.parse().unwrap()));
        origin.iter().for_each(|value| _ = headers.append(header::ORIGIN, value.parse().unwrap()));
        is_own(&headers, ([127, 0, 0, 1], 7878).into(), &["https://game.example".into()])
    }

    #[test]
    fn pages_cannot_fill_the_table() {
        let mut tokens = Tokens::default();
        let token = |i: usize| Token::new(std::array::from_fn(|byte| (i >> (8 * (byte % 2))) as u8));
        (0..MAX_PAGE_TOKENS + 2).for_each(|i| tokens.add_for_page(token(i)));
        assert_eq!(tokens.table().find(&token(1)), None);
        assert!(tokens.table().find(&token(2)).is_some());
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
            ["null", "https://127.0.0.1:7878", "http://127.0.0.1:8080", "http://evil.example", "http://localhost"]
        {
            assert!(!asks(&["127.0.0.1:7878"], &[origin]), "{origin}");
        }
    }
}
