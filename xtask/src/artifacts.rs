//! What is built: the page, the binary with and without it, the wasm module.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    job::Job,
    toolchain::{self, WASM},
    workspace::{cargo, command, root, target},
};

/// Crates come into cargo's cache here, in plain sight; trunk builds without the network.
pub(crate) fn fetch(job: &Job) -> Result<()> {
    job.run(cargo().args(["fetch", "--locked"]))
}

/// The dashboard, at [`page_path`].
pub(crate) fn page(job: &Job) -> Result<()> {
    let mut trunk = command("trunk");
    trunk.args(["build", "--release", "--offline"]);
    // trunk takes the value of NO_COLOR for a boolean and refuses "1".
    trunk.env_remove("NO_COLOR");
    toolchain::prepare(&mut trunk, WASM)?;
    job.run(&mut trunk)
}

/// The binary `rollmesh`, at [`binary_path`].
pub(crate) fn binary(job: &Job) -> Result<()> {
    job.run(cargo().args(RELEASE))
}

/// The same with the page within, at [`dist_path`]: one file to give away.
pub(crate) fn dist(job: &Job) -> Result<()> {
    job.run(cargo().args(RELEASE).args(["--features", "embed"]))?;
    fs::create_dir_all(target().join("dist"))?;
    // Moved, so that no other step takes it for the one without.
    fs::rename(binary_path(), dist_path()).with_context(|| format!("cannot write {}", dist_path().display()))
}

pub(crate) const RELEASE: [&str; 7] = ["build", "--locked", "--release", "--package", "rollmesh", "--bin", "rollmesh"];

pub(crate) fn page_path() -> PathBuf {
    root().join("dist")
}

pub(crate) fn binary_name() -> String {
    format!("rollmesh{}", env::consts::EXE_SUFFIX)
}

pub(crate) fn binary_path() -> PathBuf {
    target().join("release").join(binary_name())
}

pub(crate) fn dist_path() -> PathBuf {
    target().join("dist").join(binary_name())
}

/// The wasm module for Node; returns the file to load.
pub(crate) fn node_module(job: &Job) -> Result<PathBuf> {
    job.run(toolchain::cargo_for(WASM)?.args(["build", "--locked", "--profile", "wasm", "--target", WASM]).args([
        "--package",
        "rollmesh-wasm",
        "--lib",
    ]))?;
    let module = target().join(WASM).join("wasm/rollmesh_wasm.wasm");
    let folder = target().join("xtask/node");
    job.run(command("wasm-bindgen").args(["--target", "nodejs", "--out-dir"]).arg(&folder).arg(module))?;
    Ok(folder.join("rollmesh_wasm.js"))
}
