//! The settings of compared runs, side by side.

use leptos::prelude::*;

use crate::{
    shell::Store,
    state::{Differences, State},
};

/// A table of the settings in which the runs differ; nothing while no run is compared.
#[component]
pub(crate) fn Comparison() -> impl IntoView {
    let store = expect_context::<Store>();
    let differences = store.select(State::differences);
    view! {
        <Show when=move || differences.with(|all| all.runs.len() > 1)>
            <section class="card late" aria-labelledby="comparison-title" data-testid="comparison">
                <div class="card-head">
                    <h2 id="comparison-title">"Compared runs"</h2>
                    <span class="detail">"settings that differ"</span>
                </div>
                {move || view! { <Table differences=differences.get()/> }}
            </section>
        </Show>
    }
}

#[component]
fn Table(
    /// The settings that differ.
    differences: Differences,
) -> impl IntoView {
    let Differences { runs, rows } = differences;
    view! {
        <div class="table-box" tabindex="0" role="group" aria-label="Settings, scrollable">
            <table>
                <thead>
                    <tr>
                        <th scope="col">"Setting"</th>
                        {runs.into_iter().map(|run| view! { <th scope="col">{run.to_string()}</th> }).collect_view()}
                    </tr>
                </thead>
                <tbody>
                    {rows.into_iter().map(|(path, values)| view! {
                        <tr>
                            <th scope="row">{path}</th>
                            {values.into_iter().map(|value| view! { <td class="name" title=value.clone()>{value.clone()}</td> }).collect_view()}
                        </tr>
                    }).collect_view()}
                </tbody>
            </table>
        </div>
    }
}
