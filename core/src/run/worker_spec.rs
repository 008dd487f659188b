//! Describes the machine resources of a worker. A launcher provides them.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The machine resources of a worker. By default it shares all of them with other processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[doc(alias("as_remote", "num_cpus_per_worker", "custom_resources_per_worker"))]
pub struct WorkerSpec {
    /// CPUs reserved for it: other workers with reserved CPUs do not use them, and it uses no others. 0 for any that the
    /// system chooses.
    #[doc(alias = "num_cpus")]
    pub cpus: u32,
    /// GPUs reserved for it, the only ones that it sees. None for all those that its launcher sees. Its policies act on one only if
    /// [`device`](Self::device) says so.
    #[doc(alias = "num_gpus")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// The device on which its policies act: `cuda:N`, counted among the GPUs that it sees, or `metal`. `None` for the
    /// kernels on its CPUs. A run needs [`device_rows`](super::RunConfig::device_rows) for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The most bytes that it may take for data; asking for more fails there. None for as much as there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The required amount of each declared resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, u32>,
}

/// A text is not a valid amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is {problem}")]
pub struct BadAmount {
    text: String,
    problem: &'static str,
}

impl WorkerSpec {
    /// Adds a required resource.
    #[must_use]
    pub fn with_resource(mut self, name: impl Into<String>, amount: u32) -> Self {
        self.resources.insert(name.into(), amount);
        self
    }

    /// Returns true for a worker without requirements.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether its policies act on a device that is not the CPU.
    #[must_use]
    pub fn acts_on_device(&self) -> bool {
        self.device.as_deref().is_some_and(|device| device != "cpu")
    }

    /// The least memory that a worker can be limited to.
    pub const MIN_MEMORY_BYTES: u64 = 1 << 20;

    /// The most: more than a machine has, 1 PiB.
    const MAX_MEMORY_BYTES: u64 = 1 << 50;

    /// Reads an amount of memory in bytes, KiB, MiB, GiB or TiB, at least [`MIN_MEMORY_BYTES`](Self::MIN_MEMORY_BYTES) and at
    /// most 1024TiB: `2GiB`.
    ///
    /// # Errors
    /// [`BadAmount`].
    pub fn parse_memory(text: &str) -> Result<u64, BadAmount> {
        let bad = |problem| BadAmount { text: text.into(), problem };
        let unreadable = || bad("no whole number of B, KiB, MiB, GiB or TiB: write it like 512MiB or 2GiB");
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit: u64 = match text.get(digits.len()..).map(str::trim) {
            Some("" | "B") => 1,
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("GiB") => 1 << 30,
            Some("TiB") => 1 << 40,
            _ => return Err(unreadable()),
        };
        if digits.is_empty() || digits.contains(|c: char| !c.is_ascii_digit()) {
            return Err(unreadable());
        }
        // Digits that are no such number are too many.
        let amount = digits.parse::<u64>().unwrap_or(u64::MAX);
        match amount.saturating_mul(unit) {
            bytes if bytes < Self::MIN_MEMORY_BYTES => Err(bad("too little memory for a worker: give it 1MiB or more")),
            bytes if bytes > Self::MAX_MEMORY_BYTES => {
                Err(bad("more memory than machines have: give it 1024TiB or less"))
            }
            bytes => Ok(bytes),
        }
    }

    /// Reads a resource and its amount: `simulator=2`.
    ///
    /// # Errors
    /// [`BadAmount`].
    pub fn parse_resource(text: &str) -> Result<(String, u32), BadAmount> {
        let bad = || BadAmount { text: text.into(), problem: "no amount of a resource: write it like simulator=2" };
        let (name, amount) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(bad)?;
        Ok((name.into(), amount.parse().map_err(|_| bad())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_nonsense_is_named() {
        assert_eq!(WorkerSpec::parse_memory("2GiB"), Ok(2 << 30));
        assert_eq!(WorkerSpec::parse_memory("64 MiB"), Ok(64 << 20));
        assert_eq!(WorkerSpec::parse_memory("1048576"), Ok(1 << 20));
        assert_eq!(WorkerSpec::parse_memory("1024TiB"), Ok(1 << 50));
        let error = |text: &str| WorkerSpec::parse_memory(text).unwrap_err().to_string();
        for text in ["", "GiB", "2GB", "999PiB", "-1", "1.5GiB", "ö"] {
            let wanted = "no whole number of B, KiB, MiB, GiB or TiB: write it like 512MiB or 2GiB";
            assert_eq!(error(text), format!("'{text}' is {wanted}"));
        }
        for text in ["0", "1", "1023KiB"] {
            assert_eq!(error(text), format!("'{text}' is too little memory for a worker: give it 1MiB or more"));
        }
        for text in ["1025TiB", "99999999999GiB", "99999999999999999999TiB"] {
            assert_eq!(error(text), format!("'{text}' is more memory than machines have: give it 1024TiB or less"));
        }
        assert_eq!(WorkerSpec::parse_resource("simulator=2"), Ok(("simulator".into(), 2)));
        for text in ["", "simulator", "=2", "simulator=", "simulator=x"] {
            assert!(WorkerSpec::parse_resource(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_holds_only_what_differs() {
        let spec = WorkerSpec { cpus: 1, ..WorkerSpec::default() }.with_resource("simulator", 2);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(text, r#"{"cpus":1,"resources":{"simulator":2}}"#);
        assert_eq!(serde_json::from_str::<WorkerSpec>(&text).unwrap(), spec);
        assert!(serde_json::from_str::<WorkerSpec>(r#"{"cpu":1}"#).is_err());
    }
}
