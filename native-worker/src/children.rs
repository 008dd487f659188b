//! The hidden commands with which this program starts itself as a child process.

use std::{ffi::OsString, process::ExitCode};

use crate::{Registry, child, program::serve_children};

/// Runs this program as a child process, if it was started as one by itself: as the process of a sub-environment, of an
/// evaluation or of a reader of files, or as a named evaluation worker. Then it serves the registry's environments and policies and does not return.
/// `main_with` calls it; other programs call it first in `main`.
///
/// ```no_run
/// use rollmesh::{NativeWorker as _, Registry};
/// use rollmesh_core::worker::{RolloutConfig, RolloutWorker};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     rollmesh::child_process(Registry::builtin);
///     let config = RolloutConfig {
///         remote_worker_envs: true,
///         remote_env_batch_wait_ms: 1_000,
///         ..RolloutConfig::new("CartPole-v1").num_envs(4)
///     };
///     let mut worker = RolloutWorker::builder().config(config).native().build()?;
///     println!("{} env steps", worker.sample()?.env_steps());
///     Ok(worker.stop()?)
/// }
/// ```
pub fn child_process(registry: impl FnOnce() -> Registry) {
    child::bind_to_parent();
    serve_children();
    let command = std::env::args_os().nth(1);
    if command.as_ref().is_some_and(is_command)
        && let Ok(code) = serve(command.as_ref(), registry())
    {
        std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 1 });
    }
}

/// Runs a hidden command to its end, or returns the registry for another command.
#[allow(clippy::result_large_err, reason = "called once")]
pub(crate) fn serve(command: Option<&OsString>, registry: Registry) -> Result<ExitCode, Registry> {
    child::bind_to_parent();
    serve_children();
    let Some(command) = command.filter(|command| is_command(command)).and_then(|command| command.to_str()) else {
        return Err(registry);
    };
    #[cfg(unix)]
    {
        use crate::{envs::remote, eval, evaluator, offline};
        let served = match command {
            remote::COMMAND => remote::serve(&crate::native(registry)),
            eval::ENGINE_COMMAND => eval::serve_engine(&crate::native(registry)),
            offline::COMMAND => offline::serve(),
            eval::WORKER_COMMAND => return Ok(evaluator::serve_worker()),
            _ => return Err(registry),
        };
        Ok(match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        })
    }
    #[cfg(not(unix))]
    Err(registry)
}

/// Returns whether this is a hidden command of a process that this program has started.
fn is_command(command: &OsString) -> bool {
    #[cfg(unix)]
    let commands = [
        crate::envs::remote::COMMAND,
        crate::eval::ENGINE_COMMAND,
        crate::eval::WORKER_COMMAND,
        crate::offline::COMMAND,
    ];
    #[cfg(not(unix))]
    let commands: [&str; 0] = [];
    commands.iter().any(|known| command == known && child::is_child(known))
}
