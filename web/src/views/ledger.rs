//! Where every granted env step has gone.

use leptos::prelude::*;
use rollmesh_core::protocol::message::RunStatus;

use crate::{format, shell::Store, state::State};

/// Granted = committed + superseded + rejected + expired + outstanding.
#[component]
pub(crate) fn Ledger() -> impl IntoView {
    let store = expect_context::<Store>();
    let line = move |id: &'static str, name: &'static str, explanation: &'static str, value: fn(&RunStatus) -> u64| {
        view! {
            <div class="line" title=explanation>
                <dt>{name}</dt>
                <dd data-testid=id>{store.select(move |state| steps(state, value))}</dd>
            </div>
        }
    };
    view! {
        <section class="card latest" aria-labelledby="ledger-title" data-testid="ledger">
            <div class="card-head">
                <h2 id="ledger-title">"Ledger of env steps"</h2>
            </div>
            <dl class="lines">
                {line("ledger-committed", "Committed", "Learned from or about to be", |run| run.committed)}
                {line("ledger-superseded", "Superseded", "Came after another worker's equal ones", |run| run.superseded)}
                {line("ledger-rejected", "Rejected", "Refused, for whatever reason", |run| run.rejected)}
                {line("ledger-expired", "Expired", "Their lease ran out", |run| run.expired)}
                {line("ledger-outstanding", "Outstanding", "Being worked on", |run| run.outstanding)}
                {line("ledger-granted", "Granted", "The sum of the others", |run| run.granted)}
            </dl>
        </section>
    }
}

fn steps(state: &State, value: fn(&RunStatus) -> u64) -> String {
    state.run.as_ref().map_or_else(|| "–".into(), |run| format::count(value(run)))
}
