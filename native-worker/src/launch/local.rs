//! Workers as processes on this machine.

use std::{
    fs, io,
    path::PathBuf,
    pin::Pin,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, ChildStdin},
    time::timeout,
};

use super::{Grant, Inventory, LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher, LogReceiver};
use crate::{
    child::{Confinement, LastWords, kill_group, spawn_in_runtime},
    net::TOKEN_VARIABLE,
};

/// Time for a process on this machine to join its hub.
const JOINS: Duration = Duration::from_secs(60);
/// The time to wait for a killed process.
const KILLED: Duration = Duration::from_secs(3);
/// The time for reading the standard error of a process that has ended: its child processes may keep it open.
const LAST_READ: Duration = Duration::from_millis(100);

/// Starts workers as child processes: the current executable, or another program that begins with
/// [`main_with`](crate::main_with).
///
/// A process is confined to its specification: CPUs by affinity, GPUs by `CUDA_VISIBLE_DEVICES`, memory by the system's data
/// limit. It has a process group of its own, and a pipe that closes when this process ends in any way: no worker outlives
/// it.
#[derive(Clone, Debug)]
pub struct LocalLauncher {
    program: PathBuf,
    inventory: Inventory,
}

impl LocalLauncher {
    /// Creates a launcher that starts `program worker …`, with the resources that this process may use.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), inventory: Inventory::of_machine() }
    }

    /// Sets the inventory.
    #[must_use]
    pub fn with_inventory(self, inventory: Inventory) -> Self {
        Self { inventory, ..self }
    }

    /// Returns the inventory.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }
}

impl Launcher for LocalLauncher {
    fn launch(&self, order: &LaunchOrder<'_>) -> Result<Box<dyn LaunchedWorker>, LaunchError> {
        let grant = self.inventory.grant(order.spec)?;
        let confinement = Confinement { cpus: grant.cpus(), gpus: grant.gpus(), memory: grant.memory() };
        let mut command = Command::new(&self.program);
        command
            .arg("worker")
            .args(order.way)
            .args(["--name", &format!("local-{}", order.number), "--until-stdin-closes", "--takes-host-settings"])
            .args(order.spec.device.iter().flat_map(|device| ["--device", device]))
            .args(confinement.arguments())
            .envs(order.environs)
            // Set after the user's variables, so that they cannot give a worker another one's GPU.
            .envs(confinement.variables())
            // This process's command line determines the Python environments that may run on this machine.
            .envs(crate::envs::python::child_environs())
            .env(TOKEN_VARIABLE, order.token.to_hex());
        let oom_kills = oom_kills();
        let mut child = spawn_in_runtime(command, Stdio::null())
            .map_err(|source| LaunchError::Program { program: self.program.clone(), source })?;
        // Taken out, since waiting for the child would close it, which the child takes for the end of the hub.
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let words = LastWords::default();
        Ok(Box::new(LaunchedChild {
            child,
            _stdin: stdin,
            stderr,
            words,
            log: None,
            is_killed: false,
            oom_kills,
            grant,
        }))
    }
}

struct LaunchedChild {
    child: Child,
    _stdin: Option<ChildStdin>,
    /// `None` once it has been read to its end.
    stderr: Option<ChildStderr>,
    words: LastWords,
    /// The receiver of a copy of the standard error.
    log: Option<LogReceiver>,
    is_killed: bool,
    /// [`oom_kills`] when it was started.
    oom_kills: Option<u64>,
    grant: Grant,
}

impl LaunchedChild {
    /// Waits for the process's end, and reads its standard error meanwhile.
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    let rest = async {
                        while self.stderr.is_some() {
                            read(&mut self.stderr, &mut self.words, &mut self.log).await;
                        }
                    };
                    // The lines that were read are kept in any case.
                    let _ = timeout(LAST_READ, rest).await;
                    return status;
                }
                () = read(&mut self.stderr, &mut self.words, &mut self.log), if self.stderr.is_some() => {}
            }
        }
    }

    /// Explains the end of a process that failed.
    fn explain(&self, end: LaunchedEnd) -> LaunchedEnd {
        if end.is_crash { self.with_words(end) } else { end }
    }

    /// Adds the process's last words and its limit of memory, which may be the reason for its end.
    fn with_words(&self, mut end: LaunchedEnd) -> LaunchedEnd {
        let words = self.words.to_string();
        if !words.is_empty() {
            end.status += &format!(": {words}");
        }
        if let Some(bytes) = self.grant.memory() {
            end.status += &format!("; its memory is limited to {bytes} bytes, which --worker-memory sets");
        }
        end
    }
}

/// Reads the next part of a standard error, and copies it to the log.
async fn read(stderr: &mut Option<ChildStderr>, words: &mut LastWords, log: &mut Option<LogReceiver>) {
    let Some(open) = stderr else { return };
    let mut bytes = [0; 4096];
    match open.read(&mut bytes).await {
        Ok(read @ 1..) => {
            let bytes = bytes.get(..read).unwrap_or_default();
            words.push(bytes);
            if let Some(receive) = log {
                receive(bytes);
            }
        }
        Ok(_) | Err(_) => (*stderr, *log) = (None, None),
    }
}

impl LaunchedWorker for LaunchedChild {
    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    fn forward_log(&mut self, receive: LogReceiver) {
        self.log = Some(receive);
    }

    fn joins_within(&self) -> Option<Duration> {
        Some(JOINS)
    }

    fn kill(&mut self) {
        self.is_killed = true;
        self.child.id().into_iter().for_each(kill_group);
        // It may have exited already.
        let _ = self.child.start_kill();
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(async {
            if self.is_killed {
                let killed = timeout(KILLED, self.child.wait()).await;
                let status = killed.unwrap_or_else(|_| Err(io::Error::other("it does not end")));
                let end = status.map_or_else(|error| LaunchedEnd::plain(error.to_string()), LaunchedEnd::from);
                return self.with_words(end);
            }
            match self.wait().await {
                Ok(status) => {
                    let counted = self.oom_kills.zip(oom_kills());
                    self.explain(end_of(status, counted.is_some_and(|(before, now)| before < now)))
                }
                Err(error) => LaunchedEnd::plain(error.to_string()),
            }
        })
    }
}

/// Returns the end of a process that this one did not kill. If the system ran out of memory during its life, that
/// explains a SIGKILL, and the process itself had used the memory.
fn end_of(status: ExitStatus, was_out_of_memory: bool) -> LaunchedEnd {
    #[cfg(unix)]
    if was_out_of_memory && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        return LaunchedEnd { status: format!("{status}, killed by the system for lack of memory"), is_crash: true };
    }
    LaunchedEnd::from(status)
}

/// Returns the number of processes that the system has killed for lack of memory, under any limit; `None` if it does
/// not count them.
fn oom_kills() -> Option<u64> {
    let counters = fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn sigkill_is_a_crash_only_while_system_kills_for_memory() {
        assert!(oom_kills().is_some());
        let [killed, aborted, terminated] = [9, 6, 15].map(ExitStatus::from_raw);
        assert!(
            !end_of(killed, false).is_crash && !end_of(terminated, true).is_crash && end_of(aborted, false).is_crash
        );
        let end = end_of(killed, true);
        assert!(
            end.is_crash && end.status == "signal: 9 (SIGKILL), killed by the system for lack of memory",
            "{end:?}"
        );
    }
}
