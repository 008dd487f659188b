//! The form for the next run.

use std::sync::Arc;

use leptos::prelude::*;

use crate::{
    shell::{Store, focus_wrong_field},
    state::{Action, Field, RunSchema, Texts},
};

/// The state that the fields of a form share.
#[derive(Clone)]
struct Form {
    schema: Arc<RunSchema>,
    texts: RwSignal<Texts>,
    /// Words that a field must have to be shown.
    search: RwSignal<String>,
    /// True if only changed fields are shown.
    only_changed: RwSignal<bool>,
    /// The errors in the texts, by the schema or by the hub's reply.
    errors: Memo<Vec<String>>,
}

impl Form {
    fn is_changed(&self, path: &str) -> bool {
        self.texts.with(|texts| texts.get(path).is_some_and(|text| self.schema.is_changed(path, text, texts)))
    }

    /// Returns the paths of all changed fields.
    fn changed(&self) -> Vec<String> {
        self.texts.with(|texts| {
            let changed = texts.iter().filter(|(path, text)| self.schema.is_changed(path, text, texts));
            changed.map(|(path, _)| path.clone()).collect()
        })
    }

    fn is_shown(&self, field: &Field) -> bool {
        self.search.with(|search| field.matches(search)) && (!self.only_changed.get() || self.is_changed(&field.path))
    }

    fn is_filtered(&self) -> bool {
        self.only_changed.get() || self.search.with(|search| !search.trim().is_empty())
    }

    fn set(&self, path: &str, text: String) {
        self.texts.update(|texts| {
            texts.insert(path.to_owned(), text);
            if path == "env" {
                self.schema.set_goal(texts);
            }
        });
    }
}

/// A form that starts a run; present once the hub or the trainer has sent the schema of its settings.
#[component]
pub(crate) fn StartRunForm() -> impl IntoView {
    let store = expect_context::<Store>();
    let form = store.select(|state| Some((state.schema.clone()?, state.linked.clone(), state.form_revision)));
    move || form.get().map(|(schema, linked, _)| view! { <SettingsForm schema linked/> })
}

/// A field for each setting, and the errors in their texts.
#[component]
fn SettingsForm(schema: Arc<RunSchema>, linked: Texts) -> impl IntoView {
    let store = expect_context::<Store>();
    let texts = RwSignal::new(schema.first_texts(&linked));
    let checked = schema.clone();
    let refusal = store.select(|state| state.start_error.clone());
    // A refusal holds only for the texts that were sent.
    let sent = RwSignal::new(Texts::new());
    let refused = move |texts: &Texts| refusal.get().filter(|_| sent.with(|sent| sent == texts));
    let wrong = move |texts: &Texts| checked.settings(texts).err().unwrap_or_else(|| Vec::from_iter(refused(texts)));
    let errors = Memo::new(move |_| texts.with(&wrong));
    let (search, only_changed) = (RwSignal::new(String::new()), RwSignal::new(false));
    let form = Form { schema: schema.clone(), texts, search, only_changed, errors };
    let read = schema.clone();
    let submit = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        match texts.with_untracked(|texts| read.settings(texts)) {
            Ok(settings) => {
                sent.set(texts.get_untracked());
                store.act(Action::Start(settings));
            }
            // The errors are shown already.
            Err(_) => focus_wrong_field(),
        }
    };
    let sections = Memo::new(move |_| texts.with(|texts| schema.sections(texts)));
    let (frequent, others) = (form.clone(), form.clone());
    let is_filtered = form.clone();
    view! {
        <form class="start-form" data-testid="start-form" on:submit=submit>
            <Tools form=form.clone()/>
            {frequent.schema.clone().frequent().map(|field| view! {
                <SettingField field=field.clone() form=frequent.clone()/>
            }).collect_view()}
            <details class="more" prop:open=move || is_filtered.is_filtered()>
                <summary data-testid="start-more">"All settings"</summary>
                {move || sections.get().into_iter().map(|(title, fields)| view! {
                    <Section title fields form=others.clone()/>
                }).collect_view()}
            </details>
            <p class="field-error" role="alert" data-testid="start-error" hidden=move || errors.with(Vec::is_empty)>
                {move || errors.with(|errors| errors.join("; "))}
            </p>
            <button type="submit" class="button primary" data-testid="start-run">"Start run"</button>
        </form>
    }
}

/// The search, the presets, and a filter for changed fields.
#[component]
fn Tools(form: Form) -> impl IntoView {
    let Form { schema, texts, search, only_changed, .. } = form.clone();
    let presets = schema.presets();
    let has_none = presets.is_empty();
    let choices = presets.clone();
    let use_preset = {
        let form = form.clone();
        move |event: leptos::ev::Event| {
            let index = event_target_value(&event).parse::<usize>().ok();
            let Some((env, algorithm)) = index.and_then(|index| choices.get(index)) else { return };
            // A preset holds for empty fields only.
            texts.update(|texts| texts.retain(|path, _| path == "seed"));
            form.set("algorithm", algorithm.clone());
            form.set("env", env.clone());
        }
    };
    let changed = {
        let form = form.clone();
        Memo::new(move |_| form.changed().len())
    };
    let reset = move |_| texts.set(schema.first_texts(&Texts::new()));
    view! {
        <div class="form-tools" role="group" aria-label="Find settings">
            <label class="field">
                "Search settings"
                <input
                    type="search"
                    autocomplete="off"
                    data-testid="start-search"
                    placeholder="name or effect"
                    on:input=move |event| search.set(event_target_value(&event))
                />
            </label>
            <label class="field" hidden=has_none>
                "Preset"
                <select data-testid="start-preset" on:change=use_preset>
                    <option value="">"choose…"</option>
                    {presets.into_iter().enumerate().map(|(index, (env, algorithm))| view! {
                        <option value=index.to_string()>{format!("{env} with {algorithm}")}</option>
                    }).collect_view()}
                </select>
            </label>
            <label class="inline-field">
                <input
                    type="checkbox"
                    data-testid="start-only-changed"
                    prop:checked=only_changed
                    on:change=move |event| only_changed.set(event_target_checked(&event))
                />
                <span data-testid="start-changed">{move || format!("Only changed ({})", changed.get())}</span>
            </label>
            <button type="button" class="button small" data-testid="start-reset" disabled=move || changed.get() == 0 on:click=reset>
                "Reset all"
            </button>
        </div>
    }
}

/// The fields of a section; nothing if none of them is shown.
#[component]
fn Section(title: String, fields: Vec<Field>, form: Form) -> impl IntoView {
    let shown = form.clone();
    let all = fields.clone();
    view! {
        <fieldset class="settings" hidden=move || !all.iter().any(|field| shown.is_shown(field))>
            <legend>{title}</legend>
            {fields.into_iter().map(|field| view! { <SettingField field form=form.clone()/> }).collect_view()}
        </fieldset>
    }
}

/// The field of a setting; an empty one shows the default.
#[component]
fn SettingField(field: Field, form: Form) -> impl IntoView {
    let (id, path, help) = (format!("start-{}", field.path), field.path.clone(), field.help.clone());
    let texts = form.texts;
    let named = path.clone();
    let value = move || texts.with(|texts| texts.get(&named).cloned().unwrap_or_default());
    let is_wrong = {
        let (form, path) = (form.clone(), path.clone());
        let is_of =
            move |error: &String| form.texts.with(|texts| form.schema.field_of(error, texts)).as_ref() == Some(&path);
        Memo::new(move |_| form.errors.with(|errors| errors.iter().any(&is_of)))
    };
    let is_invalid = move || is_wrong.get().then_some("true");
    let is_changed = {
        let (form, path) = (form.clone(), path.clone());
        Memo::new(move |_| form.is_changed(&path))
    };
    let hidden = {
        let (form, field) = (form.clone(), field.clone());
        move || !form.is_shown(&field)
    };
    let enter = {
        let (form, path) = (form.clone(), path.clone());
        move |event: leptos::ev::Event| form.set(&path, event_target_value(&event))
    };
    let reset = {
        let (form, path) = (form.clone(), path.clone());
        move |_| form.set(&path, String::new())
    };
    let input = if field.is_choice {
        let (default, choices) = (field.default.clone(), field.choices.clone());
        let others = choices.into_iter().map(|(word, _)| word).filter(|word| *word != field.default);
        // The default's own word is the empty choice.
        let shown = {
            let default = default.clone();
            move || Some(value()).filter(|text| *text != default).unwrap_or_default()
        };
        let chosen = untrack(shown.clone());
        view! {
            <select data-testid=id aria-invalid=is_invalid prop:value=shown on:change=enter>
                <option value="">{default}</option>
                {others.map(|word| view! { <option selected=word == chosen>{word.clone()}</option> }).collect_view()}
            </select>
        }
        .into_any()
    } else {
        let placeholder = {
            let (field, form) = (field.clone(), form.clone());
            move || texts.with(|texts| form.schema.placeholder(&field, texts))
        };
        let words = (!field.choices.is_empty()).then(|| format!("{id}-words"));
        let suggestions = words.clone().map(|words| view! {
            <datalist id=words>
                {field.choices.iter().map(|(word, _)| view! { <option value=word.clone()></option> }).collect_view()}
            </datalist>
        });
        view! {
            <input
                type="text"
                autocomplete="off"
                list=words
                data-testid=id
                aria-invalid=is_invalid
                placeholder=placeholder
                prop:value=value
                on:input=enter
            />
            {suggestions}
        }
        .into_any()
    };
    // Long names may break after a dot or an underscore.
    let name = field.path.replace('.', ".\u{200b}").replace('_', "_\u{200b}");
    let label = format!("Reset {path}");
    view! {
        <div class="setting" data-changed=move || is_changed.get().to_string() hidden=hidden>
            <label class="field">
                <span class="field-name">{name}</span>
                {input}
                <span class="hint">{help}</span>
            </label>
            <button
                type="button"
                class="button icon small"
                data-testid=format!("start-reset-{path}")
                aria-label=label.clone()
                title=label
                hidden=move || !is_changed.get()
                on:click=reset
            >
                "↺"
            </button>
        </div>
    }
}
