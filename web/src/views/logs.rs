//! The logs of workers and of the hub, for operators.

use leptos::prelude::*;
use rollmesh_core::protocol::message::LogLine;

use crate::{
    shell::Store,
    state::{AUDIT, HUB, Log},
};

/// The number of lines that are shown at a time.
const SHOWN: usize = 100;

/// The worker whose log is shown; 0 for the hub. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct ShownLog(pub(crate) RwSignal<u32>);

/// The latest lines of a log, the newest first.
#[component]
pub(crate) fn Logs() -> impl IntoView {
    let store = expect_context::<Store>();
    let ShownLog(shown) = expect_context::<ShownLog>();
    let is_viewer = store.select(|state| state.is_viewer);
    let all = store.select(|state| state.monitoring.logs().collect::<Vec<_>>());
    let messages = store.select(|state| state.monitoring.num_messages());
    let log = Memo::new(move |_| {
        messages.track();
        let worker = shown.get();
        store.peek(|state| state.monitoring.log(worker).map(|log| (newest(log), log.missed))).unwrap_or_default()
    });
    let missed = move || log.with(|(_, missed)| *missed);
    let choose = move |event: leptos::ev::Event| {
        event_target_value(&event).parse().into_iter().for_each(|worker| shown.set(worker));
    };
    view! {
        <section class="card late" id="log" aria-labelledby="log-title" hidden=move || is_viewer.get()>
            <div class="card-head">
                <h2 id="log-title">"Log"</h2>
                <label class="inline-field" hidden=move || all.with(Vec::is_empty)>
                    "Of"
                    <select data-testid="log-of" prop:value=move || shown.get().to_string() on:change=choose>
                        <For each=move || all.get() key=|worker| *worker let:worker>
                            <option value=worker.to_string() selected=move || shown.get() == worker>{name(worker)}</option>
                        </For>
                    </select>
                </label>
            </div>
            <ol class="log" tabindex="0" aria-label="Lines, newest first" data-testid="log-lines">
                <For each=move || log.with(|(lines, _)| lines.clone()) key=Clone::clone let:line>
                    <li data-level=line.1.level.to_string()>
                        <time>{time(line.1.seconds)}</time>
                        {line.1.text.clone()}
                    </li>
                </For>
            </ol>
            <p class="empty" hidden=move || log.with(|(lines, _)| !lines.is_empty())>"Nothing was logged yet."</p>
            <p class="hint" hidden=move || missed() == 0>
                {move || format!("{} lines did not arrive.", missed())}
            </p>
        </section>
    }
}

/// Returns the newest lines, each with its number, which distinguishes equal lines.
fn newest(log: &Log) -> Vec<(u64, Line)> {
    log.numbered().rev().take(SHOWN).map(|(number, line)| (number, Line::of(line))).collect()
}

/// A line as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Line {
    seconds: u64,
    level: u8,
    text: String,
}

impl Line {
    fn of(line: &LogLine) -> Self {
        Self { seconds: line.seconds, level: line.level, text: line.text.clone() }
    }
}

fn name(worker: u32) -> String {
    match worker {
        HUB => "the hub".into(),
        AUDIT => "the audit".into(),
        worker => format!("worker {worker}"),
    }
}

/// Returns the time of day in the user's time zone.
fn time(seconds: u64) -> String {
    let date = js_sys::Date::new(&(seconds as f64 * 1e3).into());
    let two = |number: u32| format!("{number:02}");
    [date.get_hours(), date.get_minutes(), date.get_seconds()].map(two).join(":")
}
