//! A canvas that knows its size, is sharp on every screen and draws at most once per frame.

use leptos::{html, prelude::*};
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ResizeObserver};

/// A canvas in the page.
#[derive(Clone, Copy)]
pub(crate) struct Canvas {
    node: NodeRef<html::Canvas>,
    size: RwSignal<(f64, f64)>,
    is_scheduled: StoredValue<bool>,
}

impl Canvas {
    /// Creates a canvas that follows the size of the node as soon as it is in the page.
    pub(crate) fn new(node: NodeRef<html::Canvas>) -> Self {
        let size = RwSignal::new((0.0, 0.0));
        let watch = StoredValue::new_local(None::<SizeWatch>);
        Effect::new(move |_| {
            if let Some(element) = node.get() {
                watch.set_value(SizeWatch::start(element, size));
            }
        });
        Self { node, size, is_scheduled: StoredValue::new(false) }
    }

    /// Returns the width and height in CSS pixels, and tracks changes.
    pub(crate) fn size(self) -> (f64, f64) {
        self.size.get()
    }

    /// Returns the width and height in CSS pixels, without tracking.
    pub(crate) fn size_now(self) -> (f64, f64) {
        self.size.get_untracked()
    }

    /// Draws with the next frame, once for all calls before that frame.
    pub(crate) fn schedule(self, redraw: impl FnOnce() + 'static) {
        if self.is_scheduled.try_get_value() == Some(false) {
            self.is_scheduled.set_value(true);
            request_animation_frame(move || {
                // The value comes back if the canvas has been removed from the page in the meantime.
                if self.is_scheduled.try_set_value(false).is_none() {
                    redraw();
                }
            });
        }
    }

    /// Draws now, in CSS pixels.
    pub(crate) fn draw(self, paint: impl FnOnce(&CanvasRenderingContext2d, (f64, f64)) -> Result<(), JsValue>) {
        let Some(canvas) = self.node.get_untracked() else { return };
        let (width, height) = self.size_now();
        if width < 1.0 || height < 1.0 {
            return;
        }
        let Some(context) = sharp_context(&canvas, width, height) else { return };
        if let Err(error) = paint(&context, (width, height)) {
            leptos::logging::warn!("drawing failed: {error:?}");
        }
    }
}

fn sharp_context(canvas: &HtmlCanvasElement, width: f64, height: f64) -> Option<CanvasRenderingContext2d> {
    let ratio = window().device_pixel_ratio().clamp(1.0, 4.0);
    let (across, down) = ((width * ratio).round() as u32, (height * ratio).round() as u32);
    // Setting a size clears the canvas even if it is the same.
    if (canvas.width(), canvas.height()) != (across, down) {
        canvas.set_width(across);
        canvas.set_height(down);
    }
    let context: CanvasRenderingContext2d = canvas.get_context("2d").ok()??.dyn_into().ok()?;
    context.set_transform(ratio, 0.0, 0.0, ratio, 0.0, 0.0).ok()?;
    Some(context)
}

struct SizeWatch {
    observer: ResizeObserver,
    _on_resize: Closure<dyn FnMut()>,
}

impl SizeWatch {
    fn start(canvas: HtmlCanvasElement, size: RwSignal<(f64, f64)>) -> Option<Self> {
        let observed = canvas.clone();
        let on_resize = Closure::<dyn FnMut()>::new(move || {
            let now = (f64::from(canvas.client_width()), f64::from(canvas.client_height()));
            if size.try_get_untracked().is_some_and(|before| before != now) {
                size.set(now);
            }
        });
        let observer = ResizeObserver::new(on_resize.as_ref().unchecked_ref()).ok()?;
        observer.observe(&observed);
        Some(Self { observer, _on_resize: on_resize })
    }
}

impl Drop for SizeWatch {
    fn drop(&mut self) {
        self.observer.disconnect();
    }
}

/// Returns the value of a variable of the style sheet.
pub(crate) fn style_value(name: &str) -> String {
    let root = document().document_element();
    let style = root.and_then(|root| window().get_computed_style(&root).ok().flatten());
    style.and_then(|style| style.get_property_value(name).ok()).unwrap_or_default().trim().to_owned()
}
