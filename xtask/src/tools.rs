//! The tools that the page and its tests need, with their versions, installed under the target directory.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    job::Job,
    workspace::{self, cargo, command, find, root, tools},
};

const TRUNK: &str = "0.21.14";
const BINARYEN: &str = "132.0.0";
const AXE: &str = "4.14.1";

/// Returns the version of the wasm-bindgen command, which must equal the library's, so the lock file pins it.
fn wasm_bindgen_version() -> Result<String> {
    let lock = root().join("Cargo.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    locked_version(&text, "wasm-bindgen").ok_or_else(|| anyhow!("Cargo.lock names no wasm-bindgen"))
}

fn locked_version(lock: &str, package: &str) -> Option<String> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    Some(version.trim_end_matches('"').to_owned())
}

pub(crate) fn wasm_bindgen(job: &Job) -> Result<()> {
    // Without --locked: its lock file names a version of a crate that has been withdrawn.
    cargo_install(job, "wasm-bindgen-cli", "wasm-bindgen", &wasm_bindgen_version()?, "1", &[])
}

pub(crate) fn trunk(job: &Job) -> Result<()> {
    // Without its check for newer versions of itself.
    let options = ["--locked", "--no-default-features", "--features", "rustls"];
    // Unoptimised, since trunk itself only runs other tools.
    cargo_install(job, "trunk", "trunk", TRUNK, "0", &options)
}

/// Installs a crate's binary unless one of that version is found. Its options shorten the build instead of making it
/// fast.
fn cargo_install(
    job: &Job,
    package: &str,
    binary: &str,
    version: &str,
    opt_level: &str,
    options: &[&str],
) -> Result<()> {
    job.note(version);
    if answers_version(binary, version) {
        return Ok(());
    }
    // A separate folder: two tools may be built at the same time.
    let build = tools().join("build").join(package);
    let mut install = patient(cargo());
    install
        .args(["install", package, "--version", version, "--force", "--root"])
        .arg(tools())
        .args(options)
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", opt_level)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    job.run(&mut install)
        .with_context(|| format!("{package} {version} could not be installed; this needs the crate registry"))?;
    // This frees a gigabyte that is not used again.
    let _ = fs::remove_dir_all(build);
    if !answers_version(binary, version) {
        bail!("{package} was installed, but `{binary} --version` does not answer {version}");
    }
    Ok(())
}

/// Returns the same command at the lowest priority, so that tests that run at the same time do not wait for it.
fn patient(command: Command) -> Command {
    if find("nice").is_none() {
        return command;
    }
    let mut patient = workspace::command("nice");
    patient.args(["-n", "19"]).arg(command.get_program());
    patient
}

/// Returns whether the first `binary` that our commands would start is of this version.
fn answers_version(binary: &str, version: &str) -> bool {
    let output = command(binary).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).split_whitespace().any(|word| word == version))
}

/// Installs wasm-opt from its official npm package, since distributions have too old versions.
pub(crate) fn wasm_opt(job: &Job) -> Result<()> {
    npm_tool(job, "binaryen", BINARYEN)
}

/// Installs axe-core, which checks the accessibility of a page.
pub(crate) fn axe(job: &Job) -> Result<()> {
    npm_tool(job, "axe-core", AXE)
}

/// Returns the path of the script of axe-core.
pub(crate) fn axe_path() -> PathBuf {
    tools().join("npm/node_modules/axe-core/axe.min.js")
}

/// The oldest Node.js that the tools and the npm package run in.
const NODE: u32 = 20;

/// Checks that npm and a Node.js of this version or a newer one are installed.
fn check_node(job: &Job) -> Result<()> {
    let what_to_do = format!("install Node.js {NODE} or newer, with npm");
    if find("npm").is_none() {
        bail!("there is no `npm` here.\n  What to do: {what_to_do}");
    }
    let printed = job.output(command("node").arg("--version")).with_context(|| what_to_do.clone())?;
    let version = printed.trim();
    match node_version(version) {
        Some(found) if found >= NODE => Ok(()),
        _ => bail!("`node` is {version}.\n  What to do: {what_to_do}"),
    }
}

/// Parses the major version of `v20.11.1`.
fn node_version(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Installs a package of the npm registry in this version.
fn npm_tool(job: &Job, name: &str, version: &str) -> Result<()> {
    check_node(job)?;
    job.note(version);
    let folder = tools().join("npm");
    if npm_version(&folder.join("node_modules").join(name)).as_deref() == Some(version) {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut install = command("npm");
    install.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg(format!("{name}@{version}"));
    job.run(&mut install)
        .with_context(|| format!("{name} {version} could not be installed; this needs the npm registry"))
}

fn npm_version(package: &Path) -> Option<String> {
    let manifest = fs::read_to_string(package.join("package.json")).ok()?;
    let (_, rest) = manifest.split_once("\"version\":")?;
    Some(rest.split('"').nth(1)?.to_owned())
}

/// The oldest Python that the client supports.
const PYTHON: (u32, u32) = (3, 9);

/// Makes sure that Python is installed; its standard library is enough.
pub(crate) fn python(job: &Job) -> Result<()> {
    if find("python3").is_none() {
        apt_install(job, &["python3"]).context("install Python as `python3`")?;
    }
    check_python(job, PYTHON)
}

/// Checks that `python3` is of this version or a newer one.
fn check_python(job: &Job, oldest: (u32, u32)) -> Result<()> {
    let what_to_do = format!("install Python {}.{} or newer as `python3`", oldest.0, oldest.1);
    let printed = job.output(command("python3").arg("--version")).with_context(|| what_to_do.clone())?;
    let version = printed.trim().trim_start_matches("Python ");
    job.note(version);
    match python_version(version) {
        Some(found) if found >= oldest => Ok(()),
        _ => bail!("`python3` is {version}.\n  What to do: {what_to_do}"),
    }
}

/// The packages that Python environments need, with their versions.
pub(crate) const GYMNASIUM: [&str; 2] = ["gymnasium==1.4.0", "numpy>=2.0,<3"];
/// The oldest Python that hosts environments, which needs `-P`, and that loads the Python package.
const HOST_PYTHON: (u32, u32) = (3, 11);

/// Makes sure that a virtual environment with pip exists, and returns its interpreter.
pub(crate) fn virtual_env(job: &Job, folder: &Path) -> Result<PathBuf> {
    check_python(job, HOST_PYTHON)?;
    virtual_env_of(job, Path::new("python3"), folder)
}

/// Works like [`virtual_env`], with this interpreter.
pub(crate) fn virtual_env_of(job: &Job, interpreter: &Path, folder: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python3");
    // The first line includes the folder of pip.
    let printed = job.output(command(&python).args(["-m", "pip", "--version"]));
    if printed.is_ok_and(|printed| printed.contains(&*folder.to_string_lossy())) {
        return Ok(python);
    }
    // If it is interrupted, or without `ensurepip`, which Debian packages separately, `venv` leaves a folder without
    // pip.
    let _ = fs::remove_dir_all(folder);
    if job.output(command(interpreter).args(["-c", "import ensurepip"])).is_err() {
        apt_install(job, &["python3-venv"])
            .context("install `ensurepip` for `python3`; Debian's package is python3-venv")?;
    }
    job.run(command(interpreter).args(["-m", "venv"]).arg(folder))?;
    Ok(python)
}

/// Returns interpreters of other versions than that of `python3` that load the Python package: those in the PATH, and
/// pyenv's. Those without `ensurepip`, which Debian packages separately, are left out.
pub(crate) fn other_pythons(job: &Job) -> Vec<PathBuf> {
    let version = |python: &Path| {
        let program = "import ensurepip, platform; print(platform.python_version())";
        let printed = job.output(command(python).args(["-c", program])).ok()?;
        python_version(printed.trim())
    };
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = pyenv.and_then(|folder| fs::read_dir(folder.join("versions")).ok());
    let of_pyenv = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin/python3"));
    let (major, oldest) = HOST_PYTHON;
    let in_path = (oldest..oldest + 10).map(|minor| PathBuf::from(format!("python{major}.{minor}")));
    let (mut known, mut others) = (vec![version(Path::new("python3"))], Vec::new());
    for python in in_path.chain(of_pyenv) {
        let found = version(&python);
        if found >= Some(HOST_PYTHON) && !known.contains(&found) {
            known.push(found);
            others.push(python);
        }
    }
    others
}

/// Installs Python packages in a virtual environment.
pub(crate) fn pip_install(job: &Job, python: &Path, packages: &[impl AsRef<OsStr>]) -> Result<()> {
    let mut install = command(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    job.run(&mut install).context("pip installed nothing; this needs the registry of Python packages")
}

/// Returns the folder of Python's packages for tests.
pub(crate) fn gymnasium_env() -> PathBuf {
    tools().join("python")
}

/// Installs Gymnasium in a virtual environment.
pub(crate) fn gymnasium(job: &Job) -> Result<()> {
    pip_install(job, &virtual_env(job, &gymnasium_env())?, &GYMNASIUM)?;
    job.note(GYMNASIUM[0]);
    Ok(())
}

/// The package that builds the Python package, with its version.
const MATURIN: &str = "maturin==1.16.0";

/// Returns the program that builds the Python package, in a separate virtual environment.
pub(crate) fn maturin_path() -> PathBuf {
    tools().join("maturin/bin/maturin")
}

pub(crate) fn maturin(job: &Job) -> Result<()> {
    pip_install(job, &virtual_env(job, &tools().join("maturin"))?, &[MATURIN])?;
    job.note(MATURIN);
    Ok(())
}

/// Parses the first two numbers of `3.11.7`.
fn python_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Installs Debian packages if this user may: as root, with apt-get.
pub(crate) fn apt_install(job: &Job, packages: &[&str]) -> Result<()> {
    if find("apt-get").is_none() {
        bail!("there is no apt-get here");
    }
    if job.output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("only root may install packages");
    }
    let apt = || {
        let mut apt = command("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    job.run(apt().arg("update"))?;
    job.run(apt().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_python_are_compared_by_number() {
        assert!(python_version("3.11.7") > Some(PYTHON) && python_version("3.9.0rc1") == Some(PYTHON));
        assert!(python_version("3.8.20") < Some(PYTHON) && python_version("command not found").is_none());
    }

    #[test]
    fn versions_of_node_are_compared_by_number() {
        assert!(node_version("v20.11.1") == Some(NODE) && node_version("v100.0.0") > Some(NODE));
        assert!(node_version("v8.17.0") < Some(NODE) && node_version("command not found").is_none());
    }

    const LOCK: &str = "[[package]]\nname = \"wasm-bindgen-macro\"\nversion = \"0.2.1\"\n\n\
                        [[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.130\"\n";

    #[test]
    fn the_locked_version_is_found_by_the_whole_name() {
        assert_eq!(locked_version(LOCK, "wasm-bindgen").as_deref(), Some("0.2.130"));
        assert_eq!(locked_version(LOCK, "wasm"), None);
    }
}
