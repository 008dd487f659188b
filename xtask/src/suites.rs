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

/// The wasm crates' own tests, in a page or a worker of headless Chromium.
pub(crate) fn chromium(job: &Job) -> Result<()> {
    let mut tests = toolchain::cargo_for(WASM)?;
    tests.args(["test", "--locked", "--profile", "wasm", "--package", "rollmesh-wasm", "--target", WASM]);
    tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
    job.run_tests(Chromium::locate()?.export(&mut tests))
}
