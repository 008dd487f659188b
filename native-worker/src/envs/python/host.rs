//! The Python host: an interpreter that runs environments; starting it and sending requests.

use std::{
    cell::RefCell,
    io,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rollmesh_core::env::{EnvError, ProcessEnd, ProcessLimits};
use rustix::{
    event::{PollFd, Timespec, poll},
    io::Errno,
};
use serde::Deserialize;

use super::PythonSettings;
use crate::{
    envs::remote::{
        process::{EnvProcess, PipeEnd},
        wire::{ChildReply, ChildRequest},
    },
    net::TOKEN_VARIABLE,
};

const SCRIPT: &str = concat!(
    include_str!("host/spaces.py"),
    include_str!("host/envs.py"),
    include_str!("host/game.py"),
    include_str!("host/states.py"),
    include_str!("host/main.py"),
);

/// Time for environments to close.
const GRACE: Duration = Duration::from_secs(1);

/// Times the limit of a call that a fingerprint may take: two environments are made, and take 64 steps each, but a call that
/// hangs has to be noticed.
const FINGERPRINT_CALLS: u32 = 8;

/// The host of a thread's environments: its process, while it runs, and the settings to start the next one.
pub(super) struct PythonHost {
    settings: PythonSettings,
    limits: ProcessLimits,
    process: Option<EnvProcess>,
    /// Counts processes: environments of earlier processes are lost.
    epoch: u64,
    groups: u32,
}

/// A host's description of a failure.
#[derive(Deserialize)]
struct HostFailure {
    lane: Option<usize>,
    reason: String,
    is_unavailable: bool,
}

thread_local! {
    /// The hosts of this thread's environments. Their processes end with the thread and the last of their environments.
    static HOSTS: RefCell<Vec<Arc<Mutex<PythonHost>>>> = const { RefCell::new(Vec::new()) };
}

/// A process with a request that it has not answered yet. Dropped, it is killed.
pub(super) struct Pending {
    process: EnvProcess,
    limit: Duration,
}

impl PythonHost {
    /// Returns a host of this thread by its number, a new one if there is none with these settings and limits.
    pub(super) fn of_thread(settings: &PythonSettings, limits: ProcessLimits, number: usize) -> Arc<Mutex<Self>> {
        HOSTS.with_borrow_mut(|hosts| {
            let is_same = |host: &Self| host.limits == limits && host.settings.program() == settings.program();
            hosts.retain(|host| host.lock().is_ok_and(|host| is_same(&host)));
            let new = || Self { settings: settings.clone(), limits, process: None, epoch: 0, groups: 0 };
            while hosts.len() <= number {
                hosts.push(Arc::new(Mutex::new(new())));
            }
            hosts[number].clone()
        })
    }

    /// Returns the number of the running process, if there is one: environments of earlier processes are lost.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.process.as_ref().map(|_| self.epoch)
    }

    /// Returns a number for environments that are made together.
    pub(super) fn next_group(&mut self) -> u32 {
        self.groups = self.groups.wrapping_add(1);
        self.groups
    }

    pub(super) fn memory_mb(&self) -> u32 {
        self.limits.memory_mb
    }

    fn start(&mut self) -> io::Result<EnvProcess> {
        // Counted even if the start fails, since the last process is lost in any case.
        self.epoch += 1;
        let mut command = Command::new(self.settings.program());
        // Imports only installed modules and those in PYTHONPATH, not files in the current directory.
        command.args(["-P", "-u", "-c", SCRIPT]).env_remove(TOKEN_VARIABLE);
        // For determinism: the iteration order of sets, and sums split among several threads.
        for (name, value) in [("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        EnvProcess::start(command)
    }

    /// Sends a request and waits for the answer, which `take` decodes. If the process fails, it is ended.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`], the environment's own error, [`EnvError::Failed`] with the process's exit.
    pub(super) fn ask<T>(
        &mut self,
        name: &str,
        ask: (&'static str, ChildRequest),
        body: impl FnOnce(&mut Vec<u8>),
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, EnvError> {
        let pending = self.send(name, ask, body)?;
        self.receive(name, pending, take)
    }

    /// Sends a request, whose answer [`receive`](Self::receive) returns.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`] without an interpreter.
    pub(super) fn send(
        &mut self,
        name: &str,
        (doing, request): (&'static str, ChildRequest),
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Pending, EnvError> {
        let limit = Duration::from_millis(self.limits.timeout_ms.into());
        let limit = match request {
            ChildRequest::Close => GRACE.min(limit),
            ChildRequest::Fingerprint => limit.saturating_mul(FINGERPRINT_CALLS),
            _ => limit,
        };
        let mut process = match self.process.take().map_or_else(|| self.start(), Ok) {
            Ok(process) => process,
            Err(error) => {
                let program = self.settings.program();
                return Err(EnvError::Unavailable(format!(
                    "{name} cannot be made: the Python interpreter {} does not start: {error}; name one with --python",
                    program.display()
                )));
            }
        };
        process.ask(doing, request, body);
        Ok(Pending { process, limit })
    }

    /// Waits for the answer of a request, which `take` decodes. If the process fails, it is ended.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn receive<T>(
        &mut self,
        name: &str,
        Pending { mut process, limit }: Pending,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, EnvError> {
        let failed = |process: EnvProcess, end: &ProcessEnd| {
            let words = process.end();
            let words = if words.is_empty() { words } else { format!("; it said last: {words}") };
            EnvError::Failed(format!("{name}: its Python process {end}{words}"))
        };
        if let Err(end) = wait(&mut process, limit) {
            return Err(failed(process, &end));
        }
        let answer = match process.receive() {
            Ok(Some((ChildReply::Failed, body))) => match serde_json::from_slice::<HostFailure>(body) {
                Ok(said) => Ok(Err(said)),
                Err(_) => Err(ProcessEnd::Nonsense("an error that makes no sense".into())),
            },
            Ok(Some((_, body))) => {
                take(body).map(Ok).ok_or_else(|| ProcessEnd::Nonsense("an answer that makes no sense".into()))
            }
            Ok(None) => Err(ProcessEnd::Nonsense("half an answer".into())),
            Err(end) => Err(end),
        };
        match answer {
            Ok(answer) => {
                process.taken();
                self.process = Some(process);
                answer.map_err(|said| said.error(name))
            }
            Err(end) => Err(failed(process, &end)),
        }
    }
}

impl HostFailure {
    fn error(self, name: &str) -> EnvError {
        let Self { lane, reason, is_unavailable } = self;
        let error = match is_unavailable {
            true => EnvError::Unavailable(reason),
            false => EnvError::Failed(format!("{name}: {reason}")),
        };
        match lane {
            Some(lane) => EnvError::InLane { lane, source: Box::new(error) },
            None => error,
        }
    }
}

/// Waits until the answer is complete.
fn wait(process: &mut EnvProcess, limit: Duration) -> Result<(), ProcessEnd> {
    let mut heard = Instant::now();
    while process.receive()?.is_none() {
        let (ends, mut fds): (Vec<PipeEnd>, Vec<PollFd<'_>>) = process.ends().unzip();
        // Rounded up, so that it does not wake just before the deadline.
        let timeout = process.patience(limit).map(|patience| patience + Duration::from_micros(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(ProcessEnd::Nonsense(format!("answers that cannot be waited for: {error}"))),
        }
        let ready: Vec<PipeEnd> =
            ends.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(end, _)| end).collect();
        drop(fds);
        for end in ready {
            match end {
                PipeEnd::Requests => process.send(),
                PipeEnd::Words => process.listen(),
                PipeEnd::Answers => {}
            }
        }
        let time = heard.elapsed();
        heard += time;
        process.heard(time);
        if let Some(end) = process.overdue(limit) {
            return Err(end);
        }
    }
    Ok(())
}
