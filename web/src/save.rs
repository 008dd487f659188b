//! Downloads of files.

use js_sys::{Array, Uint8Array};
use leptos::prelude::document;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{Blob, HtmlCanvasElement, HtmlElement, Url};

/// Lets the browser save bytes as a file.
pub(crate) fn bytes(bytes: &Uint8Array, name: &str) -> Result<(), JsValue> {
    let blob = Blob::new_with_u8_array_sequence(&Array::of1(bytes))?;
    let url = Url::create_object_url_with_blob(&blob)?;
    click(&url, name)?;
    // The download has begun with the click.
    Url::revoke_object_url(&url)
}

/// Lets the browser save a picture as a PNG file.
pub(crate) fn picture(canvas: &HtmlCanvasElement, name: &str) -> Result<(), JsValue> {
    click(&canvas.to_data_url()?, name)
}

fn click(url: &str, name: &str) -> Result<(), JsValue> {
    let link: HtmlElement = document().create_element("a")?.unchecked_into();
    link.set_attribute("href", url)?;
    link.set_attribute("download", name)?;
    link.click();
    Ok(())
}
