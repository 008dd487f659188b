//! A run that was begun before, as its directory has it.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use rollmesh_core::{
    config::Config,
    group::{GroupState, Ledger},
    run::RunConfig,
};

use super::{
    super::{
        RunRequest,
        run_dir::{INIT_WEIGHTS, SAMPLE},
    },
    differences::{Differences, between},
    saver::LEDGER,
    snapshot::{CONFIG, Contents, Progress},
};
use crate::checkpoint::{
    CHECKPOINTS_DIR, CheckpointError, PolicyCheckpoint, PolicyCheckpointError, newest, weights_file,
};

/// A run to go on with, from its newest checkpoint that is whole, or from its beginning if it has none.
///
/// ```no_run
/// # async fn example(hub: &rollmesh::hub::Hub) -> Result<(), Box<dyn std::error::Error>> {
/// use rollmesh::train::SavedRun;
///
/// let saved = SavedRun::load("runs/first")?;
/// println!("going on after iteration {}", saved.iteration());
/// let summary = hub.resume(saved).await?.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SavedRun {
    dir: PathBuf,
    request: RunRequest,
    saved: Option<Saved>,
    notices: Vec<String>,
    /// `None` for one that another rank resumes in the directory.
    lock: Option<File>,
}

/// Where a run goes on from.
#[derive(Debug)]
pub(in super::super) struct Saved {
    pub(in super::super) policy: PolicyCheckpoint,
    pub(in super::super) group: GroupState,
    pub(in super::super) learner: Vec<u8>,
    pub(in super::super) progress: Progress,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// There was never a run.
    #[error("{0} holds no run: begin one with --run-dir {0}")]
    NoRun(PathBuf),
    /// It only samples.
    #[error("{0} holds rows of `rollmesh sample`, which cannot be resumed: sample into another directory")]
    SamplesOnly(PathBuf),
    /// Another process has it.
    #[error("the run in {0} is going on in another process: stop that first")]
    Busy(PathBuf),
    /// The system says no.
    #[error("{path}: {source}")]
    Io {
        /// What it is about.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The configuration is none.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No checkpoint is whole.
    #[error("{source}; remove {dir} to begin from the start")]
    Checkpoint {
        /// The directory of the checkpoints.
        dir: PathBuf,
        /// What is wrong with them.
        source: CheckpointError,
    },
    /// The checkpoint is whole, but its policy is none.
    #[error(transparent)]
    Policy(#[from] PolicyCheckpointError),
    /// The checkpoint is whole, but a file of it is not what it should be.
    #[error("{path}: {reason}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody has changed the configuration since.
    #[error("{path} was changed since the last checkpoint: {differences}; change it back")]
    Edited {
        /// The configuration.
        path: PathBuf,
        /// What was changed, with the checkpoint's values first.
        differences: Differences,
    },
    /// Another run was asked for.
    #[error(
        "the run in {dir} cannot go on with other settings: {differences}; leave these flags out, or begin another run"
    )]
    Contradiction {
        /// The run.
        dir: PathBuf,
        /// What contradicts, with the run's values first.
        differences: Differences,
    },
}

impl SavedRun {
    /// Looks into a run's directory, and keeps others from going on with it as long as this or the run that goes on
    /// exists. Changes nothing there.
    ///
    /// # Errors
    /// [`ResumeError`], which names the file and says what to do.
    pub fn load(dir: impl Into<PathBuf>) -> Result<Self, ResumeError> {
        let dir = dir.into();
        let left = Left::open(&dir)?;
        Self::of(dir, left)
    }

    /// As [`load`](Self::load), for a rank other than 0 of a [data-parallel](RunRequest::data_parallel) run: rank 0 resumes the
    /// run in its directory, and this one only reads it.
    ///
    /// # Errors
    /// As there.
    pub fn load_for_other_rank(dir: impl Into<PathBuf>) -> Result<Self, ResumeError> {
        let dir = dir.into();
        let left = Left::read(&dir, None)?;
        Self::of(dir, left)
    }

    fn of(dir: PathBuf, left: Left) -> Result<Self, ResumeError> {
        let Left { lock, config, checkpoint, mut notices } = left;
        let saved = match checkpoint {
            None => None,
            Some(files) => {
                let Contents { config: stored, policy, group, learner, progress } =
                    Contents::read(files, &dir.join(CHECKPOINTS_DIR))?;
                check_unedited(&dir, &stored, &config)?;
                notices.extend(policy.notice_of_unused(&dir));
                Some(Saved { policy, group, learner, progress })
            }
        };
        let init = dir.join(INIT_WEIGHTS);
        let init_weights = init.is_file().then(|| weights_file::read(&init)).transpose()?;
        let run_dir = lock.is_some().then(|| dir.clone());
        let request = RunRequest { init_weights, run_dir, ..RunRequest::from(config) };
        Ok(Self { request, dir, saved, notices, lock })
    }

    /// The run and its directory.
    #[must_use]
    pub fn request(&self) -> &RunRequest {
        &self.request
    }

    /// The run's settings.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.request.config
    }

    /// The iteration after which it goes on; 0 is its beginning.
    #[must_use]
    pub fn iteration(&self) -> u64 {
        self.saved.as_ref().map_or(0, |saved| saved.policy.iteration)
    }

    /// The iteration of its checkpoint; none without one.
    pub(in super::super) fn checkpoint(&self) -> Option<u64> {
        self.saved.as_ref().map(|saved| saved.policy.iteration)
    }

    /// Env steps that it has learned from by then.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.saved.as_ref().map_or(0, |saved| saved.policy.env_steps)
    }

    /// What people should know, such as which checkpoints are damaged.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Goes on with these settings, which may have another stop return, other `max_env_steps` and another interval of
    /// checkpoints; what the rows depend on stays.
    ///
    /// # Errors
    /// [`ResumeError::Contradiction`], which names the settings.
    pub fn with_request(mut self, request: RunRequest) -> Result<Self, ResumeError> {
        let config = resumed(&self.dir, &self.request.config, request.config)?;
        let (run_dir, init_weights) = (self.request.run_dir.take(), self.request.init_weights.take());
        self.request = RunRequest { config, run_dir, init_weights, ..request };
        Ok(self)
    }

    /// Env steps that were made before, known by the books beside the checkpoints alone.
    pub(in super::super) fn regenerated(&self) -> u64 {
        let ledger = fs::read(self.dir.join(LEDGER)).ok();
        let ledger: Option<Ledger> = ledger.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let known = self.saved.as_ref().map_or(0, |saved| saved.group.ledger().regenerated);
        ledger.map_or(0, |ledger| ledger.regenerated).saturating_sub(known)
    }

    pub(in super::super) fn into_parts(self) -> (RunRequest, Option<Saved>, Option<File>) {
        (self.request, self.saved, self.lock)
    }
}

/// Reads the `config.toml` of a run.
pub(in super::super) fn read_config(text: &str) -> Result<RunConfig, String> {
    let settings: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    // Its preset is written out.
    let settings = settings.with("preset", "none").map_err(|error| error.to_string())?;
    RunConfig::of_settings(&settings).map_err(|error| error.to_string())
}

/// A run's directory as it was left, kept from others as long as the lock exists.
pub(super) struct Left {
    pub(super) lock: Option<File>,
    pub(super) config: RunConfig,
    /// The files of its newest checkpoint that is whole; none if it has no checkpoint.
    pub(super) checkpoint: Option<BTreeMap<String, Vec<u8>>>,
    /// What people should know.
    pub(super) notices: Vec<String>,
}

impl Left {
    /// Changes nothing there.
    pub(super) fn open(dir: &Path) -> Result<Self, ResumeError> {
        check_is_run(dir)?;
        Self::read(dir, Some(lock(dir)?))
    }

    /// As [`open`](Self::open), of a directory with this lock.
    fn read(dir: &Path, lock: Option<File>) -> Result<Self, ResumeError> {
        check_is_run(dir)?;
        let config = config_at(&dir.join(CONFIG))?;
        if config.algorithm.as_deref() == Some(SAMPLE) {
            return Err(ResumeError::SamplesOnly(dir.into()));
        }
        let checkpoints = dir.join(CHECKPOINTS_DIR);
        let found = match checkpoints.is_dir() {
            true => {
                newest(&checkpoints).map_err(|source| ResumeError::Checkpoint { dir: checkpoints.clone(), source })?
            }
            false => None,
        };
        let Some(found) = found else {
            let notices = vec!["the run has no checkpoint yet, it begins from the start".into()];
            return Ok(Self { lock, config, checkpoint: None, notices });
        };
        let number = found.checkpoint.number;
        let notices =
            found.damaged.iter().map(|damage| format!("{damage}; going on from checkpoint {number}")).collect();
        Ok(Self { lock, config, checkpoint: Some(found.checkpoint.files), notices })
    }
}

fn check_is_run(dir: &Path) -> Result<(), ResumeError> {
    if dir.join(CONFIG).is_file() { Ok(()) } else { Err(ResumeError::NoRun(dir.into())) }
}

/// The configuration in a file.
fn config_at(path: &Path) -> Result<RunConfig, ResumeError> {
    let text = fs::read_to_string(path).map_err(|source| ResumeError::Io { path: path.into(), source })?;
    read_config(&text).map_err(|reason| ResumeError::Config { path: path.into(), reason })
}

/// That the configuration in a run's directory is the one that its checkpoint has the text of.
fn check_unedited(dir: &Path, stored: &str, config: &RunConfig) -> Result<(), ResumeError> {
    let checkpoint = dir.join(CHECKPOINTS_DIR).join(CONFIG);
    let stored = read_config(stored).map_err(|reason| ResumeError::Config { path: checkpoint, reason })?;
    let path = dir.join(CONFIG);
    match differences(&stored, config, &path)? {
        Some(differences) => Err(ResumeError::Edited { path, differences }),
        None => Ok(()),
    }
}

/// The settings of a run in a directory with others over them, as far as those may change while it goes on.
fn resumed(dir: &Path, stored: &RunConfig, asked: RunConfig) -> Result<RunConfig, ResumeError> {
    let path = dir.join(CONFIG);
    let request = RunRequest { config: asked, ..RunRequest::default() }.written_out();
    let RunRequest { config, .. } =
        request.map_err(|error| ResumeError::Config { path: path.clone(), reason: error.to_string() })?;
    match differences(stored, &config, &path)? {
        Some(differences) => Err(ResumeError::Contradiction { dir: dir.into(), differences }),
        None => Ok(config),
    }
}

fn differences(stored: &RunConfig, other: &RunConfig, path: &Path) -> Result<Option<Differences>, ResumeError> {
    between(stored, other).map_err(|error| ResumeError::Config { path: path.into(), reason: error.to_string() })
}

/// Takes a run's directory for this process. It is free again when the file is dropped, however the process ends.
pub(in super::super) fn lock(dir: &Path) -> Result<File, ResumeError> {
    let path = dir.join("lock");
    let failed = |source| ResumeError::Io { path: path.clone(), source };
    let file = File::options().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(ResumeError::Busy(dir.into())),
        // Some file systems have no locks; there people have to take care themselves.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(failed(error)),
        Ok(()) => Ok(file),
    }
}
