//! What is checked by running it.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    artifacts,
    chromium::Chromium,
    job::Job,
    toolchain::{self, WASM},
    workspace::{cargo, command},
};

/// The native crates; a bare cargo command means the workspace's default members.
pub(crate) fn native(job: &Job) -> Result<()> {
    job.run_tests(cargo().args(["test", "--locked"]))
}

/// What the crates for browsers can prove without one, such as the dashboard's reducer.
pub(crate) fn native_web(job: &Job) -> Result<()> {
    job.run_tests(cargo().args(["test", "--locked", "--package", "rollmesh-web", "--package", "rollmesh-wasm"]))
}

/// What depends on how it is compiled, compiled as it is shipped.
pub(crate) fn release(job: &Job) -> Result<()> {
    let packages = ["rollmesh-core", "rollmesh-wasm", "rollmesh"].iter().flat_map(|package| ["--package", package]);
    let targets = ["--test", "same_bits", "--test", "kernels"];
    job.run_tests(cargo().args(["test", "--locked", "--release"]).args(packages).args(targets))
}

/// The wasm module in Node against the binary.
pub(crate) fn node(job: &Job) -> Result<()> {
    node_against(job, artifacts::binary_path())
}

/// The wasm module in Node against a binary that is not optimised.
pub(crate) fn node_debug(job: &Job) -> Result<()> {
    node_against(job, artifacts::debug_binary(job)?)
}

/// The wasm module in Node against a binary for this machine's own instructions.
pub(crate) fn node_native_cpu(job: &Job) -> Result<()> {
    node_against(job, artifacts::native_cpu_binary(job)?)
}

fn node_against(job: &Job, binary: PathBuf) -> Result<()> {
    let module = artifacts::node_module(job)?;
    let mut node = command("node");
    node.args(["--test", "--test-reporter=tap", "tests/node/rollout_hash.test.mjs"]);
    job.run_tests(node.env("ROLLMESH_WASM", module).env("ROLLMESH_BIN", binary))
}

/// The wasm module in a Web Worker of headless Chromium.
pub(crate) fn chromium(job: &Job) -> Result<()> {
    let mut tests = toolchain::cargo_for(WASM)?;
    tests.args(["test", "--locked", "--release", "--package", "rollmesh-wasm", "--target", WASM]);
    tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
    tests.env("WASM_BINDGEN_USE_DEDICATED_WORKER", "1");
    job.run_tests(Chromium::locate()?.export(&mut tests))
}
