//! A step at work: runs commands with their output in the step's log.

use std::{
    cell::RefCell,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// What the function of a step works with.
pub(crate) struct Job {
    log: PathBuf,
    note: RefCell<String>,
}

impl Job {
    /// The path of a step's log.
    pub(crate) fn log_of(name: &str) -> PathBuf {
        workspace::target().join("xtask/logs").join(format!("{name}.log"))
    }

    /// Starts with an empty log.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let log = Self::log_of(name);
        let folder = log.parent().unwrap_or_else(|| workspace::root());
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Self { log, note: RefCell::default() })
    }

    /// Says in a few words what came of the step, for the line that reports it.
    pub(crate) fn note(&self, note: impl Into<String>) {
        *self.note.borrow_mut() = note.into();
    }

    pub(crate) fn into_note(self) -> String {
        self.note.into_inner()
    }

    /// Runs a command to its end; its output goes to the log.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let mut log = OpenOptions::new().append(true).open(&self.log)?;
        writeln!(log, "$ {}", line_of(command))?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let status = command.status().with_context(|| format!("cannot start `{program}`"))?;
        if !status.success() {
            bail!("`{}` ended with {status}", line_of(command));
        }
        Ok(())
    }

    /// Runs a command that tests, and notes how many tests passed. None at all is a failure.
    pub(crate) fn run_tests(&self, command: &mut Command) -> Result<()> {
        self.run(command)?;
        let passed = tests_passed(&fs::read_to_string(&self.log)?);
        if passed == 0 {
            bail!("`{}` ran no test", line_of(command));
        }
        self.note(format!("{passed} tests"));
        Ok(())
    }

    /// Runs a command and returns what it writes to standard output.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{program}`"))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` ended with {}: {}", line_of(command), output.status, complaint.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A command as one would type it.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}

/// Sum over the result lines of libtest and of wasm-bindgen's runner, `test result: ok. 7 passed; …`, of Node's, `# pass 7`,
/// and of Python's, `Ran 7 tests in …`.
fn tests_passed(log: &str) -> u64 {
    let counts = log.lines().filter_map(|line| {
        let line = line.trim_start();
        let cargos = line.strip_prefix("test result: ok. ").and_then(|rest| Some(rest.split_once(" passed")?.0));
        let pythons = line.strip_prefix("Ran ").and_then(|rest| Some(rest.split_once(" test")?.0));
        cargos.or_else(|| line.strip_prefix("# pass ")).or(pythons)
    });
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_of_every_target_are_added() {
        let log = "running 3 tests\ntest result: ok. 3 passed; 0 failed\n\ntest result: ok. 40 passed; 0 failed\n";
        assert_eq!(tests_passed(log), 43);
        assert_eq!(tests_passed("1..6\n# tests 6\n# pass 6\n# fail 0\n"), 6);
        assert_eq!(tests_passed("Ran 5 tests in 0.669s\n\nOK (skipped=1)\n"), 5);
        assert_eq!(tests_passed("test result: FAILED. 3 passed; 1 failed"), 0);
    }

    #[test]
    fn a_command_is_shown_without_its_folder() {
        assert_eq!(line_of(Command::new("/opt/bin/cargo").args(["fmt", "--check"])), "cargo fmt --check");
    }
}
