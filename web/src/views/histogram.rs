//! A histogram as a table with bars.

use leptos::prelude::*;

use crate::format;

#[component]
pub(crate) fn Histogram(
    /// Name for tests.
    id: &'static str,
    /// The caption for screen readers.
    caption: &'static str,
    /// The heads of the ranges, bars and counts, for screen readers.
    heads: [&'static str; 3],
    /// The ranges and their counts.
    bars: Signal<Vec<(String, u64)>>,
) -> impl IntoView {
    let most = move || bars.with(|bars| bars.iter().map(|(_, count)| *count).max().unwrap_or(0));
    view! {
        <table class="histogram" data-testid=id hidden=move || most() == 0>
            <caption class="hidden">{caption}</caption>
            <thead class="hidden"><tr>{heads.map(|head| view! { <th scope="col">{head}</th> })}</tr></thead>
            <tbody>
                {move || bars.get().into_iter().map(|(range, count)| view! {
                    <tr>
                        <th scope="row" class="right">{range}</th>
                        <td><progress max=most().to_string() value=count.to_string() aria-hidden="true"></progress></td>
                        <td class="right">{format::count(count)}</td>
                    </tr>
                }).collect_view()}
            </tbody>
        </table>
    }
}
