//! Runs, for training or for their rows only: their configuration, their files, and the state that the hub drives.

mod consumer;
mod evaluation;
mod found;
mod local;
mod metrics;
mod outcome;
mod output;
mod own_sampler;
mod read_metrics;
mod recording;
mod request;
mod row_source;
mod run;
mod run_dir;
mod saved_curves;
mod saving;
mod trackers;

pub(crate) use consumer::{Consuming, TakeRows, TakenRows, Update};
pub use evaluation::{EvaluationCounts, EvaluationMetrics};
pub(crate) use found::{FoundRun, found_runs};
pub use metrics::IterationMetrics;
pub use outcome::{Failures, FragmentFailed, Summary};
pub(crate) use own_sampler::{OwnSampler, SampleWatch, Watchdog};
pub use read_metrics::ReadMetrics;
pub(crate) use recording::LastPictures;
pub use request::{RunRequest, RunRequestError};
pub use rollmesh_core::{
    hub::{RunEnd, SyncError},
    run::{EvaluationConfig, MAX_LOCAL_WORKERS, RunConfig, StopConfig},
};
pub(crate) use row_source::{RowSource, StartReaders};
pub(crate) use run::{Run, RunMaker, RunParts, RunPlace, RunTask, RunWork, StartError, Taker, WorkerTerms};
pub(crate) use run_dir::{RunDir, new_run_dir, write_summary};
pub(crate) use saved_curves::SavedCurves;
pub use saving::{Difference, Differences, ResumeError, SavedRun};
pub(crate) use saving::{SaveReport, delete_run, set_weights};
