//! Permission to run Python environments on this machine, and their interpreter: host settings from the command line.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fmt,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{PoisonError, RwLock},
};

use glob::Pattern;
use rollmesh_core::env::EnvError;

/// The environment variable that passes the allowed environments to child processes.
pub(crate) const ALLOW_VARIABLE: &str = "ROLLMESH_ALLOW_PYTHON";
/// The environment variable that passes the interpreter to child processes.
pub(crate) const INTERPRETER_VARIABLE: &str = "ROLLMESH_PYTHON";
/// The environment variable that passes the number of processes to child processes.
pub(crate) const PROCESSES_VARIABLE: &str = "ROLLMESH_PYTHON_PROCESSES";

/// Patterns for names of Python environments, with `*` for any characters but a colon.
///
/// ```
/// use rollmesh::envs::PythonPermission;
///
/// let allowed: PythonPermission = "gym:*,py:my_package.*".parse()?;
/// assert!(allowed.allows("gym:CartPole-v1") && allowed.allows("py:my_package.envs:make"));
/// // Of a module that `gymnasium.make` would import, nothing was said.
/// assert!(!allowed.allows("gym:my_package:Maze-v0") && !allowed.allows("py:subprocess:Popen"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonPermission(Vec<String>);

impl PythonPermission {
    /// Allows this environment only, or nothing if the name cannot be a Python environment's.
    #[must_use]
    pub fn exactly(name: &str) -> Self {
        // A comma would separate two patterns in a child process.
        let is_name = is_python(name) && !name.contains(',') && name.split(':').count() <= 3;
        let pattern = || name.split(':').map(Pattern::escape).collect::<Vec<_>>().join(":");
        Self(is_name.then(pattern).into_iter().collect())
    }

    /// Allows the environments of another permission as well.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the beginnings of the names of allowed environments: the patterns up to their first special character.
    pub(crate) fn beginnings(&self) -> BTreeSet<&str> {
        self.0.iter().filter_map(|pattern| pattern.split(['*', '?', '[']).next()).collect()
    }

    /// Returns whether an environment may run.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, name))
    }
}

/// Matches the parts between colons one by one; `py:MODULE` allows every factory of the module.
fn matches(pattern: &str, name: &str) -> bool {
    let (patterns, names): (Vec<&str>, Vec<&str>) = (pattern.split(':').collect(), name.split(':').collect());
    let is_module = patterns.len() == 2 && names.len() == 3 && patterns[0] == "py";
    let is_part = |(pattern, name): (&&str, &&str)| Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(name));
    (patterns.len() == names.len() || is_module) && patterns.iter().zip(&names).all(is_part)
}

/// Returns whether a name is that of a Python environment.
pub(super) fn is_python(name: &str) -> bool {
    name.starts_with("gym:") || name.starts_with("py:") || is_game(name)
}

/// Returns whether a name is that of a Python environment with several agents.
pub(super) fn is_game(name: &str) -> bool {
    name.starts_with("pettingzoo:")
}

impl FromStr for PythonPermission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let patterns = text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
        let check = |pattern: &str| {
            let parts = pattern.split(':').count();
            let is_one = is_python(pattern) && (2..=3).contains(&parts);
            match pattern.split(':').find_map(|part| Pattern::new(part).err()) {
                None if is_one => Ok(pattern.to_owned()),
                None => Err(format!(
                    "'{pattern}' names no Python environments: write gym:ID, gym:MODULE:ID, pettingzoo:ID, \
                     pettingzoo:MODULE:FACTORY, py:MODULE or py:MODULE:FACTORY, with * for any characters but a colon"
                )),
                Some(error) => Err(format!("'{pattern}' is no pattern: {error}")),
            }
        };
        patterns.map(check).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for PythonPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// This machine's settings for Python environments. [`main_with`](crate::main_with) reads them from the command line; a
/// program that samples by itself installs them, and gets the environments with the registry of [`native`](crate::native):
///
/// ```no_run
/// use rollmesh::{NativeWorker as _, Registry, envs::PythonSettings};
/// use rollmesh_core::worker::{RolloutConfig, RolloutWorkerBuilder};
///
/// PythonSettings { allowed: "gym:*".parse()?, ..PythonSettings::default() }.install();
/// let builder = RolloutWorkerBuilder::new(rollmesh::native(Registry::builtin())).native();
/// let mut worker = builder.config(RolloutConfig::new("gym:CartPole-v1").num_envs(4)).build()?;
/// println!("{} env steps", worker.sample()?.env_steps());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonSettings {
    /// The environments that may run.
    pub allowed: PythonPermission,
    /// The interpreter; `None` for that of the active virtual environment, else `python3`.
    pub interpreter: Option<PathBuf>,
    /// Number of processes that step the environments with one agent of a worker; `None` for one.
    pub processes: Option<NonZeroUsize>,
}

/// The settings of this process, once installed. They are host settings, like environment variables: a run, a message or a
/// file cannot change them.
static SETTINGS: RwLock<Option<PythonSettings>> = RwLock::new(None);

impl PythonSettings {
    /// Returns the settings of this process: the [installed](Self::install) ones, else those that its parent process passed
    /// in `ROLLMESH_ALLOW_PYTHON`, `ROLLMESH_PYTHON` and `ROLLMESH_PYTHON_PROCESSES`.
    #[must_use]
    pub fn of_process() -> Self {
        let installed = SETTINGS.read().unwrap_or_else(PoisonError::into_inner).clone();
        installed.unwrap_or_else(|| {
            fn read<T: FromStr>(variable: &str) -> Option<T> {
                env::var(variable).ok().and_then(|text| text.parse().ok())
            }
            Self {
                allowed: read(ALLOW_VARIABLE).unwrap_or_default(),
                interpreter: env::var_os(INTERPRETER_VARIABLE).map(PathBuf::from),
                processes: read(PROCESSES_VARIABLE),
            }
        })
    }

    /// Checks that an environment may run on this machine; one that is not a Python environment always may.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`], with the fix.
    pub fn check(&self, name: &str) -> Result<(), EnvError> {
        if !is_python(name) || self.allowed.allows(name) {
            return Ok(());
        }
        Err(EnvError::Unavailable(format!(
            "the Python environment '{name}' may not run on this machine: start this program with --allow-python \
             '{name}', or call rollmesh.allow_python('{name}') in Python, if it may"
        )))
    }

    /// Installs the settings for this process, and for those that it starts for workers, environments and evaluations.
    pub fn install(self) {
        *SETTINGS.write().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Returns the interpreter to start.
    pub(super) fn program(&self) -> PathBuf {
        let active = || env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin/python3"));
        self.interpreter.clone().or_else(active).unwrap_or_else(|| "python3".into())
    }
}

/// Environment variables that determine which code an interpreter runs.
const CODE_VARIABLES: [&str; 5] = ["PATH", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH"];

/// Returns the variables for child processes of the program, which override those in a run's settings.
pub(crate) fn child_environs() -> Vec<(&'static str, OsString)> {
    let settings = PythonSettings::of_process();
    let program = settings.program().into_os_string();
    let mut environs = pinned(&settings.allowed);
    // Always passed, since a run's environment variables must not add processes.
    let processes = settings.processes.map_or(1, usize::from).to_string();
    environs.extend([
        (ALLOW_VARIABLE, settings.allowed.to_string().into()),
        (INTERPRETER_VARIABLE, program),
        (PROCESSES_VARIABLE, processes.into()),
    ]);
    environs
}

/// Returns this process's values of the variables that determine Python code, if Python environments may run: a run's
/// environment variables must not override them, since they could point to an attacker's directory.
fn pinned(allowed: &PythonPermission) -> Vec<(&'static str, OsString)> {
    let variables = CODE_VARIABLES.iter().filter(|_| *allowed != PythonPermission::default());
    variables.map(|name| (*name, env::var_os(name).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_find_code_are_pinned_where_python_may_run() {
        assert_eq!(pinned(&PythonPermission::default()), []);
        let pinned = pinned(&PythonPermission::exactly("gym:CartPole-v1"));
        assert!(pinned.contains(&("PATH", env::var_os("PATH").unwrap_or_default())));
        assert!(pinned.iter().any(|(name, _)| *name == "PYTHONPATH"));
    }

    #[test]
    fn number_of_processes_is_pinned_if_the_machine_names_none() {
        assert_eq!(PythonSettings::of_process().processes, None);
        assert!(child_environs().contains(&(PROCESSES_VARIABLE, "1".into())));
    }

    #[test]
    fn wildcards_never_cross_a_colon() {
        let allows = |pattern: &str, name: &str| pattern.parse::<PythonPermission>().unwrap().allows(name);
        for (pattern, name) in [
            ("gym:*", "gym:CartPole-v1"),
            ("gym:*", "gym:ALE/Pong-v5"),
            ("gym:mazes:*", "gym:mazes:Maze-v0"),
            ("gym:*:*", "gym:mazes:Maze-v0"),
            ("py:mazes", "py:mazes:make"),
            ("py:mazes.*", "py:mazes.deep.inside:make"),
            ("py:mazes:make_*", "py:mazes:make_large"),
            ("gym:A-v1, py:mazes", "py:mazes:make"),
            ("pettingzoo:*", "pettingzoo:classic/tictactoe_v3"),
            ("pettingzoo:mine:*", "pettingzoo:mine:env"),
        ] {
            assert!(allows(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("gym:*", "gym:os:Maze-v0"),
            ("gym:*", "py:subprocess:Popen"),
            ("gym:CartPole-v1", "gym:CartPole-v10"),
            ("py:mazes.*", "py:mazes:make"),
            ("py:mazes.*", "py:mazes_of_mine:make"),
            ("py:mazes:make", "py:mazes:make:more"),
            ("pettingzoo:*", "pettingzoo:mine:env"),
            ("", "gym:CartPole-v1"),
        ] {
            assert!(!allows(pattern, name), "{pattern} {name}");
        }
        for pattern in ["*", "gym", "python:os", "py:a:b:c", "g*:CartPole-v1", "py:[:x"] {
            assert!(pattern.parse::<PythonPermission>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn names_on_the_command_line_are_meant_literally() {
        let allowed = PythonPermission::exactly("py:mazes:[ab]*");
        assert!(allowed.allows("py:mazes:[ab]*") && !allowed.allows("py:mazes:aa"));
        assert_eq!(PythonPermission::exactly("CartPole-v1"), PythonPermission::default());
        assert_eq!(allowed.to_string().parse(), Ok(allowed));
    }
}
