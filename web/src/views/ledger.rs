//! The outcome of every granted env step.

use leptos::prelude::*;
use rollmesh_core::{
    group,
    protocol::message::{LedgerReport, RunStatus},
};

use super::ledger_flow::LedgerFlow;
use crate::{format, shell::Store, state::State};

/// A reason with its count, as the page names it.
type Detail = (&'static str, u64);

/// Granted = committed + superseded + rejected + expired + outstanding, with reasons where there are any.
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
    let details = move |id: &'static str, of: fn(&group::Ledger) -> Vec<Detail>| {
        let details =
            store.select(move |state| state.ledger.as_ref().map(|report| of(&report.ledger)).unwrap_or_default());
        move || {
            details
                .get()
                .into_iter()
                .map(|(name, count)| {
                    view! {
                        <div class="line part" data-testid=format!("{id}-{name}")>
                            <dt>{name.replace('_', " ")}</dt>
                            <dd>{format::count(count)}</dd>
                        </div>
                    }
                })
                .collect_view()
        }
    };
    let balance = store.select(balance);
    let besides = store.select(|state| state.ledger.as_ref().map(besides).unwrap_or_default());
    view! {
        <section class="card latest" aria-labelledby="ledger-title" data-testid="ledger">
            <div class="card-head">
                <h2 id="ledger-title">"Ledger of env steps"</h2>
                <span
                    class="state"
                    data-testid="ledger-balance"
                    data-tone=move || balance.get().0
                    title="Granted is the sum of all others"
                >
                    {move || balance.get().1}
                </span>
            </div>
            <LedgerFlow/>
            <dl class="lines">
                {line("ledger-committed", "Committed", "Learned from or about to be", |run| run.committed)}
                {details("ledger-committed", |ledger| some(&[("queued", ledger.queued), ("dropped_stale", ledger.dropped_stale)]))}
                {line("ledger-superseded", "Superseded", "Came after another worker's equal ones", |run| run.superseded)}
                {line("ledger-rejected", "Rejected", "Rejected when they arrived", |run| run.rejected)}
                {details("ledger-rejected", |ledger| some(&ledger.rejected.by_reason()))}
                {line("ledger-expired", "Expired", "They never came", |run| run.expired)}
                {details("ledger-expired", |ledger| some(&ledger.expired.by_cause()))}
                {line("ledger-outstanding", "Outstanding", "Being worked on", |run| run.outstanding)}
                {line("ledger-granted", "Granted", "The sum of the others", |run| run.granted)}
            </dl>
            <p class="hint" data-testid="ledger-besides" hidden=move || besides.with(String::is_empty)>{besides}</p>
        </section>
    }
}

fn steps(state: &State, value: fn(&RunStatus) -> u64) -> String {
    state.run.as_ref().map_or_else(|| "–".into(), |run| format::count(value(run)))
}

fn some(counts: &[Detail]) -> Vec<Detail> {
    counts.iter().copied().filter(|(_, count)| *count > 0).collect()
}

/// Returns the tone and the text of the balance.
fn balance(state: &State) -> (&'static str, &'static str) {
    match &state.ledger {
        Some(report) if report.ledger.balances() => ("good", "balances"),
        Some(_) => ("bad", "does not balance"),
        None => ("quiet", ""),
    }
}

/// Returns a sentence with the counts that are not part of the sum.
fn besides(report: &LedgerReport) -> String {
    let ledger = &report.ledger;
    let uninvited = ledger.uninvited.superseded.saturating_add(ledger.uninvited.rejected.total());
    let counts = [
        (ledger.regenerated, "env steps granted again after a restart"),
        (uninvited, "fragments that were no longer awaited"),
        (report.num_worker_restarts, "local workers replaced"),
        (ledger.abandoned_episodes, "open episodes given up"),
    ];
    let texts = counts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> = texts.map(|(count, name)| format!("{} {name}", format::count(*count))).collect();
    if texts.is_empty() { String::new() } else { format!("Besides: {}.", texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_that_does_not_balance_is_shown_as_bad() {
        let shown = |ledger: Option<group::Ledger>| {
            let mut state = State::default();
            state.ledger = ledger.map(|ledger| LedgerReport { ledger, ..Default::default() });
            balance(&state)
        };
        let whole =
            group::Ledger { granted: 9, committed: 8, outstanding: 1, queued: 3, consumed: 5, ..Default::default() };
        assert_eq!(shown(None), ("quiet", ""));
        assert_eq!(shown(Some(whole)), ("good", "balances"));
        let lost = group::Ledger { outstanding: 0, ..whole };
        let lost_in_the_queue = group::Ledger { queued: 2, ..whole };
        let twice = group::Ledger { superseded: 1, ..whole };
        for ledger in [lost, lost_in_the_queue, twice] {
            assert_eq!(shown(Some(ledger)), ("bad", "does not balance"), "{ledger:?}");
        }
    }
}
