//! Checks that do not run the code.

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

/// Prints every violation of the architecture.
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

/// Builds core for a machine without an operating system: core uses neither std nor the platform's arithmetic.
pub(crate) fn no_std(job: &Job) -> Result<()> {
    job.run(toolchain::cargo_for(BARE)?.args(["build", "--locked", "--package", "rollmesh-core", "--target", BARE]))
}

/// Lints the native crates and the Python package.
pub(crate) fn clippy(job: &Job) -> Result<()> {
    let clippy = |targets: &[&str]| {
        job.run(cargo().args(["clippy", "--locked"]).args(targets).args(["--", "--deny", "warnings"]))
    };
    let browsers = BROWSER_CRATES.map(|name| ["--exclude", name]);
    clippy(&[&["--workspace", "--all-targets"], browsers.as_flattened()].concat())?;
    // These are not among the default targets of cargo.
    clippy(&["--test", "e2e", "--test", "languages"])
}

/// Lints the program without Parquet, and the library without its command line.
pub(crate) fn few_features(job: &Job) -> Result<()> {
    let options = ["clippy", "--locked", "--package", "rollmesh", "--no-default-features"];
    for features in [&["--features", "cli"][..], &["--lib"]] {
        job.run(cargo().args(options).args(features).args(["--", "--deny", "warnings"]))?;
    }
    Ok(())
}

/// Checks the documentation for broken links.
pub(crate) fn docs(job: &Job) -> Result<()> {
    job.run(
        cargo()
            .args(["doc", "--locked", "--no-deps", "--document-private-items"])
            .env("RUSTDOCFLAGS", "--deny warnings"),
    )
}

/// Lints the crates for browsers, with their tests. The learner and all formats of data are compiled with them: they
/// need neither threads nor sockets, nor a C compiler as Zstandard's library would.
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
        // Clippy is a part of rustup's compiler and cannot read the output of Debian's.
        job.note("compiled only: there is no clippy for Debian's compiler");
        return job.run(toolchain::cargo_for(WASM)?.args(["check", "--locked"]).args(packages));
    }
    job.run(cargo().args(["clippy", "--locked"]).args(packages).args(["--", "--deny", "warnings"]))
}

/// Checks, for other systems, the crates that need no C compiler there, with the standard libraries of rustup.
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

/// The arguments for the data formats without Zstandard, whose library is written in C.
const DATA_WITHOUT_C: [&str; 5] = ["--package", "rollmesh-data", "--no-default-features", "--features", "hdf5,parquet"];
