//! Links to settings and views: the page's fragment has them by name, as `#env=CartPole-v1&seed=3&chart.x=time`.

use leptos::prelude::window;
use wasm_bindgen::JsValue;
use web_sys::UrlSearchParams;

use crate::state::Texts;

/// Reads the texts that the page's address restores; `None` for an address without any.
pub(crate) fn read() -> Option<Texts> {
    let hash = window().location().hash().ok()?;
    let pairs = UrlSearchParams::new_with_str(hash.strip_prefix('#')?).ok()?;
    let pairs = js_sys::try_iter(&pairs).ok()??.filter_map(Result::ok).map(|pair| js_sys::Array::from(&pair));
    let text = |pair: &js_sys::Array, at| pair.get(at).as_string();
    let texts: Texts = pairs.filter_map(|pair| Some((text(&pair, 0)?, text(&pair, 1)?))).collect();
    (!texts.is_empty()).then_some(texts)
}

/// Puts these texts into the page's address, without another entry in the history.
pub(crate) fn show(texts: &Texts) {
    let encoded = |text: &str| String::from(js_sys::encode_uri_component(text));
    let pairs: Vec<String> = texts.iter().map(|(path, text)| format!("{}={}", encoded(path), encoded(text))).collect();
    let location = window().location();
    let (Ok(path), Ok(search), Ok(history)) = (location.pathname(), location.search(), window().history()) else {
        return;
    };
    // The page works as well if its address cannot be changed.
    let url = format!("{path}{search}#{}", pairs.join("&"));
    let _ = history.replace_state_with_url(&JsValue::NULL, "", Some(&url));
}
