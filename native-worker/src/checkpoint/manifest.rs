//! The manifest of a checkpoint.

use std::collections::BTreeSet;

use rollmesh_core::hash::bytes_hash;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, MANIFEST};

/// Version of the manifest's format.
const FORMAT: u32 = 1;

/// The list of a checkpoint's files, stored as two lines: the list as JSON, and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: u32,
    /// The checkpoint's number, to detect a checkpoint in another one's directory.
    pub(super) number: u64,
    pub(super) files: Vec<FileEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// xxh3-128 of the contents, in hexadecimal digits.
    xxh3: String,
}

impl Manifest {
    /// Maximum size in bytes, far above real ones.
    pub(super) const MAX_BYTES: u64 = 1 << 20;

    pub(super) fn of(number: u64, files: &[(&str, &[u8])]) -> Result<Self, CheckpointError> {
        let mut names = BTreeSet::new();
        let entry = |(name, contents): &(&str, &[u8])| {
            if !is_name(name) || !names.insert(name.to_string()) {
                return Err(CheckpointError::BadName((*name).into()));
            }
            let xxh3 = bytes_hash(contents).to_string();
            Ok(FileEntry { name: (*name).into(), bytes: contents.len() as u64, xxh3 })
        };
        Ok(Self { format: FORMAT, number, files: files.iter().map(entry).collect::<Result<_, _>>()? })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers can always be serialised.
        let list = serde_json::to_string(self).unwrap_or_default();
        format!("{list}\n{}\n", bytes_hash(list.as_bytes())).into_bytes()
    }

    /// Parses and verifies a manifest. `number` is the checkpoint's, if its directory's name has one.
    pub(super) fn from_bytes(bytes: &[u8], number: Option<u64>) -> Result<Self, String> {
        let damaged = |what: &str| format!("{MANIFEST} {what}");
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("is no text"))?;
        let (list, hash) = text.split_once('\n').ok_or_else(|| damaged("is cut short"))?;
        if hash != format!("{}\n", bytes_hash(list.as_bytes())) {
            return Err(damaged("has another hash than it says"));
        }
        let manifest: Self = serde_json::from_str(list).map_err(|error| damaged(&error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(damaged(&format!("has format {}, this version reads {FORMAT}", manifest.format)));
        }
        if number.is_some_and(|number| manifest.number != number) {
            return Err(damaged(&format!("is of checkpoint {}", manifest.number)));
        }
        match manifest.files.iter().find(|file| !is_name(&file.name)) {
            Some(file) => Err(damaged(&format!("names a file '{}'", file.name))),
            None => Ok(manifest),
        }
    }
}

impl FileEntry {
    pub(super) fn check(&self, contents: &[u8]) -> Result<(), String> {
        let Self { name, bytes, xxh3 } = self;
        if contents.len() as u64 != *bytes {
            return Err(format!("{name} has {} bytes, not {bytes}", contents.len()));
        }
        if bytes_hash(contents).to_string() != *xxh3 {
            return Err(format!("{name} has another hash than the manifest says"));
        }
        Ok(())
    }
}

/// Returns true for a valid file name, which cannot lead out of the directory.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    name.len() <= 64 && name.bytes().all(plain) && !name.starts_with('.') && !name.is_empty() && name != MANIFEST
}
