//! Where everything in a chart goes, and its drawing.

use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

use super::{
    decimate::{Point, decimate},
    scale::{Scale, log_range, range, ticks},
    series::{Series, whole},
};
use crate::{
    format,
    state::{ChartView, XAxis},
};

const LEFT: f64 = 40.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// What to show.
pub(super) struct Plot<'a> {
    /// The lines; the first one is that of the current run.
    pub(super) series: &'a [Series],
    /// How they are looked at.
    pub(super) view: ChartView,
    /// A value to reach.
    pub(super) goal: Option<f64>,
    /// Does the y axis begin at zero?
    pub(super) from_zero: bool,
    /// The place under the pointer.
    pub(super) marked: Option<f64>,
    /// The part that is being selected, as fractions of the width.
    pub(super) selected: Option<(f64, f64)>,
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
    pub(super) accent_soft: String,
    pub(super) goal: String,
    /// Those of lines, the current run's first.
    pub(super) series: Vec<String>,
}

impl Palette {
    fn of_series(&self, series: &Series) -> &str {
        self.series.get(series.colour % self.series.len().max(1)).map_or("", String::as_str)
    }
}

impl Plot<'_> {
    /// Axes that hold what is shown of the lines and the goal on a canvas of this size; none without a point to show.
    pub(super) fn axes(&self, width: f64, height: f64) -> Option<Axes> {
        let ChartView { window, log_x, log_y, .. } = self.view;
        let whole = whole(self.series, log_x)?;
        let x = window.filter(|(low, high)| low < high && (!log_x || *low > 0.0)).unwrap_or(whole);
        // A window without a point keeps the axis of everything.
        let (low, high) = self.y_range(x).or_else(|| self.y_range(whole))?;
        Some(Axes {
            x: Scale { values: x, pixels: (LEFT, (width - RIGHT).max(LEFT + 1.0)), is_log: log_x },
            y: Scale { values: (low, high), pixels: ((height - BOTTOM).max(TOP + 1.0), TOP), is_log: log_y },
        })
    }

    fn y_range(&self, (from, to): (f64, f64)) -> Option<(f64, f64)> {
        let is_shown = move |x: f64| (from..=to).contains(&x);
        let lines = self.series.iter().flat_map(|series| series.points.iter().chain(&series.raw));
        let bands = self.series.iter().flat_map(|series| &series.band).filter(|band| is_shown(band.x));
        let on_lines = lines.filter(|(x, _)| is_shown(*x)).map(|(_, y)| *y);
        let values: Vec<f64> = on_lines.chain(bands.flat_map(|band| [band.low, band.high])).collect();
        if self.view.log_y {
            return log_range(values.into_iter().chain(self.goal));
        }
        let least = values.iter().copied().filter(|y| y.is_finite()).reduce(f64::min)?;
        let (low, high) = range(values)?;
        let (low, high) = self.goal.map_or((low, high), |goal| widened((low, high), goal));
        Some((if self.from_zero && least >= 0.0 { 0.0 } else { low }, high))
    }
}

/// The range with a value in it, and air beyond that.
fn widened((low, high): (f64, f64), value: f64) -> (f64, f64) {
    let air = |spread: f64| spread * 0.06;
    let low = if value < low { value - air(high - value) } else { low };
    (low, if value > high { value + air(value - low) } else { high })
}

/// Draws the plot.
pub(super) fn draw(
    context: &CanvasRenderingContext2d,
    (width, height): (f64, f64),
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    context.set_font("11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif");
    let Some(axes) = plot.axes(width, height) else { return Ok(()) };
    draw_grid(context, &axes, plot, palette)?;
    context.save();
    let ((left, right), (bottom, top)) = (axes.x.pixels, axes.y.pixels);
    context.begin_path();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    draw_goal(context, &axes, plot, palette)?;
    draw_series(context, &axes, plot, palette)?;
    draw_mark(context, &axes, plot, palette)?;
    draw_selection(context, &axes, plot, palette);
    context.restore();
    draw_hidden(context, &axes, plot, palette)
}

fn draw_grid(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    let (left, right) = axes.x.pixels;
    let (bottom, top) = axes.y.pixels;
    context.set_line_width(1.0);
    context.set_stroke_style_str(&palette.line);
    context.set_fill_style_str(&palette.muted);

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

/// Values with labels: times are round in the unit in which they are told.
fn x_ticks(scale: &Scale, axis: XAxis, most: usize) -> Vec<(f64, String)> {
    let high = scale.values.1;
    let (unit, name) = match axis {
        XAxis::Time if high >= 2.0 * 3_600.0 => (3_600.0, " h"),
        XAxis::Time if high >= 2.0 * 60.0 => (60.0, " min"),
        XAxis::Time => (1.0, " s"),
        XAxis::Steps | XAxis::Iteration => (1.0, ""),
    };
    let values = (scale.values.0 / unit, high / unit);
    let all = if scale.is_log { Scale { values, ..*scale }.ticks(most) } else { ticks(values, most) };
    all.into_iter().map(|value| (value * unit, format!("{}{name}", format::tick(value)))).collect()
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

/// The current run's line comes last, over the others.
fn draw_series(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    context.set_line_join("round");
    for series in plot.series.iter().rev() {
        let colour = palette.of_series(series);
        context.set_stroke_style_str(colour);
        context.set_fill_style_str(colour);
        context.set_global_alpha(0.16);
        draw_band(context, axes, series);
        context.set_global_alpha(0.3);
        context.set_line_width(1.0);
        strokes(axes, &series.raw, |stroke| draw_stroke(context, stroke));
        context.set_global_alpha(1.0);
        context.set_line_width(1.75);
        // One line alone has an area below it.
        let is_filled = plot.from_zero && plot.series.len() == 1 && series.band.is_empty() && !plot.view.log_y;
        context.set_fill_style_str(if is_filled { &palette.accent_soft } else { colour });
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

/// The pieces of a line between gaps, in pixels, with few points and what is beside the shown part left out.
fn strokes(axes: &Axes, points: &[Point], mut draw: impl FnMut(&[Point])) {
    let (low, high) = axes.x.values;
    // The line goes on to the first point beyond each end.
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
    // A lone point has no line: give it the width of one.
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

fn draw_mark(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    let Some(marked) = plot.marked else { return Ok(()) };
    let (bottom, top) = axes.y.pixels;
    let x = crisp(axes.x.pixel(marked));
    context.set_line_width(1.0);
    context.set_stroke_style_str(&palette.muted);
    segment(context, (x, top), (x, bottom));
    context.set_fill_style_str(&palette.ink);
    for (x, y) in plot.series.iter().filter_map(|series| series.nearest(marked)).filter(|(_, y)| y.is_finite()) {
        draw_dot(context, (axes.x.pixel(x), axes.y.pixel(y)), 3.5)?;
    }
    Ok(())
}

fn draw_selection(context: &CanvasRenderingContext2d, axes: &Axes, plot: &Plot<'_>, palette: &Palette) {
    let Some((from, to)) = plot.selected else { return };
    let ((left, right), (bottom, top)) = (axes.x.pixels, axes.y.pixels);
    context.set_fill_style_str(&palette.accent_soft);
    context.fill_rect(left + from * (right - left), top, (to - from) * (right - left), bottom - top);
}

/// Says how many points are above or below the axis, so that no outlier is overlooked.
fn draw_hidden(
    context: &CanvasRenderingContext2d,
    axes: &Axes,
    plot: &Plot<'_>,
    palette: &Palette,
) -> Result<(), JsValue> {
    let ((from, to), (low, high)) = (axes.x.values, axes.y.values);
    let points = plot.series.iter().flat_map(|series| &series.points);
    let is_hidden = |(x, y): &&Point| (from..=to).contains(x) && y.is_finite() && !(low..=high).contains(y);
    let hidden = points.filter(is_hidden).count();
    if hidden == 0 {
        return Ok(());
    }
    context.set_fill_style_str(&palette.muted);
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

/// Middle of a pixel: a hairline there is one pixel wide and not two pale ones.
fn crisp(pixel: f64) -> f64 {
    pixel.floor() + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(points: &[Point], goal: Option<f64>, from_zero: bool, view: ChartView) -> Option<Axes> {
        let series = [Series { points: points.to_vec(), ..Series::default() }];
        Plot { series: &series, view, goal, from_zero, marked: None, selected: None }.axes(600.0, 200.0)
    }

    #[test]
    fn axes_hold_the_curve_and_the_goal() {
        let points = [(100.0, 20.0), (400.0, 60.0)];
        let axes = axes(&points, Some(475.0), true, ChartView::default()).expect("a curve");
        assert_eq!(axes.x.values, (0.0, 400.0));
        assert_eq!(axes.y.values.0, 0.0);
        assert!(axes.y.values.1 > 475.0);
        assert!(axes.y.pixel(475.0) < axes.y.pixel(60.0));
    }

    #[test]
    fn negative_values_are_not_cut_off() {
        let axes = axes(&[(1.0, -5.0), (2.0, 3.0)], None, false, ChartView::default()).expect("a curve");
        assert!(axes.y.values.0 < -5.0);
    }

    #[test]
    fn without_a_finite_point_there_are_no_axes() {
        assert!(axes(&[], Some(475.0), true, ChartView::default()).is_none());
        assert!(axes(&[(1.0, f64::NAN)], Some(475.0), true, ChartView::default()).is_none());
    }

    #[test]
    fn window_shows_its_own_range_of_values_and_an_empty_one_that_of_everything() {
        let points: Vec<Point> = (0..10).map(|i| (f64::from(i) * 10.0, f64::from(i))).collect();
        let shown = |window| {
            axes(&points, None, false, ChartView { window: Some(window), ..ChartView::default() }).expect("a curve")
        };
        assert_eq!(shown((60.0, 90.0)).x.values, (60.0, 90.0));
        assert!(shown((60.0, 90.0)).y.values.0 > 5.0);
        assert!(shown((200.0, 300.0)).y.values.0 < 0.0);
    }

    #[test]
    fn logarithmic_axes_begin_above_zero() {
        let view = ChartView { log_x: true, log_y: true, ..ChartView::default() };
        let axes = axes(&[(10.0, 0.01), (1_000.0, 100.0)], None, true, view).expect("a curve");
        assert_eq!(axes.x.values, (10.0, 1_000.0));
        assert!(axes.y.values.0 > 0.0 && axes.y.values.0 < 0.01);
    }

    #[test]
    fn times_have_round_ticks_in_their_unit() {
        let scale = Scale { values: (0.0, 600.0), pixels: (0.0, 400.0), is_log: false };
        let labels: Vec<String> = x_ticks(&scale, XAxis::Time, 5).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0 min", "2 min", "4 min", "6 min", "8 min", "10 min"]);
        assert_eq!(x_ticks(&scale, XAxis::Steps, 2).len(), 2);
    }
}
