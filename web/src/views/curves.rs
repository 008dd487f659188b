//! The charts.

use leptos::prelude::*;

use super::chart_tools::ChartTools;
use crate::{
    chart::{BAND, Chart, Curve},
    format,
    shell::Store,
    state::{Family, FieldValue, Metric, families},
};

/// The curves that every run has besides its return.
const SMALL: [(&str, &str, bool, FieldValue); 6] = [
    ("Steps per second", "chart-steps-per-s", true, |iteration| iteration.steps_per_s),
    ("Episode length", "chart-episode-len", true, |iteration| iteration.episode_len_mean),
    ("Policy loss", "chart-policy-loss", false, |iteration| iteration.policy_loss),
    ("Value loss", "chart-vf-loss", true, |iteration| iteration.vf_loss),
    ("Entropy", "chart-entropy", true, |iteration| iteration.entropy),
    ("KL divergence", "chart-kl", true, |iteration| iteration.kl),
];

/// The main chart: the mean return.
#[component]
pub(crate) fn ReturnCurve() -> impl IntoView {
    let curve = Curve {
        title: "Mean return".into(),
        id: "chart-return".into(),
        metric: Metric::Field(|iteration| iteration.episode_return_mean),
        lines: Vec::new(),
        format: format::mean,
        from_zero: true,
        is_main: true,
    };
    view! {
        <section class="card" aria-label="Return">
            <ChartTools/>
            <Chart curve=curve/>
        </section>
    }
}

/// The metrics that only some runs have; drawn once the user opens their list.
#[component]
pub(crate) fn MoreCurves() -> impl IntoView {
    let store = expect_context::<Store>();
    let all = store.select(|state| families(state.curves.names().filter(|name| !BAND.contains(name))));
    let is_open = RwSignal::new(false);
    let curve = |Family { title, lines }: Family| Curve {
        id: format!("chart-{title}"),
        metric: Metric::Named(lines.first().map(|(_, name)| name.clone()).unwrap_or_default()),
        // A metric with a single line is compared with other runs.
        lines: if lines.len() > 1 { lines } else { vec![] },
        title,
        format: format::short,
        from_zero: true,
        is_main: false,
    };
    view! {
        <Show when=move || !all.with(Vec::is_empty)>
            <details
                class="card late more-curves"
                on:toggle=move |event| is_open.set(event_target::<web_sys::Element>(&event).has_attribute("open"))
            >
                <summary data-testid="more-curves">{move || format!("More metrics ({})", all.with(Vec::len))}</summary>
                <div class="charts">
                    <For each=move || if is_open.get() { all.get() } else { vec![] } key=Family::clone let:family>
                        <Chart curve=curve(family)/>
                    </For>
                </div>
            </details>
        </Show>
    }
}

/// The other metrics of learning that every run has.
#[component]
pub(crate) fn SmallCurves() -> impl IntoView {
    let curve = |(title, id, from_zero, value): (&str, &str, _, _)| Curve {
        title: title.into(),
        id: id.into(),
        metric: Metric::Field(value),
        lines: Vec::new(),
        format: format::short,
        from_zero,
        is_main: false,
    };
    view! {
        <section class="card charts late" aria-label="More curves">
            {SMALL.map(|small| view! { <Chart curve=curve(small)/> })}
        </section>
    }
}
