//! The form for the next run.

use leptos::{html, prelude::*};
use rollmesh_core::filter::FilterKind;
use rollmesh_web_registry::registry;

use crate::{
    format,
    shell::Store,
    state::{Action, MODES, StartForm, trainable_envs},
};

/// Asks for a run and says what is wrong with a field before the hub has to.
#[component]
pub(crate) fn StartRunForm() -> impl IntoView {
    let store = expect_context::<Store>();
    let preset = StartForm::default();
    let [env, filter, mode]: [NodeRef<html::Select>; 3] = std::array::from_fn(|_| NodeRef::new());
    let fields: [NodeRef<html::Input>; 7] = std::array::from_fn(|_| NodeRef::new());
    let [_, _, _, stop_return, ..] = fields;
    let presets = [
        preset.seed.to_string(),
        preset.num_workers.to_string(),
        preset.num_envs_per_worker.to_string(),
        preset.stop_return.to_string(),
        format::count(preset.max_env_steps),
        preset.max_staleness.to_string(),
        preset.deadline_ms.to_string(),
    ];
    let names = [
        ("start-seed", "Seed"),
        ("start-workers", "Workers"),
        ("start-envs", "Envs per worker"),
        ("start-stop-return", "Stop return"),
        ("start-max-steps", "Most env steps"),
        ("start-max-staleness", "Max staleness"),
        ("start-deadline", "Deadline in ms"),
    ];
    let error = RwSignal::new(None::<String>);
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let chosen =
            [env, filter, mode].map(|select| select.get_untracked().map(|select| select.value()).unwrap_or_default());
        let values = fields.map(|field| field.get_untracked().map(|input| input.value()).unwrap_or_default());
        match StartForm::parse(chosen.each_ref().map(String::as_str), values.each_ref().map(String::as_str)) {
            Ok(form) => {
                error.set(None);
                store.act(Action::Start(form));
            }
            Err(wrong) => error.set(Some(wrong.to_string())),
        }
    };
    let envs = trainable_envs(&registry().envs);
    let names_of_envs: Vec<String> = envs.iter().map(|env| env.name.clone()).collect();
    let preset_stop_return = move |event: leptos::ev::Event| {
        let name = event_target_value(&event);
        let goal = envs.iter().find(|env| env.name == name).and_then(|env| env.stop_return);
        if let (Some(input), Some(goal)) = (stop_return.get_untracked(), goal) {
            input.set_value(&goal.to_string());
        }
    };
    view! {
        <form class="start-form" data-testid="start-form" on:submit=submit>
            <label class="field">
                "Environment"
                <select node_ref=env data-testid="start-env" on:change=preset_stop_return>
                    {names_of_envs.into_iter().map(|name| view! {
                        <option selected=name == preset.env>{name.clone()}</option>
                    }).collect_view()}
                </select>
            </label>
            <label class="field">
                "Observation filter"
                <select node_ref=filter data-testid="start-filter">
                    {FilterKind::ALL.into_iter().map(FilterKind::name).map(|name| view! {
                        <option selected=name == preset.observation_filter>{name}</option>
                    }).collect_view()}
                </select>
            </label>
            <label class="field">
                "Sampling"
                <select node_ref=mode data-testid="start-mode">
                    {MODES.into_iter().map(|(value, name)| view! {
                        <option value=value selected=value == preset.mode>{name}</option>
                    }).collect_view()}
                </select>
            </label>
            {names.into_iter().zip(presets).zip(fields).map(|(((id, name), preset), field)| view! {
                <label class="field">
                    {name}
                    <input node_ref=field type="text" inputmode="decimal" autocomplete="off" value=preset data-testid=id/>
                </label>
            }).collect_view()}
            <p class="field-error" role="alert" data-testid="start-error" hidden=move || error.with(Option::is_none)>
                {error}
            </p>
            <button type="submit" class="button primary" data-testid="start-run">"Start run"</button>
        </form>
    }
}
