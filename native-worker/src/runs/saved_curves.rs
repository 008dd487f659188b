//! Reads the curves and settings of a run from its directory, which is not changed.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rollmesh_core::{hub::push_thinned, protocol::message::RunHistory, run::RunConfig};
use serde_json::Value;

use super::{
    IterationMetrics,
    evaluation::{EvaluationLine, EvaluationMetrics},
    found::read_json,
    saving::read_config,
};
use crate::{files::if_exists, lines::parsed};

/// The curves and settings of a run.
#[derive(Debug)]
pub(crate) struct SavedCurves {
    pub(crate) config: RunConfig,
    /// Its iterations, thinned out.
    pub(crate) iterations: Vec<IterationMetrics>,
    pub(crate) evaluations: Vec<EvaluationMetrics>,
    /// `summary.json`; `None` while the run is in progress, and after an interruption.
    pub(crate) summary: Option<Value>,
}

/// An error of reading the files of a run.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; name a directory that `rollmesh train` has written", path.display())]
pub(crate) struct SavedCurvesError {
    path: PathBuf,
    reason: String,
}

impl SavedCurves {
    /// Reads a run's directory. Lines of `metrics.jsonl` that cannot be read, such as an incomplete last one, are skipped.
    ///
    /// # Errors
    /// [`SavedCurvesError`] names the file.
    pub(crate) fn read(dir: &Path) -> Result<Self, SavedCurvesError> {
        let failed = |name: &str, reason: String| SavedCurvesError { path: dir.join(name), reason };
        let config = fs::read_to_string(dir.join("config.toml")).map_err(|error| error.to_string());
        let config = config.and_then(|text| read_config(&text)).map_err(|reason| failed("config.toml", reason))?;
        let summary = read_json(&dir.join("summary.json"));
        let summary = summary.map_err(|error| failed("summary.json", error.to_string()))?;
        let mut curves = Self { config, iterations: Vec::new(), evaluations: Vec::new(), summary };
        let metrics = if_exists(File::open(dir.join("metrics.jsonl")));
        let read = metrics.and_then(|file| file.map_or(Ok(()), |file| curves.read_lines(file)));
        read.map_err(|error| failed("metrics.jsonl", error.to_string()))?;
        Ok(curves)
    }

    fn read_lines(&mut self, file: File) -> io::Result<()> {
        let add = |line: &[u8]| {
            if let Ok(metrics) = serde_json::from_slice(line) {
                push_thinned(&mut self.iterations, metrics, RunHistory::MAX_ITERATIONS);
            } else if let Ok(EvaluationLine { evaluation }) = serde_json::from_slice(line) {
                push_thinned(&mut self.evaluations, evaluation, RunHistory::MAX_EVALUATIONS);
            }
            Some(())
        };
        parsed(file, add).collect()
    }

    /// Returns them as a hub sends them, under the number 0, which no run of a hub has.
    pub(crate) fn history(&self) -> RunHistory {
        RunHistory {
            request: 0,
            run: 0,
            config: self.config.to_wire(),
            iterations: self.iterations.iter().map(|metrics| metrics.point(0)).collect(),
            evaluations: self.evaluations.iter().map(|metrics| metrics.point(0)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_is_not_utf8_is_skipped_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.toml"), "env = \"CartPole-v1\"").unwrap();
        let line = "{\"evaluation\":{\"iteration\":1,\"env_steps\":8,\"episodes\":1,\"unfinished\":0}}\n";
        fs::write(dir.path().join("metrics.jsonl"), [line.as_bytes(), b"\xff\n", line.as_bytes()].concat()).unwrap();
        assert_eq!(SavedCurves::read(dir.path()).unwrap().evaluations.len(), 2);
    }
}
