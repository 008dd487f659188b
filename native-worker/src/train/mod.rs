//! A run, for training or for its rows alone: its configuration, what it writes down, and the state that the hub drives.

mod config;
mod consumer;
mod evaluation;
mod metrics;
mod outcome;
mod output;
mod run;
mod run_dir;
mod sampling;
mod saving;

pub use config::{Algo, MAX_LOCAL_WORKERS, TrainConfig, TrainConfigError};
pub(crate) use consumer::{Consuming, Update};
pub use evaluation::EvaluationConfig;
pub(crate) use evaluation::{Candidate, Evaluated, EvaluationLine, EvaluationMetrics, RunEvaluation};
pub use outcome::{RunEnd, Summary};
pub use run::SyncError;
pub(crate) use run::{Run, RunTerms, StartError, Submitted, Task, Undone, UploadFault};
pub(crate) use run_dir::{PLAN, RunDir, RunSettings, new_run_dir};
pub use sampling::SampleConfig;
pub use saving::{Difference, Differences, ResumeError, SavedRun};
pub(crate) use saving::{Left, SaveReport, differences};
