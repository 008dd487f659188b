//! Compilation for targets other than this machine: by rustup's targets, or where its server cannot
//! be reached by Debian's own compiler, which builds the standard library from source.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    job::Job,
    tools::apt_install,
    workspace::{cargo, command, path_with, tools},
};

/// The target for browsers.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";
/// A target without an operating system, to prove that core needs none.
pub(crate) const BARE: &str = "thumbv7em-none-eabihf";

/// Debian's cargo, which is installed alongside rustup's.
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LINKER: &str = "wasm-ld-22";
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "lld-22"];

/// Makes sure that `target` can be compiled for.
pub(crate) fn ensure(job: &Job, target: &str) -> Result<()> {
    if has_std(target) {
        job.note("already there");
        return Ok(());
    }
    let by_rustup = job.run(command("rustup").args(["target", "add", target]));
    if by_rustup.is_ok() && has_std(target) {
        return Ok(());
    }
    if !debian_can_build_std() {
        let by_apt = apt_install(job, DEBIAN_PACKAGES);
        if by_apt.is_err() || !debian_can_build_std() {
            bail!(
                "no compiler here can build for {target}, and neither rustup nor apt could bring it.\n  \
                 What to do: `rustup target add {target}` with access to the network, or on Debian as root \
                 `apt-get install {}`",
                DEBIAN_PACKAGES.join(" ")
            );
        }
    }
    job.note("by Debian's compiler, which builds the standard library as it goes");
    // Includes the dependencies of the standard library.
    job.run(cargo_for(target)?.args(["fetch", "--locked", "--target", target]))
}

/// Returns whether the compiler in use has a standard library for `target`.
fn has_std(target: &str) -> bool {
    let printed = command("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let Ok(printed) = printed else { return false };
    let folder = PathBuf::from(String::from_utf8_lossy(&printed.stdout).trim());
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

fn debian_can_build_std() -> bool {
    let sysroot = Command::new(DEBIAN_RUSTC).args(["--print", "sysroot"]).output();
    let Ok(sysroot) = sysroot else { return false };
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    Path::new(DEBIAN_CARGO).exists() && sysroot.join("lib/rustlib/src/rust/library").exists()
}

/// Returns whether Debian's compiler compiles for `target`, so that tools of the usual one, such as clippy, do not fit.
pub(crate) fn is_fallback(target: &str) -> bool {
    !has_std(target) && debian_can_build_std()
}

/// Returns the cargo that compiles for `target`.
pub(crate) fn cargo_for(target: &str) -> Result<Command> {
    let mut cargo = if is_fallback(target) { command(DEBIAN_CARGO) } else { cargo() };
    prepare(&mut cargo, target)?;
    Ok(cargo)
}

/// Prepares a command that starts cargo by itself to compile for `target`.
pub(crate) fn prepare(command: &mut Command, target: &str) -> Result<()> {
    if !is_fallback(target) {
        return Ok(());
    }
    let std = if target == WASM { "std,panic_abort" } else { "core,alloc" };
    command
        .env("PATH", path_with(Some(debian_bin()?)))
        .env("CARGO", DEBIAN_CARGO)
        .env("RUSTC", DEBIAN_RUSTC)
        // Building the standard library is an unstable feature of a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_UNSTABLE_BUILD_STD", std)
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
    Ok(())
}

/// Returns a folder with only Debian's cargo, so that it precedes others on a PATH, but the rest of /usr/bin does not.
fn debian_bin() -> Result<PathBuf> {
    let folder = tools().join("debian");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let link = folder.join(format!("cargo{}", env::consts::EXE_SUFFIX));
    #[cfg(unix)]
    if !link.exists() {
        std::os::unix::fs::symlink(DEBIAN_CARGO, &link).with_context(|| format!("cannot create {}", link.display()))?;
    }
    Ok(folder)
}
