//! The watched environment, moving.

use leptos::{html, prelude::*};

use crate::{
    chart::Canvas,
    picture::{Kind, css_color},
    playback::{Frame, Playback},
    shell::Store,
    state::State,
    theme::{Theme, reduced_motion},
};

/// Without motion, a picture a second.
const STILL_MS: f64 = 1_000.0;

/// Plays the watched slot back; says so where there is nothing to draw.
#[component]
pub(crate) fn LivePicture(
    /// Is the latest episode of an evaluation to be seen, again and again, instead of the slot?
    evaluation: RwSignal<bool>,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let node = NodeRef::<html::Canvas>::new();
    let canvas = Canvas::new(node);
    let playback = StoredValue::new_local(Playback::default());
    let shown = RwSignal::new(None::<Frame>);
    let kind = store.select(kind);

    let slot = store.select(State::watched);
    let evaluated = store.select(State::evaluated);
    Effect::new(move |before: Option<bool>| {
        let is_evaluation = evaluation.get();
        if before.is_some_and(|before| before != is_evaluation) {
            playback.update_value(Playback::clear);
        }
        let watched = if is_evaluation { evaluated } else { slot };
        watched.with(|watched| {
            let drawn = watched.as_ref().and_then(|watched| Some((watched, Kind::of(&watched.env)?)));
            playback.update_value(|playback| match drawn {
                Some((watched, kind)) => playback.offer(&watched.trace, kind),
                None => playback.clear(),
            });
        });
        is_evaluation
    });

    // Frames go on for as long as the page is there; hidden pages get none.
    let last = StoredValue::new(None::<f64>);
    let is_still = reduced_motion();
    every_frame(move |now| {
        let passed = now - last.get_value().unwrap_or(now);
        if is_still && passed < STILL_MS && last.get_value().is_some() {
            return;
        }
        last.set_value(Some(now));
        let again = evaluation.get_untracked();
        playback.update_value(|playback| playback.advance(passed, again));
        let frame = playback.with_value(Playback::frame);
        if shown.with_untracked(|shown| *shown != frame) {
            shown.set(frame);
        }
    });

    Effect::new(move |_| {
        shown.track();
        theme.is_dark();
        canvas.size();
        canvas.schedule(move || {
            canvas.draw(|context, size| {
                shown.with_untracked(|frame| match frame {
                    Some(frame) => frame.picture.draw(context, size, frame.done),
                    None => {
                        context.clear_rect(0.0, 0.0, size.0, size.1);
                        Ok(())
                    }
                })
            });
        });
    });

    let caption = move || {
        shown.with(|frame| {
            frame.as_ref().map(|Frame { picture, slot, .. }| {
                let whose = if evaluation.get() { "evaluation".to_owned() } else { format!("slot {slot}") };
                match picture.caption() {
                    numbers if numbers.is_empty() => whose,
                    numbers => format!("{numbers}   {whose}"),
                }
            })
        })
    };
    let legend = move || kind.get().map_or(&[][..], Kind::legend);
    let empty = store.select(empty);
    view! {
        <div class="live-box" class:live-tall=move || !legend().is_empty()>
            <canvas
                node_ref=node
                role="img"
                data-testid="live-canvas"
                data-row=move || shown.with(|frame| frame.as_ref().map(|frame| frame.row))
                aria-label=move || kind.get().map_or("The live environment, without a picture", Kind::label)
            ></canvas>
            <p class="chart-empty" data-testid="live-empty" hidden=move || shown.with(Option::is_some)>{empty}</p>
        </div>
        <Show when=move || !legend().is_empty()>
            <ul class="legend" aria-label="Colours" data-testid="live-legend">
                {move || legend().iter().map(|channel| view! {
                    <li><span class="swatch" style:background=css_color(channel.rgb)></span>{channel.name}</li>
                }).collect_view()}
            </ul>
        </Show>
        <p class="live-caption" data-testid="live-caption">{caption}</p>
    }
}

fn every_frame(mut tick: impl FnMut(f64) + 'static) {
    request_animation_frame(move || {
        tick(js_sys::Date::now());
        every_frame(tick);
    });
}

/// How the run's environment is drawn.
fn kind(state: &State) -> Option<Kind> {
    state.run.as_ref().and_then(|run| Kind::of(&run.env))
}

/// What stands where there is no picture.
fn empty(state: &State) -> String {
    match &state.run {
        Some(run) if !run.env.is_empty() && Kind::of(&run.env).is_none() => {
            format!("The page has no picture of {}", run.env)
        }
        _ => "Nothing to see yet".into(),
    }
}
