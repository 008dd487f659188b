//! Confining a worker's process to its grant. The process does it itself when it starts: no code runs between fork and exec.

#[cfg(unix)]
use std::io;

use serde::{Deserialize, Serialize};

/// The environment variable that lists a program's visible GPUs.
pub(crate) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Environment variables of a process with limited memory: its allocator reserves a GiB of addresses, which must not count as data
/// before it is used; and a process that cannot get memory hangs in Rust's backtrace, instead of ending with a message.
pub(crate) const LIMITED: [(&str, &str); 2] = [("MIMALLOC_ARENA_EAGER_COMMIT", "0"), ("RUST_BACKTRACE", "0")];

/// The grant of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub(crate) struct ConfineFlags {
    /// Run on these CPUs only
    #[cfg_attr(feature = "cli", arg(long, hide = true, value_delimiter = ',', value_name = "CPU"))]
    only_cpus: Vec<u32>,
    /// Take at most this many bytes for data
    #[cfg_attr(feature = "cli", arg(long, hide = true, value_name = "BYTES"))]
    memory_limit: Option<u64>,
}

/// The limits of a process.
pub(crate) struct Confinement<'a> {
    pub(crate) cpus: &'a [u32],
    pub(crate) gpus: Option<&'a [String]>,
    pub(crate) memory: Option<u64>,
}

impl Confinement<'_> {
    /// Returns the limits as flags, for a process that gets them in another way than by its arguments.
    pub(crate) fn flags(&self) -> ConfineFlags {
        ConfineFlags { only_cpus: self.cpus.to_vec(), memory_limit: self.memory }
    }

    /// Returns the limits as arguments of the worker's process.
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

    /// Returns the limits as environment variables of the worker's process.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if let Some(gpus) = self.gpus {
            variables.push((VISIBLE_DEVICES, gpus.join(",")));
        }
        if self.memory.is_some() {
            variables.extend(LIMITED.map(|(name, value)| (name, value.into())));
        }
        variables
    }
}

impl ConfineFlags {
    /// Applies the limits to this process: to threads started from now on, and to its memory.
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

/// Limits the data memory of this process: further allocations fail.
#[cfg(unix)]
pub(crate) fn limit_memory(bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Data).maximum;
    let bytes = bytes.min(hard.unwrap_or(u64::MAX));
    setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    Ok(())
}
