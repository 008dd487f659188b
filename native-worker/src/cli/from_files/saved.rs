//! What a run goes on from, in its directory.

use std::{collections::BTreeMap, fs::File, io, path::Path, time::Duration};

use rollmesh_core::{ids::WeightsVersion, sampler::Position};
use serde::{Deserialize, Serialize};

use crate::{
    checkpoint::{CHECKPOINTS_DIR, PolicyCheckpoint, weights_file},
    cli::read_metrics::ReadMetrics,
    train::{Candidate, EvaluationMetrics, Left, ResumeError, RunConfig, check_unedited},
};

const CONFIG: &str = "config.toml";
const WORKER: &str = "worker.bin";
const INPUT: &str = "input.bin";
const RUN: &str = "run.json";

/// Layout of [`RUN`]; a later one has another number.
const FORMAT: u32 = 2;

/// A run between two updates: a checkpoint's contents.
pub(super) struct Saved {
    pub(super) policy: PolicyCheckpoint,
    /// The policy with its optimiser, and how far the run is.
    pub(super) worker: Vec<u8>,
    /// What is read next.
    pub(super) input: Position,
    /// What is still to be evaluated.
    pub(super) unfinished: Vec<Candidate>,
    pub(super) progress: Progress,
}

/// What has been measured: [`RUN`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    format: u32,
    /// Of `metrics.jsonl`, up to the last update.
    pub(super) metrics_bytes: u64,
    wall_s: f64,
    /// The last one.
    pub(super) evaluation: Option<EvaluationMetrics>,
    /// Those that had not come to their end, the earliest first.
    unfinished: Vec<Unfinished>,
    blackholed_env_steps: u64,
    corrupt_lines: u64,
}

/// A [`Candidate`] but for its weights, which have a file of their own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unfinished {
    iteration: u64,
    env_steps: u64,
    weights_version: u64,
}

impl Unfinished {
    fn of(candidate: &Candidate) -> Self {
        let Candidate { iteration, env_steps, weights } = candidate;
        Self { iteration: *iteration, env_steps: *env_steps, weights_version: weights.version().0 }
    }

    fn file(self) -> String {
        format!("unfinished-{}.safetensors", self.iteration)
    }
}

impl Progress {
    pub(super) fn new(
        metrics_bytes: u64,
        elapsed: Duration,
        evaluation: Option<EvaluationMetrics>,
        read: &ReadMetrics,
    ) -> Self {
        let ReadMetrics { blackholed_env_steps, corrupt_lines, .. } = *read;
        let wall_s = elapsed.as_secs_f64();
        let unfinished = Vec::new();
        Self { format: FORMAT, metrics_bytes, wall_s, evaluation, unfinished, blackholed_env_steps, corrupt_lines }
    }

    pub(super) fn read(&self) -> ReadMetrics {
        ReadMetrics::counted(self.blackholed_env_steps, self.corrupt_lines)
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::try_from_secs_f64(self.wall_s).unwrap_or_default()
    }
}

impl Saved {
    /// The files, beside the configuration as it is in the run's directory.
    pub(super) fn into_files(self, config: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
        let unfinished = self.unfinished.iter().map(Unfinished::of).collect();
        let progress = Progress { unfinished, ..self.progress };
        let mut files = vec![
            (CONFIG.into(), config.into()),
            (WORKER.into(), self.worker),
            (INPUT.into(), self.input.as_bytes().to_vec()),
            (RUN.into(), serde_json::to_vec_pretty(&progress)?),
        ];
        files.extend(self.policy.to_files()?.map(|(name, contents)| (name.into(), contents)));
        for (candidate, entry) in self.unfinished.iter().zip(&progress.unfinished) {
            files.push((entry.file(), weights_file::to_bytes(&candidate.weights).map_err(io::Error::other)?));
        }
        Ok(files)
    }

    /// Reads the files of a checkpoint, which may come from anybody, and the configuration among them; `dir` is where they
    /// are from.
    fn read(mut files: BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<(String, Self), ResumeError> {
        let bad = |name: &str, reason: String| ResumeError::Contents { path: dir.join(name), reason };
        let policy = PolicyCheckpoint::from_files(&files, dir)?;
        let mut take = |name: &str| files.remove(name).ok_or_else(|| bad(name, "it is missing".into()));
        let config = String::from_utf8(take(CONFIG)?).map_err(|_| bad(CONFIG, "it is no text".into()))?;
        let (worker, input) = (take(WORKER)?, Position::from_bytes(take(INPUT)?));
        let progress: Progress = serde_json::from_slice(&take(RUN)?).map_err(|error| bad(RUN, error.to_string()))?;
        if progress.format != FORMAT {
            return Err(bad(RUN, format!("it has format {}, this version reads {FORMAT}", progress.format)));
        }
        let unfinished = progress.unfinished.iter().map(|entry| {
            let weights = weights_file::from_bytes(&take(&entry.file())?, WeightsVersion(entry.weights_version));
            let weights = weights.map_err(|error| bad(&entry.file(), error.to_string()))?;
            Ok::<_, ResumeError>(Candidate { iteration: entry.iteration, env_steps: entry.env_steps, weights })
        });
        let unfinished = unfinished.collect::<Result<_, _>>()?;
        Ok((config, Self { policy, worker, input, unfinished, progress }))
    }
}

/// A run to go on with, from its newest checkpoint that is whole, or from its beginning if it has none.
pub(super) struct SavedRun {
    pub(super) config: RunConfig,
    pub(super) saved: Option<Saved>,
    pub(super) notices: Vec<String>,
    /// Keeps others from going on with it.
    pub(super) lock: File,
}

impl SavedRun {
    pub(super) fn load(dir: &Path) -> Result<Self, ResumeError> {
        let Left { lock, config, checkpoint, notices } = Left::open(dir)?;
        let saved = match checkpoint {
            None => None,
            Some(files) => {
                let (stored, saved) = Saved::read(files, &dir.join(CHECKPOINTS_DIR))?;
                check_unedited(dir, &stored, &config)?;
                Some(saved)
            }
        };
        Ok(Self { config, saved, notices, lock })
    }
}
