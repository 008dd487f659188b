//! A run's metrics for other programs, by setting: TensorBoard's event files, and MLflow's store of files.

mod event_file;
mod mlflow;

use std::{io, path::Path};

use rollmesh_core::run::{HostConfig, RunConfig};

use self::{event_file::EventFile, mlflow::MlflowRun};
use super::{EvaluationMetrics, IterationMetrics, metrics::numbers_of};
use crate::lines::LineNotice;

/// The event files of a run are in this directory of its directory.
const TENSORBOARD: &str = "tensorboard";
/// Names of an evaluation's metrics begin with this and a slash.
const EVALUATION: &str = "evaluation";
/// Names in messages.
const EVENTS: &str = "the event file for TensorBoard";
const STORE: &str = "the run in MLflow's store";

/// The outputs of a run's metrics, in addition to its directory.
#[derive(Debug, Default)]
pub(super) struct Trackers {
    events: Option<EventFile>,
    mlflow: Option<MlflowRun>,
}

impl Trackers {
    /// Opens the outputs that the run's settings name. A run that is resumed at these env steps begins another event
    /// file, and continues its run in the store.
    pub(super) fn open(dir: &Path, config: &RunConfig, resumed_at: Option<u64>) -> io::Result<Self> {
        let HostConfig { tensorboard, mlflow, .. } = &config.host;
        let events = tensorboard.then(|| EventFile::create(&dir.join(TENSORBOARD), resumed_at)).transpose()?;
        let open = |store: &String| {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("host.mlflow {store:?}: {error}"));
            MlflowRun::open(Path::new(store), dir, config).map_err(named)
        };
        let mlflow = mlflow.as_ref().map(open).transpose()?;
        Ok(Self { events, mlflow })
    }

    /// Writes the metrics of an iteration, at its env steps.
    pub(super) fn add(&mut self, metrics: &IterationMetrics) -> Vec<LineNotice> {
        self.write(metrics.env_steps, &numbers_of(metrics))
    }

    /// Writes the metrics of an evaluation, under names that begin with [`EVALUATION`].
    pub(super) fn add_evaluation(&mut self, metrics: &EvaluationMetrics) -> Vec<LineNotice> {
        let numbers = numbers_of(metrics).into_iter().map(|(name, value)| (format!("{EVALUATION}/{name}"), value));
        self.write(metrics.env_steps, &numbers.collect::<Vec<_>>())
    }

    /// Marks the run as ended.
    pub(super) fn finish(&mut self) -> Vec<LineNotice> {
        let ended = self.mlflow.take().map(MlflowRun::finish);
        ended.and_then(Result::err).map(|error| LineNotice::Abandoned { file: STORE, error }).into_iter().collect()
    }

    /// Writes metrics. A failed output is not retried: the run's own files have all of them.
    fn write(&mut self, step: u64, numbers: &[(String, f64)]) -> Vec<LineNotice> {
        let mut notices = Vec::new();
        if let Some(Err(error)) = self.events.as_mut().map(|events| events.add(step, numbers)) {
            self.events = None;
            notices.push(LineNotice::Abandoned { file: EVENTS, error });
        }
        if let Some(Err(error)) = self.mlflow.as_mut().map(|run| run.add(step, numbers)) {
            self.mlflow = None;
            notices.push(LineNotice::Abandoned { file: STORE, error });
        }
        notices
    }
}
