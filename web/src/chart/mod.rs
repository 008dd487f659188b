//! Line charts on a canvas, drawn at most once per frame.

mod canvas;
mod decimate;
mod draw;
mod gesture;
mod plot;
mod scale;
mod series;

use leptos::{ev, html, prelude::*};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement};

pub(crate) use self::{
    canvas::{Canvas, style_value},
    plot::{BAND, Curve},
};
use self::{
    draw::{COLOURS, Pointed, draw},
    gesture::{Gesture, ViewWindow},
    plot::{OWN, Plot},
    series::Series,
};
use crate::{
    format, save,
    shell::Store,
    state::{Event, ViewChange, XAxis},
    theme::Theme,
};

/// Height of the title of a saved picture, and its pixels per pixel of the page.
const TITLE: f64 = 28.0;
const SAVED_RATIO: f64 = 2.0;
const KEYS: &str =
    "Arrow keys read single points; plus and minus zoom, Shift with arrow keys pans, 0 shows everything.";

/// The place on the x axis that is marked in all charts. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct Mark(pub(crate) RwSignal<Option<f64>>);

/// The lines of one metric, with the value under the pointer (or the arrow keys) in its caption.
#[component]
pub(crate) fn Chart(
    /// The metric and its lines.
    curve: Curve,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let Mark(mark) = expect_context::<Mark>();
    let Curve { title, id, is_main, format, .. } = curve.clone();
    let node = NodeRef::<html::Canvas>::new();
    let canvas = Canvas::new(node);
    let revision = store.select(|state| {
        let goal = state.run.as_ref().map(|run| run.stop_return.to_bits());
        let others = (state.evaluations.revision(), state.comparison.revision());
        (state.curves.revision(), others, goal, state.charts.clone())
    });
    // Computed once for all its readers. Plots are not compared: they have many numbers, with NaN among them.
    let plot = Memo::new_with_compare(
        move |_| {
            revision.track();
            store.peek(|state| curve.plot(state, COLOURS.len()))
        },
        |_, _| true,
    );
    let gesture = RwSignal::new(Gesture::default());
    let has_focus = StoredValue::new(false);

    let redraw = move || {
        canvas.draw(|context, size| {
            let pointed = Pointed { marked: mark.get_untracked(), selected: gesture.with_untracked(Gesture::selected) };
            context.clear_rect(0.0, 0.0, size.0, size.1);
            plot.with_untracked(|plot| draw(context, size, plot, pointed))
        });
    };
    Effect::new(move |_| {
        plot.track();
        mark.track();
        gesture.track();
        theme.is_dark();
        canvas.size();
        canvas.schedule(redraw);
    });

    let axes = move || {
        let (width, height) = canvas.size_now();
        plot.with_untracked(|plot| plot.axes(width, height))
    };
    let show = move |part: Option<ViewWindow>| {
        if let Some((part, axes)) = part.zip(axes()) {
            store.dispatch(Event::Charts(ViewChange::Part { whole: axes.whole, part }));
        }
    };
    let show_all = move || store.dispatch(Event::Charts(ViewChange::Whole));
    let fraction = move |x: i32| axes().map(|axes| axes.x.fraction(f64::from(x)));
    let on_down = move |event: ev::PointerEvent| {
        let Some(at) = fraction(event.offset_x()).filter(|_| event.button() == 0) else { return };
        let selects = event.pointer_type() == "mouse" && !event.shift_key();
        gesture.update(|gesture| gesture.down(event.pointer_id(), at, selects));
        if let Some(canvas) = node.get_untracked() {
            // Without the capture, a drag ends at the edge.
            let _ = canvas.set_pointer_capture(event.pointer_id());
        }
    };
    let on_move = move |event: ev::PointerEvent| {
        let Some(axes) = axes() else { return };
        let pixel = f64::from(event.offset_x());
        mark.set(plot.with_untracked(|plot| plot.nearest(axes.x.value(pixel))));
        let moved = gesture.try_update(|gesture| gesture.moved(event.pointer_id(), axes.x.fraction(pixel)));
        show(moved.flatten());
    };
    let on_up = move |event: ev::PointerEvent| {
        show(gesture.try_update(|gesture| gesture.up(event.pointer_id())).flatten());
    };
    let on_wheel = move |event: ev::WheelEvent| {
        let part = fraction(event.offset_x()).and_then(|at| gesture::wheel(at, event.delta_y()));
        // Otherwise the wheel scrolls the page.
        if part.is_some() && (has_focus.get_value() || event.ctrl_key() || event.meta_key()) {
            event.prevent_default();
            show(part);
        }
    };
    let on_key = move |event: ev::KeyboardEvent| {
        // These keys belong to the browser, for example to zoom the page.
        if event.ctrl_key() || event.meta_key() || event.alt_key() {
            return;
        }
        let marked = mark.get_untracked();
        let at = axes().zip(marked).map_or(0.5, |(axes, marked)| axes.x.fraction(axes.x.pixel(marked)));
        let part = gesture::key(&event.key(), event.shift_key(), at.clamp(0.0, 1.0));
        if event.key() == "0" {
            show_all();
        } else if part.is_some() {
            show(part);
        } else if let Some(moved) = plot.with_untracked(|plot| moved(&event.key(), marked, plot)) {
            mark.set(moved);
        } else {
            return;
        }
        event.prevent_default();
    };

    let value = Memo::new(move |_| {
        let mark = mark.get();
        plot.with(|plot| format(plot.series.first().map_or(f64::NAN, |line| line.value(mark))))
    });
    let caption = move || mark.get().map(|x| place(plot.with(|plot| plot.view.x), x));
    let legend = Memo::new(move |_| {
        let entry = |(line, _): (&Series, bool)| LegendLine {
            key: line.key.clone(),
            name: line.name.clone(),
            colour: line.colour,
        };
        plot.with(|plot| plot.lines().into_iter().map(entry).collect::<Vec<_>>())
    });
    // The current run's line needs no legend if it is the only one: its value is in the caption.
    let has_legend = Memo::new(move |_| legend.with(|lines| lines.iter().any(|line| line.key != OWN)));
    let has_points = move || plot.with(|plot| plot.axes(1.0, 1.0).is_some());
    let count = move || {
        plot.track();
        store.peek(|state| state.curves.points().len())
    };
    let save = {
        let (title, file) = (title.clone(), format!("{id}.png"));
        move |_| {
            let run = store.peek(|state| state.run.as_ref().map(|run| format!(" – {}, seed {}", run.env, run.seed)));
            let title = format!("{title}{}", run.unwrap_or_default());
            let saved = plot.with_untracked(|plot| save_picture(plot, canvas.size_now(), &title, &file));
            if let Err(error) = saved {
                leptos::logging::warn!("the chart was not saved: {error:?}");
            }
        }
    };
    let label = {
        let title = title.clone();
        move || format!("{title}, now {}. {KEYS}", value.get())
    };
    view! {
        <figure class="chart" class:chart-tall=is_main data-testid=id.clone() data-points=count>
            <figcaption>
                <span class="chart-title" title=title.clone()>{title.clone()}</span>
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
                    on:pointercancel=move |event| gesture.update(|gesture| gesture.cancel(event.pointer_id()))
                    on:pointerleave=move |_| mark.set(None)
                    on:dblclick=move |_| show_all()
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
            <Show when=move || has_legend.get()>
                <ul class="legend" aria-label="Lines">
                    <For each=move || legend.get() key=Clone::clone let:entry>
                        <LegendEntry entry plot format/>
                    </For>
                </ul>
            </Show>
        </figure>
    }
}

/// A line in the legend.
#[derive(Clone, PartialEq, Eq, Hash)]
struct LegendLine {
    key: String,
    name: String,
    colour: usize,
}

/// A line's colour, name and value; pressing it hides the line or shows it again, in all charts that have it.
#[component]
fn LegendEntry(
    /// The line.
    entry: LegendLine,
    /// The lines.
    plot: Memo<Plot>,
    /// The value as text.
    format: fn(f64) -> String,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let Mark(mark) = expect_context::<Mark>();
    let LegendLine { key, name, colour } = entry;
    let of_line = key.clone();
    // The number of points, the value, and true if the line is shown.
    let line = Memo::new(move |_| {
        let mark = mark.get();
        plot.with(|plot| {
            let mut lines = plot.lines().into_iter();
            let found = lines.find(|(line, _)| line.key == of_line);
            found.map(|(line, is_shown)| (line.points.len(), format(line.value(mark)), is_shown))
        })
    });
    let points = move || line.get().map(|(points, ..)| points);
    let value = move || line.get().map(|(_, value, _)| value);
    let is_shown = move || line.get().is_some_and(|(.., is_shown)| is_shown).to_string();
    let toggle = move |_| store.dispatch(Event::Charts(ViewChange::Line(key.clone())));
    view! {
        <li data-testid=format!("legend-{name}") data-points=points>
            <button
                type="button"
                class="legend-entry"
                aria-pressed=is_shown
                title="Hide or show this line in all charts"
                on:click=toggle
            >
                <span class="swatch" style:background=format!("var({})", COLOURS[colour % COLOURS.len()])></span>
                {name.clone()}" "{value}
            </button>
        </li>
    }
}

/// Saves a chart as it is shown, with a title.
fn save_picture(plot: &Plot, (width, height): (f64, f64), title: &str, file: &str) -> Result<(), JsValue> {
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
    context.fill_text(title, 8.0, 19.0)?;
    context.translate(0.0, TITLE)?;
    draw(&context, (width, height), plot, Pointed::default())?;
    save::picture(&canvas, file)
}

/// Returns a place on the x axis as text.
fn place(axis: XAxis, x: f64) -> String {
    match axis {
        XAxis::Steps => format!("at {} steps", format::count(x as u64)),
        XAxis::Time => format!("after {}", format::duration((x * 1e3) as u64)),
        XAxis::Iteration => format!("at iteration {}", format::count(x as u64)),
    }
}

/// Returns the mark after a key, on a point of any line that is shown, or `Some(None)` if the key removes it; `None` if
/// the key has no meaning here.
fn moved(key: &str, marked: Option<f64>, plot: &Plot) -> Option<Option<f64>> {
    let (first, last) = plot.ends()?;
    let now = marked.unwrap_or(last);
    Some(match key {
        "ArrowLeft" => Some(plot.before(now).unwrap_or(first)),
        "ArrowRight" => Some(plot.after(now).unwrap_or(last)),
        "Home" => Some(first),
        "End" => Some(last),
        "Escape" => None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_the_mark_and_keep_it_on_the_curve() {
        let line = Series { points: [1.0, 2.0, 4.0].map(|x| (x, 0.0)).to_vec(), ..Series::default() };
        let plot = Plot { series: vec![line], ..Plot::default() };
        let all = ["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].map(|key| moved(key, Some(4.0), &plot));
        assert_eq!(all, [Some(2.0), Some(4.0), Some(1.0), Some(4.0), None].map(Some));
        assert_eq!(moved("ArrowLeft", None, &plot), Some(Some(2.0)));
        assert_eq!(moved("ArrowLeft", Some(1.0), &plot), Some(Some(1.0)));
        assert_eq!((moved("Tab", Some(1.0), &plot), moved("Home", None, &Plot::default())), (None, None));
        // A hub without a current run has lines of compared runs alone, and those of some are longer.
        let longer = Series { points: [3.0, 9.0].map(|x| (x, 0.0)).to_vec(), ..Series::default() };
        let plot = Plot { series: [plot.series, vec![longer]].concat(), ..Plot::default() };
        let all = ["ArrowLeft", "ArrowRight", "Home", "End"].map(|key| moved(key, Some(4.0), &plot));
        assert_eq!(all, [3.0, 9.0, 1.0, 9.0].map(|x| Some(Some(x))));
    }

    #[test]
    fn place_is_reported_in_the_units_of_its_axis() {
        let all =
            [(XAxis::Steps, 12_288.0), (XAxis::Time, 75.5), (XAxis::Iteration, 6.0)].map(|(axis, x)| place(axis, x));
        assert_eq!(all, ["at 12,288 steps", "after 1:15", "at iteration 6"]);
    }
}
