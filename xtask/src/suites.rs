//! What is checked by running it.

use std::process::Command;

use anyhow::Result;

use crate::{
    artifacts,
    chromium::Chromium,
    job::Job,
    toolchain::{self, WASM},
    tools,
    workspace::{cargo, command, root, target},
};

/// The native crates; a bare cargo command means the workspace's default members.
pub(crate) fn native(job: &Job) -> Result<()> {
    job.run_tests(cargo().args(["test", "--locked", "--no-fail-fast"]))
}

/// The crates for browsers, as arguments of cargo.
pub(crate) const WEB_PACKAGES: [&str; 6] =
    ["--package", "rollmesh-web", "--package", "rollmesh-web-registry", "--package", "rollmesh-wasm"];

/// What the crates for browsers can prove without one, such as the dashboard's reducer.
pub(crate) fn native_web(job: &Job) -> Result<()> {
    job.run_tests(cargo().args(["test", "--locked"]).args(WEB_PACKAGES))
}

/// What depends on how it is compiled, compiled as it is shipped.
pub(crate) fn release(job: &Job) -> Result<()> {
    same_bits(job, |tests| _ = tests.arg("--release"))
}

/// The same for this machine's own instructions.
pub(crate) fn native_cpu(job: &Job) -> Result<()> {
    let folder = target().join("xtask/native-cpu");
    let native = |tests: &mut Command| {
        tests.arg("--release").env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", "-Ctarget-cpu=native");
    };
    same_bits(job, native)
}

/// The same without any optimisation.
pub(crate) fn debug(job: &Job) -> Result<()> {
    same_bits(job, |_| ())
}

/// The tests that compare hashes with constants, with the long rollouts among them.
fn same_bits(job: &Job, change: impl Fn(&mut Command)) -> Result<()> {
    // The Python package has no such tests: with it, dependencies have the features that the binary's build gave them.
    let packages = ["rollmesh-core", "rollmesh-wasm", "rollmesh", "rollmesh-python"];
    let packages = packages.into_iter().flat_map(|package| ["--package", package]);
    let targets = [&["--test", "laws", "--test", "same_bits"][..], &["--test", "program"]];
    let names = [&[][..], &["--", "kernels::", "sample::"]];
    for (targets, names) in targets.into_iter().zip(names) {
        let mut tests = cargo();
        tests.args(["test", "--locked"]).args(packages.clone()).args(targets).env("ROLLMESH_LONG", "1");
        change(&mut tests);
        job.run_tests(tests.args(names))?;
    }
    Ok(())
}

/// A hub that is killed at fifty points, and goes on.
pub(crate) fn kills(job: &Job) -> Result<()> {
    let tests = ["test", "--locked", "--package", "rollmesh", "--test", "program", "resume::kills::"];
    job.run_tests(cargo().args(tests).env("ROLLMESH_LONG", "1"))
}

/// Data files with bytes changed or the end cut off, of every kind.
pub(crate) fn damage(job: &Job) -> Result<()> {
    let packages = ["--package", "rollmesh-data", "--package", "rollmesh"];
    let mut tests = cargo();
    tests.args(["test", "--locked"]).args(packages).args(["--test", "data_sets", "--test", "program", "damage::"]);
    job.run_tests(tests.env("ROLLMESH_LONG", "1"))
}

/// What peers say, with bytes changed, a hundred times as often and others each time.
pub(crate) fn fuzz(job: &Job) -> Result<()> {
    let tests = [
        "test",
        "--locked",
        "--release",
        "--package",
        "rollmesh-tests",
        "--test",
        "promises",
        "hostile_bytes",
        "--",
        "--nocapture",
    ];
    job.run_tests(cargo().args(tests).env("ROLLMESH_LONG", "1"))
}

/// Real workers and a real network that fail, for minutes, and a run that is watched for ten.
pub(crate) fn chaos(job: &Job) -> Result<()> {
    let tests = [
        "test",
        "--locked",
        "--release",
        "--package",
        "rollmesh",
        "--test",
        "own_program",
        "--",
        "chaos::",
        "--nocapture",
    ];
    job.run_tests(cargo().args(tests).env("ROLLMESH_LONG", "1"))
}

/// Environments and policies of every kind, a user's own among them, each with ten workers killed while they hold leases.
pub(crate) fn matrix(job: &Job) -> Result<()> {
    let packages = ["--package", "rollmesh", "--package", "rollmesh-example-own-env"];
    let tests = ["--test", "program", "one_hash_for_any_workers", "--", "--nocapture"];
    let mut matrix = cargo();
    matrix.args(["test", "--locked", "--release"]).args(packages).args(tests);
    job.run_tests(matrix.env("ROLLMESH_LONG", "1"))
}

/// Crowds, a million hostile frames, and hubs that are asked to end.
pub(crate) fn security(job: &Job) -> Result<()> {
    let tests = ["test", "--locked", "--release", "--package", "rollmesh", "--test", "program"];
    job.run_tests(cargo().args(tests).args(["--", "security::", "control::", "--nocapture"]).env("ROLLMESH_LONG", "1"))
}

/// Intervals of estimators, a hundred times each.
pub(crate) fn coverage(job: &Job) -> Result<()> {
    let tests = [
        "test",
        "--locked",
        "--release",
        "--package",
        "rollmesh",
        "--test",
        "program",
        "--",
        "ope_coverage::",
        "--nocapture",
    ];
    job.run_tests(cargo().args(tests).env("ROLLMESH_LONG", "1"))
}

/// Runs of the program that reach known returns, with the seeds 0, 1 and 2.
pub(crate) fn learning(job: &Job) -> Result<()> {
    let tests = [
        "test",
        "--locked",
        "--release",
        "--package",
        "rollmesh",
        "--test",
        "program",
        "--",
        "learning::",
        "--nocapture",
    ];
    job.run_tests(cargo().args(tests).env("ROLLMESH_LONG", "1"))
}

/// Benchmarks that fail where something takes longer than is promised. They want the machine for themselves.
pub(crate) fn figures(job: &Job) -> Result<()> {
    // Of all default members, so that nothing is compiled again with other features.
    job.run(cargo().args(["bench", "--locked", "--bench", "parquet", "--bench", "evaluation"]))
}

/// The wasm module in Node against the binary.
pub(crate) fn node(job: &Job) -> Result<()> {
    let modules = artifacts::node_modules(job)?;
    let mut node = command("node");
    let tests = ["rollout_hash", "sampler", "data_file"].map(|name| format!("tests/node/{name}.test.mjs"));
    node.args(["--test", "--test-reporter=tap"]).args(tests);
    job.run_tests(node.env("ROLLMESH_WASM", modules).env("ROLLMESH_BIN", artifacts::binary_path()))?;
    // Leases of every kind: their fragments are in Rust's hands alone.
    job.run_tests(wasm_tests()?.args(["--test", "same_bits"]))
}

/// The tests of the wasm module's crate, in Node unless the environment says otherwise.
fn wasm_tests() -> Result<Command> {
    let mut tests = toolchain::cargo_for(WASM)?;
    tests.args(["test", "--locked", "--release", "--package", "rollmesh-wasm", "--target", WASM]);
    tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
    Ok(tests)
}

/// The npm package, installed from the packed file, in Node; the examples of its README among its tests.
pub(crate) fn npm(job: &Job) -> Result<()> {
    let project = artifacts::npm_project(job, "project", &[])?;
    let tests =
        ["package", "readme", "worker", "batch", "policy", "env", "vector_env", "data_file", "algorithm", "hub"];
    let tests = tests.map(|name| format!("test/{name}.test.mjs"));
    let mut node = command("node");
    node.args(["--experimental-websocket", "--test", "--test-reporter=tap"]).args(tests).current_dir(project);
    let tsc = target().join("xtask/npm/node_modules/typescript/bin/tsc");
    node.env("ROLLMESH_BIN", artifacts::binary_path()).env("ROLLMESH_ROOT", root()).env("ROLLMESH_TSC", tsc);
    job.run_tests(&mut node)
}

/// The npm package through bundlers, and what they make of it in Node.
pub(crate) fn npm_bundlers(job: &Job) -> Result<()> {
    let project = artifacts::npm_project(job, "bundlers", &["vite@7.1.12", "webpack@5.102.1"])?;
    let mut node = command("node");
    job.run_tests(node.args(["--test", "--test-reporter=tap", "test/bundlers.test.mjs"]).current_dir(project))
}

/// The group under everything that can go wrong, with more seeds than the suite has time for.
pub(crate) fn simulator(job: &Job) -> Result<()> {
    let tests = ["test", "--locked", "--package", "rollmesh-tests", "--test", "promises", "--", "sim::", "ops::"];
    job.run_tests(cargo().args(tests).env("ROLLMESH_SIM_SEEDS", "10000").env("PROPTEST_CASES", "10000"))
}

/// Episodes that are driven from elsewhere, also from other languages.
pub(crate) fn clients(job: &Job) -> Result<()> {
    // Of all default members, so that nothing is compiled again with other features.
    job.run_tests(cargo().args(["test", "--locked", "--test", "languages", "clients::"]))
}

/// Environments of Python, with the interpreter of a virtual environment of ours.
pub(crate) fn python_envs(job: &Job) -> Result<()> {
    // Of all default members, so that nothing is compiled again with other features.
    let tests = ["test", "--locked", "--test", "languages", "--", "python::", "--skip", "python::packages::"];
    job.run_tests(cargo().args(tests).env("VIRTUAL_ENV", tools::gymnasium_env()))
}

/// Environments of packages that take minutes to install.
pub(crate) fn python_packages(job: &Job) -> Result<()> {
    let folder = target().join("xtask/python-packages");
    let python = tools::virtual_env(job, &folder)?;
    tools::pip_install(job, &python, &tools::GYMNASIUM)?;
    // PettingZoo's classic games are drawn with pygame.
    tools::pip_install(job, &python, &["box2d", "ale-py", "pettingzoo", "pygame"])?;
    // Of all default members, so that nothing is compiled again with other features.
    job.run_tests(
        cargo().args(["test", "--locked", "--test", "languages", "python::packages::"]).env("VIRTUAL_ENV", folder),
    )
}

/// Policies as ONNX files, in ONNX Runtime.
pub(crate) fn onnx(job: &Job) -> Result<()> {
    let folder = target().join("xtask/onnx");
    let python = tools::virtual_env(job, &folder)?;
    tools::pip_install(job, &python, &["onnxruntime"])?;
    // Of all default members, so that nothing is compiled again with other features.
    job.run_tests(cargo().args(["test", "--locked", "--test", "languages", "onnx::"]).env("VIRTUAL_ENV", folder))
}

/// The Python package in a fresh virtual environment; the examples of its documents among its tests.
pub(crate) fn wheel(job: &Job) -> Result<()> {
    let python = artifacts::wheel_environment(job)?;
    let mut tests = command(python);
    // Isolated from the sources, so that the installed package is tested.
    tests.args(["-P", "-m", "unittest", "discover", "--verbose", "--start-directory"]).arg(root().join("python/tests"));
    job.run_tests(tests.env("ROLLMESH_ROOT", root()).current_dir(target()))
}

/// The Python package with PyTorch and Stable-Baselines3.
pub(crate) fn wheel_torch(job: &Job) -> Result<()> {
    let python = artifacts::wheel_environment(job)?;
    tools::pip_install(job, &python, &["torch", "stable-baselines3"])?;
    let mut tests = command(python);
    tests.arg("-P").arg(root().join("python/tests/long_torch.py")).env("ROLLMESH_ROOT", root());
    job.run_tests(tests.current_dir(target()))
}

/// The Python package with Ray's RLlib.
pub(crate) fn wheel_ray(job: &Job) -> Result<()> {
    let python = artifacts::wheel_environment(job)?;
    tools::pip_install(job, &python, &["torch", "ray[rllib]"])?;
    let mut tests = command(python);
    tests.arg("-P").arg(root().join("python/tests/long_ray.py"));
    job.run_tests(tests.current_dir(target()))
}

/// Workers on a local Ray.
pub(crate) fn wheel_launcher(job: &Job) -> Result<()> {
    let python = artifacts::wheel_environment(job)?;
    tools::pip_install(job, &python, &["ray[default]"])?;
    let mut tests = command(python);
    tests.arg("-P").arg(root().join("python/tests/long_launcher.py")).env("ROLLMESH_BIN", artifacts::binary_path());
    job.run_tests(tests.current_dir(target()))
}

/// The manifests of `deploy/` by the schemas of Kubernetes.
pub(crate) fn manifests(job: &Job) -> Result<()> {
    let python = tools::virtual_env(job, &target().join("xtask/manifests"))?;
    tools::pip_install(job, &python, &["kubernetes-validate"])?;
    job.run(command(python).arg(root().join("deploy/kubernetes/check.py")))
}

/// The wasm module in a Web Worker of headless Chromium.
pub(crate) fn chromium(job: &Job) -> Result<()> {
    let mut tests = wasm_tests()?;
    tests.env("WASM_BINDGEN_USE_DEDICATED_WORKER", "1");
    // Seconds for all tests of a module together: those that learn take some.
    tests.env("WASM_BINDGEN_TEST_TIMEOUT", "300");
    job.run_tests(Chromium::locate()?.export(&mut tests))
}

/// The binary and its page in headless Chromium.
pub(crate) fn e2e(job: &Job) -> Result<()> {
    // Of all default members, so that nothing is compiled again with other features.
    let mut tests = cargo();
    tests.args(["test", "--locked", "--test", "e2e"]);
    tests.env("ROLLMESH_BIN", artifacts::binary_path()).env("ROLLMESH_DIST", artifacts::page_path());
    tests.env("ROLLMESH_AXE", tools::axe_path());
    job.run_tests(Chromium::locate()?.export(&mut tests))
}
