//! The watched environment as a moving picture, with the policy's actions and values.

use leptos::{html, prelude::*};
use rollmesh_core::env::pixel::{self, Channel};
use wasm_bindgen::{Clamped, JsCast as _, JsValue};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData};

use crate::{
    format,
    playback::{Moment, Playback},
    shell::Store,
    state::{AgentStep, ClipSource, State},
    theme::reduced_motion,
};

/// The speeds that can be chosen, in steps per second.
const SPEEDS: [u32; 6] = [2, 5, 10, 25, 50, 100];
const USUAL_SPEED: u32 = 25;

/// A player of the watched clip; it shows the reason if there is nothing to draw.
#[component]
pub(crate) fn LivePicture(
    /// The watched source.
    source: RwSignal<ClipSource>,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let node = NodeRef::<html::Canvas>::new();
    let playback = StoredValue::new_local(Playback::default());
    let shown = RwSignal::new(None::<Moment>);
    let is_playing = RwSignal::new(!reduced_motion());
    let speed = RwSignal::new(USUAL_SPEED);

    let clips = store.select(|state| ClipSource::ALL.map(|source| state.clip(source).cloned()));
    let clip = Memo::new(move |_| (source.get(), clips.with(|clips| clips[source.get() as usize].clone())));
    Effect::new(move |before: Option<ClipSource>| {
        let (source, clip) = clip.get();
        playback.update_value(|playback| {
            if before.is_some_and(|before| before != source) {
                playback.clear();
            }
            match &clip {
                Some(clip) => playback.offer(clip, is_playing.get_untracked()),
                None => playback.clear(),
            }
        });
        source
    });
    let look = move || {
        let moment = playback.with_value(Playback::moment);
        if shown.with_untracked(|shown| *shown != moment) {
            shown.set(moment);
        }
    };

    // Frames continue for as long as the page is there; hidden pages get none.
    let last = StoredValue::new(None::<f64>);
    let is_over = store.select(|state| !state.phase().is_active());
    every_frame(move |now| {
        let passed = now - last.get_value().unwrap_or(now);
        last.set_value(Some(now));
        let passed = if is_playing.get_untracked() { passed } else { 0.0 };
        let again = source.get_untracked() != ClipSource::Slot || is_over.get_untracked();
        let speed = speed.get_untracked().into();
        playback.update_value(|playback| playback.advance(passed, speed, again));
        look();
    });

    Effect::new(move |_| {
        shown.track();
        if let Some(canvas) = node.get() {
            playback.update_value(|playback| {
                // A browser that cannot draw shows nothing.
                let _ = draw(&canvas, playback);
            });
        }
    });

    let is_empty = move || shown.with(|shown| shown.as_ref().is_none_or(|moment| moment.clip.report.film.is_empty()));
    let steps = move || shown.with(|shown| shown.as_ref().map_or(0, |moment| moment.clip.steps.len()));
    let step = move || shown.with(|shown| shown.as_ref().map_or(0, |moment| moment.step));
    let seek = move |event: leptos::ev::Event| {
        is_playing.set(false);
        if let Ok(step) = event_target_value(&event).parse() {
            playback.update_value(|playback| playback.seek(step));
            look();
        }
    };
    let choose_speed = move |event: leptos::ev::Event| {
        event_target_value(&event).parse().into_iter().for_each(|wanted| speed.set(wanted));
    };
    let reason = move || {
        let reason = shown.with(|shown| shown.as_ref().map(|moment| moment.clip.report.reason.clone()));
        reason
            .filter(|reason| !reason.is_empty())
            .map_or_else(|| "Nothing to see yet".into(), |reason| format!("No pictures: {reason}"))
    };
    let env = store.select(|state| state.run.as_ref().map(|run| run.env.clone()).unwrap_or_default());
    let label = move || match source.get() {
        ClipSource::File => "The observations of the opened file".into(),
        _ => format!("The environment {}, as it draws itself", env.get()),
    };
    let of_run = store.select(legend);
    let legend = Memo::new(move |_| if source.get() == ClipSource::File { vec![] } else { of_run.get() });
    view! {
        <div class="live-box">
            <canvas
                node_ref=node
                role="img"
                data-testid="live-canvas"
                data-row=move || shown.with(|shown| shown.as_ref().map(|moment| moment.step))
                aria-label=label
            ></canvas>
            <p class="chart-empty" data-testid="live-empty" hidden=move || !is_empty()>{reason}</p>
        </div>
        <div class="player" role="group" aria-label="Player" hidden=move || steps() == 0>
            <button
                type="button"
                class="button small"
                data-testid="live-play"
                on:click=move |_| is_playing.update(|is_playing| *is_playing = !*is_playing)
            >
                {move || if is_playing.get() { "Pause" } else { "Play" }}
            </button>
            <input
                type="range"
                min="0"
                data-testid="live-step"
                aria-label="Step"
                prop:max=move || steps().saturating_sub(1).to_string()
                prop:value=move || step().to_string()
                on:input=seek
            />
            <label class="inline-field">
                <span class="hidden">"Steps per second"</span>
                <select data-testid="live-speed" title="Steps per second" on:change=choose_speed>
                    {SPEEDS.map(|choice| view! {
                        <option value=choice.to_string() selected=choice == USUAL_SPEED>{format!("{choice}/s")}</option>
                    })}
                </select>
            </label>
        </div>
        <Show when=move || legend.with(|legend| !legend.is_empty())>
            <ul class="legend" aria-label="Colours" data-testid="live-legend">
                {move || legend.get().into_iter().map(|(name, colour)| view! {
                    <li><span class="swatch" style:background=colour></span>{name}</li>
                }).collect_view()}
            </ul>
        </Show>
        <p class="live-caption" data-testid="live-caption">{move || shown.with(|shown| shown.as_ref().map(|moment| caption(moment, source.get())))}</p>
        <AgentSteps shown/>
    }
}

/// The agents' actions, values and rewards in the step that is shown.
#[component]
fn AgentSteps(
    /// That step.
    shown: RwSignal<Option<Moment>>,
) -> impl IntoView {
    let agents = Memo::new(move |_| {
        let agents = shown.with(|shown| shown.as_ref().map(|moment| moment.clip.agents(moment.step)));
        agents.unwrap_or_default().into_iter().map(texts).collect::<Vec<_>>()
    });
    view! {
        <Show when=move || agents.with(|agents| !agents.is_empty())>
            <div class="table-box" tabindex="0" role="group" aria-label="What the policy does, scrollable">
                <table data-testid="live-agents">
                    <thead>
                        <tr>
                            {["Agent", "Action", "Probability", "Value", "Reward"].map(|head| view! { <th scope="col">{head}</th> })}
                        </tr>
                    </thead>
                    <tbody>
                        {move || agents.get().into_iter().map(|cells| view! {
                            <tr>{cells.map(|cell| view! { <td class="number">{cell}</td> })}</tr>
                        }).collect_view()}
                    </tbody>
                </table>
            </div>
        </Show>
    }
}

fn texts(step: AgentStep) -> [String; 5] {
    let AgentStep { agent, action, probability, value, reward } = step;
    let number = |number: f64| if number.is_nan() { "–".into() } else { format!("{number:.3}") };
    let agent = if agent.is_empty() { "–".into() } else { agent };
    [agent, action, number(probability), number(value), format::short(reward)]
}

fn caption(moment: &Moment, source: ClipSource) -> String {
    let Moment { clip, step } = moment;
    let Some((episode, t)) = clip.steps.get(*step) else { return String::new() };
    let end = if clip.ends_episode(*step) { ", the last step" } else { "" };
    let (slot, version) = (clip.report.slot, clip.report.weights_version);
    match source {
        ClipSource::Slot => format!("slot {slot}, weights {version}, episode {episode}, step {t}{end}"),
        ClipSource::LatestEvaluation | ClipSource::BestEvaluation => {
            format!("evaluation after iteration {version}, episode {episode}, step {t}{end}")
        }
        ClipSource::File => match clip.observation(*step) {
            obs if obs.is_empty() => format!("episode {episode} of the file, step {t}{end}"),
            obs => format!("episode {episode} of the file, step {t}{end}: {obs}"),
        },
    }
}

/// Returns the kinds of objects on the grid of a game, with their colours; empty for other environments.
fn legend(state: &State) -> Vec<(&'static str, String)> {
    let channels = state.run.as_ref().and_then(|run| pixel::channels(&run.env)).unwrap_or_default();
    let entry = |Channel { name, rgb: [red, green, blue], .. }: &Channel| (*name, format!("rgb({red} {green} {blue})"));
    channels.iter().map(entry).collect()
}

fn draw(canvas: &HtmlCanvasElement, playback: &mut Playback) -> Result<(), JsValue> {
    let Some(context) =
        canvas.get_context("2d")?.and_then(|context| context.dyn_into::<CanvasRenderingContext2d>().ok())
    else {
        return Ok(());
    };
    let Some(picture) = playback.picture() else {
        context.clear_rect(0.0, 0.0, canvas.width().into(), canvas.height().into());
        return Ok(());
    };
    if (canvas.width(), canvas.height()) != (picture.width(), picture.height()) {
        canvas.set_width(picture.width());
        canvas.set_height(picture.height());
    }
    let rgba: Vec<u8> = picture.rgb().as_chunks::<3>().0.iter().flat_map(|[r, g, b]| [*r, *g, *b, 255]).collect();
    let data = ImageData::new_with_u8_clamped_array_and_sh(Clamped(&rgba), picture.width(), picture.height())?;
    context.put_image_data(&data, 0.0, 0.0)
}

fn every_frame(mut tick: impl FnMut(f64) + 'static) {
    request_animation_frame(move || {
        tick(js_sys::Date::now());
        every_frame(tick);
    });
}
