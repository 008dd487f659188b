//! Named evaluation workers: processes that outlive the program that started them, and are found by other programs.
//!
//! Each runs a hub of its own, and has a file in a directory that only its user can read: the hub's port on the loopback
//! interface, and a token. Handles that can read the file connect there. A named worker can join another hub, too.

mod file;

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::PathBuf,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    evaluation::{EvalWorkerError, check_name},
    protocol::Token,
    run::RunConfig,
};
use serde::{Deserialize, Serialize};

use self::file::read;
pub(crate) use self::file::{Name, NameAddress};
use super::{EvalWorker, hub::EvalHub, process::check_not_started_as_one};
use crate::child::{read_json, spawn_detached, write_json};
use crate::control::{HubUrl, HubUrlError, Trust};

/// The fix for a program that is started again as a worker.
const FIRST_IN_MAIN: &str = "call rollmesh::child_process first in the program's main";
/// The hidden command that runs a named evaluation worker.
pub(crate) const WORKER_COMMAND: &str = "eval-worker";
/// Environment variable of the directory of names.
const DIR_VARIABLE: &str = "ROLLMESH_STATE_DIR";
/// Time for a process to report that it is a worker; it may connect to a hub meanwhile.
const FOUNDING: Duration = Duration::from_secs(60);
/// A worker that cannot be reached may be ending: it is retried for this long, …
const ENDING: Duration = Duration::from_secs(1);
/// … at this interval.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A directory with the names of evaluation workers.
///
/// ```
/// use rollmesh::eval::EvalNames;
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-names-doc-{}", std::process::id()));
/// let names = EvalNames::new(&dir);
/// let error = names.find("missing").unwrap_err().to_string();
/// assert!(error.starts_with("there is no evaluation worker 'missing' in "));
/// ```
#[derive(Clone, Debug)]
pub struct EvalNames {
    dir: PathBuf,
    hub: Option<EvalHub>,
}

/// The message that the process of a named worker reads when it starts.
#[derive(Serialize, Deserialize)]
pub(crate) struct Founding {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) run: RunConfig,
    pub(crate) hub: Option<EvalHub>,
}

impl EvalNames {
    /// Uses the names in this directory, which is created when the first worker gets a name.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), hub: None }
    }

    /// Uses another hub as well: named workers join it and are found through it with a worker token, and names that are not
    /// in the directory are looked up there. A worker that loses its connection to the hub reconnects.
    #[must_use]
    pub fn with_hub(self, hub: EvalHub) -> Self {
        Self { hub: Some(hub), ..self }
    }

    /// Returns the user's own names: in `eval` below `ROLLMESH_STATE_DIR`, else below `rollmesh` in the system's directory
    /// for state.
    #[must_use]
    pub fn of_user() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        let dir = set(DIR_VARIABLE).or_else(|| state().map(|state| state.join("rollmesh")));
        Self::new(dir.unwrap_or_else(|| std::env::temp_dir().join("rollmesh")).join("eval"))
    }

    /// Starts a worker under a name, in a process that continues when this one ends: the current executable, which begins
    /// with [`main_with`](crate::main_with) or [`child_process`](crate::child_process).
    ///
    /// # Errors
    /// [`EvalWorkerError::BadName`], [`EvalWorkerError::NameTaken`], [`EvalWorkerError::Setup`]; [`EvalWorkerError::Io`] if
    /// the hub cannot be reached. The first poll reports errors of environment and policy.
    pub fn create(&self, name: &str, run: &RunConfig) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        check_not_started_as_one()?;
        let failed = |error: io::Error| EvalWorkerError::setup("process", error);
        let mut command = Command::new(crate::program().map_err(failed)?);
        command.arg(WORKER_COMMAND).envs(crate::envs::python::child_environs());
        let (mut child, stdin, stdout) = spawn_detached(command).map_err(failed)?;
        let founding = self.founding(name, run);
        let (sender, receiver) = mpsc::channel();
        let ask = move || {
            let answer = write_json(stdin, &founding).and_then(|()| read_json::<Result<(), EvalWorkerError>>(stdout));
            // The caller may have timed out.
            let _ = sender.send(answer);
        };
        let answer = match thread::Builder::new().name("eval-founding".into()).spawn(ask) {
            Ok(_) => receiver.recv_timeout(FOUNDING).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())),
            Err(error) => Err(error),
        };
        if answer.is_err() {
            // It is no worker, and would not end by itself.
            let _ = child.kill();
        }
        // Reaps the process if it ends before this one.
        let _ = thread::Builder::new().name("eval-worker-end".into()).spawn(move || child.wait());
        answer.map_err(|error| {
            let reason = format!("it does not say that it is a worker ({error}): {FIRST_IN_MAIN}");
            EvalWorkerError::setup("process", reason)
        })??;
        self.find_here(name)
    }

    /// Returns the message that the process of a worker with this name reads when it starts.
    pub(crate) fn founding(&self, name: &str, run: &RunConfig) -> Founding {
        Founding { dir: self.dir.clone(), name: name.into(), run: run.clone(), hub: self.hub.clone() }
    }

    /// Returns a new handle of a worker that was started under this name, in this process or another one.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        match (self.find_here(name), &self.hub) {
            (Err(EvalWorkerError::UnknownName { .. }), Some(hub)) => hub.find(name),
            (found, _) => found,
        }
    }

    fn find_here(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        let patience = Instant::now() + ENDING;
        loop {
            let Some(address) = self.address(name) else {
                return Err(EvalWorkerError::UnknownName { name: name.into(), place: self.dir.display().to_string() });
            };
            match address.hub().and_then(|hub| hub.find(name)) {
                // A worker that is ending is unreachable before its file is removed.
                Err(EvalWorkerError::Io(_) | EvalWorkerError::UnknownName { .. }) if Instant::now() < patience => {
                    thread::sleep(LOOK_AGAIN);
                }
                found => return found,
            }
        }
    }

    /// Returns the existing names, sorted.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let name = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".json").map(Into::into);
        let mut names: Vec<String> = files.filter_map(|file| name(file.path())).collect();
        names.retain(|name| self.address(name).is_some());
        names.sort_unstable();
        names
    }

    /// Returns the environment of a worker with this name of the user's own; `None` for workers of other hubs, which do
    /// not report it.
    pub(crate) fn env(&self, name: &str) -> Option<String> {
        self.address(name)?.env
    }

    /// Returns the address of a named worker, if there is one. The file of a worker that crashed is removed.
    fn address(&self, name: &str) -> Option<NameAddress> {
        let file = self.dir.join(format!("{name}.json"));
        // While this process holds the lock no worker takes the name, so the file is stale.
        if let Ok(lock) = File::open(self.dir.join(format!("{name}.lock")))
            && lock.try_lock_shared().is_ok()
        {
            let _ = fs::remove_file(file);
            return None;
        }
        read(&file)
    }
}

impl NameAddress {
    /// Returns the worker's own hub.
    fn hub(&self) -> Result<EvalHub, EvalWorkerError> {
        let url: HubUrl =
            format!("ws://127.0.0.1:{}", self.port).parse().map_err(|error: HubUrlError| EvalWorkerError::io(error))?;
        let token = Token::from_hex(&self.token).map_err(EvalWorkerError::io)?;
        Ok(EvalHub { url, token, trust: Trust::default() })
    }
}
