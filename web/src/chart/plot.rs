//! What a chart shows of the state, and where it goes.

use std::collections::BTreeSet;

use super::{
    scale::{Scale, log_range, range, ticks},
    series::{Band, Series, nearest, points},
};
use crate::{
    format,
    state::{ChartView, Metric, RunKey, State, XAxis},
};

const LEFT: f64 = 40.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// The metrics between which four fifths of the latest returns are.
pub(crate) const BAND: [&str; 2] = ["episode_return_p10", "episode_return_p90"];
/// Colours that the current run and its evaluations have for themselves.
const OWN_COLOURS: usize = 2;

/// What a chart shows.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// Name for people.
    pub(crate) title: String,
    /// Name for tests and files: `chart-…`.
    pub(crate) id: String,
    /// The number of each iteration.
    pub(crate) metric: Metric,
    /// Lines with names instead of that of the metric: of policies, agents or workers.
    pub(crate) lines: Vec<(String, Metric)>,
    /// The value as text.
    pub(crate) format: fn(f64) -> String,
    /// Does the y axis begin at zero?
    pub(crate) from_zero: bool,
    /// Is it the big chart, with evaluations, and the return at which the run is solved?
    pub(crate) is_main: bool,
}

/// The lines of a chart.
#[derive(Clone, Debug, Default)]
pub(super) struct Plot {
    /// The lines; the first one is that of the current run.
    pub(super) series: Vec<Series>,
    /// Lines that the person has hidden.
    pub(super) hidden: Vec<Series>,
    /// How they are looked at.
    pub(super) view: ChartView,
    /// A value to reach.
    pub(super) goal: Option<f64>,
    /// Does the y axis begin at zero?
    pub(super) from_zero: bool,
}

/// Both axes.
pub(super) struct Axes {
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// The range of x of everything.
    pub(super) whole: (f64, f64),
}

impl Curve {
    /// What it shows of the state, with lines of this many colours.
    pub(super) fn plot(&self, state: &State, colours: usize) -> Plot {
        let view = state.charts;
        if !self.lines.is_empty() {
            let line = |(index, (name, metric)): (usize, &(String, Metric))| {
                Series::of_run(name.clone(), index % colours, &state.curves, metric, &view)
            };
            let series = placed(self.lines.iter().enumerate().map(line).collect());
            return Plot { series, view, from_zero: self.from_zero, ..Plot::default() };
        }
        let mut series = vec![Series::of_run("this run".into(), 0, &state.curves, &self.metric, &view)];
        if self.is_main {
            series[0].band = band(state, &view);
            let exact = ChartView { smoothing: 0, ..view };
            let evaluations = Series::of_run("evaluations".into(), 1, &state.evaluations, &self.metric, &exact);
            series.extend(Some(evaluations).filter(|line| !line.points.is_empty()).map(Series::with_dots));
        }
        let groups =
            state.run_groups().into_iter().filter(|group| !matches!(&group[..], [run] if state.is_current(run)));
        let colour = |index: usize| OWN_COLOURS + index % (colours - OWN_COLOURS);
        series.extend(groups.enumerate().map(|(index, group)| self.group(state, &group, colour(index))));
        let goal = state.run.as_ref().filter(|_| self.is_main).map(|run| f64::from(run.stop_return));
        let goal = goal.filter(|goal| goal.is_finite() && *goal != 0.0);
        Plot { series: placed(series), hidden: Vec::new(), view, goal, from_zero: self.from_zero }
    }

    /// The line of compared runs that differ in their seeds.
    fn group(&self, state: &State, group: &[RunKey], colour: usize) -> Series {
        let short = |run: &RunKey| match run {
            RunKey::Hub(run) => run.to_string(),
            RunKey::Saved(id) => id.clone(),
        };
        let line = |run: &RunKey| {
            let curves = state.curves_of(run)?;
            Some(Series::of_run(format!("run {}", short(run)), colour, curves, &self.metric, &state.charts))
        };
        let mut lines: Vec<Series> = group.iter().filter_map(line).collect();
        if lines.len() == 1 {
            return lines.remove(0);
        }
        let runs: Vec<String> = group.iter().map(short).collect();
        Series::of_seeds(format!("median of runs {}", runs.join(", ")), colour, &lines)
    }
}

/// Numbers lines in their order.
fn placed(mut series: Vec<Series>) -> Vec<Series> {
    series.iter_mut().enumerate().for_each(|(place, line)| line.place = place);
    series
}

/// Where the middle four fifths of the latest returns are.
fn band(state: &State, view: &ChartView) -> Vec<Band> {
    let [low, high] = BAND.map(|name| points(&state.curves, &Metric::Named(name.into()), view));
    low.into_iter().zip(high).map(|((x, low), (_, high))| Band { x, low, high }).collect()
}

impl Plot {
    /// The same without the lines of these names.
    pub(super) fn without(mut self, names: &BTreeSet<String>) -> Self {
        (self.hidden, self.series) = self.series.into_iter().partition(|line| names.contains(&line.name));
        self
    }

    /// All lines in their order, and whether each is shown.
    pub(super) fn lines(&self) -> Vec<(&Series, bool)> {
        let shown = self.series.iter().map(|line| (line, true));
        let mut lines: Vec<_> = shown.chain(self.hidden.iter().map(|line| (line, false))).collect();
        lines.sort_by_key(|(line, _)| line.place);
        lines
    }

    /// The place of the current run's point that is nearest to an x.
    pub(super) fn nearest_own(&self, x: f64) -> Option<f64> {
        let points = self.series.first()?.exact();
        nearest(points, x).map(|index| points[index].0)
    }

    /// Axes that hold what is shown of the lines and the goal on a canvas of this size; none without a point to show.
    pub(super) fn axes(&self, width: f64, height: f64) -> Option<Axes> {
        let ChartView { window, log_x, log_y, .. } = self.view;
        let whole = self.whole()?;
        let x = window.filter(|(low, high)| low < high && (!log_x || *low > 0.0)).unwrap_or(whole);
        // A window without a point keeps the axis of everything.
        let (low, high) = self.y_range(x).or_else(|| self.y_range(whole))?;
        Some(Axes {
            x: Scale { values: x, pixels: (LEFT, (width - RIGHT).max(LEFT + 1.0)), is_log: log_x },
            y: Scale { values: (low, high), pixels: ((height - BOTTOM).max(TOP + 1.0), TOP), is_log: log_y },
            whole,
        })
    }

    /// The range of x of everything.
    fn whole(&self) -> Option<(f64, f64)> {
        let ends = self.series.iter().filter_map(|line| Some((line.points.first()?.0, line.points.last()?.0)));
        let (first, last) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        Some(if self.view.log_x { (first, last.max(first * 1.01)) } else { (0.0, last.max(1.0)) })
    }

    fn y_range(&self, (from, to): (f64, f64)) -> Option<(f64, f64)> {
        // A part is looked at for its own values, which a far goal would flatten.
        let goal = self.goal.filter(|_| self.view.window.is_none());
        let is_shown = move |x: f64| (from..=to).contains(&x);
        let lines = self.series.iter().flat_map(|series| series.points.iter().chain(&series.raw));
        let bands = self.series.iter().flat_map(|series| &series.band).filter(|band| is_shown(band.x));
        let on_lines = lines.filter(|(x, _)| is_shown(*x)).map(|(_, y)| *y);
        let values: Vec<f64> = on_lines.chain(bands.flat_map(|band| [band.low, band.high])).collect();
        if self.view.log_y {
            return log_range(values.into_iter().chain(goal));
        }
        let least = values.iter().copied().filter(|y| y.is_finite()).reduce(f64::min)?;
        let (low, high) = range(values)?;
        let (low, high) = goal.map_or((low, high), |goal| widened((low, high), goal));
        Some((if self.from_zero && least >= 0.0 { 0.0 } else { low }, high))
    }
}

/// The range with a value in it, and air beyond that.
fn widened((low, high): (f64, f64), value: f64) -> (f64, f64) {
    let air = |spread: f64| spread * 0.06;
    let low = if value < low { value - air(high - value) } else { low };
    (low, if value > high { value + air(value - low) } else { high })
}

/// Values with labels: times are round in the unit in which they are shown.
pub(super) fn x_ticks(scale: &Scale, axis: XAxis, most: usize) -> Vec<(f64, String)> {
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

#[cfg(test)]
mod tests {
    use super::{super::decimate::Point, *};

    fn axes(points: &[Point], goal: Option<f64>, from_zero: bool, view: ChartView) -> Option<Axes> {
        let series = vec![Series { points: points.to_vec(), ..Series::default() }];
        Plot { series, view, goal, from_zero, ..Plot::default() }.axes(600.0, 200.0)
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
    fn hidden_lines_keep_their_place_in_the_legend_and_none_in_the_axes() {
        let line = |place: usize, name: &str, y| Series {
            place,
            name: name.into(),
            points: vec![(1.0, y)],
            ..Series::default()
        };
        let plot = Plot { series: vec![line(0, "a", 1.0), line(1, "b", 900.0), line(2, "c", 2.0)], ..Plot::default() };
        let plot = plot.without(&["b".to_owned()].into());
        let legend: Vec<_> = plot.lines().into_iter().map(|(line, is_shown)| (&*line.name, is_shown)).collect();
        assert_eq!(legend, [("a", true), ("b", false), ("c", true)]);
        assert!(plot.axes(600.0, 200.0).expect("points").y.values.1 < 10.0);
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
            axes(&points, Some(99.0), false, ChartView { window: Some(window), ..ChartView::default() })
                .expect("a curve")
        };
        assert_eq!(shown((60.0, 90.0)).x.values, (60.0, 90.0));
        assert!(shown((60.0, 90.0)).y.values.0 > 5.0 && shown((60.0, 90.0)).y.values.1 < 10.0);
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
