//! A file of logged experience that the user has opened.

use std::sync::Arc;

use rollmesh_data::survey::Found;

use super::Clip;

/// A file, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct OpenedFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Number of bytes that were read.
    pub read: u64,
    /// The findings in these bytes, as `rollmesh data inspect --json` prints them.
    pub found: Arc<Found>,
    /// The episode at which the replay begins.
    pub episode: u32,
    /// The steps of the replay, once they were found.
    pub clip: Option<Arc<Clip>>,
    /// Status of reading.
    pub status: FileStatus,
}

/// The status of reading a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FileStatus {
    /// It is being read.
    #[default]
    Reading,
    /// It was read to its end.
    Read,
    /// It cannot be read, for this reason.
    Failed(String),
}

// Findings and clips are compared by identity, since each report has new ones.
impl PartialEq for OpenedFile {
    fn eq(&self, other: &Self) -> bool {
        let of = |file: &Self| (Arc::as_ptr(&file.found), file.clip.as_ref().map(Arc::as_ptr), file.read, file.episode);
        of(self) == of(other) && self.status == other.status
    }
}

impl OpenedFile {
    /// Returns the episode at which the replay begins; `None` without steps to replay.
    #[must_use]
    pub fn replayed(&self) -> Option<u32> {
        self.clip.as_ref().map(|_| self.episode)
    }

    /// Returns the status in a few words.
    #[must_use]
    pub fn say(&self) -> String {
        match &self.status {
            FileStatus::Failed(reason) => format!("{} was not read: {reason}.", self.name),
            FileStatus::Reading => "Reading".into(),
            FileStatus::Read if self.found.report.batches == 0 => {
                "There is no batch in it: it should be a file of RLlib's, with a JSON object per line.".into()
            }
            FileStatus::Read => "Read to its end".into(),
        }
    }
}
