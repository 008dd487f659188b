//! Line charts on a canvas, drawn at most once per frame.

mod canvas;
mod decimate;
mod draw;
mod gesture;
mod scale;
mod series;

use leptos::{ev, html, prelude::*};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement};

pub(crate) use self::canvas::{Canvas, style_value};
use self::{
    draw::{Axes, Palette, Plot, draw},
    gesture::{Gesture, Part},
    series::{Band, Series, nearest, points, whole},
};
use crate::{
    format, save,
    shell::Store,
    state::{ChartView, Event, Metric, State, ViewChange},
    theme::Theme,
};

/// Variables of the style sheet with the colours of lines: the current run's, evaluations', and those of compared runs.
const COLOURS: [&str; 7] = ["--accent", "--good", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];
/// The metrics between which four fifths of the latest returns are.
pub(crate) const BAND: [&str; 2] = ["episode_return_p10", "episode_return_p90"];
/// Colours of the current run and its evaluations.
const OWN: usize = 2;
/// Height of the title of a saved picture, and its pixels per pixel of the page.
const TITLE: f64 = 28.0;
const SAVED_RATIO: f64 = 2.0;

/// What a chart shows.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// Name for people.
    pub(crate) title: String,
    /// Name for tests and files: `chart-…`.
    pub(crate) id: String,
    /// The number of each iteration.
    pub(crate) metric: Metric,
    /// The value as text.
    pub(crate) format: fn(f64) -> String,
    /// Does the y axis begin at zero?
    pub(crate) from_zero: bool,
    /// Is it the big chart, with evaluations, and the return at which the run is solved?
    pub(crate) is_main: bool,
}

/// The place on the x axis that is marked in all charts. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct Mark(pub(crate) RwSignal<Option<f64>>);

impl Curve {
    /// Its lines; the first one is that of the current run.
    fn series(&self, state: &State) -> Vec<Series> {
        let view = state.charts;
        let mut all = vec![Series::of_run("this run".into(), 0, &state.curves, &self.metric, &view)];
        if self.is_main {
            all[0].band = band(state, &view);
            let exact = ChartView { smoothing: 0, ..view };
            let evaluations = Series::of_run("evaluations".into(), 1, &state.evaluations, &self.metric, &exact);
            all.extend(Some(evaluations).filter(|line| !line.points.is_empty()).map(Series::with_dots));
        }
        let groups =
            state.run_groups().into_iter().filter(|group| !matches!(group[..], [run] if state.is_current(run)));
        all.extend(
            groups.enumerate().map(|(index, group)| self.group(state, &group, OWN + index % (COLOURS.len() - OWN))),
        );
        all
    }

    /// The line of compared runs that differ in their seeds.
    fn group(&self, state: &State, group: &[u32], colour: usize) -> Series {
        let line = |run: &u32| {
            let curves = state.curves_of(*run)?;
            Some(Series::of_run(format!("run {run}"), colour, curves, &self.metric, &state.charts))
        };
        let mut lines: Vec<Series> = group.iter().filter_map(line).collect();
        match lines.len() {
            1 => lines.remove(0),
            _ => {
                let runs: Vec<String> = group.iter().map(u32::to_string).collect();
                Series::of_seeds(format!("median of runs {}", runs.join(", ")), colour, &lines)
            }
        }
    }

    fn plot<'a>(&self, state: &State, series: &'a [Series]) -> Plot<'a> {
        let goal = state.run.as_ref().filter(|_| self.is_main).map(|run| f64::from(run.stop_return));
        Plot {
            series,
            view: state.charts,
            goal: goal.filter(|goal| goal.is_finite() && *goal != 0.0),
            from_zero: self.from_zero,
            marked: None,
            selected: None,
        }
    }
}

/// Where the middle four fifths of the latest returns are.
fn band(state: &State, view: &ChartView) -> Vec<Band> {
    let [low, high] = BAND.map(|name| Metric::Named(name.into()));
    let sides = points(&state.curves, &low, view).into_iter().zip(points(&state.curves, &high, view));
    sides.map(|((x, low), (_, high))| Band { x, low, high }).collect()
}

/// The lines of one metric, with the value under the pointer (or the arrow keys) in its caption.
#[component]
pub(crate) fn Chart(
    /// What it shows.
    curve: Curve,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let Mark(mark) = expect_context::<Mark>();
    let node = NodeRef::<html::Canvas>::new();
    let canvas = Canvas::new(node);
    let shown = store.select(|state| {
        let goal = state.run.as_ref().map(|run| run.stop_return.to_bits());
        (state.curves.revision(), state.evaluations.revision(), state.comparison.revision(), goal, state.charts)
    });
    let gesture = RwSignal::new(Gesture::default());
    let has_focus = StoredValue::new(false);
    let curve = StoredValue::new(curve);
    let Curve { title, id, is_main, .. } = curve.get_value();

    let redraw = move || {
        canvas.draw(|context, size| {
            context.clear_rect(0.0, 0.0, size.0, size.1);
            let selected = gesture.with_untracked(Gesture::selected);
            curve.with_value(|curve| {
                store.peek(|state| paint(context, size, curve, state, mark.get_untracked(), selected))
            })
        });
    };
    Effect::new(move |_| {
        shown.track();
        mark.track();
        gesture.track();
        theme.is_dark();
        canvas.size();
        canvas.schedule(redraw);
    });

    // The axes as they are drawn now, and the range of x of everything.
    let axes = move || {
        let (width, height) = canvas.size_now();
        curve.with_value(|curve| {
            store.peek(|state| {
                let series = curve.series(state);
                Some((curve.plot(state, &series).axes(width, height)?, whole(&series, state.charts.log_x)?))
            })
        })
    };
    let show = move |part: Option<Part>| {
        if let (Some(part), Some((_, whole))) = (part, axes()) {
            store.dispatch(Event::Charts(ViewChange::Part { whole, part }));
        }
    };
    let place = move |x: i32| axes().map(|(Axes { x: scale, .. }, _)| scale.fraction(f64::from(x)));
    let places =
        move || curve.with_value(|curve| store.peek(|state| points(&state.curves, &curve.metric, &state.charts)));

    let mark_nearest = move |x: i32| {
        let places = places();
        let index = axes().and_then(|(axes, _)| nearest(&places, axes.x.value(f64::from(x))));
        mark.set(index.map(|index| places[index].0));
    };
    let on_down = move |event: ev::PointerEvent| {
        let Some(at) = place(event.offset_x()).filter(|_| event.button() == 0) else { return };
        let selects = event.pointer_type() == "mouse" && !event.shift_key();
        gesture.update(|gesture| gesture.down(event.pointer_id(), at, selects));
        if let Some(canvas) = node.get_untracked() {
            // Without it, a drag ends at the edge.
            let _ = canvas.set_pointer_capture(event.pointer_id());
        }
    };
    let on_move = move |event: ev::PointerEvent| {
        mark_nearest(event.offset_x());
        if let Some(at) = place(event.offset_x()) {
            let moved = gesture.try_update(|gesture| gesture.moved(event.pointer_id(), at));
            show(moved.flatten());
        }
    };
    let on_up = move |event: ev::PointerEvent| {
        show(gesture.try_update(|gesture| gesture.up(event.pointer_id())).flatten());
    };
    let on_cancel = move |event: ev::PointerEvent| gesture.update(|gesture| gesture.cancel(event.pointer_id()));
    let on_wheel = move |event: ev::WheelEvent| {
        // Otherwise the wheel scrolls the page.
        if has_focus.get_value() || event.ctrl_key() || event.meta_key() {
            event.prevent_default();
            show(place(event.offset_x()).map(|at| gesture::zoom(at, -event.delta_y().signum())));
        }
    };
    let on_key = move |event: ev::KeyboardEvent| {
        let scale = axes().map(|(axes, _)| axes.x);
        let at = scale.zip(mark.get_untracked()).map_or(0.5, |(scale, mark)| scale.fraction(scale.pixel(mark)));
        let part = gesture::key(&event.key(), event.shift_key(), at.clamp(0.0, 1.0));
        let places = places();
        let marked = mark.get_untracked().and_then(|x| nearest(&places, x));
        let last = places.len().checked_sub(1);
        if event.key() == "0" {
            store.dispatch(Event::Charts(ViewChange::Whole));
        } else if part.is_some() {
            show(part);
        } else if let Some(moved) = last.and_then(|last| moved(&event.key(), marked, last)) {
            mark.set(moved.map(|index| places[index].0));
        } else {
            return;
        }
        event.prevent_default();
    };

    let legend = Memo::new(move |_| {
        shown.track();
        let mark = mark.get();
        curve.with_value(|curve| {
            store.peek(|state| curve.series(state).iter().map(|line| entry(line, mark)).collect::<Vec<_>>())
        })
    });
    let own = Memo::new(move |_| {
        shown.track();
        let mark = mark.get();
        curve.with_value(|curve| {
            store.peek(|state| {
                let places = points(&state.curves, &curve.metric, &state.charts);
                let index = mark.and_then(|mark| nearest(&places, mark));
                let value = index.map_or_else(|| places.last(), |index| places.get(index))?.1;
                // A logarithmic axis leaves out the first points.
                let skipped = state.curves.points().len() - places.len();
                let at = index.and_then(|index| state.curves.points().get(index + skipped));
                Some((value, at.map(|point| (point.env_steps, point.iteration))))
            })
        })
    });
    let value =
        move || own.get().map_or_else(|| "–".into(), |(value, _)| curve.with_value(|curve| (curve.format)(value)));
    let caption = move || match own.get() {
        Some((_, Some((steps, iteration)))) => format!("at {} steps, iteration {iteration}", format::count(steps)),
        _ => String::new(),
    };
    let count = move || {
        shown.track();
        store.peek(|state| state.curves.points().len())
    };
    let has_points = move || legend.with(|lines| lines.iter().any(|line| line.value.is_finite()));
    let save = move |_| {
        let saved = curve.with_value(|curve| store.peek(|state| save_picture(curve, state, canvas.size_now())));
        if let Err(error) = saved {
            leptos::logging::warn!("the chart was not saved: {error:?}");
        }
    };

    let label = {
        let title = title.clone();
        move || {
            format!(
                "{title}, now {}. Arrow keys read single points; plus and minus zoom, Shift with arrow keys pans, 0 shows everything.",
                value()
            )
        }
    };
    view! {
        <figure class="chart" class:chart-tall=is_main data-testid=id.clone() data-points=count>
            <figcaption>
                <span class="chart-title">{title.clone()}</span>
                <span class="chart-place">{caption}</span>
                <output class="chart-value" data-testid=format!("{id}-value")>{value}</output>
                <button
                    type="button"
                    class="button small quiet"
                    data-testid=format!("{id}-png")
                    aria-label=format!("Save {title} as PNG")
                    title="Save as PNG"
                    on:click=save
                >
                    "PNG"
                </button>
            </figcaption>
            <div class="chart-box">
                <canvas
                    node_ref=node
                    tabindex="0"
                    role="img"
                    aria-label=label
                    on:pointerdown=on_down
                    on:pointermove=on_move
                    on:pointerup=on_up
                    on:pointercancel=on_cancel
                    on:pointerleave=move |_| mark.set(None)
                    on:dblclick=move |_| store.dispatch(Event::Charts(ViewChange::Whole))
                    on:wheel=on_wheel
                    on:focus=move |_| has_focus.set_value(true)
                    on:blur=move |_| {
                        has_focus.set_value(false);
                        mark.set(None);
                    }
                    on:keydown=on_key
                ></canvas>
                <p class="chart-empty" hidden=has_points>"No data yet"</p>
            </div>
            <Show when=move || is_main && legend.with(|lines| lines.len() > 1)>
                <ul class="legend" aria-label="Lines">
                    {move || legend.get().into_iter().map(|line| view! {
                        <li data-testid=format!("legend-{}", line.name) data-points=line.points>
                            <span class="swatch" style=format!("background: var({})", COLOURS[line.colour % COLOURS.len()])></span>
                            {format!("{} {}", line.name, format::mean(line.value))}
                        </li>
                    }).collect_view()}
                </ul>
            </Show>
        </figure>
    }
}

/// A line of the legend.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    colour: usize,
    points: usize,
    value: f64,
}

/// NaN is unequal to itself: only what is shown counts.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let Self { name, colour, points, value } = self;
        (name, *colour, *points, value.to_bits()) == (&other.name, other.colour, other.points, other.value.to_bits())
    }
}

/// The value is the one at the mark, or the last one.
fn entry(line: &Series, mark: Option<f64>) -> Entry {
    let point = mark.map_or_else(|| line.points.last().copied(), |mark| line.nearest(mark));
    let value = point.map_or(f64::NAN, |(_, value)| value);
    Entry { name: line.name.clone(), colour: line.colour, points: line.points.len(), value }
}

fn paint(
    context: &CanvasRenderingContext2d,
    size: (f64, f64),
    curve: &Curve,
    state: &State,
    marked: Option<f64>,
    selected: Option<Part>,
) -> Result<(), JsValue> {
    let series = curve.series(state);
    draw(context, size, &Plot { marked, selected, ..curve.plot(state, &series) }, &palette())
}

/// Saves the chart as it is looked at, with its title.
fn save_picture(curve: &Curve, state: &State, (width, height): (f64, f64)) -> Result<(), JsValue> {
    let canvas: HtmlCanvasElement = document().create_element("canvas")?.unchecked_into();
    canvas.set_width((width * SAVED_RATIO) as u32);
    canvas.set_height(((height + TITLE) * SAVED_RATIO) as u32);
    let context = canvas.get_context("2d")?.ok_or("this browser has no canvas")?;
    let context: CanvasRenderingContext2d = context.unchecked_into();
    context.scale(SAVED_RATIO, SAVED_RATIO)?;
    context.set_fill_style_str(&style_value("--surface"));
    context.fill_rect(0.0, 0.0, width, height + TITLE);
    context.set_fill_style_str(&style_value("--ink"));
    context.set_font("600 13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif");
    let run = state.run.as_ref().map_or_else(String::new, |run| format!(" – {}, seed {}", run.env, run.seed));
    context.fill_text(&format!("{}{run}", curve.title), 8.0, 19.0)?;
    context.translate(0.0, TITLE)?;
    paint(&context, (width, height), curve, state, None, None)?;
    save::picture(&canvas, &format!("{}.png", curve.id))
}

/// Where a key takes the mark among the points up to `last`; none if the key means nothing here.
fn moved(key: &str, marked: Option<usize>, last: usize) -> Option<Option<usize>> {
    let now = marked.unwrap_or(last);
    match key {
        "ArrowLeft" => Some(Some(now.saturating_sub(1))),
        "ArrowRight" => Some(Some((now + 1).min(last))),
        "Home" => Some(Some(0)),
        "End" => Some(Some(last)),
        "Escape" => Some(None),
        _ => None,
    }
}

fn palette() -> Palette {
    Palette {
        ink: style_value("--ink"),
        muted: style_value("--muted"),
        line: style_value("--line"),
        accent_soft: style_value("--accent-soft"),
        goal: style_value("--good"),
        series: COLOURS.map(style_value).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_the_mark_and_keep_it_on_the_curve() {
        let all = ["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].map(|key| moved(key, Some(4), 4));
        assert_eq!(all, [Some(3), Some(4), Some(0), Some(4), None].map(Some));
        assert_eq!(moved("ArrowLeft", None, 4), Some(Some(3)));
        assert_eq!(moved("ArrowLeft", Some(0), 4), Some(Some(0)));
        assert_eq!(moved("Tab", Some(1), 4), None);
    }
}
