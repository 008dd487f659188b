//! Loading a run from its directory.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rollmesh_core::{config::Config, group::Ledger, run::RunConfig};

use super::{
    super::{
        RunRequest,
        run_dir::{INIT_WEIGHTS, NO_ALGORITHM, own_output},
    },
    differences::{Differences, between},
    saver::LEDGER,
    snapshot::{CONFIG, Saved},
};
use crate::{
    checkpoint::{CHECKPOINTS_DIR, CheckpointError, PolicyCheckpointError, newest, place, weights_file},
    files::if_exists,
};

/// Listing runs holds the lock of each for some microseconds, to check whether a process runs it: taking a lock is
/// retried this often …
const LOCK_RETRIES: u32 = 4;
/// … after this time.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A run to resume from its newest valid checkpoint, or from its beginning if it has none.
///
/// ```no_run
/// # async fn example(hub: &rollmesh::hub::Hub) -> Result<(), Box<dyn std::error::Error>> {
/// use rollmesh::train::SavedRun;
///
/// let saved = SavedRun::load("runs/first")?;
/// println!("resuming after iteration {}", saved.iteration());
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
    /// `None` for a rank other than 0, since rank 0 resumes the run in the directory.
    lock: Option<File>,
}

/// An error of resuming a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The directory has no run.
    #[error(
        "{place} holds no run: begin one with --run-dir {0}; `rollmesh runs DIR` lists the runs in a directory",
        place = place(.0)
    )]
    NoRun(PathBuf),
    /// The run has no learner.
    #[error("the run in {0} only samples: resume it with `rollmesh sample --resume {0}`")]
    SamplesOnly(PathBuf),
    /// The run was sampled by an earlier version, which named no algorithm in its settings.
    #[error(
        "the run in {0} was sampled by an earlier version, and cannot be resumed: sample again into another --run-dir"
    )]
    Earlier(PathBuf),
    /// The run has a learner.
    #[error("the run in {0} learns: resume it with `rollmesh train --resume {0}`")]
    Learns(PathBuf),
    /// Another process holds the directory.
    #[error("the run in {0} is in progress in another process: stop that first")]
    Busy(PathBuf),
    /// The operating system reported an error.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// No checkpoint is valid.
    #[error("{source}; remove {dir} to begin from the start")]
    Checkpoint {
        /// The directory of the checkpoints.
        dir: PathBuf,
        /// The error of the newest one.
        source: CheckpointError,
    },
    /// The checkpoint's policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyCheckpointError),
    /// A file in the checkpoint has invalid contents.
    #[error("{path}: {reason}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The configuration was edited since the last checkpoint.
    #[error("{path} was changed since the last checkpoint: {differences}; change it back")]
    Edited {
        /// The configuration.
        path: PathBuf,
        /// The differences, with the checkpoint's values first.
        differences: Differences,
    },
    /// The settings contradict those of the run.
    #[error(
        "the run in {dir} cannot be resumed with other settings: {differences}; leave these flags out, or begin another run"
    )]
    Contradiction {
        /// The run.
        dir: PathBuf,
        /// The differences, with the run's values first.
        differences: Differences,
    },
}

impl SavedRun {
    /// Loads a run from its directory, and locks it against other processes as long as this or the resumed run exists.
    /// Changes nothing there.
    ///
    /// # Errors
    /// [`ResumeError`], which names the file and says what to do.
    pub fn load(dir: impl Into<PathBuf>) -> Result<Self, ResumeError> {
        let saved = Self::load_any(dir.into())?;
        if saved.samples_only() { Err(ResumeError::SamplesOnly(saved.dir)) } else { Ok(saved) }
    }

    /// Works like [`load`](Self::load), for a run without a learner.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn load_sampling(dir: impl Into<PathBuf>) -> Result<Self, ResumeError> {
        let saved = Self::load_any(dir.into())?;
        match saved.samples_only() {
            true => Ok(saved),
            false if names_no_algorithm(&saved.dir) => Err(ResumeError::Earlier(saved.dir)),
            false => Err(ResumeError::Learns(saved.dir)),
        }
    }

    fn load_any(dir: PathBuf) -> Result<Self, ResumeError> {
        let left = Left::open(&dir)?;
        Self::of(dir, left)
    }

    fn samples_only(&self) -> bool {
        self.request.config.algorithm.is_none()
    }

    /// Works like [`load`](Self::load), for a rank other than 0 of a [data-parallel](RunRequest::data_parallel) run:
    /// rank 0 resumes the run in its directory, and this one only reads it.
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
                let (stored, saved) = Saved::read(files, &dir.join(CHECKPOINTS_DIR))?;
                check_unedited(&dir, &stored, &config)?;
                notices.extend(saved.policy.notice_of_unused(&dir));
                Some(saved)
            }
        };
        let init = dir.join(INIT_WEIGHTS);
        let init_weights = init.is_file().then(|| weights_file::read(&init)).transpose()?;
        let run_dir = lock.is_some().then(|| dir.clone());
        let output = run_dir.as_deref().and_then(own_output);
        let request = RunRequest { init_weights, run_dir, output, ..RunRequest::from(config) };
        Ok(Self { request, dir, saved, notices, lock })
    }

    /// Returns the run's request, with its directory.
    #[must_use]
    pub fn request(&self) -> &RunRequest {
        &self.request
    }

    /// Returns the run's configuration.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.request.config
    }

    /// Returns the iteration after which it continues; 0 is its beginning.
    #[must_use]
    pub fn iteration(&self) -> u64 {
        self.saved.as_ref().map_or(0, |saved| saved.policy.iteration)
    }

    /// Returns the iteration of its checkpoint; `None` without one.
    pub(in super::super) fn checkpoint(&self) -> Option<u64> {
        self.saved.as_ref().map(|saved| saved.policy.iteration)
    }

    /// Returns the env steps that it had learned from at that time.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.saved.as_ref().map_or(0, |saved| saved.policy.env_steps)
    }

    /// Returns notices for users, for example about damaged checkpoints.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Changes the settings to resume with: the stop conditions and the interval of checkpoints may differ, settings that
    /// affect the rows may not. An output within the run's directory is continued unless the request names another one.
    ///
    /// # Errors
    /// [`ResumeError::Contradiction`], which names the settings.
    pub fn with_request(mut self, request: RunRequest) -> Result<Self, ResumeError> {
        let config = resumed(&self.dir, &self.request.config, request.config)?;
        let RunRequest { run_dir, init_weights, output, .. } = self.request;
        let output = request.output.or(output);
        self.request = RunRequest { config, run_dir, init_weights, output, ..request };
        Ok(self)
    }

    /// Returns the env steps that will be granted a second time and are recorded only in the ledger outside of the
    /// checkpoints.
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
    // The settings of its preset are filled in already.
    let settings = settings.with("preset", "none").map_err(|error| error.to_string())?;
    let config = RunConfig::of_settings(&settings).map_err(|error| error.to_string())?;
    Ok(RunConfig { algorithm: config.algorithm.filter(|name| name != NO_ALGORITHM), ..config })
}

/// Returns true for the directory of a run that an earlier version has sampled: an absent algorithm is the default one.
fn names_no_algorithm(dir: &Path) -> bool {
    let settings = fs::read_to_string(dir.join(CONFIG)).ok().and_then(|text| toml::from_str::<Config>(&text).ok());
    settings.is_some_and(|settings| settings.names().all(|name| name != "algorithm"))
}

/// The contents of a run's directory, locked as long as `lock` exists.
pub(super) struct Left {
    pub(super) lock: Option<File>,
    pub(super) config: RunConfig,
    /// The files of its newest valid checkpoint; `None` if it has no checkpoint.
    pub(super) checkpoint: Option<BTreeMap<String, Vec<u8>>>,
    /// Notices for users.
    pub(super) notices: Vec<String>,
}

impl Left {
    /// Locks and reads the directory; changes nothing there.
    pub(super) fn open(dir: &Path) -> Result<Self, ResumeError> {
        check_is_run(dir)?;
        Self::read(dir, Some(lock(dir)?))
    }

    /// Works like [`open`](Self::open), with this lock.
    fn read(dir: &Path, lock: Option<File>) -> Result<Self, ResumeError> {
        check_is_run(dir)?;
        let config = config_at(&dir.join(CONFIG))?;
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
            found.damaged.iter().map(|damage| format!("{damage}; resuming from checkpoint {number}")).collect();
        Ok(Self { lock, config, checkpoint: Some(found.checkpoint.files), notices })
    }
}

fn check_is_run(dir: &Path) -> Result<(), ResumeError> {
    if dir.join(CONFIG).is_file() { Ok(()) } else { Err(ResumeError::NoRun(dir.into())) }
}

/// Reads the configuration in a file.
fn config_at(path: &Path) -> Result<RunConfig, ResumeError> {
    let text = fs::read_to_string(path).map_err(|source| ResumeError::Io { path: path.into(), source })?;
    read_config(&text).map_err(|reason| ResumeError::Config { path: path.into(), reason })
}

/// Checks that the configuration in a run's directory equals that in its checkpoint.
fn check_unedited(dir: &Path, stored: &str, config: &RunConfig) -> Result<(), ResumeError> {
    let checkpoint = dir.join(CHECKPOINTS_DIR).join(CONFIG);
    let stored = read_config(stored).map_err(|reason| ResumeError::Config { path: checkpoint, reason })?;
    let path = dir.join(CONFIG);
    match differences(&stored, config, &path)? {
        Some(differences) => Err(ResumeError::Edited { path, differences }),
        None => Ok(()),
    }
}

/// Returns a stored run's configuration with other settings, as far as these may change.
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

/// Deletes a run with all its files, unless a process runs it. The directory is renamed first to `.deleted-NAME`, which is no
/// run: a deletion that is interrupted leaves no run with some of its files.
///
/// # Errors
/// [`ResumeError`] names the path.
pub(crate) fn delete_run(dir: &Path) -> Result<(), ResumeError> {
    check_is_run(dir)?;
    let _lock = lock(dir)?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let deleted = dir.with_file_name(format!(".deleted-{name}"));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ResumeError::Io { path, source }
    };
    // A run of the same name, whose deletion was interrupted.
    if_exists(fs::remove_dir_all(&deleted)).map_err(failed(&deleted))?;
    fs::rename(dir, &deleted).map_err(failed(dir))?;
    fs::remove_dir_all(&deleted).map_err(failed(&deleted))
}

/// Locks a run's directory for this process. The lock is released when the file is dropped, however the process ends.
pub(in super::super) fn lock(dir: &Path) -> Result<File, ResumeError> {
    let path = dir.join("lock");
    let failed = |source| ResumeError::Io { path: path.clone(), source };
    let file = File::options().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    let mut locked = file.try_lock();
    for _ in 0..LOCK_RETRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        thread::sleep(LOCK_PAUSE);
        locked = file.try_lock();
    }
    match locked {
        Err(TryLockError::WouldBlock) => Err(ResumeError::Busy(dir.into())),
        // Some file systems have no locks; there users have to take care themselves.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(failed(error)),
        Ok(()) => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::runs::FoundRun;

    #[test]
    fn listing_runs_does_not_keep_them_from_being_locked() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(CONFIG), "env = \"CartPole-v1\"").unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    FoundRun::of(&dir);
                }
            });
            let refused = (0..500).filter_map(|_| lock(&dir).err()).map(|error| error.to_string()).next();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(refused, None);
        });
        let held = lock(&dir).unwrap();
        assert!(matches!(delete_run(&dir), Err(ResumeError::Busy(_))));
        drop(held);
        delete_run(&dir).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
