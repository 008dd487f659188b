//! The token, which arrives in the URL's fragment, which browsers do not send to servers, and is stored until the tab
//! closes.

use leptos::prelude::window;
use rollmesh_core::protocol::Token;
use wasm_bindgen::JsValue;

const FRAGMENT: &str = "token=";
const STORAGE_KEY: &str = "rollmesh-token";

/// Text pasted by the user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pasted {
    /// A token, or this page's address with one.
    Token(Token),
    /// The address of another page. Only that page may receive the token in it.
    Address(String),
}

/// Returns the token from the URL or, after a reload, from the tab's storage.
pub(crate) fn take() -> Option<Token> {
    take_from_url().or_else(stored)
}

/// Takes the token out of the URL, so that it stays out of the history and of shared links.
pub(crate) fn take_from_url() -> Option<Token> {
    let location = window().location();
    let token = parse(&location.hash().ok()?)?;
    keep(&token);
    let path = location.pathname().ok()? + &location.search().ok()?;
    let history = window().history().ok()?;
    // The page also works if the URL cannot be changed.
    let _ = history.replace_state_with_url(&JsValue::NULL, "", Some(&path));
    Some(token)
}

/// Stores a token for reloads of this tab.
pub(crate) fn keep(token: &Token) {
    if let Ok(Some(storage)) = window().session_storage() {
        // In a browser without storage the page asks for the token again after a reload.
        let _ = storage.set_item(STORAGE_KEY, &token.to_hex());
    }
}

/// Removes the token from the tab's storage.
pub(crate) fn forget() {
    if let Ok(Some(storage)) = window().session_storage() {
        // A browser without storage has no token to remove.
        let _ = storage.remove_item(STORAGE_KEY);
    }
}

/// Returns the address of this page with a token under that name in its fragment: `token` opens the page, `join` makes
/// the tab a worker.
pub(crate) fn link(name: &str, token: &Token) -> String {
    let location = window().location();
    // If the browser hides the page's address, the link consists of the fragment alone.
    let page = location.origin().and_then(|origin| Ok(origin + &location.pathname()?)).unwrap_or_default();
    format!("{page}#{name}={}", token.to_hex())
}

/// Parses text that the user pastes on the page of this origin: a whole URL, its fragment or the token alone.
pub(crate) fn pasted(text: &str, origin: &str) -> Option<Pasted> {
    let text = text.trim();
    let token = parse(text)?;
    let page = text.rsplit_once(FRAGMENT).map_or("", |(page, _)| page).trim_end_matches('#');
    let of_page: Vec<&str> = page.splitn(4, '/').take(3).collect();
    if page.is_empty() || of_page.join("/").eq_ignore_ascii_case(origin) {
        return Some(Pasted::Token(token));
    }
    let is_address = ["http://", "https://"].iter().any(|scheme| page.starts_with(scheme));
    is_address.then(|| Pasted::Address(text.to_owned()))
}

fn parse(text: &str) -> Option<Token> {
    let text = text.trim();
    let (_, hex) = text.rsplit_once(FRAGMENT).unwrap_or(("", text));
    Token::from_hex(hex).ok()
}

fn stored() -> Option<Token> {
    let storage = window().session_storage().ok()??;
    parse(&storage.get_item(STORAGE_KEY).ok()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_holds_a_token_is_read() {
        let token = Token::new([0x5a; 32]);
        let hex = "5a".repeat(32);
        for text in [hex.clone(), format!("#token={hex}"), format!(" http://127.0.0.1:7425/#token={hex}\n")] {
            assert_eq!(parse(&text), Some(token));
        }
        for text in ["", "#token=", "http://127.0.0.1:7425/", &hex[1..]] {
            assert_eq!(parse(text), None);
        }
    }

    #[test]
    fn tokens_of_other_pages_are_theirs_alone() {
        let (token, hex) = (Token::new([0x5a; 32]), "5a".repeat(32));
        let read = |page: &str| pasted(&format!(" {page}#token={hex}\n"), "http://127.0.0.1:7425");
        assert_eq!(pasted(&hex, "http://127.0.0.1:7425"), Some(Pasted::Token(token)));
        for page in ["", "http://127.0.0.1:7425/", "http://127.0.0.1:7425", "HTTP://127.0.0.1:7425/page/?a=b"] {
            assert_eq!(read(page), Some(Pasted::Token(token)), "{page}");
        }
        for page in ["http://127.0.0.1:7426/", "https://127.0.0.1:7425/", "http://127.0.0.1:7425@hub.example.org/"] {
            assert_eq!(read(page), Some(Pasted::Address(format!("{page}#token={hex}"))), "{page}");
        }
        for page in ["hub.example.org/", "javascript://127.0.0.1:7425/%0aalert()", "file:///page"] {
            assert_eq!(read(page), None, "{page}");
        }
    }
}
