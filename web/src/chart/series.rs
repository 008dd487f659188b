//! The lines of a chart: of one run, smoothed, or of several runs with different seeds as their median.

use super::decimate::Point;
use crate::state::{ChartView, Curves, Metric};

/// A range of y at an x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Band {
    pub(crate) x: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// A line of a chart, in data space.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Its key, the same in all charts: its name, or that of its metric.
    pub(crate) key: String,
    /// Its place in the legend.
    pub(crate) place: usize,
    /// The index of its colour in the palette.
    pub(crate) colour: usize,
    /// The line, ascending in x.
    pub(crate) points: Vec<Point>,
    /// The values of which the line is the moving average; empty if the line is not smoothed.
    pub(crate) raw: Vec<Point>,
    /// The spread around the line; empty without one.
    pub(crate) band: Vec<Band>,
    /// True if each point has a dot.
    pub(crate) has_dots: bool,
}

impl Series {
    /// Creates the line of one run.
    pub(crate) fn of_run(name: String, colour: usize, curves: &Curves, metric: &Metric, view: &ChartView) -> Self {
        let line = Self { key: name.clone(), name, colour, ..Self::default() };
        let raw = points(curves, metric, view);
        if view.smoothing == 0 {
            return Self { points: raw, ..line };
        }
        Self { points: smoothed(&raw, view.smoothing), raw, ..line }
    }

    /// Creates the median of several runs, with the range of their middle half.
    pub(crate) fn of_seeds(name: String, colour: usize, runs: &[Self]) -> Self {
        let (points, band) = median(runs);
        Self { key: name.clone(), name, colour, points, band, ..Self::default() }
    }

    /// Returns the same line with a dot at each point.
    pub(crate) fn with_dots(self) -> Self {
        Self { has_dots: true, ..self }
    }

    /// Returns the values themselves, also if the line is their moving average.
    pub(crate) fn exact(&self) -> &[Point] {
        if self.raw.is_empty() { &self.points } else { &self.raw }
    }

    /// Returns the value at a place, or the last one without a place; NaN where the line has none.
    pub(crate) fn value(&self, place: Option<f64>) -> f64 {
        let point = place.map_or_else(|| self.exact().last().copied(), |x| self.point_at(x));
        point.map_or(f64::NAN, |point| point.1)
    }

    /// Returns the point that is nearest to an x; `None` beyond the ends of the line. The points of lines are at
    /// different places, so a line reaches further than its last point by the distance from the one before.
    pub(crate) fn point_at(&self, x: f64) -> Option<Point> {
        let points = self.exact();
        let index = nearest(points, x)?;
        let found = points[index];
        let inwards = match index {
            0 if x < found.0 => points.get(1),
            _ if index + 1 == points.len() && x > found.0 => index.checked_sub(1).map(|before| &points[before]),
            _ => return Some(found),
        };
        let reach = inwards.map_or(0.0, |next| (next.0 - found.0).abs());
        ((x - found.0).abs() <= reach).then_some(found)
    }
}

/// Returns the values of a metric at their places on the axes; one that a logarithmic y axis cannot show is a gap. A
/// metric with a name has points only where it is known, without gaps: the hub sends those of every n-th iteration of
/// the past.
pub(crate) fn points(curves: &Curves, metric: &Metric, view: &ChartView) -> Vec<Point> {
    let is_named = matches!(metric, Metric::Named(_));
    let values = curves.points().iter().zip(curves.values(metric));
    let known = values.filter(|(_, value)| !is_named || !value.is_nan());
    let point = |(point, value): (&_, f64)| {
        let is_shown = !view.log_y || value > 0.0;
        (view.x.place(point), if is_shown { value } else { f64::NAN })
    };
    known.map(point).filter(|(x, _)| !view.log_x || *x > 0.0).collect()
}

/// Returns the index of the point that is nearest to an x.
pub(crate) fn nearest(points: &[Point], x: f64) -> Option<usize> {
    let after = points.partition_point(|point| point.0 < x);
    let candidates = after.saturating_sub(1)..points.len().min(after + 1);
    candidates.min_by(|a, b| (points[*a].0 - x).abs().total_cmp(&(points[*b].0 - x).abs()))
}

/// Returns the exponential moving average, in which the past has this weight in percent. The first values count fully:
/// without that correction the line would begin at zero.
fn smoothed(points: &[Point], percent: u8) -> Vec<Point> {
    let weight = f64::from(percent) / 100.0;
    let (mut sum, mut total) = (0.0, 0.0);
    let average = |&(x, y): &Point| {
        if !y.is_finite() {
            return (x, f64::NAN);
        }
        sum = sum * weight + y * (1.0 - weight);
        total = total * weight + 1.0 - weight;
        (x, sum / total)
    };
    points.iter().map(average).collect()
}

/// Returns the medians and quartiles of lines at the places of the longest one.
fn median(runs: &[Series]) -> (Vec<Point>, Vec<Band>) {
    let Some(longest) = runs.iter().max_by_key(|run| run.points.len()) else { return Default::default() };
    let at = |&(x, _): &Point| {
        let mut values: Vec<f64> = runs.iter().filter_map(|run| value_at(&run.points, x)).collect();
        values.sort_by(f64::total_cmp);
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&values, part));
        ((x, middle), Band { x, low, high })
    };
    longest.points.iter().map(at).unzip()
}

/// Returns the value of a line at an x, linear between points; `None` beyond its ends and at gaps.
fn value_at(points: &[Point], x: f64) -> Option<f64> {
    let after = points.partition_point(|point| point.0 < x);
    let next = points.get(after)?;
    let value = match after.checked_sub(1).map(|before| points[before]) {
        _ if next.0 == x => next.1,
        None => return None,
        Some(before) => before.1 + (x - before.0) / (next.0 - before.0) * (next.1 - before.1),
    };
    value.is_finite().then_some(value)
}

/// Returns a quantile of ascending values, linear between ranks; NaN without a value.
fn quantile(values: &[f64], part: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let rank = part * last as f64;
    let (low, high) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    low + rank.fract() * (high - low)
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::{Iteration, NamedMetrics};

    use super::*;

    fn line(points: &[Point]) -> Series {
        Series { points: points.to_vec(), ..Series::default() }
    }

    #[test]
    fn the_nearest_point_is_found_on_either_side() {
        let points = [(0.0, 0.0), (10.0, 0.0), (30.0, 0.0)];
        let all = [-5.0, 4.0, 6.0, 19.0, 21.0, 99.0].map(|x| nearest(&points, x));
        assert_eq!(all, [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(nearest(&[], 1.0), None);
    }

    #[test]
    fn line_has_values_up_to_a_step_beyond_its_ends() {
        let values = |points: &[Point], all: [f64; 6]| all.map(|x| line(points).point_at(x).map(|point| point.1));
        let points = [(10.0, 1.0), (20.0, 2.0), (40.0, 3.0)];
        let found = values(&points, [-1.0, 0.0, 14.0, 40.0, 60.0, 61.0]);
        assert_eq!(found, [None, Some(1.0), Some(1.0), Some(3.0), Some(3.0), None]);
        let of_one = values(&points[..1], [9.0, 10.0, 11.0, 0.0, 20.0, 99.0]);
        assert_eq!(of_one, [None, Some(1.0), None, None, None, None]);
        assert_eq!(line(&points).value(None), 3.0);
        assert!(line(&points).value(Some(99.0)).is_nan() && line(&[]).value(None).is_nan());
    }

    #[test]
    fn smoothing_starts_at_the_first_value_follows_the_rest_and_keeps_gaps() {
        let points = [(0.0, 10.0), (1.0, f64::NAN), (2.0, 20.0), (3.0, 20.0)];
        let smooth = smoothed(&points, 50);
        assert_eq!(smooth[0], (0.0, 10.0));
        assert!(smooth[1].1.is_nan());
        assert!((smooth[2].1 - (10.0 * 0.25 + 20.0 * 0.5) / 0.75).abs() < 1e-9);
        assert!(smooth[3].1 > smooth[2].1 && smooth[3].1 < 20.0);
    }

    #[test]
    fn seeds_have_a_median_and_the_range_of_their_middle_half() {
        let runs = [10.0, 20.0, 40.0].map(|y| line(&[(0.0, y), (100.0, y)]));
        let seeds = Series::of_seeds(String::new(), 1, &runs);
        assert_eq!(seeds.points, [(0.0, 20.0), (100.0, 20.0)]);
        assert_eq!(seeds.band[0], Band { x: 0.0, low: 15.0, high: 30.0 });
    }

    #[test]
    fn seeds_of_other_lengths_count_where_they_have_values() {
        let runs = [line(&[(0.0, 0.0), (10.0, 10.0), (20.0, 20.0)]), line(&[(5.0, 7.0), (15.0, 17.0)])];
        let seeds = Series::of_seeds(String::new(), 1, &runs);
        assert_eq!(seeds.points, [(0.0, 0.0), (10.0, 11.0), (20.0, 20.0)]);
        assert_eq!(median(&[]), (vec![], vec![]));
    }

    #[test]
    fn line_of_a_metric_with_a_name_connects_the_iterations_that_have_it() {
        let mut curves = Curves::default();
        for iteration in 1..=3 {
            curves.push(Iteration { iteration, env_steps: iteration * 100, ..Iteration::default() });
        }
        for (iteration, value) in [(1, 5.0), (3, 7.0)] {
            curves.add_named(&NamedMetrics::new(0, iteration, [("lag".into(), value)]));
        }
        let lag = Metric::Named("lag".into());
        assert_eq!(points(&curves, &lag, &ChartView::default()), [(100.0, 5.0), (300.0, 7.0)]);
    }

    #[test]
    fn logarithmic_axes_leave_out_what_they_cannot_show() {
        let mut curves = Curves::default();
        for (iteration, value) in [(1, 5.0), (2, -1.0)] {
            let env_steps = (iteration - 1) * 100;
            curves.push(Iteration { iteration, env_steps, episode_return_mean: value, ..Iteration::default() });
        }
        let metric = Metric::Field(|point| point.episode_return_mean);
        let view = ChartView { log_x: true, log_y: true, ..ChartView::default() };
        assert!(matches!(points(&curves, &metric, &view)[..], [(100.0, y)] if y.is_nan()));
        assert_eq!(points(&curves, &metric, &ChartView::default()), [(0.0, 5.0), (100.0, -1.0)]);
    }
}
