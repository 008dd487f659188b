//! The dashboard: a page that follows a hub's run, controls it and can work for it; without a hub it trains in its own tab.
//!
//! [`state`] holds the page's state and changes it by a pure function; the shell passes it events of a socket, of Web
//! Workers and of the user; the views only read.
// `#[component]` makes the types of its properties public, regardless of the component's visibility.
#![allow(unreachable_pub)]

mod chart;
mod data_file;
mod format;
mod link;
mod parts;
mod playback;
mod player;
mod save;
mod shell;
mod socket;
pub mod state;
mod tab_worker;
mod theme;
mod token;
mod trainer;
mod views;
mod web_worker;

/// Shows the page.
pub fn mount() {
    console_error_panic_hook::set_once();
    leptos::mount::mount_to_body(views::App);
}
