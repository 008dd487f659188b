//! A running step: runs commands with their output in the step's log.

use std::{
    cell::{Cell, RefCell},
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// The context of a running step.
pub(crate) struct Job {
    log: PathBuf,
    note: RefCell<String>,
    /// Tests that have passed so far.
    passed: Cell<u64>,
}

impl Job {
    /// Returns the path of a step's log.
    pub(crate) fn log_of(name: &str) -> PathBuf {
        workspace::target().join("xtask/logs").join(format!("{name}.log"))
    }

    /// Creates a job with an empty log.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let log = Self::log_of(name);
        let folder = log.parent().unwrap_or_else(|| workspace::root());
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Self { log, note: RefCell::default(), passed: Cell::default() })
    }

    /// Sets a short result of the step, for the line that reports it.
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

    /// Runs a command with tests, and notes the number of tests that have passed in the step so far. A command that
    /// runs none has failed.
    pub(crate) fn run_tests(&self, command: &mut Command) -> Result<()> {
        let begin = fs::metadata(&self.log)?.len();
        self.run(command)?;
        let mut log = File::open(&self.log)?;
        log.seek(SeekFrom::Start(begin))?;
        let mut written = Vec::new();
        log.read_to_end(&mut written)?;
        let passed = tests_passed(&String::from_utf8_lossy(&written));
        if passed == 0 {
            bail!("`{}` ran no test", line_of(command));
        }
        self.passed.set(self.passed.get() + passed);
        self.note(format!("{} tests", self.passed.get()));
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

/// Formats a command as in a shell.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}

/// Returns the sum over the result lines of libtest and of wasm-bindgen's runner, `test result: ok. 7 passed; …`, of
/// Node's, `# pass 7`, and of Python's, `Ran 7 tests in …`.
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
    fn command_without_tests_fails_after_one_with_tests() {
        let job = Job::new("own-test-of-jobs").unwrap();
        let prints = |text: &str| job.run_tests(Command::new("echo").arg(text));
        prints("test result: ok. 3 passed; 0 failed").unwrap();
        let error = prints("running 0 tests").unwrap_err().to_string();
        assert_eq!(error, "`echo running 0 tests` ran no test");
        prints("# pass 2").unwrap();
        assert_eq!(job.into_note(), "5 tests");
    }

    #[test]
    fn a_command_is_shown_without_its_folder() {
        assert_eq!(line_of(Command::new("/opt/bin/cargo").args(["fmt", "--check"])), "cargo fmt --check");
    }
}
