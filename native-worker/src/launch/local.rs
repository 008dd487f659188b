//! Workers as processes on this machine.

use std::{
    fs, io,
    path::PathBuf,
    pin::Pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::{Confinement, Grant, Inventory, LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher};
use crate::hub::TOKEN_VARIABLE;

/// How long to wait for a killed process.
const KILLED: Duration = Duration::from_secs(3);

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
        // Ctrl-C in the hub's terminal must only reach the hub, which stops its children.
        #[cfg(unix)]
        command.process_group(0);
        command
            .arg("worker")
            .args(order.way)
            .args(["--name", &format!("local-{}", order.number), "--until-stdin-closes", "--takes-host-settings"])
            .args(order.spec.device.iter().flat_map(|device| ["--device", device]))
            .args(confinement.arguments())
            .envs(order.environs)
            // Set after the user's variables, so that they cannot give a worker another one's GPU.
            .envs(confinement.variables())
            // What may run on this machine was set on this process's command line.
            .envs(crate::envs::python::child_environs())
            .env(TOKEN_VARIABLE, order.token.to_hex())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let oom_kills = oom_kills();
        let mut child =
            command.spawn().map_err(|source| LaunchError::Program { program: self.program.clone(), source })?;
        // Taken out, since waiting for the child would close it, which the child takes for the end of the hub.
        let stdin = child.stdin.take();
        Ok(Box::new(LocalWorker { child, _stdin: stdin, is_killed: false, oom_kills, _grant: grant }))
    }
}

struct LocalWorker {
    child: Child,
    _stdin: Option<ChildStdin>,
    is_killed: bool,
    /// [`oom_kills`] when it was started.
    oom_kills: Option<u64>,
    _grant: Grant,
}

impl LaunchedWorker for LocalWorker {
    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    fn kill(&mut self) {
        self.is_killed = true;
        // It may have exited already.
        let _ = self.child.start_kill();
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(async {
            if self.is_killed {
                let killed = timeout(KILLED, self.child.wait()).await;
                let status = killed.unwrap_or_else(|_| Err(io::Error::other("it does not end")));
                return status.map_or_else(|error| LaunchedEnd::plain(error.to_string()), LaunchedEnd::from);
            }
            match self.child.wait().await {
                Ok(status) => {
                    let counted = self.oom_kills.zip(oom_kills());
                    end_of(status, counted.is_some_and(|(before, now)| before < now))
                }
                Err(error) => LaunchedEnd::plain(error.to_string()),
            }
        })
    }
}

/// Returns how a process ended that this one did not kill. If the system ran out of memory during its life, that explains a
/// SIGKILL, and the process itself had used the memory.
fn end_of(status: ExitStatus, was_out_of_memory: bool) -> LaunchedEnd {
    #[cfg(unix)]
    if was_out_of_memory && std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        return LaunchedEnd { status: format!("{status}, killed by the system for lack of memory"), is_crash: true };
    }
    LaunchedEnd::from(status)
}

/// Returns how many processes the system has killed for lack of memory, under any limit; `None` if it does not count them.
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
        let [killed, aborted, told] = [9, 6, 15].map(ExitStatus::from_raw);
        assert!(!end_of(killed, false).is_crash && !end_of(told, true).is_crash && end_of(aborted, false).is_crash);
        let end = end_of(killed, true);
        assert!(
            end.is_crash && end.status == "signal: 9 (SIGKILL), killed by the system for lack of memory",
            "{end:?}"
        );
    }
}
