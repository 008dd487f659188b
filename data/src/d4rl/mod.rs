//! Reads D4RL's data sets: HDF5 files with one array per column, all episodes in order.
//!
//! `observations`, `actions` and `rewards` are required; `terminals` and `timeouts` mark the ends of episodes, in a terminal
//! state or by truncation. They become separate columns, `terminateds` and `truncateds`. `infos/…` become `infos.…`; arrays
//! with another number of rows are left out.
//!
//! **The last observation.** A row holds the observation before its step. `next_observations`, if they exist, become
//! `new_obs`. Otherwise the file lacks the observation after the last step of an episode. After a terminal state it is not
//! needed, and the last observation is repeated. After a timeout, or at the end of the recording, it is needed: as in D4RL's
//! own `qlearning_dataset`, the last row then only provides its observation, as the final one of the previous step, which
//! becomes the truncated one. [`D4rlStream::rows_given_up`] counts such rows.
//!
//! ```no_run
//! use rollmesh_data::{d4rl::D4rlFile, dataset::BatchStream as _, limits::DEFAULT_BUFFER};
//!
//! let file = D4rlFile::open_path("hopper-medium.hdf5".as_ref(), DEFAULT_BUFFER)?;
//! println!("{} steps", file.rows());
//! let mut stream = file.stream();
//! while let Some(batch) = stream.next_batch()? {
//!     println!("{} steps of one episode", batch.env_steps());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod stream;

use std::{ops::Range, path::Path};

use rollmesh_core::column::{Column, DType};

use super::{
    dataset::{DatasetError, Summary, SummaryBuilder, cast},
    hdf5::{self, RowArray},
    source::{FileSource, Source},
};

pub use stream::D4rlStream;

const OBSERVATIONS: &str = "observations";
const ACTIONS: &str = "actions";
const REWARDS: &str = "rewards";
const TERMINALS: &str = "terminals";
const TIMEOUTS: &str = "timeouts";
const NEXT_OBSERVATIONS: &str = "next_observations";

/// An open data set.
pub struct D4rlFile {
    rows: u64,
    columns: Vec<(String, RowArray)>,
    /// Arrays with another number of rows, which are not columns.
    left_out: Vec<String>,
    buffer: usize,
}

impl D4rlFile {
    /// Opens a file and checks that its columns fit together. Reading uses about `buffer` bytes, whatever the size of the
    /// file is.
    ///
    /// # Errors
    /// [`DatasetError::MissingColumn`], [`DatasetError::LengthMismatch`], and others.
    pub fn open(source: impl Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        let size = source.size();
        hdf5::listing(size, buffer / 2, || Self::list(source, buffer))
    }

    fn list(source: impl Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        // The buffer holds arrays, columns, and stored and decoded chunks at the same time, so none of them may fill it.
        let file = hdf5::open(source, buffer / 2)?;
        let root = file.root();
        let mut columns = hdf5::arrays(&root, &file, buffer / 2)?;
        for name in [OBSERVATIONS, ACTIONS, REWARDS, TERMINALS] {
            if !columns.iter().any(|(column, _)| column == name) {
                return Err(DatasetError::MissingColumn(name.to_string()));
            }
        }
        let groups = root.iter_groups().map_err(hdf5::unreadable)?;
        for (_, infos) in groups.filter(|(name, _)| name == "infos") {
            let infos = hdf5::arrays(&infos, &file, buffer / 2)?;
            columns.extend(infos.into_iter().map(|(name, array)| (format!("infos.{name}"), array)));
        }
        let rows = columns.iter().find(|(name, _)| name == OBSERVATIONS).map_or(0, |(_, column)| column.rows());
        let fits = |name: &str, column: &RowArray| {
            let known = [OBSERVATIONS, ACTIONS, REWARDS, TERMINALS, TIMEOUTS, NEXT_OBSERVATIONS].contains(&name);
            match (column.rows() == rows, known) {
                (true, _) => Ok(true),
                (false, false) => Ok(false),
                (false, true) => {
                    Err(DatasetError::LengthMismatch { name: name.to_string(), expected: rows, found: column.rows() })
                }
            }
        };
        let mut kept = Vec::with_capacity(columns.len());
        let mut left_out = Vec::new();
        for (name, column) in columns {
            if fits(&name, &column)? {
                kept.push((name, column));
            } else {
                left_out.push(name);
            }
        }
        Ok(Self { rows, columns: kept, left_out, buffer })
    }

    /// Opens a file on disk, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// [`DatasetError::Io`], and the errors of [`open`](Self::open).
    pub fn open_path(path: &Path, buffer: usize) -> Result<Self, DatasetError> {
        let source = FileSource::open(path);
        Self::open(source.map_err(|source| DatasetError::Io { path: path.display().to_string(), source })?, buffer)
    }

    /// Returns the number of rows of every column.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Iterates over the names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Returns rows of a column as stored in the file.
    ///
    /// # Errors
    /// [`DatasetError::MissingColumn`], and others.
    pub fn read(&self, name: &str, rows: Range<u64>) -> Result<Column, DatasetError> {
        let column = self.columns.iter().find(|(column, _)| column == name);
        let (_, column) = column.ok_or_else(|| DatasetError::MissingColumn(name.to_string()))?;
        Ok(column.read_rows(rows)?)
    }

    /// Returns the batches.
    #[must_use]
    pub fn stream(self) -> D4rlStream {
        D4rlStream::new(self)
    }

    /// Returns a summary of the content. Reads the whole file, window by window.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn summary(&self) -> Result<Summary, DatasetError> {
        let mut builder = SummaryBuilder::default();
        let (mut lengths, mut length) = (Vec::new(), 0);
        let window = self.window();
        let mut at = 0;
        while at < self.rows {
            let end = self.rows.min(at + window);
            for (name, column) in &self.columns {
                builder.push(name, &column.read_rows(at..end)?)?;
            }
            let (terminals, timeouts) = (self.flags(TERMINALS, at..end)?, self.flags(TIMEOUTS, at..end)?);
            for (terminal, timeout) in terminals.iter().zip(&timeouts) {
                length += 1;
                if *terminal || *timeout {
                    lengths.push(std::mem::take(&mut length));
                }
            }
            at = end;
        }
        lengths.extend((length > 0).then_some(length));
        Ok(builder.finish(lengths))
    }

    /// Returns the number of rows to read in one call: a quarter of the buffer, in whole chunks if possible.
    fn window(&self) -> u64 {
        let row: u64 = self.columns.iter().map(|(_, column)| column.row_bytes() + 1).sum();
        let rows = (self.buffer as u64 / 4 / row.max(1)).max(1);
        let chunk = self.columns.iter().map(|(_, column)| column.chunk_rows()).max().unwrap_or(1).max(1);
        if rows > chunk { rows - rows % chunk } else { rows }
    }

    /// Returns the flags of these rows; all false without the column.
    fn flags(&self, name: &str, rows: Range<u64>) -> Result<Vec<bool>, DatasetError> {
        if !self.columns().any(|column| column == name) {
            return Ok(vec![false; (rows.end - rows.start) as usize]);
        }
        let column = cast(name, &self.read(name, rows)?, DType::Bool)?;
        Ok(column.typed::<bool>().map(|data| data.values().to_vec()).unwrap_or_default())
    }
}
