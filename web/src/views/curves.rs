//! The charts.

use leptos::prelude::*;

use crate::{
    chart::{Chart, Curve},
    format,
    shell::Store,
};

const RETURN: Curve = Curve {
    title: "Mean return",
    id: "chart-return",
    of: |state| &state.curves,
    value: |iteration| iteration.episode_return_mean,
    format: format::mean,
    from_zero: true,
    is_main: true,
};

const EVALUATION: Curve = Curve {
    title: "Mean return of evaluations",
    id: "chart-evaluation",
    of: |state| &state.evaluations,
    is_main: false,
    ..RETURN
};

const SMALL: [Curve; 6] = [
    small("Steps per second", "chart-steps-per-s", true, |iteration| iteration.steps_per_s),
    small("Episode length", "chart-episode-len", true, |iteration| iteration.episode_len_mean),
    small("Policy loss", "chart-policy-loss", false, |iteration| iteration.policy_loss),
    small("Value loss", "chart-vf-loss", true, |iteration| iteration.vf_loss),
    small("Entropy", "chart-entropy", true, |iteration| iteration.entropy),
    small("KL divergence", "chart-kl", true, |iteration| iteration.kl),
];

const fn small(
    title: &'static str,
    id: &'static str,
    from_zero: bool,
    value: fn(&rollmesh_core::protocol::message::Iteration) -> f32,
) -> Curve {
    Curve { title, id, of: |state| &state.curves, value, format: format::short, from_zero, is_main: false }
}

/// The curve that one looks at first.
#[component]
pub(crate) fn ReturnCurve() -> impl IntoView {
    let is_evaluated = expect_context::<Store>().select(|state| !state.evaluations.points().is_empty());
    view! {
        <section class="card" aria-label="Return">
            <Chart curve=RETURN/>
            <Show when=move || is_evaluated.get()>
                <Chart curve=EVALUATION/>
            </Show>
        </section>
    }
}

/// Everything else that tells how learning goes.
#[component]
pub(crate) fn SmallCurves() -> impl IntoView {
    view! {
        <section class="card charts late" aria-label="More curves">
            {SMALL.into_iter().map(|curve| view! { <Chart curve=curve/> }).collect_view()}
        </section>
    }
}
