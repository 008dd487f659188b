//! A training run: its configuration, what it writes down, and the state that the hub drives.

mod config;
mod metrics;
mod outcome;
mod run;
mod run_dir;
mod weights_file;

pub use config::{Algo, MAX_LOCAL_WORKERS, TrainConfig, TrainConfigError};
pub use outcome::{RunEnd, Summary};
pub(crate) use run::{Run, StartError, Submitted, Update};
