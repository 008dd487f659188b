//! `cargo xtask demo`: from a new clone to a dashboard that shows a training run.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{artifacts, plan, progress::say, steps::STEPS, workspace};

/// Installs missing tools, builds the program, and then becomes `rollmesh demo ARGS…`.
pub(crate) fn run(args: &[OsString]) -> Result<ExitCode> {
    let wanted = ["page", "binary"].map(str::to_owned);
    if !plan::run(&plan::select(STEPS, &wanted, false)?).all_passed() {
        return Ok(ExitCode::FAILURE);
    }
    let mut demo = workspace::command(artifacts::binary_path());
    demo.arg("demo").args(args);
    say(format_args!(""));
    become_it(demo)
}

/// Replaces this process by the demo on Unix, so that the demo receives Ctrl-C and signals.
#[cfg(unix)]
fn become_it(mut demo: std::process::Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    let error = demo.exec();
    Err(error).with_context(|| format!("cannot start {}", demo.get_program().to_string_lossy()))
}

#[cfg(not(unix))]
fn become_it(mut demo: std::process::Command) -> Result<ExitCode> {
    let status = demo.status().with_context(|| format!("cannot start {}", demo.get_program().to_string_lossy()))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
