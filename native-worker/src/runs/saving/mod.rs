//! Checkpoints of runs: their contents, their schedule and storage, and loading them.

mod differences;
mod files;
mod saved_run;
mod saver;
mod set_weights;
mod snapshot;

pub(crate) use self::saver::SaveReport;
pub use self::{
    differences::{Difference, Differences},
    saved_run::{ResumeError, SavedRun},
};
pub(super) use self::{
    files::{EndedRunDir, RunFiles},
    saved_run::{lock, read_config},
    snapshot::{Saved, Snapshot, progress},
};
pub(crate) use self::{saved_run::delete_run, set_weights::set_weights};
