//! Where everything in a chart goes, and its drawing.

use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

use super::{
    decimate::{Point, decimate},
    scale::{Scale, range, ticks},
};
use crate::format;

const LEFT: f64 = 40.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// What to show.
pub(super) struct Plot<'a> {
    /// The curve, ascending in x.
    pub(super) points: &'a [Point],
    /// A value to reach.
    pub(super) goal: Option<f64>,
    /// Does the y axis begin at zero?
    pub(super) from_zero: bool,
    /// The point under the pointer.
    pub(super) marked: Option<Point>,
}

/// Both axes.
pub(super) struct Axes {
    pub(super) x: Scale,
    pub(super) y: Scale,
}

/// Colours, from the style sheet.
pub(super) struct Palette {
    pub(super) ink: String,
    pub(super) muted: String,
    pub(super) line: String,
    pub(super) accent: String,
    pub(super) accent_soft: String,
    pub(super) goal: String,
}

impl Plot<'_> {
    /// Axes that hold the curve and the goal on a canvas of this size; none without a point to show.
    pub(super) fn axes(&self, width: f64, height: f64) -> Option<Axes> {
        let last = self.points.last()?.0;
        let values = self.points.iter().map(|(_, y)| *y).filter(|y| y.is_finite());
        let least = values.clone().reduce(f64::min)?;
        let (low, high) = range(values.chain(self.goal))?;
        let low = if self.from_zero && least >= 0.0 { 0.0 } else { low };
        Some(Axes {
            x: Scale { values: (0.0, last.max(1.0)), pixels: (LEFT, (width - RIGHT).max(LEFT + 1.0)) },
            y: Scale { values: (low, high), pixels: ((height - BOTTOM).max(TOP + 1.0), TOP) },
        })
    }
}

/// Draws the plot over whatever was on the canvas.
pub(super) fn draw(
    context: &CanvasRenderingContext2d,
    (width, height): (f64, f64),
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    context.clear_rect(0.0, 0.0, width, height);
    context.set_font("11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif");
    let Some(axes) = plot.axes(width, height) else { return Ok(()) };
    draw_grid(context, &axes, palette)?;
    draw_goal(context, &axes, plot, palette)?;
    draw_curve(context, &axes, plot, palette);
    draw_mark(context, &axes, plot, palette)
}

fn draw_grid(context: &CanvasRenderingContext2d, axes: &Axes, palette: &Palette) -> Result<(), JsValue> {
    let (left, right) = axes.x.pixels;
    let (bottom, top) = axes.y.pixels;
    context.set_line_width(1.0);
    context.set_stroke_style_str(&palette.line);
    context.set_fill_style_str(&palette.muted);

    context.set_text_align("right");
    context.set_text_baseline("middle");
    for value in ticks(axes.y.values, ((bottom - top) / 26.0) as usize) {
        let y = crisp(axes.y.pixel(value));
        segment(context, (left, y), (right, y));
        context.fill_text(&format::tick(value), left - 6.0, y)?;
    }

    context.set_text_baseline("top");
    for value in ticks(axes.x.values, ((right - left) / 64.0) as usize) {
        let x = axes.x.pixel(value);
        // Labels stay on the canvas.
        context.set_text_align(if x > right - 16.0 { "right" } else { "center" });
        context.fill_text(&format::tick(value), x, bottom + 6.0)?;
    }
    Ok(())
}

fn draw_goal(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    let Some(goal) = plot.goal else { return Ok(()) };
    let (left, right) = axes.x.pixels;
    let y = crisp(axes.y.pixel(goal));
    context.set_stroke_style_str(&palette.goal);
    context.set_line_dash(&[4.0, 4.0].map(JsValue::from_f64).into_iter().collect::<js_sys::Array>())?;
    segment(context, (left, y), (right, y));
    context.set_line_dash(&js_sys::Array::new())?;
    context.set_fill_style_str(&palette.goal);
    context.set_text_align("left");
    // Above the line, unless that is off the canvas.
    let fits_above = y - 14.0 >= axes.y.pixels.1;
    context.set_text_baseline(if fits_above { "bottom" } else { "top" });
    let label_y = if fits_above { y - 2.0 } else { y + 3.0 };
    context.fill_text(&format!("stop at {}", format::tick(goal)), left + 6.0, label_y)
}

fn draw_curve(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot<'_>, palette: &Palette) {
    let columns = (axes.x.pixels.1 - axes.x.pixels.0) as u32;
    let points = decimate(plot.points.iter().copied(), axes.x.values, columns);
    context.set_line_join("round");
    context.set_line_width(1.75);
    context.set_stroke_style_str(&palette.accent);
    context.set_fill_style_str(&palette.accent_soft);
    for stroke in points.split(|(_, y)| !y.is_finite()).filter(|stroke| !stroke.is_empty()) {
        draw_stroke(context, axes, stroke, plot.from_zero);
    }
}

fn draw_stroke(context: &CanvasRenderingContext2d, axes: &Axes, stroke: &[Point], is_filled: bool) {
    let pixels = stroke.iter().map(|(x, y)| (axes.x.pixel(*x), axes.y.pixel(*y)));
    context.begin_path();
    for (x, y) in pixels.clone() {
        context.line_to(x, y);
    }
    // A lone point has no line: give it the width of one.
    if let [(x, y)] = stroke {
        context.line_to(axes.x.pixel(*x) + 1.0, axes.y.pixel(*y));
    }
    context.stroke();
    if let (true, Some((first, _)), Some((last, _))) = (is_filled, pixels.clone().next(), pixels.clone().next_back()) {
        context.line_to(last, axes.y.pixels.0);
        context.line_to(first, axes.y.pixels.0);
        context.close_path();
        context.fill();
    }
}

fn draw_mark(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    let Some((x, y)) = plot.marked else { return Ok(()) };
    let (bottom, top) = axes.y.pixels;
    let x = axes.x.pixel(x);
    context.set_line_width(1.0);
    context.set_stroke_style_str(&palette.muted);
    segment(context, (crisp(x), top), (crisp(x), bottom));
    if y.is_finite() {
        context.begin_path();
        context.arc(x, axes.y.pixel(y), 3.5, 0.0, std::f64::consts::TAU)?;
        context.set_fill_style_str(&palette.ink);
        context.fill();
    }
    Ok(())
}

fn segment(context: &CanvasRenderingContext2d, from: (f64, f64), to: (f64, f64)) {
    context.begin_path();
    context.move_to(from.0, from.1);
    context.line_to(to.0, to.1);
    context.stroke();
}

/// Middle of a pixel: a hairline there is one pixel wide and not two pale ones.
fn crisp(pixel: f64) -> f64 {
    pixel.floor() + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[Point], goal: Option<f64>, from_zero: bool) -> Plot<'_> {
        Plot { points, goal, from_zero, marked: None }
    }

    #[test]
    fn axes_hold_the_curve_and_the_goal() {
        let points = [(100.0, 20.0), (400.0, 60.0)];
        let axes = plot(&points, Some(475.0), true).axes(600.0, 200.0).expect("a curve");
        assert_eq!(axes.x.values, (0.0, 400.0));
        assert_eq!(axes.y.values.0, 0.0);
        assert!(axes.y.values.1 > 475.0);
        assert!(axes.y.pixel(475.0) < axes.y.pixel(60.0));
    }

    #[test]
    fn negative_values_are_not_cut_off() {
        let axes = plot(&[(1.0, -5.0), (2.0, 3.0)], None, false).axes(300.0, 100.0).expect("a curve");
        assert!(axes.y.values.0 < -5.0);
    }

    #[test]
    fn without_a_finite_point_there_are_no_axes() {
        assert!(plot(&[], Some(475.0), true).axes(300.0, 100.0).is_none());
        assert!(plot(&[(1.0, f64::NAN)], Some(475.0), true).axes(300.0, 100.0).is_none());
    }
}
