//! The program from which child processes are started.

use std::{io, path::PathBuf, sync::OnceLock};

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that worker, environment and evaluation processes of this process run; by default it is this process's
/// own executable. For a library inside an interpreter, whose executable does not begin with
/// [`main_with`](crate::main_with). The first call counts; a later one returns false.
pub fn set_program(program: impl Into<PathBuf>) -> bool {
    PROGRAM.set(program.into()).is_ok()
}

/// Returns the program that child processes run.
///
/// # Errors
/// The system does not say which program this is.
pub fn program() -> io::Result<PathBuf> {
    PROGRAM.get().cloned().map_or_else(std::env::current_exe, Ok)
}
