//! A cart and its pole on a canvas.

use leptos::{html, prelude::*};
use wasm_bindgen::JsValue;
use web_sys::CanvasRenderingContext2d;

use crate::{
    chart::{Canvas, style_value},
    playback::{Frame, Playback},
    shell::Store,
    theme::{Theme, reduced_motion},
};

/// Half of what is seen of the track. The episode ends at 2.4.
const HALF_TRACK: f64 = 2.6;
/// The angle at which an episode ends, in radians: 12°.
const ANGLE_LIMIT: f64 = 0.209_439_51;
/// Without motion, a picture a second.
const STILL_MS: f64 = 1_000.0;

/// Plays the watched slot back at 50 steps a second.
#[component]
pub(crate) fn CartPoleView() -> impl IntoView {
    let store = expect_context::<Store>();
    let theme = expect_context::<Theme>();
    let node = NodeRef::<html::Canvas>::new();
    let canvas = Canvas::new(node);
    let playback = RwSignal::new_local(Playback::default());
    let shown = RwSignal::new(None::<Frame>);

    let trace = store.select(|state| state.trace.clone());
    Effect::new(move |_| match trace.get() {
        Some(trace) => playback.update(|playback| playback.offer(&trace)),
        None => playback.update(Playback::clear),
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
        playback.update_untracked(|playback| playback.advance(passed));
        let frame = playback.with_untracked(Playback::frame);
        if frame != shown.get_untracked() {
            shown.set(frame);
        }
    });

    Effect::new(move |_| {
        let frame = shown.get();
        theme.is_dark();
        canvas.size();
        canvas.schedule(move || {
            canvas.draw(|context, size| match frame {
                Some(frame) => draw(context, size, &frame),
                None => {
                    context.clear_rect(0.0, 0.0, size.0, size.1);
                    Ok(())
                }
            });
        });
    });

    let caption = move || {
        shown.get().and_then(|frame| {
            playback.with_untracked(|playback| {
                let trace = playback.trace()?;
                let degrees = f64::from(frame.angle).to_degrees();
                Some(format!("x {:+.2}   angle {degrees:+.1}°   slot {}", frame.x, trace.slot))
            })
        })
    };
    view! {
        <div class="live-box">
            <canvas
                node_ref=node
                role="img"
                data-testid="live-canvas"
                data-row=move || shown.get().map(|frame| frame.row)
                aria-label="The cart on its track and the pole on it, as the watched slot saw them"
            ></canvas>
            <p class="chart-empty" hidden=move || shown.get().is_some()>"Nothing to see yet"</p>
        </div>
        <p class="live-caption" data-testid="live-caption">{caption}</p>
    }
}

fn every_frame(mut tick: impl FnMut(f64) + 'static) {
    request_animation_frame(move || {
        tick(js_sys::Date::now());
        every_frame(tick);
    });
}

fn draw(context: &CanvasRenderingContext2d, (width, height): (f64, f64), frame: &Frame) -> Result<(), JsValue> {
    let scale = width / (2.0 * HALF_TRACK);
    let ground = height * 0.82;
    let x = width / 2.0 + f64::from(frame.x) * scale;
    let (cart_width, cart_height) = ((0.5 * scale).max(28.0), (0.28 * scale).max(16.0));
    let pole = (height * 0.62).min(1.3 * scale);

    context.clear_rect(0.0, 0.0, width, height);
    draw_track(context, width, ground, scale);

    context.set_fill_style_str(&style_value("--ink"));
    context.begin_path();
    context.round_rect_with_f64(x - cart_width / 2.0, ground - cart_height, cart_width, cart_height, 4.0)?;
    context.fill();

    let (angle, foot) = (f64::from(frame.angle), ground - cart_height);
    let head = (x + angle.sin() * pole, foot - angle.cos() * pole);
    let near_the_end = (angle.abs() / ANGLE_LIMIT).max(f64::from(frame.x).abs() / 2.4) > 0.8;
    let color = style_value(if frame.done || near_the_end { "--warn" } else { "--accent" });
    context.set_stroke_style_str(&color);
    context.set_line_width(7.0);
    context.set_line_cap("round");
    context.begin_path();
    context.move_to(x, foot);
    context.line_to(head.0, head.1);
    context.stroke();
    context.set_line_cap("butt");

    context.set_fill_style_str(&style_value("--surface"));
    context.begin_path();
    context.arc(x, foot, 2.5, 0.0, std::f64::consts::TAU)?;
    context.fill();
    Ok(())
}

fn draw_track(context: &CanvasRenderingContext2d, width: f64, ground: f64, scale: f64) {
    context.set_stroke_style_str(&style_value("--line-strong"));
    context.set_line_width(1.0);
    context.begin_path();
    context.move_to(0.0, ground.floor() + 0.5);
    context.line_to(width, ground.floor() + 0.5);
    // Where an episode ends.
    for end in [-2.4, 2.4] {
        let x = (width / 2.0 + end * scale).floor() + 0.5;
        context.move_to(x, ground - 10.0);
        context.line_to(x, ground + 10.0);
    }
    // Middle.
    let middle = (width / 2.0).floor() + 0.5;
    context.move_to(middle, ground);
    context.line_to(middle, ground + 6.0);
    context.stroke();
}
