//! The program as people run it.

use std::{
    ffi::OsStr,
    path::Path,
    process::{ExitStatus, Stdio},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    process::{Child, Command},
    sync::mpsc,
    task::JoinHandle,
};

use super::soon;

pub(crate) use rustix::process::Signal;

/// The program under test: `rollmesh`, or that of another crate whose tests include this module.
pub(crate) const PROGRAM: &str =
    match (option_env!("CARGO_BIN_EXE_rollmesh"), option_env!("CARGO_BIN_EXE_rollmesh-example-own-env")) {
        (Some(program), _) | (None, Some(program)) => program,
        (None, None) => panic!("cargo names the program of the crate whose tests these are"),
    };

/// A running program. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    pid: u32,
    stdout: JoinHandle<String>,
    lines: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
}

/// The exit status and the output of a process.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The addresses and tokens of a hub, which it prints when it starts.
#[derive(Clone, Debug)]
pub(crate) struct Invitation {
    pub(crate) address: String,
    pub(crate) operator_token: String,
    pub(crate) worker_token: String,
}

impl Process {
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::start_with(args, |_| {})
    }

    pub(crate) fn worker(hub: &str, token: &str) -> Self {
        Self::start_with(["worker", "--hub", &format!("ws://{hub}")], |command| {
            _ = command.env("ROLLMESH_TOKEN", token)
        })
    }

    pub(crate) fn start_with<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        set_up: impl FnOnce(&mut Command),
    ) -> Self {
        Self::start_program(PROGRAM, args, set_up)
    }

    /// Starts another program that is command line, hub and worker.
    pub(crate) fn start_program<S: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
        set_up: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The files of a hub do not belong into the state directory of the user who runs the tests.
        command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command.env_remove("ROLLMESH_TOKEN").kill_on_drop(true);
        set_up(&mut command);
        let mut child = command.spawn().expect("the program starts");
        let stdout = tokio::spawn(read_all(child.stdout.take().expect("piped")));
        let (line, lines) = mpsc::unbounded_channel();
        let mut stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        tokio::spawn(async move {
            while let Ok(Some(text)) = stderr.next_line().await {
                // The test may have ended.
                let _ = line.send(text);
            }
        });
        let pid = child.id().expect("running");
        Self { child, pid, stdout, lines, seen: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for a line on standard error that contains `text`.
    pub(crate) async fn line(&mut self, text: &str) -> String {
        soon(text, async {
            loop {
                match self.next_line().await {
                    Some(line) if line.contains(text) => return line,
                    Some(_) => {}
                    None => panic!("no line with {text:?} in {:#?}", self.seen),
                }
            }
        })
        .await
    }

    /// Returns the next line on standard error; none at its end.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        let line = self.lines.recv().await?;
        self.seen.push(line.clone());
        Some(line)
    }

    pub(crate) async fn invitation(&mut self) -> Invitation {
        let dashboard = self.line("dashboard  http://").await;
        let (address, operator_token) =
            dashboard.trim_start_matches("dashboard  http://").split_once("/#token=").expect("an operator's token");
        let worker = self.line("rollmesh worker --hub").await;
        let worker_token = worker.split_once("ROLLMESH_TOKEN=").expect("a worker's token").1;
        let worker_token = worker_token.split_once(' ').expect("a command").0;
        assert!(worker.ends_with(&format!("--hub ws://{address}")), "{worker}");
        Invitation { address: address.into(), operator_token: operator_token.into(), worker_token: worker_token.into() }
    }

    /// Waits for the end.
    pub(crate) async fn finish(mut self) -> Finished {
        let status = soon("the end of the process", self.child.wait()).await.expect("a child");
        let stdout = soon("the end of its output", &mut self.stdout).await.expect("a reader");
        while let Some(_line) = soon("the end of its errors", self.next_line()).await {}
        Finished { status, stdout, stderr: self.seen.join("\n") }
    }

    /// Waits for the end, which has to be this exit code.
    pub(crate) async fn finish_with(self, code: i32) -> Finished {
        let finished = self.finish().await;
        assert_eq!(finished.status.code(), Some(code), "{}\n{}", finished.stdout, finished.stderr);
        finished
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid, signal);
    }
}

async fn read_all(mut from: impl AsyncRead + Unpin) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).await.expect("UTF-8");
    text
}

/// Kills a process immediately, as a crash would.
pub(crate) fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Sends a signal to any process.
pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("not zero");
    // It may have ended by itself.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Returns the processes that a process has started and that are still there.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| matches!(state(pid), Some((state, ppid)) if ppid == parent && state != "Z")).collect()
}

/// Returns true once a process has ended, even if it has not been reaped.
pub(crate) fn has_ended(pid: u32) -> bool {
    state(pid).is_none_or(|(state, _)| state == "Z")
}

/// Returns the state and the parent of a process.
fn state(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name in parentheses may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.into(), fields.next()?.parse().ok()?))
}
