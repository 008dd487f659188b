//! Recent fragments, as the learner gets them.

use leptos::prelude::*;

use super::{action_button::ActionButton, histogram::Histogram};
use crate::{
    format,
    shell::Store,
    state::{Action, Bar, Fragment, FragmentColumn, State},
};

/// The number of fragments of a slot that the hub keeps.
const RECENT: u32 = 8;

/// A fragment's columns, the distribution of one of them, its first rows, and why it was cut.
#[component]
pub(crate) fn RecentFragments() -> impl IntoView {
    let store = expect_context::<Store>();
    let fragment = store.select(|state: &State| state.fragment.clone());
    let watched = store.select(|state| state.run.as_ref().map_or(0, |run| run.watched_slot));
    let slots = store.select(|state| state.run.as_ref().map_or(0, |run| run.num_slots));
    let chosen = RwSignal::new(None::<u32>);
    let slot = move || chosen.get().filter(|slot| *slot < slots.get()).unwrap_or_else(|| watched.get());
    let back = RwSignal::new(0_u32);
    let choose_slot = move |event: leptos::ev::Event| chosen.set(event_target_value(&event).parse().ok());
    let choose_back = move |event: leptos::ev::Event| back.set(event_target_value(&event).parse().unwrap_or(0));
    let action = move || Action::ShowFragment { slot: slot(), back: back.get() };
    view! {
        <section class="card late" aria-labelledby="fragment-title" data-testid="fragment">
            <div class="card-head">
                <h2 id="fragment-title">"Batches"</h2>
                <label class="inline-field">
                    "Slot"
                    <input
                        type="number"
                        min="0"
                        class="short"
                        data-testid="fragment-slot"
                        prop:max=move || slots.get().saturating_sub(1).to_string()
                        prop:value=move || slot().to_string()
                        on:change=choose_slot
                    />
                </label>
                <label class="inline-field">
                    "Fragment"
                    <select data-testid="fragment-back" on:change=choose_back>
                        {(0..RECENT).map(|back| view! {
                            <option value=back.to_string()>
                                {if back == 0 { "the latest".into() } else { format!("{back} before") }}
                            </option>
                        }).collect_view()}
                    </select>
                </label>
                {move || view! {
                    <ActionButton action=action() id="fragment-show" class="button small">"Show"</ActionButton>
                }}
            </div>
            {move || match fragment.get() {
                Some(fragment) => view! { <Shown fragment/> }.into_any(),
                None => view! { <p class="empty">"A fragment is the rows of one slot for one lease. The hub keeps the latest ones while a page is open."</p> }.into_any(),
            }}
        </section>
    }
}

#[component]
fn Shown(
    /// The fragment.
    fragment: Fragment,
) -> impl IntoView {
    let report = fragment.report.clone();
    let maker = if report.worker == 0 { "an unknown worker".into() } else { format!("worker {}", report.worker) };
    let what = format!(
        "Fragment {} of slot {}: {} rows, made by {maker} with version {} of the weights",
        report.fragment,
        report.slot,
        format::count(report.rows.into()),
        report.weights_version
    );
    let cuts = fragment.cuts();
    let is_whole = cuts.is_empty();
    let columns = fragment.columns.clone();
    let first = columns.iter().position(|column| column.name.ends_with("rewards")).unwrap_or(0);
    let chosen = RwSignal::new(first);
    let (names, bars) = (columns.clone(), columns.clone());
    let histogram = move || bars.get(chosen.get()).map(shown_bars).unwrap_or_default();
    let choose = move |event: leptos::ev::Event| {
        event_target_value(&event).parse().into_iter().for_each(|index| chosen.set(index));
    };
    view! {
        <p data-testid="fragment-what">{what}</p>
        <ul class="cuts" aria-label="Cuts" data-testid="fragment-cuts" hidden=is_whole>
            {cuts.into_iter().map(|cut| view! { <li>{cut}</li> }).collect_view()}
        </ul>
        <label class="inline-field">
            "Distribution of"
            <select data-testid="fragment-column" on:change=choose>
                {names.iter().enumerate().map(|(index, column)| view! {
                    <option value=index.to_string() selected=index == first>{column.name.clone()}</option>
                }).collect_view()}
            </select>
        </label>
        <Histogram
            id="fragment-histogram"
            caption="Elements of the column by value"
            heads=["Value", "Share", "Elements"]
            bars=Signal::derive(histogram)
        />
        <Rows columns=columns.to_vec()/>
    }
}

/// Returns the bars of a column's histogram: ranges of values with their counts.
fn shown_bars(column: &FragmentColumn) -> Vec<(String, u64)> {
    let shown = |bar: Bar| (format!("{} to {}", format::short(bar.from), format::short(bar.to)), bar.count as u64);
    column.histogram().into_iter().map(shown).collect()
}

#[component]
fn Rows(
    /// The columns.
    columns: Vec<FragmentColumn>,
) -> impl IntoView {
    let cells: Vec<Vec<String>> = columns.iter().map(FragmentColumn::rows).collect();
    let rows = cells.iter().map(Vec::len).max().unwrap_or(0);
    view! {
        <div class="table-box rows-box" tabindex="0" role="group" aria-label="First rows, scrollable">
            <table data-testid="fragment-rows">
                <thead>
                    <tr>
                        <th scope="col">"Row"</th>
                        {columns.into_iter().map(|column| view! {
                            <th scope="col">{column.name} <span class="reason">{column.kind}</span></th>
                        }).collect_view()}
                    </tr>
                </thead>
                <tbody>
                    {(0..rows).map(|row| view! {
                        <tr>
                            <th scope="row">{row}</th>
                            {cells.iter().map(|column| view! {
                                <td class="number">{column.get(row).cloned().unwrap_or_default()}</td>
                            }).collect_view()}
                        </tr>
                    }).collect_view()}
                </tbody>
            </table>
        </div>
    }
}
