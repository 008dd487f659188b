//! What is built in release mode: the page and the binary.

use std::{env, path::PathBuf};

use anyhow::Result;

use crate::{
    job::Job,
    toolchain::{self, WASM},
    workspace::{cargo, command, target},
};

/// Crates come into cargo's cache here, in plain sight; trunk builds without the network.
pub(crate) fn fetch(job: &Job) -> Result<()> {
    job.run(cargo().args(["fetch", "--locked"]))
}

/// The dashboard, in `dist/`.
pub(crate) fn page(job: &Job) -> Result<()> {
    let mut trunk = command("trunk");
    trunk.args(["build", "--release", "--offline"]);
    // trunk takes the value of NO_COLOR for a boolean and refuses "1".
    trunk.env_remove("NO_COLOR");
    toolchain::prepare(&mut trunk, WASM)?;
    job.run(&mut trunk)
}

/// The binary `rollmesh`.
pub(crate) fn binary(job: &Job) -> Result<()> {
    job.run(cargo().args(["build", "--release", "--locked", "--package", "rollmesh", "--bin", "rollmesh"]))
}

/// Where [`binary`] puts it.
pub(crate) fn binary_path() -> PathBuf {
    target().join("release").join(format!("rollmesh{}", env::consts::EXE_SUFFIX))
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
