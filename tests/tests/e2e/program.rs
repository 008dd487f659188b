//! The binary under test.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{DEADLINE, LOOK_AGAIN, built};

/// A running `rollmesh` with a dashboard. Dropping it kills it; its workers end with it.
pub(crate) struct Program {
    child: Child,
    url: String,
}

impl Program {
    /// Starts a command of the program, which serves the built page on a free port.
    pub(crate) fn start<S: AsRef<OsStr>>(command: &str, args: impl IntoIterator<Item = S>) -> Self {
        Self::start_at("127.0.0.1:0", command, args)
    }

    /// Starts a command of the program, which serves the built page at this address.
    pub(crate) fn start_at<S: AsRef<OsStr>>(address: &str, command: &str, args: impl IntoIterator<Item = S>) -> Self {
        let mut rollmesh = Command::new(built("ROLLMESH_BIN"));
        rollmesh.arg(command).args(["--listen", address, "--assets"]).arg(built("ROLLMESH_DIST")).args(args);
        Self::spawn(&mut rollmesh)
    }

    /// Starts the program of a user's crate in the crate's folder, where it finds its page.
    pub(crate) fn start_own<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        let mut program = Command::new(built("ROLLMESH_OWN_PROGRAM"));
        Self::spawn(program.args(args).args(["--listen", "127.0.0.1:0"]).current_dir(built("ROLLMESH_OWN_CRATE")))
    }

    fn spawn(program: &mut Command) -> Self {
        let mut child = program
            .env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("it is piped");
        let mut program = Self { child, url: String::new() };
        program.url = dashboard_url(stderr);
        program
    }

    /// Returns the URL that the user opens, with the token.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").split('/').next().expect("a part before the first slash")
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_none()
    }

    /// Waits until the program exits by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads until the end, so that the program never blocks on a full pipe. Returns the URL.
fn dashboard_url(stderr: ChildStderr) -> String {
    let (found, url) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            match line.strip_prefix("dashboard") {
                // The receiver waits only for the first one.
                Some(url) => _ = found.send(url.trim().to_owned()),
                None => eprintln!("rollmesh: {line}"),
            }
        }
    });
    url.recv_timeout(DEADLINE).expect("the program prints where its dashboard is")
}

/// Trains without a dashboard, to the end.
pub(crate) fn train_alone(args: &[&str], run_dir: &Path) {
    let mut rollmesh = Command::new(built("ROLLMESH_BIN"));
    rollmesh.args(["train", "--no-dashboard", "--json", "--run-dir"]).arg(run_dir).args(args);
    let output = rollmesh.output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the hash of the weights of a command that the page shows, run as pasted into a shell.
pub(crate) fn weights_hash_of(command: &str) -> String {
    let arguments = command.strip_prefix("rollmesh ").expect("a command of the program");
    let directory = TempDir::new().expect("a directory");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("\"$0\" {arguments} --no-dashboard --json")).arg(built("ROLLMESH_BIN"));
    let output = shell.current_dir(&directory).output().expect("a shell");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{command}: {error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    summary["weights_hash"].as_str().expect("a summary has a hash").to_owned()
}

/// Returns the `summary.json` of a run that has ended.
pub(crate) fn summary(run_dir: &Path) -> Value {
    let text = fs::read_to_string(run_dir.join("summary.json")).expect("a run leaves a summary");
    serde_json::from_str(&text).expect("the summary is JSON")
}
