//! Line charts on a canvas, drawn at most once per frame.

mod canvas;
mod decimate;
mod draw;
mod scale;

use leptos::{ev, html, prelude::*};
use rollmesh_core::protocol::message::Iteration;

pub(crate) use self::canvas::{Canvas, style_value};
use self::draw::{Palette, Plot, draw};
use crate::{
    format,
    shell::Store,
    state::{Curves, State},
    theme::Theme,
};

/// What a chart shows of the iterations.
#[derive(Clone, Copy)]
pub(crate) struct Curve {
    /// Name for people.
    pub(crate) title: &'static str,
    /// Name for tests: `chart-…`.
    pub(crate) id: &'static str,
    /// The points that it is a value of.
    pub(crate) of: fn(&State) -> &Curves,
    /// The value of an iteration.
    pub(crate) value: fn(&Iteration) -> f32,
    /// The value as text.
    pub(crate) format: fn(f64) -> String,
    /// Does the y axis begin at zero?
    pub(crate) from_zero: bool,
    /// Is it the big chart, with the return at which the run is solved?
    pub(crate) is_main: bool,
}

impl Curve {
    fn point(&self, iteration: &Iteration) -> (f64, f64) {
        (iteration.env_steps as f64, f64::from((self.value)(iteration)))
    }

    fn points(&self, iterations: &[Iteration]) -> Vec<(f64, f64)> {
        iterations.iter().map(|iteration| self.point(iteration)).collect()
    }
}

/// One curve over the env steps, with the value under the pointer (or the arrow keys) in its caption.
#[component]
pub(crate) fn Chart(
    /// What it shows.
    curve: Curve,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let node = NodeRef::<html::Canvas>::new();
    let canvas = Canvas::new(node);
    let revision = store.select(move |state| (curve.of)(state).revision());
    let goal = store.select(move |state| state.run.as_ref().filter(|_| curve.is_main).map(|run| run.stop_return));
    let marked = RwSignal::new(None::<usize>);

    let redraw = move || {
        canvas.draw(|context, size| {
            store.peek(|state| {
                let points = curve.points((curve.of)(state).points());
                let marked = marked.get_untracked().and_then(|index| points.get(index).copied());
                let plot = plot(&curve, &points, goal.get_untracked(), marked);
                draw(context, size, &plot, &palette())
            })
        });
    };
    Effect::new(move |_| {
        revision.track();
        goal.track();
        marked.track();
        theme.is_dark();
        canvas.size();
        canvas.schedule(redraw);
    });

    let mark_nearest = move |event: ev::PointerEvent| {
        let (width, height) = canvas.size_now();
        marked.set(store.peek(|state| {
            let points = curve.points((curve.of)(state).points());
            let axes = plot(&curve, &points, goal.get_untracked(), None).axes(width, height)?;
            nearest(&points, axes.x.value(f64::from(event.offset_x())))
        }));
    };
    let move_mark = move |event: ev::KeyboardEvent| {
        let Some(last) = store.peek(|state| (curve.of)(state).points().len().checked_sub(1)) else { return };
        if let Some(moved) = moved(&event.key(), marked.get_untracked(), last) {
            marked.set(moved);
            event.prevent_default();
        }
    };

    let shown = Memo::new(move |_| {
        revision.track();
        let marked = marked.get();
        store.peek(|state| {
            let points = (curve.of)(state).points();
            let iteration = marked.and_then(|index| points.get(index)).or_else(|| points.last())?;
            let (steps, value) = curve.point(iteration);
            Some((value, marked.map(|_| (steps as u64, iteration.iteration))))
        })
    });
    let value = move || shown.get().map_or_else(|| "–".into(), |(value, _)| (curve.format)(value));
    let place = move || match shown.get() {
        Some((_, Some((steps, iteration)))) => format!("at {} steps, iteration {iteration}", format::count(steps)),
        _ => String::new(),
    };
    let count = move || {
        revision.track();
        store.peek(|state| (curve.of)(state).points().len())
    };

    view! {
        <figure class="chart" class:chart-tall=curve.is_main data-testid=curve.id data-points=count>
            <figcaption>
                <span class="chart-title">{curve.title}</span>
                <span class="chart-place">{place}</span>
                <output class="chart-value" data-testid=format!("{}-value", curve.id)>{value}</output>
            </figcaption>
            <div class="chart-box">
                <canvas
                    node_ref=node
                    tabindex="0"
                    role="img"
                    aria-label=move || format!("{} over env steps, now {}. Arrow keys read single points.", curve.title, value())
                    on:pointermove=mark_nearest
                    on:pointerleave=move |_| marked.set(None)
                    on:blur=move |_| marked.set(None)
                    on:keydown=move_mark
                ></canvas>
                <p class="chart-empty" hidden=move || shown.get().is_some_and(|(value, _)| value.is_finite())>
                    "No data yet"
                </p>
            </div>
        </figure>
    }
}

fn plot<'a>(curve: &Curve, points: &'a [(f64, f64)], goal: Option<f32>, marked: Option<(f64, f64)>) -> Plot<'a> {
    let goal = goal.map(f64::from).filter(|goal| goal.is_finite() && *goal != 0.0);
    Plot { points, goal, from_zero: curve.from_zero, marked }
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

fn nearest(points: &[(f64, f64)], x: f64) -> Option<usize> {
    let after = points.partition_point(|point| point.0 < x);
    let candidates = after.saturating_sub(1)..points.len().min(after + 1);
    candidates.min_by(|a, b| (points[*a].0 - x).abs().total_cmp(&(points[*b].0 - x).abs()))
}

fn palette() -> Palette {
    Palette {
        ink: style_value("--ink"),
        muted: style_value("--muted"),
        line: style_value("--line"),
        accent: style_value("--accent"),
        accent_soft: style_value("--accent-soft"),
        goal: style_value("--good"),
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

    #[test]
    fn the_nearest_point_is_found_on_either_side() {
        let points = [(0.0, 0.0), (10.0, 0.0), (30.0, 0.0)];
        let all = [-5.0, 4.0, 6.0, 19.0, 21.0, 99.0].map(|x| nearest(&points, x));
        assert_eq!(all, [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(nearest(&[], 1.0), None);
    }
}
