//! What is checked, beyond building it.

use anyhow::{Result, bail};

use crate::{
    job::Job,
    layers,
    progress::say,
    toolchain::{self, BARE},
    workspace::{cargo, root},
};

pub(crate) fn fmt(job: &Job) -> Result<()> {
    job.run(cargo().args(["fmt", "--all", "--check"]))
}

/// Prints every place where the architecture is broken.
pub(crate) fn layers(_job: &Job) -> Result<()> {
    let violations = layers::check(root())?;
    for violation in &violations {
        say(format_args!("  {violation}"));
    }
    match violations.len() {
        0 => Ok(()),
        count => bail!("{count} breaches of the architecture, see above"),
    }
}

/// Core for a machine without operating system: no std, no platform arithmetic slips in.
pub(crate) fn no_std(job: &Job) -> Result<()> {
    job.run(toolchain::cargo_for(BARE)?.args(["build", "--locked", "--package", "rollmesh-core", "--target", BARE]))
}

/// The native crates; a bare cargo command means the workspace's default members.
pub(crate) fn clippy(job: &Job) -> Result<()> {
    job.run(cargo().args(["clippy", "--locked", "--all-targets", "--", "--deny", "warnings"]))
}

/// Broken links in the documentation.
pub(crate) fn docs(job: &Job) -> Result<()> {
    job.run(
        cargo()
            .args(["doc", "--locked", "--no-deps", "--document-private-items"])
            .env("RUSTDOCFLAGS", "--deny warnings"),
    )
}

pub(crate) fn test(job: &Job) -> Result<()> {
    job.run_tests(cargo().args(["test", "--locked"]))
}
