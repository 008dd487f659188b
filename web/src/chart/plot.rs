//! The lines of a chart, selected from the state, and its axes.

use super::{
    decimate::Point,
    scale::{Scale, range, ticks, without_first_outliers},
    series::{Band, Series, nearest, points},
};
use crate::{
    format,
    state::{ChartView, Curves, Metric, RunKey, State, XAxis},
};

/// A function that returns the iterations or evaluations of a run that is shown.
type CurvesOf = for<'a> fn(&'a State, &RunKey) -> Option<&'a Curves>;

const LEFT: f64 = 40.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;

/// The metrics between which four fifths of the latest returns are.
pub(crate) const BAND: [&str; 2] = ["episode_return_p10", "episode_return_p90"];
/// The name of the current run's line.
pub(super) const OWN: &str = "this run";
/// The number of colours that are reserved for the current run and its evaluations.
const OWN_COLOURS: usize = 2;

/// The description of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// The title.
    pub(crate) title: String,
    /// Name for tests and files: `chart-…`.
    pub(crate) id: String,
    /// The number of each iteration.
    pub(crate) metric: Metric,
    /// Lines instead of that of the metric: the name of each, of a policy, agent or worker, with the name of its
    /// metric.
    pub(crate) lines: Vec<(String, String)>,
    /// The value as text.
    pub(crate) format: fn(f64) -> String,
    /// True if the y axis begins at zero.
    pub(crate) from_zero: bool,
    /// True if it is the big chart, with evaluations, and the return at which the run is solved.
    pub(crate) is_main: bool,
}

/// The lines of a chart.
#[derive(Clone, Debug, Default)]
pub(super) struct Plot {
    /// The lines with points; the first one is that of the current run, if that has any.
    pub(super) series: Vec<Series>,
    /// Lines that the user has hidden.
    pub(super) hidden: Vec<Series>,
    /// The view of the charts.
    pub(super) view: ChartView,
    /// A value to reach.
    pub(super) goal: Option<f64>,
    /// True if the y axis begins at zero.
    pub(super) from_zero: bool,
}

/// Both axes.
pub(super) struct Axes {
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// The range of x of the whole chart.
    pub(super) whole: (f64, f64),
}

impl Curve {
    /// Returns the plot of the state, with lines of this many colours.
    pub(super) fn plot(&self, state: &State, colours: usize) -> Plot {
        let lines = if self.lines.is_empty() { self.of_runs(state, colours) } else { self.of_metrics(state, colours) };
        let goal = state.run.as_ref().filter(|_| self.is_main).map(|run| f64::from(run.stop_return));
        let goal = goal.filter(|goal| goal.is_finite() && *goal != 0.0);
        let (view, from_zero) = (state.charts.clone(), self.from_zero);
        Plot { series: placed(lines), hidden: Vec::new(), view, goal, from_zero }.hiding()
    }

    /// Returns the lines with names, of the current run.
    fn of_metrics(&self, state: &State, colours: usize) -> Vec<Series> {
        let line = |(index, (name, key)): (usize, &(String, String))| {
            let metric = Metric::Named(key.clone());
            let line = Series::of_run(name.clone(), index % colours, &state.curves, &metric, &state.charts);
            Series { key: key.clone(), ..line }
        };
        self.lines.iter().enumerate().map(line).collect()
    }

    /// Returns the lines of the current run and of compared runs, in the big chart with their evaluations.
    fn of_runs(&self, state: &State, colours: usize) -> Vec<Series> {
        let (view, exact) = (&state.charts, ChartView { smoothing: 0, ..state.charts.clone() });
        let mut lines = vec![Series::of_run(OWN.into(), 0, &state.curves, &self.metric, view)];
        if self.is_main {
            lines[0].band = band(state, view);
            let evaluations = Series::of_run("evaluations".into(), 1, &state.evaluations, &self.metric, &exact);
            lines.push(evaluations.with_dots());
        }
        let groups =
            state.run_groups().into_iter().filter(|group| !matches!(&group[..], [run] if state.is_current(run)));
        let of_curves: (&str, CurvesOf, _) = ("", State::curves_of, view);
        let of_evaluations: (&str, CurvesOf, _) = ("evaluations of ", State::evaluations_of, &exact);
        let shown = if self.is_main { vec![of_curves, of_evaluations] } else { vec![of_curves] };
        for (index, group) in groups.enumerate() {
            let colour = OWN_COLOURS + index % (colours - OWN_COLOURS);
            for (what, of, view) in &shown {
                let line = |run: &RunKey| {
                    let curves = of(state, run).filter(|curves| curves.last().is_some())?;
                    let name = format!("{what}run {}", short(run));
                    Some((run.clone(), Series::of_run(name, colour, curves, &self.metric, view)))
                };
                let found: Vec<_> = group.iter().filter_map(line).collect();
                // The current run has its own line.
                if !matches!(&found[..], [(run, _)] if state.is_current(run)) {
                    lines.extend(of_seeds(what, colour, found));
                }
            }
        }
        lines.retain(|line| !line.points.is_empty());
        lines
    }
}

/// Returns the line of runs that differ in their seeds: the median of their lines, or the only one. Evaluations have
/// dots.
fn of_seeds(what: &str, colour: usize, mut found: Vec<(RunKey, Series)>) -> Option<Series> {
    let line = if found.len() < 2 {
        found.pop()?.1
    } else {
        let (runs, lines): (Vec<String>, Vec<Series>) =
            found.into_iter().map(|(run, line)| (short(&run), line)).unzip();
        Series::of_seeds(format!("median of {what}runs {}", runs.join(", ")), colour, &lines)
    };
    Some(if what.is_empty() { line } else { line.with_dots() })
}

fn short(run: &RunKey) -> String {
    match run {
        RunKey::Hub(run) => run.to_string(),
        RunKey::Saved(id) => id.clone(),
    }
}

/// Numbers lines in their order.
fn placed(mut series: Vec<Series>) -> Vec<Series> {
    series.iter_mut().enumerate().for_each(|(place, line)| line.place = place);
    series
}

/// Returns the range of the middle four fifths of the latest returns.
fn band(state: &State, view: &ChartView) -> Vec<Band> {
    let [low, high] = BAND.map(|name| points(&state.curves, &Metric::Named(name.into()), view));
    low.into_iter().zip(high).map(|((x, low), (_, high))| Band { x, low, high }).collect()
}

impl Plot {
    /// Moves the lines that the view hides to `hidden`.
    fn hiding(mut self) -> Self {
        let hidden = &self.view.hidden;
        (self.hidden, self.series) = self.series.into_iter().partition(|line| hidden.contains(&line.key));
        self
    }

    /// Returns all lines in their order, each with true if it is shown.
    pub(super) fn lines(&self) -> Vec<(&Series, bool)> {
        let shown = self.series.iter().map(|line| (line, true));
        let mut lines: Vec<_> = shown.chain(self.hidden.iter().map(|line| (line, false))).collect();
        lines.sort_by_key(|(line, _)| line.place);
        lines
    }

    /// Returns the place of the point that is nearest to an x, of any line that is shown.
    pub(super) fn nearest(&self, x: f64) -> Option<f64> {
        let place = |line: &Series| nearest(line.exact(), x).map(|index| line.exact()[index].0);
        let places = self.series.iter().filter_map(place);
        places.min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs()))
    }

    /// Returns the place of the last point before an x, of any line that is shown.
    pub(super) fn before(&self, x: f64) -> Option<f64> {
        let place = |line: &Series| Some(line.exact()[..line.exact().partition_point(|point| point.0 < x)].last()?.0);
        self.series.iter().filter_map(place).reduce(f64::max)
    }

    /// Returns the place of the first point after an x, of any line that is shown.
    pub(super) fn after(&self, x: f64) -> Option<f64> {
        let place = |line: &Series| Some(line.exact().get(line.exact().partition_point(|point| point.0 <= x))?.0);
        self.series.iter().filter_map(place).reduce(f64::min)
    }

    /// Returns the places of the first and the last point of the lines that are shown.
    pub(super) fn ends(&self) -> Option<(f64, f64)> {
        let ends = self.series.iter().filter_map(|line| Some((line.exact().first()?.0, line.exact().last()?.0)));
        ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Returns axes that hold the shown part of the lines and the goal on a canvas of this size; `None` without a point
    /// to show.
    pub(super) fn axes(&self, width: f64, height: f64) -> Option<Axes> {
        let ChartView { window, log_x, log_y, .. } = self.view;
        let whole = self.whole()?;
        let x = window.filter(|(low, high)| low < high && (!log_x || *low > 0.0)).unwrap_or(whole);
        // A window without a point keeps the y axis of the whole chart.
        let (low, high) = self.y_range(x).or_else(|| self.y_range(whole))?;
        Some(Axes {
            x: Scale { values: x, pixels: (LEFT, (width - RIGHT).max(LEFT + 1.0)), is_log: log_x },
            y: Scale { values: (low, high), pixels: ((height - BOTTOM).max(TOP + 1.0), TOP), is_log: log_y },
            whole,
        })
    }

    /// Returns the range of x of the whole chart.
    fn whole(&self) -> Option<(f64, f64)> {
        let (first, last) = self.ends()?;
        Some(if self.view.log_x { (first, last.max(first * 1.01)) } else { (0.0, last.max(1.0)) })
    }

    fn y_range(&self, (from, to): (f64, f64)) -> Option<(f64, f64)> {
        let ChartView { window, log_y, .. } = self.view;
        let is_shown = |point: &Point| (from..=to).contains(&point.0);
        let shown = |points: &[Point]| -> Vec<f64> {
            // Values that are not positive have no finite logarithm.
            let scaled = |y: f64| if log_y { y.ln() } else { y };
            let values = points.iter().filter(|point| is_shown(point)).map(|point| scaled(point.1)).collect();
            if points.first().is_some_and(is_shown) { without_first_outliers(values) } else { values }
        };
        let of_line = |line: &Series| {
            let edge = |y: fn(&Band) -> f64| line.band.iter().map(|band| (band.x, y(band))).collect::<Vec<_>>();
            let (low, high) = (edge(|band| band.low), edge(|band| band.high));
            [&line.points[..], &line.raw, &low, &high].map(shown).concat()
        };
        let (low, high) = range(self.series.iter().flat_map(of_line))?;
        // The axis of a part leaves out the goal: a distant one would flatten the part's values.
        let goal = self.goal.filter(|_| window.is_none()).map(|goal| if log_y { goal.ln() } else { goal });
        let (low, high) = goal.filter(|goal| goal.is_finite()).map_or((low, high), |goal| widened((low, high), goal));
        if log_y {
            return Some((low.exp(), high.exp()));
        }
        let is_negative = |point: &Point| is_shown(point) && point.1 < 0.0;
        let goes_below = |line: &Series| {
            let band = line.band.iter().map(|band| (band.x, band.low));
            line.exact().iter().copied().chain(band).any(|point| is_negative(&point))
        };
        Some((if self.from_zero && !self.series.iter().any(goes_below) { 0.0 } else { low }, high))
    }
}

/// Returns the range with a value in it, and a margin beyond that value.
fn widened((low, high): (f64, f64), value: f64) -> (f64, f64) {
    let air = |spread: f64| spread * 0.06;
    let low = if value < low { value - air(high - value) } else { low };
    (low, if value > high { value + air(value - low) } else { high })
}

/// Returns values with labels: times are round in the unit in which they are shown.
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
    use rollmesh_core::protocol::{
        Message,
        message::{EvaluationPoint, Iteration, RunHistory, RunList, RunRow, Welcome},
    };

    use super::*;
    use crate::state::{Action, Event, ViewChange, reduce};

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

    fn line(place: usize, name: &str, points: &[Point]) -> Series {
        Series { place, name: name.into(), key: name.into(), points: points.to_vec(), ..Series::default() }
    }

    #[test]
    fn hidden_lines_keep_their_place_in_the_legend_and_none_in_the_axes() {
        let series = ["a", "b", "c"].iter().zip([1.0, 900.0, 2.0]).enumerate();
        let series = series.map(|(place, (name, y))| line(place, name, &[(1.0, y)])).collect();
        let view = ChartView { hidden: ["b".to_owned()].into(), ..ChartView::default() };
        let plot = Plot { series, view, ..Plot::default() }.hiding();
        let legend: Vec<_> = plot.lines().into_iter().map(|(line, is_shown)| (&*line.name, is_shown)).collect();
        assert_eq!(legend, [("a", true), ("b", false), ("c", true)]);
        assert!(plot.axes(600.0, 200.0).expect("points").y.values.1 < 10.0);
    }

    #[test]
    fn mark_stops_at_the_points_of_all_lines_that_are_shown() {
        let own = line(0, OWN, &[(10.0, 1.0), (30.0, 1.0)]);
        let other = line(1, "run 1", &[(12.0, 1.0), (50.0, 1.0)]);
        let plot = Plot { series: vec![own, other], ..Plot::default() };
        assert_eq!([0.0, 11.5, 25.0, 99.0].map(|x| plot.nearest(x)), [10.0, 12.0, 30.0, 50.0].map(Some));
        assert_eq!([10.0, 12.0, 50.0].map(|x| plot.before(x)), [None, Some(10.0), Some(30.0)]);
        assert_eq!([10.0, 12.0, 50.0].map(|x| plot.after(x)), [Some(12.0), Some(30.0), None]);
        assert_eq!((plot.ends(), Plot::default().nearest(1.0)), (Some((10.0, 50.0)), None));
    }

    #[test]
    fn compared_runs_have_their_evaluations_in_the_big_chart_and_are_its_lines_without_a_current_run() {
        let mut state = State::default();
        let row = |run| RunRow { run, ..RunRow::default() };
        let welcome = Welcome { protocol: 1, peer: 1, resume_id: [0; 16], credit: 0, server: String::new() };
        let listed = RunList { may_wait: true, runs: vec![row(1), row(2)] };
        let mut receive = |event| drop(reduce(&mut state, event));
        receive(Event::Received(Message::Welcome(welcome)));
        receive(Event::Received(Message::RunList(listed)));
        for run in [1, 2] {
            receive(Event::Act(Action::Compare { run: RunKey::Hub(run) }));
        }
        for request in [1, 2] {
            let iteration = |iteration: u64| Iteration {
                run: request,
                iteration,
                env_steps: iteration * 100,
                episode_return_mean: request as f32,
                ..Iteration::default()
            };
            let evaluation =
                EvaluationPoint { run: request, iteration: 2, env_steps: 200, ..EvaluationPoint::default() };
            receive(Event::Received(Message::RunHistory(RunHistory {
                request,
                run: request,
                config: format!(r#"{{"seed": {request}}}"#),
                iterations: (1..4).map(iteration).collect(),
                evaluations: if request == 2 { vec![evaluation] } else { vec![] },
            })));
        }
        let curve = |is_main| Curve {
            title: String::new(),
            id: String::new(),
            metric: Metric::Field(|point| point.episode_return_mean),
            lines: Vec::new(),
            format: format::mean,
            from_zero: true,
            is_main,
        };
        let names = |plot: &Plot| plot.series.iter().map(|line| line.name.clone()).collect::<Vec<_>>();
        let main = curve(true).plot(&state, 7);
        assert_eq!(names(&main), ["median of runs 1, 2", "evaluations of run 2"]);
        assert!(main.series[1].has_dots && main.series[1].colour == main.series[0].colour);
        assert_eq!((main.nearest(260.0), main.series[0].value(Some(300.0))), (Some(300.0), 1.5));
        assert_eq!(names(&curve(false).plot(&state, 7)), ["median of runs 1, 2"]);
        state.charts.change(ViewChange::Line("evaluations of run 2".into()));
        assert_eq!(names(&curve(true).plot(&state, 7)), ["median of runs 1, 2"]);
    }

    #[test]
    fn first_outliers_of_each_line_are_off_the_scale_unless_only_a_part_is_shown() {
        let points = |offset: f64, first: f64| -> Vec<Point> {
            (0..19).map(|i| (f64::from(i), if i == 0 { first } else { offset + f64::from(i % 5) })).collect()
        };
        let of = |view| {
            let series = vec![line(0, "a", &points(0.0, 1e6)), line(1, "b", &points(10.0, 5e5))];
            Plot { series, view, from_zero: true, ..Plot::default() }.axes(600.0, 200.0).expect("points").y.values
        };
        let (low, high) = of(ChartView::default());
        assert!(low == 0.0 && (14.0..20.0).contains(&high), "{low}..{high}");
        let (low, high) = of(ChartView { log_y: true, ..ChartView::default() });
        assert!(low > 0.0 && (14.0..20.0).contains(&high), "{low}..{high}");
        let rising: Vec<Point> =
            (0..40).map(|i| (f64::from(i), if i < 22 { -500.0 } else { -f64::from(i % 9) })).collect();
        let view = ChartView { window: Some((20.0, 39.0)), ..ChartView::default() };
        let part = axes(&rising, None, false, view).expect("points").y.values;
        assert!(part.0 < -500.0, "the first values of a part are no outliers: {part:?}");
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
