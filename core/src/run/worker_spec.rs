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
    /// GPUs reserved for it, the only ones that it sees. None for all those that its launcher sees.
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
#[error("'{text}' is no {what}: write it like {example}")]
pub struct BadAmount {
    text: String,
    what: &'static str,
    example: &'static str,
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

    /// Reads an amount of memory in bytes, KiB, MiB or GiB, at least [`MIN_MEMORY_BYTES`](Self::MIN_MEMORY_BYTES): `2GiB`.
    ///
    /// # Errors
    /// [`BadAmount`].
    pub fn parse_memory(text: &str) -> Result<u64, BadAmount> {
        let bad =
            || BadAmount { text: text.into(), what: "amount of memory of at least 1MiB", example: "512MiB or 2GiB" };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match text.get(digits.len()..).map(str::trim) {
            Some("" | "B") => 0,
            Some("KiB") => 10,
            Some("MiB") => 20,
            Some("GiB") => 30,
            _ => return Err(bad()),
        };
        let amount: u64 = digits.parse().map_err(|_| bad())?;
        amount.checked_mul(1 << shift).filter(|bytes| *bytes >= Self::MIN_MEMORY_BYTES).ok_or_else(bad)
    }

    /// Reads a resource and its amount: `simulator=2`.
    ///
    /// # Errors
    /// [`BadAmount`].
    pub fn parse_resource(text: &str) -> Result<(String, u32), BadAmount> {
        let bad = || BadAmount { text: text.into(), what: "amount of a resource", example: "simulator=2" };
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
        for text in ["", "GiB", "2GB", "0", "1", "1023KiB", "-1", "99999999999GiB", "1.5GiB", "ö"] {
            let error = WorkerSpec::parse_memory(text).unwrap_err();
            let expected = format!("'{text}' is no amount of memory of at least 1MiB: write it like 512MiB or 2GiB");
            assert_eq!(error.to_string(), expected);
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
