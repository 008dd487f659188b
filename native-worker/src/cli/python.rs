//! The flags for Python environments on this machine.

use std::path::PathBuf;

use clap::Args;

use crate::envs::{ALLOW_VARIABLE, INTERPRETER_VARIABLE, PythonPermission, PythonSettings};

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
}

impl PythonFlags {
    /// Installs the settings in this process; `env` is the environment that this command line names.
    pub(super) fn install(&self, env: Option<&str>) {
        PythonSettings { allowed: self.allow_python.clone().unwrap_or_default(), interpreter: self.python.clone() }
            .install();
        env.into_iter().for_each(allow);
    }
}

/// Allows an environment that this command line names.
pub(super) fn allow(env: &str) {
    let PythonSettings { allowed, interpreter } = PythonSettings::of_process();
    PythonSettings { allowed: allowed.and(PythonPermission::exactly(env)), interpreter }.install();
}
