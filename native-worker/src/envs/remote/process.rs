//! The worker's side of a sub-environment's process. Nothing here blocks on it, except for its exit after a kill.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::env::ProcessEnd;
use rustix::{
    event::{PollFd, PollFlags},
    io::ioctl_fionbio,
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
};

use super::wire::{HEAD, Head, MAX_BODY, Reply, Request, message};

/// Size of a read in bytes, and the minimum buffer size.
const CHUNK: usize = 1 << 16;
/// How much of the standard error is kept, in bytes.
const LAST_WORDS: usize = 16_000;
/// Maximum number of consecutive reads of the standard error, so that a flood does not starve the others.
const MAX_READS: usize = 16;
/// Time for a process to exit after its pipe has closed.
const END: Duration = Duration::from_secs(1);
/// A deadline that passed while the worker was not listening is enforced only after listening this long.
const LISTEN: Duration = Duration::from_secs(1);

/// A process with its non-blocking pipes.
pub(in crate::envs) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Number of the latest request.
    number: u64,
    /// The pending request.
    asked: Option<Asked>,
    /// The latest request, and how many bytes of it have been sent.
    request: Vec<u8>,
    sent: usize,
    /// The part of the answer that has been read.
    answer: Vec<u8>,
    filled: usize,
    last_words: Vec<u8>,
    is_dismissed: bool,
    is_gone: bool,
}

/// A pending request.
struct Asked {
    doing: &'static str,
    at: Instant,
    /// How long the worker has listened since.
    heard: Duration,
}

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::envs) enum End {
    Requests,
    Answers,
    Words,
}

impl Process {
    /// Starts a program that uses the protocol of [`wire`](super::wire).
    pub(in crate::envs) fn start(command: &mut Command) -> io::Result<Self> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C must only reach the worker, and the environment's child processes must end with it.
            .process_group(0)
            .spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("it has no pipes"));
        };
        let process = Self {
            child,
            stdin,
            stdout,
            stderr: Some(stderr),
            number: u64::from_le_bytes(number),
            asked: None,
            request: Vec::new(),
            sent: 0,
            answer: vec![0; CHUNK],
            filled: 0,
            last_words: Vec::new(),
            is_dismissed: false,
            is_gone: false,
        };
        ioctl_fionbio(&process.stdin, true)?;
        ioctl_fionbio(&process.stdout, true)?;
        if let Some(stderr) = &process.stderr {
            ioctl_fionbio(stderr, true)?;
        }
        Ok(process)
    }

    pub(in crate::envs) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request. Errors show when the answer is awaited.
    pub(in crate::envs) fn ask(&mut self, doing: &'static str, request: Request, body: impl FnOnce(&mut Vec<u8>)) {
        self.number = self.number.wrapping_add(1);
        self.asked = Some(Asked { doing, at: Instant::now(), heard: Duration::ZERO });
        if message(&mut self.request, self.number, request as u8, body).is_none() {
            // Actions of that length belong to no space; the process will answer the empty request with an error.
            let _ = message(&mut self.request, self.number, request as u8, |_| {});
        }
        self.sent = 0;
        self.send();
    }

    /// Sends the rest of the request, as far as the pipe accepts it.
    pub(in crate::envs) fn send(&mut self) {
        while let Some(rest) = self.request.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stdin.write(rest) {
                Ok(0) => return,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The process has closed its pipe, which is reported when its answer is read.
                Err(_) => self.sent = self.request.len(),
            }
        }
    }

    /// Returns the answer once it is complete. [`taken`](Self::taken) releases it.
    pub(in crate::envs) fn receive(&mut self) -> Result<Option<(Reply, &[u8])>, ProcessEnd> {
        if self.is_dismissed {
            // An answer to an earlier request, which is discarded. Read once, so that a flood does not block.
            return match self.stdout.read(&mut self.answer) {
                Ok(read) if read > 0 => Ok(None),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(None),
                Ok(_) | Err(_) => Err(self.ended()),
            };
        }
        loop {
            if let Some((reply, end)) = self.check()?.filter(|(_, end)| self.filled >= *end) {
                if self.filled > end {
                    return Err(ProcessEnd::Nonsense("more than it was asked for".into()));
                }
                return Ok(Some((reply, &self.answer[HEAD..end])));
            }
            if self.filled == self.answer.len() {
                // At most twice the bytes received, and at most the size of a message.
                let len = (2 * self.filled).min(HEAD + MAX_BODY + 1);
                self.answer.resize(len, 0);
            }
            match self.stdout.read(&mut self.answer[self.filled..]) {
                Ok(0) => return Err(self.ended()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(self.ended()),
            }
        }
    }

    /// Checks the bytes received, if they contain the head: returns the kind of the answer and its length.
    fn check(&self) -> Result<Option<(Reply, usize)>, ProcessEnd> {
        if self.asked.is_none() && self.filled > 0 {
            return Err(ProcessEnd::Nonsense("something that nobody has asked for".into()));
        }
        let Some(bytes) = self.answer.first_chunk().filter(|_| self.filled >= HEAD) else { return Ok(None) };
        let head = Head::read(*bytes).filter(|head| head.number == self.number);
        let answer = head.and_then(|head| Some((Reply::of(head.kind)?, HEAD + head.len)));
        answer.map(Some).ok_or_else(|| ProcessEnd::Nonsense("bytes that are no answer".into()))
    }

    /// Releases the answer.
    pub(in crate::envs) fn taken(&mut self) {
        self.asked = None;
        self.filled = 0;
    }

    /// Adds time during which the worker has listened.
    pub(in crate::envs) fn heard(&mut self, time: Duration) {
        if let Some(asked) = &mut self.asked {
            asked.heard += time;
        }
    }

    /// Returns the time until the deadline; `None` without a pending request.
    pub(in crate::envs) fn patience(&self, limit: Duration) -> Option<Duration> {
        let asked = self.asked.as_ref()?;
        let clock = limit.saturating_sub(asked.at.elapsed());
        Some(clock.max(limit.min(LISTEN).saturating_sub(asked.heard)))
    }

    /// Returns the error if the deadline has passed.
    pub(in crate::envs) fn overdue(&self, limit: Duration) -> Option<ProcessEnd> {
        let doing = self.asked.as_ref()?.doing;
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        self.patience(limit).filter(Duration::is_zero).map(|_| ProcessEnd::Overdue { doing, limit_ms })
    }

    /// Reads the standard error and keeps the last part of it.
    pub(in crate::envs) fn listen(&mut self) {
        let mut bytes = [0; 8192];
        for _ in 0..MAX_READS {
            let Some(stderr) = &mut self.stderr else { return };
            match stderr.read(&mut bytes) {
                Ok(read) if read > 0 => {
                    self.last_words.extend(bytes.iter().take(read));
                    let surplus = self.last_words.len().saturating_sub(LAST_WORDS);
                    self.last_words.drain(..surplus);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.stderr = None,
            }
        }
    }

    /// Returns the pipe ends to poll.
    pub(in crate::envs) fn ends(&self) -> impl Iterator<Item = (End, PollFd<'_>)> {
        let requests =
            (self.sent < self.request.len()).then(|| (End::Requests, PollFd::new(&self.stdin, PollFlags::OUT)));
        let answers = self.asked.is_some().then(|| (End::Answers, PollFd::new(&self.stdout, PollFlags::IN)));
        let words = self.stderr.as_ref().map(|stderr| (End::Words, PollFd::new(stderr, PollFlags::IN)));
        [answers, requests, words].into_iter().flatten()
    }

    /// Determines how the process exited, after its pipe has closed.
    fn ended(&mut self) -> ProcessEnd {
        let start = Instant::now();
        while start.elapsed() < END {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            match self.pid().map(|pid| waitid(WaitId::Pid(pid), options)) {
                Some(Ok(None)) => thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        let is_over = start.elapsed() < END;
        match self.kill() {
            Some(status) if is_over => match (status.code(), status.signal()) {
                (Some(code), _) => ProcessEnd::Exited(code),
                (None, Some(signal)) => ProcessEnd::Signal(signal),
                (None, None) => ProcessEnd::Nonsense("nothing more".into()),
            },
            _ => ProcessEnd::Nonsense("the end of its answers, but has not ended,".into()),
        }
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Kills the process group and reaps the process.
    fn kill(&mut self) -> Option<std::process::ExitStatus> {
        if std::mem::replace(&mut self.is_gone, true) {
            return None;
        }
        // The process id cannot be reused before the process is reaped.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    /// Ends the process; returns the last lines of its standard error.
    pub(in crate::envs) fn end(mut self) -> String {
        self.kill();
        self.listen();
        last_lines(&self.last_words)
    }

    /// Asks the process to exit after its current request.
    pub(in crate::envs) fn dismiss(&mut self) {
        if self.sent == self.request.len() {
            self.is_dismissed = true;
            self.ask("for its end", Request::Stop, |_| {});
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the last lines, at most five and 500 characters, as text. Rust backtraces, which name this program's functions
/// and not the cause, are left out; of Python's, whose innermost call comes first, the beginning is kept.
pub(crate) fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if let Some(backtrace) = lines.iter().rposition(|line| *line == "stack backtrace:") {
        lines.truncate(backtrace);
    }
    if let Some(fatal) = lines.iter().rposition(|line| line.starts_with("Fatal Python error")) {
        lines.drain(..fatal);
        lines.truncate(5);
    }
    let last = lines[lines.len().saturating_sub(5)..].join(" | ");
    let last: Vec<char> = last.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    last[last.len().saturating_sub(500)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_few_and_short() {
        assert_eq!(last_lines(b"one\n\ntwo\x07\nthree\xFF"), "one | two  | three\u{FFFD}");
        assert_eq!(last_lines(b"1\n2\n3\n4\n5\n6\n7"), "3 | 4 | 5 | 6 | 7");
        assert_eq!(last_lines(&[b'x'; 3000]).len(), 500);
        assert_eq!(last_lines(b"no memory\nstack backtrace:\n 0: main\n 1: start"), "no memory");
        let python = b"1\nFatal Python error: Aborted\n2\n3\n4\n5\n6";
        assert_eq!(last_lines(python), "Fatal Python error: Aborted | 2 | 3 | 4 | 5");
        assert_eq!(last_lines(b""), "");
    }
}
