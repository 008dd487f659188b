//! Output that cannot be printed, as that of `rollmesh schema | head`.

use std::{
    panic::{self, PanicHookInfo},
    process,
};

/// The exit code of a program that a closed pipe ends: 128 + SIGPIPE.
const CLOSED: i32 = 141;

/// Ends the program once it fails to print, which panics: silently for a closed pipe. SIGPIPE itself stays ignored: it would also
/// end hubs that write to a child process that has exited.
pub(super) fn end_when_closed() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| match failed_printing(info) {
        Some(error) if error.contains("Broken pipe") => process::exit(CLOSED),
        Some(error) => {
            eprintln!("error: standard output: {error}");
            process::exit(1);
        }
        None => usual(info),
    }));
}

/// Returns the system's error from a panic of the standard library while it prints to standard output. Diagnostics on a
/// closed standard error do not end a run.
fn failed_printing<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    info.payload().downcast_ref::<String>()?.strip_prefix("failed printing to stdout: ")
}
