//! What is checked by running it.

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

/// The wasm module in Node against the binary.
pub(crate) fn node(job: &Job) -> Result<()> {
    let module = artifacts::node_module(job)?;
    let mut node = command("node");
    node.args(["--test", "--test-reporter=tap", "tests/node/rollout_hash.test.mjs"]);
    job.run_tests(node.env("ROLLMESH_WASM", module).env("ROLLMESH_BIN", artifacts::binary_path()))
}

/// The wasm module in a Web Worker of headless Chromium.
pub(crate) fn chromium(job: &Job) -> Result<()> {
    let mut tests = toolchain::cargo_for(WASM)?;
    tests.args(["test", "--locked", "--release", "--package", "rollmesh-wasm", "--target", WASM]);
    tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
    tests.env("WASM_BINDGEN_USE_DEDICATED_WORKER", "1");
    job.run_tests(Chromium::locate()?.export(&mut tests))
}
