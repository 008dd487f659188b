//! The most important numbers of the run.

use leptos::prelude::*;

use crate::{format, shell::Store, state::State};

/// A row of tiles.
#[component]
pub(crate) fn KeyNumbers() -> impl IntoView {
    let store = expect_context::<Store>();
    let progress = store.select(progress);
    let has_goal = store.select(|state| goal(state).is_some());
    let tile = move |id: &'static str, name: &'static str, value: fn(&State) -> (String, String)| {
        let value = store.select(value);
        view! {
            <div class="tile">
                <dt>{name}</dt>
                <dd>
                    <span class="number" data-testid=id>{move || value.get().0}</span>
                    <span class="detail">{move || value.get().1}</span>
                </dd>
            </div>
        }
    };
    view! {
        <section aria-label="Key numbers">
            <dl class="tiles">
                <div class="tile tile-wide">
                    <dt>"Mean return, last 100 episodes"</dt>
                    <dd>
                        <span class="number" data-testid="kpi-return">
                            {store.select(|state| with_run(state, |run| format::mean(f64::from(run.episode_return_mean))))}
                        </span>
                        <span class="detail" data-testid="kpi-stop-return">{store.select(goal_text)}</span>
                        <progress
                            max="1"
                            aria-label="Mean return against the stop return"
                            hidden=move || !has_goal.get()
                            prop:value=progress
                        ></progress>
                    </dd>
                </div>
                {tile("kpi-env-steps", "Env steps", |state| {
                    let most = state.run.as_ref().map(|run| run.max_env_steps).filter(|most| *most > 0);
                    let detail = most.map_or_else(String::new, |most| format!("of {}", format::short(most as f64)));
                    (with_run(state, |run| format::count(run.env_steps)), detail)
                })}
                {tile("kpi-steps-per-s", "Steps per second", |state| {
                    (with_run(state, |run| format::short(f64::from(run.steps_per_s))), String::new())
                })}
                {tile("kpi-iteration", "Iteration", |state| {
                    (with_run(state, |run| format::count(run.iteration)), String::new())
                })}
                {tile("kpi-episodes", "Episodes", |state| {
                    (with_run(state, |run| format::count(run.episodes)), String::new())
                })}
                {tile("kpi-wall", "Wall time", |state| {
                    (with_run(state, |run| format::duration(run.wall_ms)), String::new())
                })}
            </dl>
        </section>
    }
}

fn with_run(state: &State, show: impl FnOnce(&rollmesh_core::protocol::message::RunStatus) -> String) -> String {
    state.run.as_ref().filter(|run| run.run > 0).map_or_else(|| "–".into(), show)
}

fn goal(state: &State) -> Option<f32> {
    state.run.as_ref().map(|run| run.stop_return).filter(|goal| goal.is_finite() && *goal != 0.0)
}

fn goal_text(state: &State) -> String {
    goal(state).map_or_else(String::new, |goal| format!("of {}", format::short(f64::from(goal))))
}

/// Returns the progress towards the stop return, from 0 to 1; 0 without a positive stop return.
fn progress(state: &State) -> f64 {
    let Some(run) = &state.run else { return 0.0 };
    let part = f64::from(run.episode_return_mean) / f64::from(run.stop_return);
    if run.stop_return > 0.0 && part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
}
