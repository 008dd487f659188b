//! The form for the next run.

use leptos::{html, prelude::*};
use rollmesh_web_registry::registry;

use crate::{
    format,
    shell::Store,
    state::{Action, StartForm, trainable_envs},
};

/// Asks for a run and says what is wrong with a field before the hub has to.
#[component]
pub(crate) fn StartRunForm() -> impl IntoView {
    let store = expect_context::<Store>();
    let preset = StartForm::default();
    let env = NodeRef::<html::Select>::new();
    let fields: [NodeRef<html::Input>; 5] = std::array::from_fn(|_| NodeRef::new());
    let [.., stop_return, _] = fields;
    let presets = [
        preset.seed.to_string(),
        preset.num_workers.to_string(),
        preset.num_envs_per_worker.to_string(),
        preset.stop_return.to_string(),
        format::count(preset.max_env_steps),
    ];
    let names = [
        ("start-seed", "Seed"),
        ("start-workers", "Workers"),
        ("start-envs", "Envs per worker"),
        ("start-stop-return", "Stop return"),
        ("start-max-steps", "Most env steps"),
    ];
    let error = RwSignal::new(None::<String>);
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let env = env.get_untracked().map(|select| select.value()).unwrap_or_default();
        let values = fields.map(|field| field.get_untracked().map(|input| input.value()).unwrap_or_default());
        match StartForm::parse(&env, values.each_ref().map(String::as_str)) {
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
