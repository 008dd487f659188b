//! The flags for Python environments on this machine.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use crate::envs::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, PROCESSES_VARIABLE, PythonPermission, PythonSettings};

/// The flags of commands that may run environments.
#[derive(Args, Clone, Debug)]
pub(super) struct PythonFlags {
    /// Python environments that may run on this machine
    ///
    /// Whatever run, file or hub names them. Separated by commas, with * for any characters but a colon:
    /// 'gym:*,py:my_package.*' [default: what --env names, if this command has it]
    #[arg(long, hide_short_help = true, value_name = "PATTERNS", env = ALLOW_VARIABLE, hide_env = true)]
    allow_python: Option<PythonPermission>,
    /// Interpreter of Python environments
    ///
    /// [default: that of the active virtual environment, else python3]
    #[arg(long, hide_short_help = true, value_name = "PATH", env = INTERPRETER_VARIABLE, hide_env = true)]
    python: Option<PathBuf>,
    /// Processes for the Python environments of a worker
    ///
    /// They step their environments at the same time [default: 1]
    #[arg(long, hide_short_help = true, value_name = "N", env = PROCESSES_VARIABLE, hide_env = true)]
    python_processes: Option<NonZeroUsize>,
}

impl PythonFlags {
    /// Installs the settings in this process; `env` is the environment that this command line names.
    pub(super) fn install(&self, env: Option<&str>) {
        let allowed = self.allow_python.clone().unwrap_or_default();
        PythonSettings { allowed, interpreter: self.python.clone(), processes: self.python_processes }.install();
        env.into_iter().for_each(allow);
    }
}

/// Allows an environment that this command line names.
pub(super) fn allow(env: &str) {
    let settings = PythonSettings::of_process();
    let allowed = settings.allowed.clone().and(PythonPermission::exactly(env));
    PythonSettings { allowed, ..settings }.install();
}
