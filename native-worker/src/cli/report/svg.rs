//! A chart as an SVG element.

use std::fmt::Write as _;

use super::{
    groups::{GroupCurve, Point},
    html::escaped,
};
use crate::cli::data::numbers::short;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 28.0;
/// Colours of lines in the style sheet.
pub(super) const COLOURS: usize = 6;

/// Returns the chart of these lines; `None` without a point.
pub(super) fn chart(title: &str, lines: &[GroupCurve]) -> Option<String> {
    let xs = lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let on_lines = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let on_bands = lines.iter().flat_map(|line| &line.band).flat_map(|(low, high)| [*low, *high]);
    let x = range(xs.chain([0.0]))?;
    let y = range(on_lines.chain(on_bands).filter(|y| y.is_finite()))?;
    if lines.iter().all(|line| line.points.is_empty()) {
        return None;
    }
    let place = |point: Point| {
        let across = LEFT + (point.0 - x.0) / (x.1 - x.0) * (WIDTH - LEFT - RIGHT);
        (across, HEIGHT - BOTTOM - (point.1 - y.0) / (y.1 - y.0) * (HEIGHT - TOP - BOTTOM))
    };
    let mut svg = format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title} by env steps\">",
        title = escaped(title)
    );
    for value in ticks(y) {
        let (_, down) = place((x.0, value));
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {down:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            down + 4.0,
            short(value)
        );
    }
    for value in ticks(x) {
        let (across, _) = place((value, y.0));
        let _ = write!(
            svg,
            "<text x=\"{across:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 8.0,
            short(value)
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = index % COLOURS;
        if !line.band.is_empty() {
            let edge =
                |part: fn(&(f64, f64)) -> f64| line.points.iter().zip(&line.band).map(move |(p, b)| (p.0, part(b)));
            let high: Vec<Point> = edge(|band| band.1).collect();
            let low: Vec<Point> = edge(|band| band.0).collect();
            let outline = path(high.into_iter().chain(low.into_iter().rev()).map(place));
            let _ = write!(svg, "<path class=\"band c{colour}\" d=\"{outline}Z\"/>");
        }
        let _ = write!(svg, "<path class=\"line c{colour}\" d=\"{}\"/>", path(line.points.iter().copied().map(place)));
    }
    svg.push_str("</svg></figure>");
    Some(svg)
}

fn path(points: impl Iterator<Item = Point>) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    path
}

/// Returns the range of values, never empty; `None` without one.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    (low <= high).then_some(if low == high { (low - 1.0, high + 1.0) } else { (low, high) })
}

/// Returns about five round values in a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil();
    (0..).map(|index| (first + f64::from(index)) * step).take_while(|value| *value <= high).take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_a_path_per_line_and_band_and_round_ticks() {
        let line = GroupCurve { points: vec![(0.0, 1.0), (100.0, 3.0)], band: vec![(0.0, 2.0), (2.0, 4.0)] };
        let svg = chart("a < b", &[line, GroupCurve::default()]).expect("points");
        assert_eq!((svg.matches("class=\"line").count(), svg.matches("class=\"band").count()), (2, 1));
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
        assert_eq!(ticks((0.0, 4.0)), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(chart("none", &[GroupCurve::default()]), None);
    }
}
