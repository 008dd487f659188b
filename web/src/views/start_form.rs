//! The form for the next run.

use std::sync::Arc;

use leptos::prelude::*;

use crate::{
    shell::Store,
    state::{Action, Field, RunSchema, Texts},
};

/// What the fields of a form share.
#[derive(Clone)]
struct Form {
    schema: Arc<RunSchema>,
    texts: RwSignal<Texts>,
}

/// Asks for a run, once the hub or the trainer has told its settings.
#[component]
pub(crate) fn StartRunForm() -> impl IntoView {
    let store = expect_context::<Store>();
    let form = store.select(|state| Some((state.schema.clone()?, state.linked.clone())));
    move || form.get().map(|(schema, linked)| view! { <SettingsForm schema linked/> })
}

/// Shows a field for each setting, and what is wrong with one.
#[component]
fn SettingsForm(schema: Arc<RunSchema>, linked: Texts) -> impl IntoView {
    let store = expect_context::<Store>();
    let texts = RwSignal::new(schema.first_texts(&linked));
    let own_error = RwSignal::new(None::<String>);
    let refusal = store.select(|state| state.start_error.clone());
    let error = Memo::new(move |_| own_error.get().or_else(|| refusal.get()));
    let form = Form { schema: schema.clone(), texts };
    let read = schema.clone();
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        match texts.with_untracked(|texts| read.settings(texts)) {
            Ok(settings) => {
                own_error.set(None);
                store.act(Action::Start(settings));
            }
            Err(wrong) => own_error.set(Some(wrong)),
        }
    };
    let (frequent, others) = (form.clone(), form);
    let sections = Memo::new(move |_| texts.with(|texts| schema.sections(texts)));
    view! {
        <form class="start-form" data-testid="start-form" on:submit=submit>
            {frequent.schema.clone().frequent().map(|field| view! {
                <SettingField field=field.clone() form=frequent.clone()/>
            }).collect_view()}
            <details class="more">
                <summary data-testid="start-more">"All settings"</summary>
                {move || sections.get().into_iter().map(|(title, fields)| view! {
                    <fieldset class="settings">
                        <legend>{title}</legend>
                        {fields.into_iter().map(|field| view! {
                            <SettingField field form=others.clone()/>
                        }).collect_view()}
                    </fieldset>
                }).collect_view()}
            </details>
            <p class="field-error" role="alert" data-testid="start-error" hidden=move || error.with(Option::is_none)>
                {error}
            </p>
            <button type="submit" class="button primary" data-testid="start-run">"Start run"</button>
        </form>
    }
}

/// A setting: empty for its default, which it shows.
#[component]
fn SettingField(field: Field, form: Form) -> impl IntoView {
    let Form { schema, texts } = form;
    let (id, path, help) = (format!("start-{}", field.path), field.path.clone(), field.help.clone());
    let named = path.clone();
    let value = move || texts.with(|texts| texts.get(&named).cloned().unwrap_or_default());
    let goals = schema.clone();
    let enter = move |event: leptos::ev::Event| {
        texts.update(|texts| {
            texts.insert(path.clone(), event_target_value(&event));
            if path == "env" {
                goals.set_goal(texts);
            }
        });
    };
    let input = if field.is_choice {
        let (default, choices) = (field.default.clone(), field.choices.clone());
        let others = choices.into_iter().map(|(word, _)| word).filter(|word| *word != field.default);
        let chosen = untrack(value);
        view! {
            <select data-testid=id on:change=enter>
                <option value="">{default}</option>
                {others.map(|word| view! { <option selected=word == chosen>{word.clone()}</option> }).collect_view()}
            </select>
        }
        .into_any()
    } else {
        let placeholder = {
            let field = field.clone();
            move || texts.with(|texts| schema.placeholder(&field, texts))
        };
        view! {
            <input type="text" autocomplete="off" data-testid=id placeholder=placeholder prop:value=value on:input=enter/>
        }
        .into_any()
    };
    // Long names may break after a dot or an underscore.
    let name = field.path.replace('.', ".\u{200b}").replace('_', "_\u{200b}");
    view! {
        <label class="field">
            {name}
            {input}
            <span class="hint">{help}</span>
        </label>
    }
}
