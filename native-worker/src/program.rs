//! The program from which child processes are started.

use std::{
    io,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
/// True if the current executable runs child processes.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Sets the program of worker, environment and evaluation processes; by default it is the current executable. For a library
/// inside an interpreter, whose executable does not begin with [`main_with`](crate::main_with). Only the first call has an
/// effect; later ones return false.
pub fn set_program(program: impl Into<PathBuf>) -> bool {
    PROGRAM.set(program.into()).is_ok()
}

/// Returns the program that child processes run.
///
/// # Errors
/// The current executable is unknown.
pub fn program() -> io::Result<PathBuf> {
    PROGRAM.get().cloned().map_or_else(std::env::current_exe, Ok)
}

/// Records that the current executable runs child processes.
pub(crate) fn serve_children() {
    SERVES.store(true, Ordering::Relaxed);
}

/// Returns the program that child processes run, if it is known to be able to. For work that this process can do, too.
#[cfg(unix)]
pub(crate) fn child_program() -> Option<PathBuf> {
    let can_serve = PROGRAM.get().is_some() || SERVES.load(Ordering::Relaxed);
    program().ok().filter(|_| can_serve)
}
