//! The features for NVIDIA's GPUs, without a GPU: its compiler comes from Python's registry.

use std::{env, ffi::OsString, fs, path::PathBuf};

use anyhow::{Context as _, Result, anyhow};

use crate::{
    job::Job,
    tools::{pip_install, virtual_env},
    workspace::{cargo, tools},
};

/// The newest release that cudarc 0.19 takes and the lent machines have.
const RELEASE: &str = "13.0";
/// What candle's kernels are compiled with.
const WHEELS: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"];
/// The oldest GPUs that have all of candle's kernels.
const COMPUTE_CAPABILITY: &str = "80";

/// Type-checks the program with the feature `cuda`, candle's kernels included.
pub(crate) fn check(job: &Job) -> Result<()> {
    let toolkit = toolkit(job)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = [toolkit.join("bin")].into_iter().chain(env::split_paths(&path));
    let path: OsString = env::join_paths(paths).context("PATH holds a folder with a colon")?;
    let options = ["check", "--locked", "--package", "rollmesh", "--features", "cuda"];
    let mut check = cargo();
    check.args(options).env("PATH", path).env("CUDA_COMPUTE_CAP", COMPUTE_CAPABILITY);
    for variable in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        check.env(variable, &toolkit);
    }
    job.note(format!("type-checked with nvcc {RELEASE}"));
    job.run(&mut check)
}

/// Installs the wheels in a virtual environment and returns the folder that a CUDA toolkit would have.
fn toolkit(job: &Job) -> Result<PathBuf> {
    let folder = tools().join("cuda");
    let python = virtual_env(job, &folder)?;
    pip_install(job, &python, &WHEELS.map(|name| format!("{name}=={RELEASE}.*")))?;
    let versions = fs::read_dir(folder.join("lib")).context("the virtual environment has no packages")?;
    let mut toolkits = versions.flatten().map(|version| version.path().join("site-packages/nvidia/cu13"));
    toolkits.find(|toolkit| toolkit.join("bin/nvcc").exists()).ok_or_else(|| anyhow!("the wheels brought no nvcc"))
}
