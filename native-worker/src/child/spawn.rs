//! The parent's side: starting and ending child processes.

use std::{
    env, io,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
};
#[cfg(unix)]
use std::{
    os::unix::process::CommandExt as _,
    process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus},
    time::{Duration, Instant},
};

#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Environment variable of child processes: the process id of the parent with which they end, [`NO_PARENT`] for those that
/// outlive it.
pub(super) const PARENT_VARIABLE: &str = "ROLLMESH_CHILD_OF";
/// No process has this id.
const NO_PARENT: &str = "0";

/// Returns whether this process was started with this command as a child of the same program. The variable alone is not
/// sufficient, since the child processes of environments inherit it.
pub(crate) fn is_child(command: &str) -> bool {
    env::var_os(PARENT_VARIABLE).is_some() && env::args_os().skip(1).any(|argument| argument == command)
}

/// Refuses to start a child with this command from a process that was itself started with it, but did not act as one: it
/// would start processes recursively.
pub(crate) fn check_is_not_one(command: &str) -> Result<(), String> {
    if is_child(command) {
        return Err(format!(
            "this is a child process itself, '{command}', and was to be nothing else: call rollmesh::child_process first in \
             the program's main"
        ));
    }
    Ok(())
}

/// A child process in a process group of its own. Dropping it kills the group and reaps the child.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    status: Option<ExitStatus>,
    /// True once its process id may be reused, also if its status is unknown.
    is_reaped: bool,
}

/// The parent's ends of a child's standard streams.
#[cfg(unix)]
pub(crate) struct ChildStreams {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// Starts a child that ends with this process.
#[cfg(unix)]
pub(crate) fn spawn(command: Command) -> io::Result<(Child, ChildStreams)> {
    let mut process = start(bound(command), |mut command| command.spawn())?;
    let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let child = Child { process, status: None, is_reaped: false };
    match pipes {
        (Some(stdin), Some(stdout), Some(stderr)) => Ok((child, ChildStreams { stdin, stdout, stderr })),
        _ => Err(io::Error::other("it has no pipes")),
    }
}

/// Works like [`spawn`], for a caller within a tokio runtime. A caller that pipes the standard output reads it to its
/// end: the child waits when the pipe is full.
pub(crate) fn spawn_in_runtime(command: Command, stdout: Stdio) -> io::Result<tokio::process::Child> {
    let runtime = tokio::runtime::Handle::current();
    let mut command = bound(command);
    command.stdout(stdout);
    start(command, move |command| {
        let _within = runtime.enter();
        tokio::process::Command::from(command).kill_on_drop(true).spawn()
    })
}

/// Starts a child that outlives this process. Its standard error is discarded.
#[cfg(unix)]
pub(crate) fn spawn_detached(mut command: Command) -> io::Result<(process::Child, ChildStdin, ChildStdout)> {
    command.env(PARENT_VARIABLE, NO_PARENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(stdin), Some(stdout)) => Ok((child, stdin, stdout)),
        _ => Err(io::Error::other("it has no pipes")),
    }
}

/// Prepares a command for a child that ends with this process.
fn bound(mut command: Command) -> Command {
    // Ctrl-C in the terminal must only reach the parent, and the child's own child processes must end with it.
    #[cfg(unix)]
    command.process_group(0);
    command
        .env(PARENT_VARIABLE, process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts a child from a thread that lives as long as this process: Linux takes the end of the thread that has started a
/// child for the end of the parent.
fn start<T: Send + 'static>(
    command: Command,
    spawn: impl FnOnce(Command) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (result_sender, result_receiver) = mpsc::channel();
    // A child runs on the CPUs of the thread that asks for it.
    #[cfg(target_os = "linux")]
    let cpus = rustix::thread::sched_getaffinity(None)?;
    let work: SpawnJob = Box::new(move || {
        #[cfg(target_os = "linux")]
        let spawn = |command| {
            rustix::thread::sched_setaffinity(None, &cpus)?;
            spawn(command)
        };
        drop(result_sender.send(spawn(command)));
    });
    let ended = || io::Error::other("the thread that starts processes has ended");
    spawner()?.send(work).map_err(|_| ended())?;
    result_receiver.recv().map_err(|_| ended())?
}

type SpawnJob = Box<dyn FnOnce() + Send>;

/// Returns the channel of the thread that starts children.
fn spawner() -> io::Result<Sender<SpawnJob>> {
    /// With the id of its process: after a fork there is no such thread.
    static SPAWNER: Mutex<Option<(u32, Sender<SpawnJob>)>> = Mutex::new(None);
    let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, sender)) = spawner.as_ref().filter(|(process, _)| *process == process::id()) {
        return Ok(sender.clone());
    }
    let (sender, works) = mpsc::channel::<SpawnJob>();
    thread::Builder::new().name("children".into()).spawn(move || {
        // A panic concerns one caller, which gets no answer.
        works.into_iter().for_each(|work| _ = catch_unwind(AssertUnwindSafe(work)));
    })?;
    *spawner = Some((process::id(), sender.clone()));
    Ok(sender)
}

/// Kills the process group of a child that has not been reaped: until then its process id is not reused.
pub(crate) fn kill_group(process: u32) {
    #[cfg(unix)]
    if let Some(pid) = pid(process) {
        // It may have ended already.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = process;
}

#[cfg(unix)]
fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

#[cfg(unix)]
impl Child {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits at most this long for the child to exit by itself; false if it has not.
    pub(crate) fn exits_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while start.elapsed() < limit {
            match pid(self.id()).filter(|_| self.status.is_none()).map(|pid| waitid(WaitId::Pid(pid), options)) {
                Some(Ok(None)) => thread::sleep(Duration::from_millis(1)),
                _ => return true,
            }
        }
        false
    }

    /// Kills the process group and reaps the child. Returns how the child has ended: a status of its own, if it had exited
    /// before. Idempotent.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        if !self.is_reaped {
            kill_group(self.id());
            let _ = self.process.kill();
            self.status = self.process.wait().ok();
            self.is_reaped = true;
        }
        self.status
    }
}

#[cfg(unix)]
impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn child_keeps_the_status_of_its_own_exit_and_is_killed_once() {
        let (mut child, _pipes) = spawn(shell("exit 3")).unwrap();
        assert!(child.exits_within(Duration::from_secs(20)));
        assert_eq!(child.kill().and_then(|status| status.code()), Some(3));
        assert_eq!(child.kill().and_then(|status| status.code()), Some(3));
        let (mut child, _pipes) = spawn(shell("read line")).unwrap();
        assert!(!child.exits_within(Duration::from_millis(1)));
        assert_eq!(child.kill().map(|status| status.code()), Some(None));
    }

    #[test]
    fn children_are_started_by_one_thread_and_know_their_parent() {
        use std::io::Read as _;
        // The thread that asks for a child may end before the child does.
        let (_child, mut pipes) =
            thread::spawn(|| spawn(shell("echo $ROLLMESH_CHILD_OF; read line")).unwrap()).join().unwrap();
        let mut parent = vec![0; process::id().to_string().len()];
        pipes.stdout.read_exact(&mut parent).unwrap();
        assert_eq!(String::from_utf8(parent).unwrap(), process::id().to_string());
    }

    #[test]
    fn child_runs_on_the_cpus_of_the_thread_that_asks_for_it() {
        use std::io::Read as _;

        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let cpus_of_child = || {
            let (_child, mut pipes) = spawn(shell("grep Cpus_allowed_list /proc/self/status")).unwrap();
            let mut line = String::new();
            pipes.stdout.read_to_string(&mut line).unwrap();
            line.split_whitespace().last().map(str::to_owned)
        };
        let all = cpus_of_child();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| sched_getaffinity(None).unwrap().is_set(cpu)).unwrap();
        let pinned = thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            cpus_of_child()
        });
        assert_eq!(pinned.join().unwrap(), Some(first.to_string()));
        assert_eq!(cpus_of_child(), all);
    }
}
