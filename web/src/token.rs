//! The token: it arrives in the URL's fragment, which no server sees, and is kept for the tab's life.

use leptos::prelude::window;
use rollmesh_core::protocol::Token;
use wasm_bindgen::JsValue;

const FRAGMENT: &str = "token=";
const STORAGE_KEY: &str = "rollmesh-token";

/// The token from the URL or, after a reload, from the tab's storage.
pub(crate) fn take() -> Option<Token> {
    take_from_url().or_else(stored)
}

/// The token from the URL. It is removed there, so that it stays out of the history and of shared links.
pub(crate) fn take_from_url() -> Option<Token> {
    let location = window().location();
    let token = parse(&location.hash().ok()?)?;
    keep(&token);
    let path = location.pathname().ok()? + &location.search().ok()?;
    let history = window().history().ok()?;
    // The page works as well if the URL cannot be changed.
    let _ = history.replace_state_with_url(&JsValue::NULL, "", Some(&path));
    Some(token)
}

/// Keeps a token for reloads of this tab.
pub(crate) fn keep(token: &Token) {
    if let Ok(Some(storage)) = window().session_storage() {
        // A browser that keeps nothing asks for the token again after a reload.
        let _ = storage.set_item(STORAGE_KEY, &token.to_hex());
    }
}

/// The address of this page with a token.
pub(crate) fn link(token: &Token) -> String {
    let location = window().location();
    // A browser that hides the page's address leaves the part to append.
    let page = location.origin().and_then(|origin| Ok(origin + &location.pathname()?)).unwrap_or_default();
    format!("{page}#{FRAGMENT}{}", token.to_hex())
}

/// Reads what a person may paste: a whole URL, its fragment or the token alone.
pub(crate) fn parse(text: &str) -> Option<Token> {
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
}
