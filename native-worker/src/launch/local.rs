//! Workers as processes of this machine.

use std::{io, path::PathBuf, pin::Pin, process::Stdio, time::Duration};

use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::{Confinement, Grant, Inventory, LaunchError, LaunchOrder, LaunchedEnd, LaunchedWorker, Launcher};
use crate::hub::TOKEN_VARIABLE;

/// A process that was killed is gone within this time, or nobody waits for it.
const KILLED: Duration = Duration::from_secs(3);

/// Starts workers as child processes: this program again, or another one that begins with
/// [`main_with`](crate::main_with).
///
/// A process is held to what its specification says: CPUs by its affinity, GPUs by `CUDA_VISIBLE_DEVICES`, memory by the
/// system's limit for data. It has a process group of its own, and a pipe that closes with this process, however that ends:
/// no worker outlives it.
#[derive(Clone, Debug)]
pub struct LocalLauncher {
    program: PathBuf,
    inventory: Inventory,
}

impl LocalLauncher {
    /// Starts `program worker …`, with what this process may use of the machine.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), inventory: Inventory::of_machine() }
    }

    /// Sets what there is to grant.
    #[must_use]
    pub fn with_inventory(self, inventory: Inventory) -> Self {
        Self { inventory, ..self }
    }

    /// What there is to grant.
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
        // Ctrl-C in the hub's terminal is for the hub, which tells its children.
        #[cfg(unix)]
        command.process_group(0);
        command
            .arg("worker")
            .args(order.way)
            .args(["--name", &format!("local-{}", order.number), "--until-stdin-closes"])
            .args(confinement.arguments())
            .envs(order.environs)
            // After what the user says, so that nobody sees the GPU of another one.
            .envs(confinement.variables())
            // What may run on this machine was said on this process's command line.
            .envs(crate::envs::python::child_environs())
            .env(TOKEN_VARIABLE, order.token.to_hex())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|source| LaunchError::Program { program: self.program.clone(), source })?;
        // Taken out, since waiting for the child would close it: the child takes that for the end of the hub.
        let stdin = child.stdin.take();
        Ok(Box::new(LocalWorker { child, _stdin: stdin, is_killed: false, _grant: grant }))
    }
}

struct LocalWorker {
    child: Child,
    _stdin: Option<ChildStdin>,
    is_killed: bool,
    _grant: Grant,
}

impl LaunchedWorker for LocalWorker {
    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    fn kill(&mut self) {
        self.is_killed = true;
        // It may have ended by itself.
        let _ = self.child.start_kill();
    }

    fn ended(&mut self) -> Pin<Box<dyn Future<Output = LaunchedEnd> + Send + '_>> {
        Box::pin(async {
            let status = if self.is_killed {
                timeout(KILLED, self.child.wait()).await.unwrap_or_else(|_| Err(io::Error::other("it does not end")))
            } else {
                self.child.wait().await
            };
            status.map_or_else(|error| LaunchedEnd::plain(error.to_string()), LaunchedEnd::from)
        })
    }
}
