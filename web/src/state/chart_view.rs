//! The view of the charts. All charts share one, so that they show the same part of a run.

use std::collections::BTreeSet;

use rollmesh_core::protocol::message::Iteration;

use super::Texts;

/// Prefix of the names of the charts' parts of a link; no setting's name begins with it.
pub(super) const CHART: &str = "chart.";
/// Maps a number to another one.
type Map = fn(f64) -> f64;

/// Minimum width of the window, as a fraction of the whole range.
const NARROWEST: f64 = 1e-4;
/// Maximum weight of the past in percent, at which the newest point has a weight of one twentieth.
const MAX_SMOOTHING: u8 = 95;

/// The quantity on the x axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XAxis {
    /// Env steps that the learner has used.
    #[default]
    Steps,
    /// Seconds of wall time, without pauses.
    Time,
    /// Iterations.
    Iteration,
}

impl XAxis {
    /// All axes.
    pub const ALL: [Self; 3] = [Self::Steps, Self::Time, Self::Iteration];

    /// Returns its name in links and in the selection.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Time => "time",
            Self::Iteration => "iteration",
        }
    }

    /// Returns the axis of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// Returns the x coordinate of a point.
    #[must_use]
    pub fn place(self, point: &Iteration) -> f64 {
        match self {
            Self::Steps => point.env_steps as f64,
            Self::Time => point.wall_ms as f64 / 1e3,
            Self::Iteration => point.iteration as f64,
        }
    }
}

/// The view of the charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartView {
    /// The x axis.
    pub x: XAxis,
    /// The shown range of x; `None` for the whole range, which grows with the run.
    pub window: Option<(f64, f64)>,
    /// Weight of the past in the moving average, in percent; 0 for no smoothing.
    pub smoothing: u8,
    /// True if x has a logarithmic scale.
    pub log_x: bool,
    /// True if y has a logarithmic scale.
    pub log_y: bool,
    /// Names of the hidden lines: those of runs, and of metrics that share a chart.
    pub hidden: BTreeSet<String>,
}

/// A change of the view.
#[derive(Clone, Debug, PartialEq)]
pub enum ViewChange {
    /// Another x axis; the window is reset to the whole range.
    Axis(XAxis),
    /// Another weight of the past, in percent.
    Smoothing(u8),
    /// A logarithmic or linear x axis; the window is reset, since one that begins at 0 has no place on a logarithmic
    /// axis.
    LogX(bool),
    /// A logarithmic or linear y axis.
    LogY(bool),
    /// A part of the shown range, as fractions of its width; fractions below 0 or above 1 extend beyond it.
    Part {
        /// The whole range of x.
        whole: (f64, f64),
        /// The fractions at which the part begins and ends.
        part: (f64, f64),
    },
    /// The whole range.
    Whole,
    /// A line to hide, or to show if it is hidden.
    Line(String),
}

impl ChartView {
    /// Applies a change.
    pub fn change(&mut self, change: ViewChange) {
        match change {
            ViewChange::Axis(x) => (self.x, self.window) = (x, None),
            ViewChange::Smoothing(percent) => self.smoothing = percent.min(MAX_SMOOTHING),
            ViewChange::LogX(is_log) => (self.log_x, self.window) = (is_log, None),
            ViewChange::LogY(is_log) => self.log_y = is_log,
            ViewChange::Part { whole, part } => self.window = self.part(whole, part),
            ViewChange::Whole => self.window = None,
            ViewChange::Line(line) => {
                if !self.hidden.remove(&line) {
                    self.hidden.insert(line);
                }
            }
        }
    }

    fn part(&self, whole: (f64, f64), (from, to): (f64, f64)) -> Option<(f64, f64)> {
        // On a logarithmic axis equal ratios have equal widths.
        let (forth, back): (Map, Map) = match self.log_x {
            true => (|x| x.max(f64::MIN_POSITIVE).ln(), f64::exp),
            false => (|x| x, |x| x),
        };
        let both = |(low, high), map: Map| (map(low), map(high));
        let shown = both(self.window.unwrap_or(whole), forth);
        let (low, high) = both(whole, forth);
        let (from, to) = (from.min(to), from.max(to));
        let (spread, all) = (shown.1 - shown.0, high - low);
        let width = ((to - from) * spread).max(all * NARROWEST);
        if !width.is_finite() || width >= all {
            return None;
        }
        let start = (shown.0 + from * spread).clamp(low, high - width);
        Some(both((start, start + width), back))
    }

    /// Returns the texts of a link that restores the view; default values are left out.
    #[must_use]
    pub fn texts(&self) -> Texts {
        let mut texts = Texts::new();
        let mut add = |name: &str, text: String| texts.insert(format!("{CHART}{name}"), text);
        if self.x != XAxis::default() {
            add("x", self.x.name().into());
        }
        if let Some((low, high)) = self.window {
            add("window", format!("{low}..{high}"));
        }
        if self.smoothing > 0 {
            add("smoothing", self.smoothing.to_string());
        }
        if self.log_x || self.log_y {
            add(
                "log",
                [(self.log_x, "x"), (self.log_y, "y")].map(|(is_log, name)| if is_log { name } else { "" }).concat(),
            );
        }
        if !self.hidden.is_empty() {
            // No name of a metric or a run contains a line break.
            add("hidden", self.hidden.iter().map(String::as_str).collect::<Vec<_>>().join("\n"));
        }
        texts
    }

    /// Reads the texts of a link; invalid ones are ignored.
    #[must_use]
    pub fn of_texts(texts: &Texts) -> Self {
        let text = |name: &str| texts.get(&format!("{CHART}{name}")).map_or("", String::as_str);
        let window = text("window").split_once("..").and_then(|(low, high)| {
            let window: (f64, f64) = (low.parse().ok()?, high.parse().ok()?);
            (window.0 < window.1 && window.0.is_finite() && window.1.is_finite()).then_some(window)
        });
        Self {
            x: XAxis::named(text("x")).unwrap_or_default(),
            window,
            smoothing: text("smoothing").parse().map_or(0, |percent: u8| percent.min(MAX_SMOOTHING)),
            log_x: text("log").contains('x'),
            log_y: text("log").contains('y'),
            hidden: text("hidden").lines().filter(|line| !line.is_empty()).map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: (f64, f64) = (0.0, 1_000.0);

    fn shown(parts: impl IntoIterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
        let mut view = ChartView::default();
        parts.into_iter().for_each(|part| view.change(ViewChange::Part { whole: WHOLE, part }));
        view.window
    }

    #[test]
    fn selecting_zooms_and_zooming_out_far_enough_shows_everything() {
        assert_eq!(shown([(0.2, 0.4)]), Some((200.0, 400.0)));
        assert_eq!(shown([(0.4, 0.2)]), Some((200.0, 400.0)), "from right to left");
        assert_eq!(shown([(0.2, 0.4), (0.5, 1.0)]), Some((300.0, 400.0)));
        assert_eq!(shown([(0.2, 0.4), (-10.0, 11.0)]), None);
    }

    #[test]
    fn panning_keeps_the_width_and_stops_at_the_ends() {
        assert_eq!(shown([(0.2, 0.4), (1.0, 2.0)]), Some((400.0, 600.0)));
        assert_eq!(shown([(0.2, 0.4), (-9.0, -8.0)]), Some((0.0, 200.0)));
        assert_eq!(shown([(0.2, 0.4), (9.0, 10.0)]), Some((800.0, 1_000.0)));
        assert_eq!(shown([(1.0, 2.0)]), None, "everything is shown: there is nothing outside it");
    }

    #[test]
    fn window_is_never_empty_and_whole_shows_everything() {
        let (low, high) = shown([(0.5, 0.5)]).expect("a window");
        assert!(high > low && high - low < 1.0);
        let mut view = ChartView { window: Some((1.0, 2.0)), ..ChartView::default() };
        view.change(ViewChange::Whole);
        assert_eq!(view.window, None);
        view.change(ViewChange::Part { whole: (0.0, f64::NAN), part: (0.1, 0.2) });
        assert_eq!(view.window, None);
    }

    #[test]
    fn logarithmic_axis_is_split_by_ratios() {
        let mut view = ChartView { log_x: true, ..ChartView::default() };
        view.change(ViewChange::Part { whole: (1.0, 10_000.0), part: (0.5, 1.0) });
        let (low, high) = view.window.expect("a window");
        assert!((low - 100.0).abs() < 1e-6 && (high - 10_000.0).abs() < 1e-6, "{low}..{high}");
    }

    #[test]
    fn another_axis_shows_everything_and_points_have_a_place_on_each() {
        let mut view = ChartView { window: Some((1.0, 2.0)), ..ChartView::default() };
        view.change(ViewChange::Axis(XAxis::Time));
        assert_eq!((view.x, view.window), (XAxis::Time, None));
        view.window = Some((0.0, 2.0));
        view.change(ViewChange::LogX(true));
        assert_eq!((view.log_x, view.window), (true, None));
        let point = Iteration { iteration: 3, env_steps: 600, wall_ms: 1_500, ..Iteration::default() };
        assert_eq!(XAxis::ALL.map(|axis| axis.place(&point)), [600.0, 1.5, 3.0]);
    }

    #[test]
    fn link_restores_the_view_and_invalid_parts_are_ignored() {
        let mut view = ChartView {
            x: XAxis::Iteration,
            window: Some((12.5, 80.0)),
            smoothing: 60,
            log_y: true,
            ..ChartView::default()
        };
        for line in ["run 1", "policies/left/kl", "median of runs 2, 3", "run 1", "run 1"] {
            view.change(ViewChange::Line(line.into()));
        }
        assert_eq!(view.texts()["chart.window"], "12.5..80");
        assert_eq!(view.texts()["chart.hidden"], "median of runs 2, 3\npolicies/left/kl\nrun 1");
        assert_eq!(ChartView::of_texts(&view.texts()), view);
        assert_eq!(ChartView::default().texts(), Texts::new());
        let texts = [("chart.x", "moons"), ("chart.window", "9..1"), ("chart.smoothing", "200")];
        let read = ChartView::of_texts(&texts.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(read, ChartView { smoothing: MAX_SMOOTHING, ..ChartView::default() });
    }
}
