//! A child process that is asked to end by closing its standard input, and whose standard error is printed behind a prefix.

use std::{
    io,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::Child,
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::child::{WORKER_GRACE, kill_group, spawn_in_runtime};

/// Time for which output is read after a process has ended, if others of its descendants still hold the pipes.
const LAST_LINES: Duration = Duration::from_millis(200);
/// The beginning of a line with a program's error.
const ERROR: &str = "error: ";
/// Number of lines after an error that may be its advice and usage.
const MAX_ADVICE: u64 = 20;
/// Longer lines are printed in pieces of this many bytes.
const MAX_LINE: u64 = 4096;

/// A running child process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct SupervisedChild {
    child: Child,
}

/// The end of a child process.
#[derive(Debug)]
pub(crate) struct SupervisedEnd {
    pub(crate) status: ExitStatus,
    /// The last line that it wrote to standard error, or the last error if it is among the last of them: advice and usage may
    /// follow one.
    pub(crate) last_line: String,
}

impl SupervisedChild {
    /// Starts a process in a process group of its own, so that Ctrl-C in the terminal reaches its parent alone, and writes
    /// `input` to its standard input, which stays open.
    ///
    /// # Errors
    /// The operating system's, if the program cannot be started.
    pub(crate) async fn start(command: Command, input: &str) -> io::Result<Self> {
        let mut child = spawn_in_runtime(command, Stdio::piped())?;
        if let Some(stdin) = &mut child.stdin {
            // If it has ended already, its status is the better error.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        Ok(Self { child })
    }

    /// Returns the process id; `None` if the process has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end of the process. It is asked to end when `stop` completes, and killed if that does not help.
    /// Its standard error is printed as lines behind `prefix`; lines of its standard output go to `heard`.
    ///
    /// # Errors
    /// The operating system's, if it does not report the end of the process.
    pub(crate) async fn run(
        self,
        prefix: &str,
        heard: impl FnMut(&str),
        stop: impl Future<Output = ()>,
    ) -> io::Result<SupervisedEnd> {
        let mut child = self.child;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut last_line, mut since_error) = (String::new(), 0_u64);
        let (over, is_over) = oneshot::channel::<()>();
        let ending = async {
            let status = tokio::select! {
                status = child.wait() => Some(status),
                () = stop => None,
            };
            drop(stdin);
            let status = match status {
                Some(status) => status,
                None => end(&mut child).await,
            };
            drop(over);
            status
        };
        let printing = async {
            let show = |line: &str| {
                eprintln!("{prefix}{line}");
                since_error = if line.starts_with(ERROR) { 0 } else { since_error.saturating_add(1) };
                let is_advice = last_line.starts_with(ERROR) && (1..=MAX_ADVICE).contains(&since_error);
                if !is_advice {
                    line.clone_into(&mut last_line);
                }
            };
            let reading = async { tokio::join!(read_lines(stderr, show), read_lines(stdout, heard)) };
            let late = async {
                // The sender is dropped when the process has ended.
                let _ = is_over.await;
                sleep(LAST_LINES).await;
            };
            tokio::select! {
                _ = reading => {}
                () = late => {}
            }
        };
        let (status, ()) = tokio::join!(ending, printing);
        Ok(SupervisedEnd { status: status?, last_line })
    }
}

/// Waits for a process that was asked to end, and kills it if it does not.
async fn end(child: &mut Child) -> io::Result<ExitStatus> {
    if let Ok(status) = timeout(WORKER_GRACE, child.wait()).await {
        return status;
    }
    child.id().into_iter().for_each(kill_group);
    child.start_kill()?;
    child.wait().await
}

/// Reads lines until the pipe closes.
async fn read_lines(pipe: Option<impl AsyncRead + Unpin>, mut heard: impl FnMut(&str)) {
    let Some(pipe) = pipe else { return };
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    // An error ends it as well.
    while (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await.is_ok_and(|bytes| bytes > 0) {
        heard(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn error_matters_more_than_the_advice_that_follows_it() {
        for (script, expected) in [
            ("echo one >&2; echo last >&2", "last"),
            ("echo error: old >&2; echo error: no such flag >&2; echo; echo try --help >&2", "error: no such flag"),
            ("echo error: mended >&2; seq 20 >&2", "error: mended"),
            ("echo error: mended >&2; seq 20 >&2; echo panicked >&2", "panicked"),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let end = SupervisedChild::start(command, "").await.unwrap().run("", |_| {}, pending()).await.unwrap();
            assert_eq!(end.last_line, expected);
        }
    }
}
