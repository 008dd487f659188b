//! The controls of the view that all charts share.

use js_sys::Uint8Array;
use leptos::prelude::*;

use crate::{
    chart::Mark,
    save,
    shell::Store,
    state::{ChartView, Event, State, ViewChange, XAxis},
};

/// The x axis, smoothing, logarithmic axes, a reset of the zoom, and a CSV file of the points.
#[component]
pub(crate) fn ChartTools() -> impl IntoView {
    let store = expect_context::<Store>();
    let Mark(mark) = expect_context::<Mark>();
    let view = store.select(|state| state.charts.clone());
    let is_whole = move || view.with(|view| view.window.is_none());
    let change = move |change| store.dispatch(Event::Charts(change));
    let choose_axis = move |event: leptos::ev::Event| {
        mark.set(None);
        XAxis::named(&event_target_value(&event)).map(ViewChange::Axis).into_iter().for_each(change);
    };
    let smooth = move |event: leptos::ev::Event| {
        event_target_value(&event).parse().map(ViewChange::Smoothing).into_iter().for_each(change);
    };
    let is_empty = store.select(|state| !state.has_points());
    let save = move |_| {
        let csv = store.peek(State::csv);
        // A browser that does not save the file reports that itself.
        let _ = save::bytes(&Uint8Array::from(csv.as_bytes()), "curves.csv");
    };
    view! {
        <div class="chart-tools" role="group" aria-label="View of the charts">
            <label class="inline-field">
                "X axis"
                <select data-testid="chart-x" prop:value=move || view.with(|view| view.x.name()) on:change=choose_axis>
                    {XAxis::ALL.map(|axis| view! {
                        <option value=axis.name() selected=move || view.with(|view| view.x == axis)>{axis.name()}</option>
                    })}
                </select>
            </label>
            <label class="inline-field">
                "Smoothing"
                <input
                    type="range"
                    min="0"
                    max="95"
                    step="5"
                    data-testid="chart-smoothing"
                    prop:value=move || view.with(|view| view.smoothing.to_string())
                    aria-valuetext=move || view.with(|view| format!("{} percent", view.smoothing))
                    on:input=smooth
                />
            </label>
            <Toggle id="chart-log-x" name="Log x" is_on=|view| view.log_x to=ViewChange::LogX/>
            <Toggle id="chart-log-y" name="Log y" is_on=|view| view.log_y to=ViewChange::LogY/>
            <button
                type="button"
                class="button small"
                data-testid="chart-whole"
                disabled=is_whole
                title="Double click or 0 on a chart does the same"
                on:click=move |_| change(ViewChange::Whole)
            >
                "Show all"
            </button>
            <button
                type="button"
                class="button small"
                data-testid="chart-csv"
                disabled=move || is_empty.get()
                title="Save the points of all charts as a table"
                on:click=save
            >
                "CSV"
            </button>
        </div>
    }
}

#[component]
fn Toggle(
    /// Name for tests.
    id: &'static str,
    /// Its label.
    name: &'static str,
    /// Its state in a view: true if it is on.
    is_on: fn(&ChartView) -> bool,
    /// The change of the view for a new state.
    to: fn(bool) -> ViewChange,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let checked = store.select(move |state| is_on(&state.charts));
    view! {
        <label class="inline-field">
            <input
                type="checkbox"
                data-testid=id
                prop:checked=checked
                on:change=move |event| store.dispatch(Event::Charts(to(event_target_checked(&event))))
            />
            {name}
        </label>
    }
}
