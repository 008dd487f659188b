//! Output that is read no longer, as that of `rollmesh schema | head`.

use std::{
    panic::{self, PanicHookInfo},
    process,
};

/// The exit code of a program that a closed pipe ends: 128 + SIGPIPE.
const CLOSED: i32 = 141;

/// Ends the program silently once it prints into a closed pipe, which panics. SIGPIPE itself stays ignored: it would also end
/// hubs that write to a child process that has exited.
pub(super) fn end_when_closed() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if is_closed_pipe(info) {
            process::exit(CLOSED);
        }
        usual(info);
    }));
}

/// The standard library panics with this text and the system's error. Diagnostics on a closed standard error do not end a run.
fn is_closed_pipe(info: &PanicHookInfo<'_>) -> bool {
    let text = info.payload().downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with("failed printing to stdout") && text.contains("Broken pipe"))
}
