//! Build steps: the page, the binary with and without it, the wasm module.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    job::Job,
    toolchain::{self, WASM},
    tools,
    workspace::{cargo, command, root, target},
};

/// Downloads crates into cargo's cache, with progress; trunk then builds without the network.
pub(crate) fn fetch(job: &Job) -> Result<()> {
    job.run(cargo().args(["fetch", "--locked"]))
}

/// Builds the dashboard, at [`page_path`].
pub(crate) fn page(job: &Job) -> Result<()> {
    let mut trunk = command("trunk");
    trunk.args(["build", "--release", "--offline"]);
    // trunk parses NO_COLOR as a boolean and rejects "1".
    trunk.env_remove("NO_COLOR");
    toolchain::prepare(&mut trunk, WASM)?;
    job.run(&mut trunk)
}

/// Builds the binary `rollmesh`, at [`binary_path`].
pub(crate) fn binary(job: &Job) -> Result<()> {
    job.run(cargo().args(RELEASE))
}

/// Builds the binary with the embedded page, in [`dist_path`].
pub(crate) fn program(job: &Job) -> Result<()> {
    let folder = dist_path();
    let written = || format!("cannot write {}", folder.display());
    fs::create_dir_all(&folder).with_context(written)?;
    job.run(cargo().args(SHIPPED).args(["--features", "embed"]))?;
    // Moved, so that no other step uses it instead of the one without the page.
    fs::rename(binary_path(), folder.join(binary_name())).with_context(written)
}

/// Builds all artifacts of a release, in [`dist_path`], all of one version: the binary with the embedded page, the page
/// alone for any static host, the crates, the wheel, and the npm package.
pub(crate) fn dist(job: &Job) -> Result<()> {
    // Files of earlier versions would be published, too; they stay until all files of this version exist.
    let folder = target().join("xtask/dist");
    let written = || format!("cannot write {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(written)?;
    job.run(
        command("tar")
            .arg("-czf")
            .arg(folder.join(format!("rollmesh-page-{VERSION}.tar.gz")))
            .arg("-C")
            .arg(page_path())
            .arg("."),
    )?;
    // The other steps have compiled each crate.
    job.run(package().arg("--no-verify"))?;
    let mut files: Vec<PathBuf> =
        PUBLISHED.iter().map(|name| target().join(format!("package/{name}-{VERSION}.crate"))).collect();
    files.push(wheel(job)?);
    files.push(npm_stage().join(format!("rollmesh-{VERSION}.tgz")));
    files.push(dist_path().join(binary_name()));
    for file in files {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(&file, folder.join(name)).with_context(|| format!("{} was not built", file.display()))?;
    }
    fs::remove_dir_all(dist_path()).with_context(written)?;
    fs::rename(&folder, dist_path()).with_context(written)
}

/// Makes a dry run of publishing: packages the published crates, and compiles each from its package.
pub(crate) fn packages(job: &Job) -> Result<()> {
    job.run(&mut package())
}

fn package() -> Command {
    let mut package = cargo();
    package.args(["package", "--locked", "--allow-dirty"]);
    package.args(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    package
}

/// The version of all artifacts.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The published crates, each after those that it uses.
const PUBLISHED: [&str; 5] = ["rollmesh-kernels", "rollmesh-core", "rollmesh-learner", "rollmesh-data", "rollmesh"];

/// The arguments of the build for tests. Dependencies have the features that the Python package needs, so they are
/// compiled once for both.
const RELEASE: [&str; 9] =
    ["build", "--locked", "--release", "--package", "rollmesh", "--package", "rollmesh-python", "--bin", "rollmesh"];

/// The arguments of the build by users.
pub(crate) const SHIPPED: [&str; 7] = ["build", "--locked", "--release", "--package", "rollmesh", "--bin", "rollmesh"];

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
    target().join("dist")
}

/// Builds the wasm modules for Node, and returns their folder.
pub(crate) fn node_modules(job: &Job) -> Result<PathBuf> {
    let modules = ["rollmesh_wasm", "rollmesh_reader"];
    wasm_modules(job, &modules)?;
    let folder = target().join("xtask/node");
    for module in modules {
        bindings(job, "nodejs", module, &folder)?;
    }
    Ok(folder)
}

/// Returns the folder in which the npm package is built and packed.
fn npm_stage() -> PathBuf {
    target().join("xtask/npm")
}

/// Returns the folder with the files of the npm package.
pub(crate) fn npm_files() -> PathBuf {
    npm_stage().join("package")
}

/// Builds and packs the npm package, in [`npm_stage`].
pub(crate) fn npm_package(job: &Job) -> Result<()> {
    let modules = ["rollmesh_wasm", "rollmesh_reader", "rollmesh_trainer"];
    wasm_modules(job, &modules)?;
    let stage = npm_stage();
    // Modules that were removed from the sources would be packed, too.
    let _ = fs::remove_dir_all(stage.join("src"));
    let folder = stage.join("src/wasm");
    for module in modules {
        bindings(job, "web", module, &folder)?;
        shrink(job, &folder.join(format!("{module}_bg.wasm")))?;
    }
    let manifest = root().join("web/npm/package.json");
    fs::copy(&manifest, stage.join("package.json")).with_context(|| format!("cannot copy {}", manifest.display()))?;
    let mut install = command("npm");
    job.run(install.args(["install", "--no-audit", "--no-fund", "--prefer-offline"]).current_dir(&stage))
        .context("the package's tools could not be installed; this needs the npm registry")?;
    job.run(command("node").arg("web/npm/build.mjs").arg(&stage))?;
    job.run(command("npm").args(["pack", "./package", "--silent"]).current_dir(&stage))
}

/// Creates an empty project with only the packed package and these packages of the registry installed.
pub(crate) fn npm_project(job: &Job, name: &str, others: &[&str]) -> Result<PathBuf> {
    let project = npm_stage().join(name);
    let written = || format!("cannot write {}", project.display());
    // Tests that were removed from the sources would run, too.
    let _ = fs::remove_dir_all(&project);
    fs::create_dir_all(project.join("test")).with_context(written)?;
    fs::write(project.join("package.json"), r#"{ "private": true, "type": "module" }"#).with_context(written)?;
    let tests = root().join("web/npm/test");
    for file in fs::read_dir(&tests).with_context(|| format!("cannot read {}", tests.display()))? {
        let file = file?;
        fs::copy(file.path(), project.join("test").join(file.file_name())).with_context(written)?;
    }
    let packed = format!("../rollmesh-{VERSION}.tgz");
    let mut install = command("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefer-offline", &packed]).args(others);
    job.run(install.current_dir(&project))?;
    Ok(project)
}

/// Installs the Python package in a new virtual environment with the packages for its tests, and returns its
/// interpreter.
pub(crate) fn wheel_environment(job: &Job) -> Result<PathBuf> {
    let wheel = wheel(job)?;
    let python = tools::virtual_env(job, &target().join("xtask/wheel/venv"))?;
    install_wheel(job, &python, &wheel)?;
    Ok(python)
}

/// Installs the Python package that [`wheel_environment`] has built in new virtual environments of the other versions of
/// Python on this machine, and returns their interpreters.
pub(crate) fn other_wheel_environments(job: &Job) -> Result<Vec<PathBuf>> {
    let folder = target().join("xtask/wheel");
    let (wheel, mut pythons) = (built_wheel(&folder)?, Vec::new());
    for (at, interpreter) in tools::other_pythons(job).iter().enumerate() {
        let python = tools::virtual_env_of(job, interpreter, &folder.join(format!("venv-{at}")))?;
        install_wheel(job, &python, &wheel)?;
        pythons.push(python);
    }
    Ok(pythons)
}

fn install_wheel(job: &Job, python: &Path, wheel: &Path) -> Result<()> {
    tools::pip_install(job, python, &[wheel])?;
    tools::pip_install(job, python, &tools::GYMNASIUM)
}

/// Builds the Python package as a wheel.
fn wheel(job: &Job) -> Result<PathBuf> {
    let folder = target().join("xtask/wheel");
    // Wheels of earlier versions would be installed, too.
    let _ = fs::remove_dir_all(&folder);
    let mut build = command(tools::maturin_path());
    build.args(["build", "--locked", "--release", "--manifest-path"]).arg(root().join("python/Cargo.toml"));
    job.run(build.arg("--out").arg(folder.join("dist")))?;
    built_wheel(&folder)
}

fn built_wheel(folder: &Path) -> Result<PathBuf> {
    Ok(fs::read_dir(folder.join("dist"))?.next().context("maturin wrote no wheel")??.path())
}

/// Builds these modules of the crate for JavaScript, for the browser.
fn wasm_modules(job: &Job, modules: &[&str]) -> Result<()> {
    let mut build = toolchain::cargo_for(WASM)?;
    build.args(["build", "--locked", "--profile", "wasm", "--target", WASM, "--package", "rollmesh-modules"]);
    job.run(build.args(modules.iter().flat_map(|module| ["--bin", module])))
}

/// Optimises a module for size, as trunk does for the page.
fn shrink(job: &Job, module: &Path) -> Result<()> {
    job.run(command("wasm-opt").args(["-Oz", "--output"]).arg(module).arg(module))
}

/// Generates the JavaScript bindings of a wasm module of that crate.
fn bindings(job: &Job, kind: &str, module: &str, folder: &Path) -> Result<()> {
    let wasm = target().join(WASM).join(format!("wasm/{module}.wasm"));
    let mut bindgen = command("wasm-bindgen");
    bindgen.args([
        "--target",
        kind,
        "--omit-default-module-path",
        "--remove-name-section",
        "--remove-producers-section",
    ]);
    job.run(bindgen.arg("--out-dir").arg(folder).arg(wasm))
}
