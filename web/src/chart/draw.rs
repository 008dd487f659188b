//! Drawing a chart on its canvas.

use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

use super::{
    canvas::style_value,
    decimate::{Point, decimate},
    plot::{Axes, Plot, x_ticks},
    series::Series,
};
use crate::format;

/// Variables of the style sheet with the colours of lines: the current run's, evaluations', and those of compared runs.
pub(super) const COLOURS: [&str; 7] =
    ["--accent", "--good", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];

/// The marked and the selected place of a chart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pointed {
    /// The place on the x axis.
    pub(super) marked: Option<f64>,
    /// The part that is being selected, as fractions of the width.
    pub(super) selected: Option<(f64, f64)>,
}

/// Draws the plot.
pub(super) fn draw(
    context: &CanvasRenderingContext2d,
    (width, height): (f64, f64),
    plot: &Plot,
    pointed: Pointed,
) -> Result<(), JsValue> {
    context.set_font("11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif");
    let Some(axes) = plot.axes(width, height) else { return Ok(()) };
    draw_grid(context, &axes, plot)?;
    context.save();
    let ((left, right), (bottom, top)) = (axes.x.pixels, axes.y.pixels);
    context.begin_path();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    draw_goal(context, &axes, plot)?;
    draw_series(context, &axes, plot)?;
    draw_mark(context, &axes, plot, pointed.marked)?;
    draw_selection(context, &axes, pointed.selected);
    context.restore();
    draw_hidden(context, &axes, plot)
}

fn draw_grid(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot) -> Result<(), JsValue> {
    let (left, right) = axes.x.pixels;
    let (bottom, top) = axes.y.pixels;
    context.set_line_width(1.0);
    context.set_stroke_style_str(&style_value("--line"));
    context.set_fill_style_str(&style_value("--muted"));

    context.set_text_align("right");
    context.set_text_baseline("middle");
    for value in axes.y.ticks(((bottom - top) / 26.0) as usize) {
        let y = crisp(axes.y.pixel(value));
        segment(context, (left, y), (right, y));
        context.fill_text(&format::tick(value), left - 6.0, y)?;
    }

    context.set_text_baseline("top");
    for (value, label) in x_ticks(&axes.x, plot.view.x, ((right - left) / 64.0) as usize) {
        let x = axes.x.pixel(value);
        // Labels stay on the canvas.
        context.set_text_align(if x > right - 16.0 { "right" } else { "center" });
        context.fill_text(&label, x, bottom + 6.0)?;
    }
    Ok(())
}

fn draw_goal(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot) -> Result<(), JsValue> {
    let Some(goal) = plot.goal else { return Ok(()) };
    let (left, right) = axes.x.pixels;
    let y = crisp(axes.y.pixel(goal));
    context.set_stroke_style_str(&style_value("--good"));
    context.set_line_dash(&[4.0, 4.0].map(JsValue::from_f64).into_iter().collect::<js_sys::Array>())?;
    segment(context, (left, y), (right, y));
    context.set_line_dash(&js_sys::Array::new())?;
    context.set_fill_style_str(&style_value("--good"));
    context.set_text_align("left");
    // Above the line, unless that is off the canvas.
    let fits_above = y - 14.0 >= axes.y.pixels.1;
    context.set_text_baseline(if fits_above { "bottom" } else { "top" });
    let label_y = if fits_above { y - 2.0 } else { y + 3.0 };
    context.fill_text(&format!("stop at {}", format::tick(goal)), left + 6.0, label_y)
}

/// Draws the lines, that of the current run last, over the others.
fn draw_series(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot) -> Result<(), JsValue> {
    context.set_line_join("round");
    for series in plot.series.iter().rev() {
        let colour = &style_value(COLOURS[series.colour % COLOURS.len()]);
        context.set_stroke_style_str(colour);
        context.set_fill_style_str(colour);
        context.set_global_alpha(0.16);
        draw_band(context, axes, series);
        context.set_global_alpha(0.3);
        context.set_line_width(1.0);
        strokes(axes, &series.raw, |stroke| draw_stroke(context, stroke));
        context.set_global_alpha(1.0);
        context.set_line_width(1.75);
        // A single line has a filled area below it.
        let is_filled = plot.from_zero && plot.series.len() == 1 && series.band.is_empty() && !plot.view.log_y;
        context.set_fill_style_str(&if is_filled { style_value("--accent-soft") } else { colour.clone() });
        strokes(axes, &series.points, |stroke| {
            draw_stroke(context, stroke);
            if let (true, [first, .., last]) = (is_filled, stroke) {
                context.line_to(last.0, axes.y.pixels.0);
                context.line_to(first.0, axes.y.pixels.0);
                context.close_path();
                context.fill();
            }
        });
        for (x, y) in series.points.iter().filter(|(_, y)| series.has_dots && y.is_finite()) {
            draw_dot(context, (axes.x.pixel(*x), axes.y.pixel(*y)), 2.5)?;
        }
    }
    Ok(())
}

/// Calls `draw` for each piece of a line between gaps, in pixels, decimated and without points outside the shown part.
fn strokes(axes: &Axes, points: &[Point], mut draw: impl FnMut(&[Point])) {
    let (low, high) = axes.x.values;
    // The line continues to the first point beyond each end.
    let first = points.partition_point(|(x, _)| *x < low).saturating_sub(1);
    let end = (points.partition_point(|(x, _)| *x <= high) + 1).min(points.len());
    let pixels = points[first.min(end)..end].iter().map(|(x, y)| (axes.x.pixel(*x), axes.y.pixel(*y)));
    let (left, right) = axes.x.pixels;
    let points = decimate(pixels, (left, right), (right - left) as u32);
    points.split(|(_, y)| !y.is_finite()).filter(|stroke| !stroke.is_empty()).for_each(&mut draw);
}

fn draw_stroke(context: &CanvasRenderingContext2d, stroke: &[Point]) {
    context.begin_path();
    stroke.iter().for_each(|(x, y)| context.line_to(*x, *y));
    // A single point has no length: give it that of a pixel.
    if let [(x, y)] = stroke {
        context.line_to(x + 1.0, *y);
    }
    context.stroke();
}

fn draw_band(context: &CanvasRenderingContext2d, axes: &Axes, series: &Series) {
    for piece in series.band.split(|band| !band.low.is_finite() || !band.high.is_finite()) {
        context.begin_path();
        let place = |x: f64, y: f64| context.line_to(axes.x.pixel(x), axes.y.pixel(y));
        piece.iter().for_each(|band| place(band.x, band.high));
        piece.iter().rev().for_each(|band| place(band.x, band.low));
        context.fill();
    }
}

fn draw_mark(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot, marked: Option<f64>) -> Result<(), JsValue> {
    let Some(marked) = marked else { return Ok(()) };
    let (bottom, top) = axes.y.pixels;
    let x = crisp(axes.x.pixel(marked));
    context.set_line_width(1.0);
    context.set_stroke_style_str(&style_value("--muted"));
    segment(context, (x, top), (x, bottom));
    context.set_fill_style_str(&style_value("--ink"));
    for (x, y) in plot.series.iter().filter_map(|line| line.point_at(marked)).filter(|(_, y)| y.is_finite()) {
        draw_dot(context, (axes.x.pixel(x), axes.y.pixel(y)), 3.5)?;
    }
    Ok(())
}

fn draw_selection(context: &CanvasRenderingContext2d, axes: &Axes, selected: Option<(f64, f64)>) {
    let Some((from, to)) = selected else { return };
    let ((left, right), (bottom, top)) = (axes.x.pixels, axes.y.pixels);
    context.set_fill_style_str(&style_value("--accent-soft"));
    context.fill_rect(left + from * (right - left), top, (to - from) * (right - left), bottom - top);
}

/// Writes how many points are above or below the axis, so that no outlier is overlooked.
fn draw_hidden(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot) -> Result<(), JsValue> {
    let ((from, to), (low, high)) = (axes.x.values, axes.y.values);
    let points = plot.series.iter().flat_map(|series| &series.points);
    let is_hidden = |(x, y): &&Point| (from..=to).contains(x) && y.is_finite() && !(low..=high).contains(y);
    let hidden = points.filter(is_hidden).count();
    if hidden == 0 {
        return Ok(());
    }
    context.set_fill_style_str(&style_value("--muted"));
    context.set_text_align("right");
    context.set_text_baseline("top");
    context.fill_text(&format!("{hidden} off the scale"), axes.x.pixels.1 - 4.0, axes.y.pixels.1)
}

fn draw_dot(context: &CanvasRenderingContext2d, (x, y): Point, radius: f64) -> Result<(), JsValue> {
    context.begin_path();
    context.arc(x, y, radius, 0.0, std::f64::consts::TAU)?;
    context.fill();
    Ok(())
}

fn segment(context: &CanvasRenderingContext2d, from: (f64, f64), to: (f64, f64)) {
    context.begin_path();
    context.move_to(from.0, from.1);
    context.line_to(to.0, to.1);
    context.stroke();
}

/// Returns the middle of a pixel: a hairline there is one pixel wide and not two pale ones.
fn crisp(pixel: f64) -> f64 {
    pixel.floor() + 0.5
}
