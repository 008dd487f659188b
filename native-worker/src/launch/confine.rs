//! A worker's process, held to what it was granted. It does so itself, when it starts: no code runs between fork and exec.

#[cfg(unix)]
use std::io;

use clap::Args;
use serde::{Deserialize, Serialize};

/// The environment variable by which programs find their GPUs.
pub(super) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// What a launcher tells a worker's process of its grant.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfineFlags {
    /// Run on these CPUs only
    #[arg(long, hide = true, value_delimiter = ',', value_name = "CPU")]
    only_cpus: Vec<u32>,
    /// Take at most this many bytes for data
    #[arg(long, hide = true, value_name = "BYTES")]
    memory_limit: Option<u64>,
}

/// What a process is held to.
pub(crate) struct Confinement<'a> {
    pub(crate) cpus: &'a [u32],
    pub(crate) gpus: Option<&'a [String]>,
    pub(crate) memory: Option<u64>,
}

impl Confinement<'_> {
    /// The same for a process that is told otherwise than by its arguments.
    pub(crate) fn flags(&self) -> ConfineFlags {
        ConfineFlags { only_cpus: self.cpus.to_vec(), memory_limit: self.memory }
    }

    /// Arguments of the worker's process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if !self.cpus.is_empty() {
            let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
            arguments.extend(["--only-cpus".into(), cpus.join(",")]);
        }
        if let Some(bytes) = self.memory {
            arguments.extend(["--memory-limit".into(), bytes.to_string()]);
        }
        arguments
    }

    /// Environment variables of the worker's process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if let Some(gpus) = self.gpus {
            variables.push((VISIBLE_DEVICES, gpus.join(",")));
        }
        if self.memory.is_some() {
            // The allocator sets a GiB of addresses aside, which must not count as data before it is used.
            variables.push(("MIMALLOC_ARENA_EAGER_COMMIT", "0".into()));
        }
        variables
    }
}

impl ConfineFlags {
    /// Holds this process to them: threads that are started from now on, and what they allocate.
    pub(crate) fn apply(&self) -> Result<(), String> {
        #[cfg(target_os = "linux")]
        if !self.only_cpus.is_empty() {
            let mut set = rustix::thread::CpuSet::new();
            for &cpu in self.only_cpus.iter().filter(|&&cpu| (cpu as usize) < rustix::thread::CpuSet::MAX_CPU) {
                set.set(cpu as usize);
            }
            rustix::thread::sched_setaffinity(None, &set)
                .map_err(|error| format!("this process may not run on CPUs {:?} alone: {error}", self.only_cpus))?;
        }
        #[cfg(unix)]
        if let Some(bytes) = self.memory_limit {
            limit_memory(bytes).map_err(|error| format!("this process cannot be held to {bytes} bytes: {error}"))?;
        }
        Ok(())
    }
}

/// From here on, asking for more data than that fails in this process.
#[cfg(unix)]
pub(crate) fn limit_memory(bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Data).maximum;
    let bytes = bytes.min(hard.unwrap_or(u64::MAX));
    setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    Ok(())
}
