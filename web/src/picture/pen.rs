//! The few strokes that the pictures are made of, in the page's colours.

use std::f64::consts::TAU;

use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

use crate::chart::style_value;

/// Draws on a canvas, in CSS pixels. Colours are names of variables of the style sheet.
pub(super) struct Pen<'a> {
    pub(super) context: &'a CanvasRenderingContext2d,
}

impl<'a> Pen<'a> {
    pub(super) fn new(context: &'a CanvasRenderingContext2d) -> Self {
        Self { context }
    }

    /// A line through all points, with round ends if it is thick.
    pub(super) fn line(&self, color: &str, width: f64, points: impl IntoIterator<Item = (f64, f64)>) {
        self.context.set_stroke_style_str(&style_value(color));
        self.context.set_line_width(width);
        self.context.set_line_cap(if width > 2.0 { "round" } else { "butt" });
        self.context.set_line_join("round");
        self.context.begin_path();
        points.into_iter().for_each(|(x, y)| self.context.line_to(x, y));
        self.context.stroke();
    }

    /// What is within the points.
    pub(super) fn area(&self, color: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        self.context.set_fill_style_str(&style_value(color));
        self.context.begin_path();
        points.into_iter().for_each(|(x, y)| self.context.line_to(x, y));
        self.context.close_path();
        self.context.fill();
    }

    /// A filled circle.
    pub(super) fn disc(&self, color: &str, (x, y): (f64, f64), radius: f64) -> Result<(), JsValue> {
        self.context.set_fill_style_str(&style_value(color));
        self.context.begin_path();
        self.context.arc(x, y, radius, 0.0, TAU)?;
        self.context.fill();
        Ok(())
    }

    /// A filled rectangle with round corners.
    pub(super) fn block(&self, color: &str, (x, y): (f64, f64), (width, height): (f64, f64)) -> Result<(), JsValue> {
        self.context.set_fill_style_str(&style_value(color));
        self.context.begin_path();
        self.context.round_rect_with_f64(x, y, width, height, 4.0)?;
        self.context.fill();
        Ok(())
    }
}

/// The middle of the pixel that a thin line shall fill.
pub(super) fn crisp(place: f64) -> f64 {
    place.floor() + 0.5
}
