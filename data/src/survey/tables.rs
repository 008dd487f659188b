//! Inspects a file of tables.

use std::sync::Arc;

use rollmesh_core::protocol::message::EnvClip;

use super::{At, Check, Found, Problems, Survey, replay::Replay};
use crate::{
    dataset::{BatchStream, DatasetError, open_file},
    source::Source,
};

/// Reads a Parquet or HDF5 file batch by batch, and records its content and its problems, as [`Inspection`](super::Inspection)
/// does for lines of JSON.
pub struct TableInspection {
    stream: Box<dyn BatchStream>,
    survey: Survey,
    check: Check,
    problems: Problems,
    rows: u64,
    replay: Option<Replay>,
}

impl TableInspection {
    /// Opens a file. Reading uses about `buffer` bytes; each problem lists up to `places` places.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn open(source: Arc<dyn Source>, buffer: usize, places: usize) -> Result<Self, DatasetError> {
        Ok(Self {
            stream: open_file(source, buffer)?,
            survey: Survey::default(),
            check: Check::new(None),
            problems: Problems::new(places),
            rows: 0,
            replay: None,
        })
    }

    /// Keeps the first steps from an episode on, see [`take_clip`](Self::take_clip).
    #[must_use]
    pub fn replaying(self, episode: u32) -> Self {
        Self { replay: Some(Replay::new(episode)), ..self }
    }

    /// Returns the steps to be replayed, once, as soon as they are complete.
    pub fn take_clip(&mut self) -> Option<EnvClip> {
        self.replay.as_mut()?.take()
    }

    /// Inspects the next batch. Returns false at the end.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn inspect_next(&mut self) -> Result<bool, DatasetError> {
        let Some(batch) = self.stream.next_batch()? else {
            self.replay.iter_mut().for_each(Replay::finish);
            return Ok(false);
        };
        self.replay.iter_mut().for_each(|replay| replay.add(&batch));
        self.check.batch(&batch, At { row: self.rows, ..At::default() }, &mut self.problems);
        self.rows += batch.env_steps() as u64;
        self.survey.add(&batch)?;
        Ok(true)
    }

    /// Returns the results so far; histograms have at most `bins` bins.
    #[must_use]
    pub fn found(&self, bins: u32) -> Found {
        let (report, problems) = (self.survey.report(bins), self.problems.found().clone());
        Found { report, problems, ..Found::default() }
    }
}
