//! An interpreter that hosts environments: starting it, and asking it for something.

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
        process::{End, Process},
        wire::{Reply, Request},
    },
    hub::TOKEN_VARIABLE,
};

const SCRIPT: &str = include_str!("host.py");

/// How long environments may take to be closed.
const GRACE: Duration = Duration::from_secs(1);

/// A host, while it runs, and how the next one is started.
pub(super) struct Host {
    settings: PythonSettings,
    limits: ProcessLimits,
    process: Option<Process>,
    /// Counts processes: what an earlier one made is gone.
    epoch: u64,
    orders: u32,
}

/// What a host says of a failure.
#[derive(Deserialize)]
struct Said {
    lane: Option<usize>,
    reason: String,
    is_unavailable: bool,
}

thread_local! {
    /// The host of this thread's environments. Its process ends with the thread and the last of them.
    static HOST: RefCell<Option<Arc<Mutex<Host>>>> = const { RefCell::new(None) };
}

impl Host {
    /// The host of this thread, another one if it is to have other settings.
    pub(super) fn of_thread(settings: &PythonSettings, limits: ProcessLimits) -> Arc<Mutex<Self>> {
        HOST.with_borrow_mut(|host| {
            let is_same = |host: &Self| host.limits == limits && host.settings.program() == settings.program();
            let kept = host.take().filter(|host| host.lock().is_ok_and(|host| is_same(&host)));
            let new = || Self { settings: settings.clone(), limits, process: None, epoch: 0, orders: 0 };
            host.insert(kept.unwrap_or_else(|| Arc::new(Mutex::new(new())))).clone()
        })
    }

    /// Which process runs, if one does: what was made by another one is gone.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.process.as_ref().map(|_| self.epoch)
    }

    /// A number for environments that are made together.
    pub(super) fn next_order(&mut self) -> u32 {
        self.orders = self.orders.wrapping_add(1);
        self.orders
    }

    pub(super) fn memory_mb(&self) -> u32 {
        self.limits.memory_mb
    }

    fn start(&mut self) -> io::Result<Process> {
        // A new process even if this one cannot be started: nothing of the last one is left.
        self.epoch += 1;
        let mut command = Command::new(self.settings.program());
        // Only what is installed, or named in PYTHONPATH, is imported: not what lies in the current folder.
        command.args(["-P", "-u", "-c", SCRIPT]).env_remove(TOKEN_VARIABLE);
        // For the same bits: the order of sets, and of sums that several threads share.
        for (name, value) in [("PYTHONHASHSEED", "0"), ("OMP_NUM_THREADS", "1")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        Process::start(&mut command)
    }

    /// Asks for something, and waits for the answer, which `take` reads. After a failure of the process there is none.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`], the environment's own, [`EnvError::Failed`] with what became of the process.
    pub(super) fn ask<T>(
        &mut self,
        name: &str,
        (doing, request): (&'static str, Request),
        body: impl FnOnce(&mut Vec<u8>),
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, EnvError> {
        let limit = Duration::from_millis(self.limits.timeout_ms.into());
        let limit = if request == Request::Close { GRACE.min(limit) } else { limit };
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
        let failed = |process: Process, end: &ProcessEnd| {
            let words = process.end();
            let words = if words.is_empty() { words } else { format!("; it said last: {words}") };
            EnvError::Failed(format!("{name}: its Python process {end}{words}"))
        };
        if let Err(end) = wait(&mut process, limit) {
            return Err(failed(process, &end));
        }
        let answer = match process.receive() {
            Ok(Some((Reply::Failed, body))) => match serde_json::from_slice::<Said>(body) {
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

impl Said {
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
fn wait(process: &mut Process, limit: Duration) -> Result<(), ProcessEnd> {
    let mut heard = Instant::now();
    while process.receive()?.is_none() {
        let (ends, mut fds): (Vec<End>, Vec<PollFd<'_>>) = process.ends().unzip();
        // Rounded up: to wake too early is to wake twice.
        let timeout = process.patience(limit).map(|patience| patience + Duration::from_micros(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(ProcessEnd::Nonsense(format!("answers that cannot be waited for: {error}"))),
        }
        let ready: Vec<End> =
            ends.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(end, _)| end).collect();
        drop(fds);
        for end in ready {
            match end {
                End::Requests => process.send(),
                End::Words => process.listen(),
                End::Answers => {}
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
