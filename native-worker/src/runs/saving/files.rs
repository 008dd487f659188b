//! The directory of a run with checkpoints.

use std::io;

use rollmesh_core::group::Ledger;

use super::{
    super::{
        Summary,
        run_dir::{RunDir, write_summary},
    },
    Snapshot,
    saver::{LEDGER, SaveReport, Saver, SaverFiles, write_ledger},
};
use crate::checkpoint::PolicyCheckpoint;

/// A run's directory, with checkpoints and `ledger.json`.
#[derive(Debug)]
pub(in super::super) struct RunFiles {
    pub(in super::super) dir: RunDir,
    pub(in super::super) saver: Saver,
    /// Number of checkpoints that could not be saved.
    pub(in super::super) failed_checkpoints: u64,
    /// True if the last attempt failed.
    pub(in super::super) is_failing: bool,
}

impl RunFiles {
    /// Saves every `interval` iterations; a resumed run has a checkpoint after the iteration `saved`.
    pub(in super::super) fn new(dir: RunDir, interval: u64, saved: Option<u64>) -> io::Result<Self> {
        let files = SaverFiles { dir: dir.path().into(), config: dir.config().into(), lines: dir.share_lines()? };
        let saver = Saver::spawn(files, interval, saved)?;
        Ok(Self { dir, saver, failed_checkpoints: 0, is_failing: false })
    }

    pub(in super::super) fn write_ledger(&self, ledger: &Ledger) -> io::Result<()> {
        write_ledger(self.dir.path(), ledger)
    }

    /// Waits for the last checkpoint, `last` if there is one to save; returns the latest reports.
    pub(in super::super) fn finish_saving(mut self, last: Option<Snapshot>) -> (Vec<SaveReport>, EndedRunDir) {
        let (lost_lines, faults) = self.dir.finish();
        let failed_checkpoints = self.failed_checkpoints;
        let ended = EndedRunDir { dir: self.dir, failed_checkpoints, unsaved: None, lost_lines, faults };
        (self.saver.finish(last), ended)
    }
}

/// The directory of a run that is over.
pub(in super::super) struct EndedRunDir {
    dir: RunDir,
    pub(in super::super) failed_checkpoints: u64,
    /// The reason that the last checkpoint could not be saved.
    pub(in super::super) unsaved: Option<String>,
    /// Number of lines missing in `metrics.jsonl` and the journal.
    pub(in super::super) lost_lines: u64,
    /// Messages about them.
    pub(in super::super) faults: Vec<String>,
}

impl EndedRunDir {
    /// Writes the results of the run; one file that cannot be written does not prevent the others.
    pub(in super::super) fn write(
        &self,
        policy: &PolicyCheckpoint,
        ledger: &Ledger,
        summary: &Summary,
    ) -> io::Result<()> {
        let failed = |error| io::Error::other(format!("{}: {error}", self.dir.path().join(LEDGER).display()));
        let ledger = write_ledger(self.dir.path(), ledger).map_err(failed);
        let policy = policy.save(self.dir.path()).map_err(io::Error::other);
        let summary = self.write_summary(summary);
        policy.and(summary).and(ledger)
    }

    /// Writes `summary.json`.
    pub(in super::super) fn write_summary(&self, summary: &Summary) -> io::Result<()> {
        write_summary(self.dir.path(), summary)
    }
}
