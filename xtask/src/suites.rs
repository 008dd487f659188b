//! Checks that run the code.

use std::{
    env, fs,
    num::NonZero,
    path::Path,
    process::{self, Command},
    thread,
};

use anyhow::{Context as _, Result};

use crate::{
    artifacts,
    chromium::Chromium,
    job::Job,
    own_page,
    toolchain::{self, WASM},
    tools,
    workspace::{cargo, command, find, root, target},
};

/// The crates for browsers.
pub(crate) const BROWSER_CRATES: [&str; 4] =
    ["rollmesh-web", "rollmesh-web-registry", "rollmesh-wasm", "rollmesh-modules"];

/// The number of tests that run at a time, in the test harness's variable.
const THREADS: &str = "RUST_TEST_THREADS";

/// Returns `cargo test` with these arguments, separated by spaces. Without packages it covers all default members, so
/// that nothing is compiled again with other features.
fn cargo_test(arguments: &str) -> Command {
    let mut tests = cargo();
    tests.args(["test", "--locked"]).args(arguments.split_whitespace());
    tests
}

pub(crate) fn tests(job: &Job, arguments: &str) -> Result<()> {
    let mut tests = cargo_test(arguments);
    if env::var_os(THREADS).is_none() {
        // The tests that take longest wait for processes most of the time.
        tests.env(THREADS, (2 * thread::available_parallelism().map_or(1, NonZero::get)).to_string());
    }
    job.run_tests(&mut tests)
}

/// Runs tests that take minutes if the environment enables it.
pub(crate) fn long(job: &Job, arguments: &str) -> Result<()> {
    job.run_tests(cargo_test(arguments).env("ROLLMESH_LONG", "1"))
}

/// Tests the parts of the crates for browsers that need no browser, such as the dashboard's reducer.
pub(crate) fn native_web(job: &Job) -> Result<()> {
    tests(job, &BROWSER_CRATES.map(|name| format!("--package {name}")).join(" "))
}

/// Tests code that depends on the compilation, with the options of the shipped binary.
pub(crate) fn release(job: &Job) -> Result<()> {
    same_bits(job, "--release", |_| ())
}

/// Tests the same with this machine's own instructions.
pub(crate) fn native_cpu(job: &Job) -> Result<()> {
    same_bits(job, "--release", |tests| {
        tests.env("CARGO_TARGET_DIR", target().join("xtask/native-cpu")).env("RUSTFLAGS", "-Ctarget-cpu=native");
    })
}

/// Tests rollouts and learned weights on ARM, with Debian's linker and emulator.
pub(crate) fn aarch64(job: &Job) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    toolchain::ensure(job, TARGET)?;
    if ["qemu-aarch64", "aarch64-linux-gnu-gcc"].into_iter().any(|program| find(program).is_none()) {
        tools::apt_install(job, &["qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])?;
    }
    for (package, tests, filter) in
        [("rollmesh-core", &["--test", "laws"][..], "same_bits"), ("rollmesh-learner", &["--lib"], "same_weights")]
    {
        let mut run = toolchain::cargo_for(TARGET)?;
        run.args(["test", "--locked", "--target", TARGET, "--package", package]).args(tests).args(["--", filter]);
        run.env("CARGO_TARGET_DIR", target().join("xtask/aarch64"))
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu")
            // Candle's dependency gemm has products of 16-bit floats in assembly, which the tests do not use.
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+fp16");
        job.run_tests(&mut run)?;
    }
    Ok(())
}

/// Tests the same without any optimisation.
pub(crate) fn debug(job: &Job) -> Result<()> {
    same_bits(job, "", |_| ())
}

/// Runs the tests that compare hashes with constants, including the long rollouts.
fn same_bits(job: &Job, options: &str, change: fn(&mut Command)) -> Result<()> {
    // The Python package has no such tests: with it, dependencies have the features of the binary's build.
    let packages = "--package rollmesh-core --package rollmesh-wasm --package rollmesh --package rollmesh-python";
    for tests in ["--test laws --test same_bits", "--test program -- kernels:: sample::"] {
        let mut tests = cargo_test(&format!("{options} {packages} {tests}"));
        change(&mut tests);
        job.run_tests(tests.env("ROLLMESH_LONG", "1"))?;
    }
    Ok(())
}

/// Runs benchmarks that fail if an operation exceeds its documented duration. They need the machine for themselves.
pub(crate) fn figures(job: &Job) -> Result<()> {
    // For all default members, so that nothing is compiled again with other features.
    job.run(cargo().args(["bench", "--locked", "--bench", "parquet", "--bench", "evaluation"]))?;
    job.run(node_with_modules(job)?.arg("tests/node/speed.mjs"))
}

/// Returns the command for Node, with the paths of the wasm modules and the binary.
fn node_with_modules(job: &Job) -> Result<Command> {
    let modules = artifacts::node_modules(job)?;
    let mut node = command("node");
    node.env("ROLLMESH_WASM", modules).env("ROLLMESH_BIN", artifacts::binary_path());
    Ok(node)
}

/// Compares the wasm module in Node with the binary.
pub(crate) fn node(job: &Job) -> Result<()> {
    let tests = ["rollout_hash", "sampler", "data_file", "player"].map(|name| format!("tests/node/{name}.test.mjs"));
    job.run_tests(node_with_modules(job)?.args(["--test", "--test-reporter=tap"]).args(tests))?;
    // Leases of every kind, whose fragments only Rust handles.
    job.run_tests(wasm_tests()?.args(["--test", "same_bits"]))
}

/// Returns the command for the tests of the wasm module's crate, in Node unless the environment selects a browser.
fn wasm_tests() -> Result<Command> {
    let mut tests = toolchain::cargo_for(WASM)?;
    tests.args(["test", "--locked", "--release", "--package", "rollmesh-wasm", "--target", WASM]);
    tests.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", "wasm-bindgen-test-runner");
    Ok(tests)
}

/// The long tests of the npm package: with bundlers and other runtimes, and over as many iterations as an hour has.
const LONG_NPM: [&str; 2] = ["bundlers.test.mjs", "memory.test.mjs"];

/// Tests the npm package, installed from the packed file, in Node, including the examples of its README.
pub(crate) fn npm(job: &Job) -> Result<()> {
    let project = artifacts::npm_project(job, "project", &[])?;
    let mut tests = Vec::new();
    for file in fs::read_dir(project.join("test"))? {
        let name = file?.file_name().to_string_lossy().into_owned();
        // Long ones are a separate step.
        if name.ends_with(".test.mjs") && !LONG_NPM.contains(&name.as_str()) {
            tests.push(format!("test/{name}"));
        }
    }
    let mut node = command("node");
    node.args(["--experimental-websocket", "--test", "--test-reporter=tap"]).args(tests).current_dir(project);
    let tsc = target().join("xtask/npm/node_modules/typescript/bin/tsc");
    node.env("ROLLMESH_BIN", artifacts::binary_path()).env("ROLLMESH_ROOT", root()).env("ROLLMESH_TSC", tsc);
    job.run_tests(&mut node)
}

/// Tests the npm package with bundlers and in other runtimes, and its memory over many iterations.
pub(crate) fn npm_long(job: &Job) -> Result<()> {
    let project =
        artifacts::npm_project(job, "bundlers", &["vite@7.1.12", "webpack@5.102.1", "deno@2.5.6", "bun@1.3.2"])?;
    let mut node = command("node");
    node.args(["--test", "--test-reporter=tap"]).args(LONG_NPM.map(|name| format!("test/{name}")));
    job.run_tests(node.current_dir(project))
}

/// Runs the simulator of the group with all faults, with more seeds than the normal tests. Optimised, since the normal tests check
/// debug assertions.
pub(crate) fn simulator(job: &Job) -> Result<()> {
    let mut tests = cargo_test("--release --package rollmesh-tests --test promises -- sim:: ops::");
    job.run_tests(tests.env("ROLLMESH_SIM_SEEDS", "10000").env("PROPTEST_CASES", "10000"))
}

/// Tests environments of Python, with the interpreter of our own virtual environment.
pub(crate) fn python_envs(job: &Job) -> Result<()> {
    let mut tests = cargo_test("--test languages -- python:: --skip python::packages::");
    job.run_tests(tests.env("VIRTUAL_ENV", tools::gymnasium_env()))
}

/// Runs long tests in other languages with the interpreter of a virtual environment that has these packages.
pub(crate) fn with_packages(job: &Job, tests: &str, packages: &[&str]) -> Result<()> {
    let folder = target().join("xtask").join(tests.replace("::", "-"));
    tools::pip_install(job, &tools::virtual_env(job, &folder)?, packages)?;
    let mut run = cargo_test(&format!("--test languages {tests}::"));
    job.run_tests(run.env("VIRTUAL_ENV", folder).env("ROLLMESH_LONG", "1"))
}

/// Tests environments of packages that take minutes to install. PettingZoo's games are drawn with pygame.
pub(crate) fn python_packages(job: &Job) -> Result<()> {
    let packages = ["box2d", "ale-py", "mujoco", "imageio", "packaging", "pettingzoo", "pygame", "pymunk"];
    let packages = [&tools::GYMNASIUM[..], &packages].concat();
    with_packages(job, "python::packages", &packages)
}

/// Tests the Python package in a new virtual environment, including the examples of its documents. With the other versions
/// of Python on this machine it tests that the package can be imported, its batches and that its command line begins.
pub(crate) fn wheel(job: &Job) -> Result<()> {
    python_tests(job, &artifacts::wheel_environment(job)?, "test_*.py")?;
    for python in artifacts::other_wheel_environments(job)? {
        job.run(command(&python).args(["-P", "-m", "rollmesh", "--version"]))?;
        python_tests(job, &python, "test_batch.py")?;
    }
    Ok(())
}

/// Runs the tests of the Python package in files of this pattern.
fn python_tests(job: &Job, python: &Path, pattern: &str) -> Result<()> {
    let mut tests = command(python);
    // Isolated from the sources, so that the installed package is tested.
    tests.args(["-P", "-m", "unittest", "discover", "--verbose", "--pattern", pattern, "--start-directory"]);
    job.run_tests(tests.arg(root().join("python/tests")).env("ROLLMESH_ROOT", root()).current_dir(target()))
}

/// Runs a script of the Python package's tests, with the package and these others in a new virtual environment.
pub(crate) fn wheel_with(job: &Job, packages: &[&str], script: &str) -> Result<()> {
    let python = artifacts::wheel_environment(job)?;
    tools::pip_install(job, &python, packages)?;
    let mut tests = command(python);
    tests.arg("-P").arg(root().join("python/tests").join(script)).current_dir(target());
    job.run_tests(tests.env("ROLLMESH_ROOT", root()).env("ROLLMESH_BIN", artifacts::binary_path()))
}

/// Tests a run on several network namespaces, with and without network faults, if the kernel permits them to this user.
pub(crate) fn network(job: &Job) -> Result<()> {
    if job.output(command("unshare").args(["--net", "ip", "link"])).is_err() {
        job.note("not run: the kernel gives this user no network namespaces, or `ip` is missing");
        return Ok(());
    }
    job.run(command("python3").arg(root().join("tests/network/hosts.py")).env("ROLLMESH_BIN", artifacts::binary_path()))
}

/// Validates the manifests of `deploy/` with the schemas of Kubernetes.
pub(crate) fn manifests(job: &Job) -> Result<()> {
    let python = tools::virtual_env(job, &target().join("xtask/manifests"))?;
    tools::pip_install(job, &python, &["kubernetes-validate"])?;
    job.run(command(python).arg(root().join("deploy/kubernetes/check.py")))
}

/// Tests the wasm module in a Web Worker of headless Chromium.
pub(crate) fn chromium(job: &Job) -> Result<()> {
    let mut tests = wasm_tests()?;
    tests.env("WASM_BINDGEN_USE_DEDICATED_WORKER", "1");
    // Seconds for all tests of a module together; those that learn take several.
    tests.env("WASM_BINDGEN_TEST_TIMEOUT", "300");
    job.run_tests(Chromium::locate()?.export(&mut tests))
}

/// Tests the binary and its page in headless Chromium.
pub(crate) fn e2e(job: &Job) -> Result<()> {
    job.run_tests(e2e_tests("--skip trunk_serve:: --skip own_crate::")?.env("ROLLMESH_NPM", artifacts::npm_files()))
}

/// Tests the page with as many updates as a large hub sends in an hour. It measures frames and needs the machine for
/// itself.
pub(crate) fn load(job: &Job) -> Result<()> {
    job.run_tests(e2e_tests("load:: --nocapture")?.env("ROLLMESH_LONG", "1"))
}

/// Tests the example of a user's crate outside the workspace: its page, built by the documented command, and its
/// program.
pub(crate) fn own_crate(job: &Job) -> Result<()> {
    let folder = env::temp_dir().join(format!("rollmesh-own-crate-{}", process::id()));
    let tested = test_own_crate(job, &folder);
    let removed = fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()));
    // If the copy itself failed, there may be nothing to remove.
    tested.and(removed)
}

fn test_own_crate(job: &Job, folder: &Path) -> Result<()> {
    own_page::copy_example(folder)?;
    own_page::build(folder, |trunk| job.run(trunk.arg("--offline")))?;
    let mut build = cargo();
    build.args(["build", "--release", "--offline"]).current_dir(folder);
    job.run(build.env("CARGO_TARGET_DIR", target()))?;
    let program = target().join(format!("release/rollmesh-example-own-env{}", env::consts::EXE_SUFFIX));
    job.run_tests(e2e_tests("own_crate::")?.env("ROLLMESH_OWN_CRATE", folder).env("ROLLMESH_OWN_PROGRAM", program))
}

/// Tests the page of `trunk serve`, which builds it, in headless Chromium.
pub(crate) fn trunk_serve(job: &Job) -> Result<()> {
    let mut trunk = command(find("trunk").context("there is no trunk")?);
    toolchain::prepare(&mut trunk, WASM)?;
    let mut tests = e2e_tests("trunk_serve::")?;
    tests.env("ROLLMESH_TRUNK", trunk.get_program());
    // The tests themselves are compiled with another environment than the page.
    for (name, value) in trunk.get_envs() {
        tests.env(format!("ROLLMESH_TRUNK_ENV_{}", name.display()), value.unwrap_or_default());
    }
    job.run_tests(&mut tests)
}

fn e2e_tests(filter: &str) -> Result<Command> {
    let mut tests = cargo_test(&format!("--test e2e -- {filter}"));
    tests.env("ROLLMESH_BIN", artifacts::binary_path()).env("ROLLMESH_DIST", artifacts::page_path());
    tests.env("ROLLMESH_AXE", tools::axe_path());
    Chromium::locate()?.export(&mut tests);
    Ok(tests)
}
