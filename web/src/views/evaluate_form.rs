//! The form that makes this tab an evaluation worker.

use leptos::{html, prelude::*};

use crate::{
    shell::Store,
    state::{Action, RunSchema, State, evaluator},
};

/// The environment that is offered first.
const ENV: &str = "CartPole-v1";
/// Name for tests, label and first value of the fields.
const FIELDS: [(&str, &str, &str); 4] = [
    ("evaluate-name", "Name", "tab"),
    ("evaluate-envs", "Envs", "1"),
    ("evaluate-seed", "Seed", "0"),
    ("evaluate-hidden", "Hidden layers", "64 64"),
];

/// A form for the environment and the policy. It validates its fields before it sends them.
#[component]
pub(crate) fn EvaluateForm() -> impl IntoView {
    let store = expect_context::<Store>();
    let env = NodeRef::<html::Select>::new();
    let fields: [NodeRef<html::Input>; 4] = std::array::from_fn(|_| NodeRef::new());
    let error = RwSignal::new(None::<String>);
    let obstacle = store.select(obstacle);
    let envs = store.select(|state| state.schema.as_deref().map(RunSchema::envs).unwrap_or_default());
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let env = env.get_untracked().map(|select| select.value()).unwrap_or_default();
        let values = fields.map(|field| field.get_untracked().map(|input| input.value()).unwrap_or_default());
        match evaluator(&env, values.each_ref().map(String::as_str)) {
            Ok(evaluator) => {
                error.set(None);
                store.act(Action::Evaluate(evaluator));
            }
            Err(wrong) => error.set(Some(wrong.to_string())),
        }
    };
    view! {
        <details class="more">
            <summary data-testid="evaluate-more">"Evaluate in this tab…"</summary>
            <p class="hint">
                "Programs find it at the hub by its name, and ask how good their weights are. Environment and policy are given here, weights by each request."
            </p>
            <form class="start-form" data-testid="evaluate-form" on:submit=submit>
                <label class="field">
                    "Environment"
                    <select node_ref=env data-testid="evaluate-env">
                        {move || envs.get().into_iter().map(|name| view! {
                            <option selected=name == ENV>{name.clone()}</option>
                        }).collect_view()}
                    </select>
                </label>
                {FIELDS.into_iter().zip(fields).map(|((id, name, preset), field)| view! {
                    <label class="field">
                        {name}
                        <input node_ref=field type="text" autocomplete="off" value=preset data-testid=id/>
                    </label>
                }).collect_view()}
                <p class="field-error" role="alert" data-testid="evaluate-error" hidden=move || error.with(Option::is_none)>
                    {error}
                </p>
                <button
                    type="submit"
                    class="button primary"
                    data-testid="evaluate"
                    disabled=move || obstacle.get().is_some()
                    title=move || obstacle.get()
                >
                    "Evaluate in this tab"
                </button>
            </form>
        </details>
    }
}

/// Returns the obstacle to an evaluation, which does not depend on the fields.
fn obstacle(state: &State) -> Option<&'static str> {
    state.obstacle(&Action::Join { workers: 1 })
}
