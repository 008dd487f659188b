//! The features for NVIDIA's GPUs, without a GPU: the compiler comes from PyPI.

use std::{env, ffi::OsString, fs, path::PathBuf};

use anyhow::{Context as _, Result, anyhow};

use crate::{
    job::Job,
    tools::{pip_install, virtual_env},
    workspace::{cargo, tools},
};

/// The CUDA release. 13.0 runs with every driver for CUDA 13, and compiles for GPUs of compute capability 7.5 and
/// newer.
const RELEASE: &str = "13.0";
/// The packages of the compiler of candle's kernels.
const WHEELS: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl"];
/// The lowest compute capability that supports all of candle's kernels: 8.0.
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
