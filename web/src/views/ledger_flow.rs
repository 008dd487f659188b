//! The ledger as a flow: granted env steps and their outcomes.

use leptos::prelude::*;
use rollmesh_core::group::Ledger;

use crate::{format, shell::Store};

/// Size of the drawing, and the gap between two parts on the right.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 120.0;
const GAP: f64 = 4.0;
/// Width of the bars at both ends.
const BAR: f64 = 8.0;

/// A part of the granted env steps.
#[derive(Clone, Debug, PartialEq)]
struct LedgerBand {
    name: &'static str,
    count: u64,
    /// Upper end and height on the left and on the right.
    from: f64,
    to: f64,
    height: f64,
}

/// Bands from all granted env steps to the parts of the ledger; hidden while there are fewer than two parts.
#[component]
pub(crate) fn LedgerFlow() -> impl IntoView {
    let store = expect_context::<Store>();
    let bands = store.select(|state| state.ledger.as_ref().map(|report| bands(&report.ledger)).unwrap_or_default());
    view! {
        <svg
            class="ledger-flow"
            viewBox=format!("0 0 {WIDTH} {HEIGHT}")
            aria-hidden="true"
            data-testid="ledger-flow"
            class:absent=move || bands.with(|bands| bands.len() < 2)
        >
            {move || bands.get().into_iter().map(|band| view! {
                <g data-part=band.name>
                    <title>{format!("{}: {} env steps", band.name, format::count(band.count))}</title>
                    <path d=shape(&band)/>
                    <text x=WIDTH - BAR - 4.0 y=band.to + band.height / 2.0 + 3.5 text-anchor="end">{label(&band)}</text>
                </g>
            }).collect_view()}
        </svg>
    }
}

fn label(band: &LedgerBand) -> &'static str {
    if band.height >= 10.0 { band.name } else { "" }
}

/// Returns the path of a bar on the left, a curved band, and a bar on the right.
fn shape(LedgerBand { from, to, height, .. }: &LedgerBand) -> String {
    let (left, right, middle) = (BAR, WIDTH - BAR, WIDTH / 2.0);
    let (from_end, to_end) = (from + height, to + height);
    format!(
        "M0 {from:.1}H{left}C{middle} {from:.1} {middle} {to:.1} {right} {to:.1}H{WIDTH}V{to_end:.1}H{right}\
         C{middle} {to_end:.1} {middle} {from_end:.1} {left} {from_end:.1}H0Z"
    )
}

fn bands(ledger: &Ledger) -> Vec<LedgerBand> {
    let parts = [
        ("learned from", ledger.consumed),
        ("queued", ledger.queued),
        ("dropped as stale", ledger.dropped_stale),
        ("outstanding", ledger.outstanding),
        ("superseded", ledger.superseded),
        ("rejected", ledger.rejected.total()),
        ("expired", ledger.expired.total()),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(_, count)| *count > 0).collect();
    let total: u64 = parts.iter().map(|(_, count)| count).sum();
    let room = HEIGHT - GAP * parts.len().saturating_sub(1) as f64;
    let (mut from, mut to) = (0.0, 0.0);
    let place = |(name, count): (&'static str, u64)| {
        let height = room * count as f64 / total as f64;
        let band = LedgerBand { name, count, from: from + (HEIGHT - room) / 2.0, to, height };
        from += height;
        to += height + GAP;
        band
    };
    parts.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_fill_the_height_in_proportion_to_their_steps() {
        let ledger = Ledger { granted: 400, committed: 300, consumed: 300, outstanding: 100, ..Ledger::default() };
        let all = bands(&ledger);
        let shown: Vec<_> = all.iter().map(|band| (band.name, band.count)).collect();
        assert_eq!(shown, [("learned from", 300), ("outstanding", 100)]);
        assert_eq!((all[0].height, all[1].height, all[1].to + all[1].height), (87.0, 29.0, HEIGHT));
        assert!(shape(&all[0]).starts_with("M0 2.0H8C150 2.0"));
        assert_eq!(bands(&Ledger::default()), []);
    }
}
