//! The user interface. Views read the state and send actions; they make no decisions.

mod action_button;
mod ask_first;
mod banner;
mod chart_tools;
mod comparison;
mod controls;
mod curves;
mod data_file;
mod evaluate_form;
mod fragment;
mod group_map;
mod header;
mod histogram;
mod invite;
mod key_numbers;
mod ledger;
mod ledger_flow;
mod live;
mod live_picture;
mod logs;
mod player;
mod runs;
mod saved_runs;
mod shortcuts;
mod start_form;
mod system;
mod tab_run;
mod this_tab;
mod toasts;
mod workers;

use leptos::prelude::*;

use self::{
    banner::Banner,
    comparison::Comparison,
    controls::Controls,
    curves::{MoreCurves, ReturnCurve, SmallCurves},
    data_file::DataFile,
    fragment::RecentFragments,
    header::Header,
    key_numbers::KeyNumbers,
    ledger::Ledger,
    live::{Live, Watched},
    logs::{Logs, ShownLog},
    player::Player,
    system::System,
    tab_run::TabResult,
    this_tab::ThisTab,
    toasts::Toasts,
    workers::Workers,
};
use crate::{
    chart::Mark,
    shell::Store,
    state::{ClipSource, HUB, State},
    theme::Theme,
};

/// The whole page.
#[component]
pub(crate) fn App() -> impl IntoView {
    provide_context(Theme::start());
    let store = Store::start();
    provide_context(store);
    provide_context(Mark(RwSignal::new(None)));
    provide_context(ShownLog(RwSignal::new(HUB)));
    provide_context(Watched(RwSignal::new(ClipSource::Slot)));
    let is_tab = store.select(State::is_tab);
    let is_new = store.select(|state| state.is_tab() && state.run.is_none());
    view! {
        <Header/>
        <main>
            <Banner/>
            <KeyNumbers/>
            <div class="columns">
                <div class="column-wide">
                    <ReturnCurve/>
                    <Comparison/>
                    <SmallCurves/>
                    <MoreCurves/>
                    <Workers/>
                    <Logs/>
                    <RecentFragments/>
                    <DataFile/>
                </div>
                <div class="column-narrow" class:run-first=move || is_new.get()>
                    <Player/>
                    <Live/>
                    <Controls/>
                    <Show when=move || is_tab.get() fallback=|| view! { <ThisTab/> }>
                        <TabResult/>
                    </Show>
                    <Ledger/>
                    <Show when=move || !is_tab.get()>
                        <System/>
                    </Show>
                </div>
            </div>
        </main>
        <Toasts/>
    }
}

/// Scrolls to the card of this id.
fn show_card(id: &str) {
    document().get_element_by_id(id).iter().for_each(web_sys::Element::scroll_into_view);
}
