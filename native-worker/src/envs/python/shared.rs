//! Rows that a host and this process share: a file in memory, without a name, that ends with the last process that has it
//! open. It is read and written like any file, so that a host that misbehaves can cause errors, but nothing worse.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
};

use rollmesh_core::env::{EnvError, RowsMut, RowsRef, SnapshotReader, StepOut, put_rows};
use serde::Deserialize;

/// The place of a host's rows.
#[derive(Deserialize)]
pub(super) struct SharedPlace {
    pid: u32,
    file: u32,
    /// The file's name, which is random.
    name: String,
    /// The offsets of observations, rewards, ends and actions.
    places: [u64; 4],
}

/// Rows of all lanes of a group.
pub(super) struct SharedRows {
    file: File,
    places: [u64; 4],
    /// A reused buffer for bytes that are read or written.
    bytes: Vec<u8>,
}

impl SharedRows {
    /// Opens the rows of a host. `None` if the system does not allow it: rows then go through pipes.
    pub(super) fn open(place: SharedPlace) -> Option<Self> {
        let path = format!("/proc/{}/fd/{}", place.pid, place.file);
        // In another namespace of process ids, the host's would be those of other files here.
        let own = format!("/memfd:{} (deleted)", place.name);
        let is_own = fs::read_link(&path).is_ok_and(|link| link.to_string_lossy() == own);
        let file = is_own.then(|| File::options().read(true).write(true).open(path).ok()).flatten()?;
        Some(Self { file, places: place.places, bytes: Vec::new() })
    }

    /// Writes the actions of `lanes` lanes from `first` on.
    pub(super) fn put_actions(&mut self, first: usize, lanes: usize, actions: RowsRef<'_>) -> io::Result<()> {
        self.bytes.clear();
        put_rows(&mut self.bytes, actions);
        self.file.write_all_at(&self.bytes, at(self.places[3], first * (self.bytes.len() / lanes)))
    }

    /// Reads the observations, rewards and ends of the lanes from `first` on; `out` has an entry for each.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`] for rows that the host cannot have written.
    pub(super) fn take(&mut self, first: usize, obs: RowsMut<'_>, out: StepOut<'_>) -> Result<(), EnvError> {
        let lanes = out.rewards.len();
        let bytes = obs.len() * obs.dtype().size();
        let rows = at(self.places[0], first * (bytes / lanes));
        match obs {
            RowsMut::U8(pixels) => {
                let read = self.file.read_exact_at(pixels, rows);
                read.map_err(|_| EnvError::BadSnapshot(bytes))?;
            }
            obs => self.read(rows, bytes)?.rows(obs)?,
        }
        self.read(at(self.places[1], 8 * first), 8 * lanes)?.rows(RowsMut::F64(out.rewards))?;
        take_ends(&mut self.read(at(self.places[2], first), lanes)?, out.terminateds, out.truncateds)
    }

    fn read(&mut self, at: u64, len: usize) -> Result<SnapshotReader<'_>, EnvError> {
        self.bytes.resize(len, 0);
        self.file.read_exact_at(&mut self.bytes, at).map_err(|_| EnvError::BadSnapshot(len))?;
        Ok(SnapshotReader::new(&self.bytes))
    }
}

/// Returns a position in the file. A host may have named any place: beyond the largest position nothing can be read or written.
fn at(place: u64, offset: usize) -> u64 {
    place.saturating_add(offset as u64)
}

/// Reads a byte per lane: bit 0 for terminated, bit 1 for truncated.
pub(super) fn take_ends(
    reader: &mut SnapshotReader<'_>,
    terminateds: &mut [bool],
    truncateds: &mut [bool],
) -> Result<(), EnvError> {
    for (terminated, truncated) in terminateds.iter_mut().zip(truncateds) {
        let ends = reader.below(4)?;
        (*terminated, *truncated) = (ends & 1 > 0, ends & 2 > 0);
    }
    Ok(())
}
