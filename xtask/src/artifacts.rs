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

/// The binary with the page inside, in [`dist_path`].
pub(crate) fn program(job: &Job) -> Result<()> {
    let folder = dist_path();
    let written = || format!("cannot write {}", folder.display());
    fs::create_dir_all(&folder).with_context(written)?;
    job.run(cargo().args(SHIPPED).args(["--features", "embed"]))?;
    // Moved, so that no other step takes it for the one without.
    fs::rename(binary_path(), folder.join(binary_name())).with_context(written)
}

/// Everything that is given away, in [`dist_path`], all of one version: the binary with the page inside, the page alone for any static
/// host, the crates, the wheel, and the npm package.
pub(crate) fn dist(job: &Job) -> Result<()> {
    // Files of earlier versions would be given away, too; they stay until all of this version are there.
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
    // Each was compiled by the other steps.
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

/// A dry run of publishing: packages the published crates, and compiles each from its package.
pub(crate) fn packages(job: &Job) -> Result<()> {
    job.run(&mut package())
}

fn package() -> Command {
    let mut package = cargo();
    package.args(["package", "--locked", "--allow-dirty"]);
    package.args(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    package
}

/// The version of everything.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The crates that are published, each after those that it uses.
const PUBLISHED: [&str; 5] = ["rollmesh-kernels", "rollmesh-core", "rollmesh-learner", "rollmesh-data", "rollmesh"];

/// The binary for tests, from dependencies with the features that the Python package wants of them: these are compiled once for
/// both.
const RELEASE: [&str; 9] =
    ["build", "--locked", "--release", "--package", "rollmesh", "--package", "rollmesh-python", "--bin", "rollmesh"];

/// The binary as its users build it.
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

/// The wasm modules for Node; returns the folder that they are in.
pub(crate) fn node_modules(job: &Job) -> Result<PathBuf> {
    let modules = ["rollmesh_wasm", "rollmesh_reader"];
    wasm_modules(job, &modules)?;
    let folder = target().join("xtask/node");
    for module in modules {
        bindings(job, "nodejs", module, &folder)?;
    }
    Ok(folder)
}

/// The folder in which the npm package is built and packed.
fn npm_stage() -> PathBuf {
    target().join("xtask/npm")
}

/// The files of the npm package.
pub(crate) fn npm_files() -> PathBuf {
    npm_stage().join("package")
}

/// The npm package, packed, in [`npm_stage`].
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

/// An empty project in which nothing but the packed package and these packages of the registry are installed.
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

/// The Python package, installed in a fresh virtual environment with what its tests need; returns its interpreter.
pub(crate) fn wheel_environment(job: &Job) -> Result<PathBuf> {
    let wheel = wheel(job)?;
    let folder = target().join("xtask/wheel");
    let python = tools::virtual_env(job, &folder.join("venv"))?;
    tools::pip_install(job, &python, &[wheel])?;
    tools::pip_install(job, &python, &tools::GYMNASIUM)?;
    Ok(python)
}

/// The Python package as a wheel.
fn wheel(job: &Job) -> Result<PathBuf> {
    let folder = target().join("xtask/wheel");
    // Wheels of earlier versions would be installed, too.
    let _ = fs::remove_dir_all(&folder);
    let mut build = command(tools::maturin_path());
    build.args(["build", "--locked", "--release", "--manifest-path"]).arg(root().join("python/Cargo.toml"));
    job.run(build.arg("--out").arg(folder.join("dist")))?;
    Ok(fs::read_dir(folder.join("dist"))?.next().context("maturin wrote no wheel")??.path())
}

/// These modules of the crate for JavaScript, for the browser.
fn wasm_modules(job: &Job, modules: &[&str]) -> Result<()> {
    let mut build = toolchain::cargo_for(WASM)?;
    build.args(["build", "--locked", "--profile", "wasm", "--target", WASM, "--package", "rollmesh-modules"]);
    job.run(build.args(modules.iter().flat_map(|module| ["--bin", module])))
}

/// Optimises a module for size, as trunk does for the page.
fn shrink(job: &Job, module: &Path) -> Result<()> {
    job.run(command("wasm-opt").args(["-Oz", "--output"]).arg(module).arg(module))
}

/// What JavaScript imports of a wasm module of that crate.
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
