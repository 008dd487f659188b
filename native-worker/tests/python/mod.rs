//! Environments of Python: their spaces, rows and failures, runs with workers that die, and that none runs without
//! permission.
//!
//! They need a Python with Gymnasium, so no bare `cargo test` runs them: `cargo xtask test python-envs` does.

mod failures;
mod fingerprints;
mod games;
mod matrix;
mod packages;
mod pictures;
mod runs;
mod same;
mod simulators;
mod spaces;
mod unasked;
mod vectors;

use std::{path::Path, sync::Once};

use rollmesh::{Registry, envs::PythonSettings, native};
use rollmesh_core::{
    config::Config,
    env::{AnyVectorEnv, EnvContext, EnvError, EnvRegistry, EnvSpec, ProcessLimits},
    ids::HomeIndex,
    kernels::Kernels,
};

/// Milliseconds for a call on a busy machine.
const PATIENT: u32 = 60_000;

/// Returns the interpreter with Gymnasium.
fn interpreter() -> std::path::PathBuf {
    let folder = std::env::var_os("VIRTUAL_ENV").expect("a virtual environment: run `cargo xtask test python-envs`");
    Path::new(&folder).join("bin/python3")
}

/// Returns the module `lab`, which is only found where this is in `PYTHONPATH`.
fn lab() -> String {
    format!("{}/tests/python/lab", env!("CARGO_MANIFEST_DIR"))
}

/// Returns a Python environment in this process, as any program resolves it once it may run.
fn spec(name: &str) -> EnvSpec {
    registry().spec(name).unwrap()
}

/// Returns the environments of a program where those of the lab may run.
fn registry() -> EnvRegistry {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let allowed =
            "gym:*,gym:lab:*,gym:ale_py:*,pettingzoo:*,pettingzoo:lab:*,pettingzoo:pettingzoo.classic.*:*,py:lab,py:no_such_module";
        // The lab is next to this file, so a shell script that sets its path stands for the interpreter.
        let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-with-lab");
        // MuJoCo logs into the current folder.
        let folder = env!("CARGO_TARGET_TMPDIR");
        let text = format!("#!/bin/sh\ncd {folder} && PYTHONPATH={} exec {} \"$@\"\n", lab(), interpreter().display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let allowed = allowed.parse().unwrap();
        PythonSettings { allowed, interpreter: Some(script), processes: None }.install();
    });
    native(Registry::builtin()).envs
}

fn context(config: &str) -> EnvContext {
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
    context.with_config(config.parse::<Config>().unwrap())
}

/// Makes the given number of lanes, of which a call may take this time.
fn make(name: &str, config: &str, lanes: usize, timeout_ms: u32) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
    let limits = ProcessLimits { timeout_ms, ..ProcessLimits::default() };
    let context = EnvContext { limits, ..context(config) };
    spec(name).make(&vec![context; lanes], Kernels::PORTABLE)
}
