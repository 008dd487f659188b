//! The charts.

use leptos::prelude::*;
use rollmesh_core::protocol::message::Iteration;

use super::chart_tools::ChartTools;
use crate::{
    chart::{Chart, Curve},
    format,
    state::Metric,
};

/// The curves that every run has beside its return.
const SMALL: [(&str, &str, bool, fn(&Iteration) -> f32); 6] = [
    ("Steps per second", "chart-steps-per-s", true, |iteration| iteration.steps_per_s),
    ("Episode length", "chart-episode-len", true, |iteration| iteration.episode_len_mean),
    ("Policy loss", "chart-policy-loss", false, |iteration| iteration.policy_loss),
    ("Value loss", "chart-vf-loss", true, |iteration| iteration.vf_loss),
    ("Entropy", "chart-entropy", true, |iteration| iteration.entropy),
    ("KL divergence", "chart-kl", true, |iteration| iteration.kl),
];

/// The curve that one looks at first.
#[component]
pub(crate) fn ReturnCurve() -> impl IntoView {
    let curve = Curve {
        title: "Mean return".into(),
        id: "chart-return".into(),
        metric: Metric::Field(|iteration| iteration.episode_return_mean),
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

/// Everything else that tells how learning goes.
#[component]
pub(crate) fn SmallCurves() -> impl IntoView {
    let curve = |(title, id, from_zero, value): (&str, &str, _, _)| Curve {
        title: title.into(),
        id: id.into(),
        metric: Metric::Field(value),
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
