//! What is checked without running it.

use anyhow::{Result, bail};

use crate::{
    job::Job,
    layers,
    progress::say,
    suites::BROWSER_CRATES,
    toolchain::{self, BARE, WASM},
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

/// The native crates and the Python package.
pub(crate) fn clippy(job: &Job) -> Result<()> {
    let clippy = |targets: &[&str]| {
        job.run(cargo().args(["clippy", "--locked"]).args(targets).args(["--", "--deny", "warnings"]))
    };
    let browsers = BROWSER_CRATES.map(|name| ["--exclude", name]);
    clippy(&[&["--workspace", "--all-targets"], browsers.as_flattened()].concat())?;
    // No targets of a bare cargo command.
    clippy(&["--test", "e2e", "--test", "languages"])
}

/// The program without Parquet, and the library without its command line.
pub(crate) fn few_features(job: &Job) -> Result<()> {
    let options = ["clippy", "--locked", "--package", "rollmesh", "--no-default-features"];
    for features in [&["--features", "cli"][..], &["--lib"]] {
        job.run(cargo().args(options).args(features).args(["--", "--deny", "warnings"]))?;
    }
    Ok(())
}

/// Broken links in the documentation.
pub(crate) fn docs(job: &Job) -> Result<()> {
    job.run(
        cargo()
            .args(["doc", "--locked", "--no-deps", "--document-private-items"])
            .env("RUSTDOCFLAGS", "--deny warnings"),
    )
}

/// The crates for browsers, with their tests. The learner and all formats of data are compiled with them: nothing in these needs threads,
/// sockets, or the C compiler that Zstandard's library would.
pub(crate) fn clippy_wasm(job: &Job) -> Result<()> {
    let packages = BROWSER_CRATES.map(|name| ["--package", name]);
    let packages = packages.as_flattened().iter().chain(&[
        "--features",
        "rollmesh-modules/tables",
        "--target",
        WASM,
        "--all-targets",
    ]);
    if toolchain::is_fallback(WASM) {
        // Clippy is a part of rustup's compiler and cannot read what Debian's has made.
        job.note("compiled only: there is no clippy for Debian's compiler");
        return job.run(toolchain::cargo_for(WASM)?.args(["check", "--locked"]).args(packages));
    }
    job.run(cargo().args(["clippy", "--locked"]).args(packages).args(["--", "--deny", "warnings"]))
}

/// What needs no C compiler of the system that it is for, by the standard libraries that rustup brings.
pub(crate) fn other_systems(job: &Job) -> Result<()> {
    for target in ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"] {
        toolchain::ensure(job, target)?;
        let check = |options: &[&str]| {
            job.run(toolchain::cargo_for(target)?.args(["check", "--locked", "--target", target]).args(options))
        };
        check(&["--package", "rollmesh-core", "--package", "rollmesh-learner"])?;
        check(&DATA_WITHOUT_C)?;
    }
    Ok(())
}

/// The data formats but for Zstandard, whose library is written in C.
const DATA_WITHOUT_C: [&str; 5] = ["--package", "rollmesh-data", "--no-default-features", "--features", "hdf5,parquet"];
