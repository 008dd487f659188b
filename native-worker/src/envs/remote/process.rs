//! A process of a sub-environment, as the worker holds it. Nothing here waits for it, except for its end after a kill.

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

/// How much is read at once, and held at least.
const CHUNK: usize = 1 << 16;
/// How much of what it says on its standard error is kept.
const LAST_WORDS: usize = 16_000;
/// Reads of its standard error in a row: who floods it must not keep the others waiting.
const MAX_READS: usize = 16;
/// A process whose pipe has closed is about to end; one that takes longer does not.
const END: Duration = Duration::from_secs(1);
/// A deadline that passed while nobody listened counts only after that much listening.
const LISTEN: Duration = Duration::from_secs(1);

/// A process with its pipes, none of which blocks.
pub(in crate::envs) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Of the latest request.
    number: u64,
    /// What it is about.
    asked: Option<Asked>,
    /// The latest request, and how much of it has been sent.
    request: Vec<u8>,
    sent: usize,
    /// The answer, as far as it is here.
    answer: Vec<u8>,
    filled: usize,
    last_words: Vec<u8>,
    is_dismissed: bool,
    is_gone: bool,
}

/// Something that a process was asked to do.
struct Asked {
    doing: &'static str,
    at: Instant,
    /// How long somebody has listened since.
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
    /// Starts a program that speaks as [`wire`](super::wire) says.
    pub(in crate::envs) fn start(command: &mut Command) -> io::Result<Self> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the worker; and whatever the environment starts ends with it.
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

    /// Asks for something. Whatever goes wrong shows when the answer is awaited.
    pub(in crate::envs) fn ask(&mut self, doing: &'static str, request: Request, body: impl FnOnce(&mut Vec<u8>)) {
        self.number = self.number.wrapping_add(1);
        self.asked = Some(Asked { doing, at: Instant::now(), heard: Duration::ZERO });
        if message(&mut self.request, self.number, request as u8, body).is_none() {
            // Actions as long as that are of no space; the process will say that it makes no sense.
            let _ = message(&mut self.request, self.number, request as u8, |_| {});
        }
        self.sent = 0;
        self.send();
    }

    /// Sends what is left of the request, as far as the pipe takes it.
    pub(in crate::envs) fn send(&mut self) {
        while let Some(rest) = self.request.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stdin.write(rest) {
                Ok(0) => return,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A process without its end of the pipe is gone, which is told when its answer is read.
                Err(_) => self.sent = self.request.len(),
            }
        }
    }

    /// The answer, once all of it is here. It is over with [`taken`](Self::taken).
    pub(in crate::envs) fn receive(&mut self) -> Result<Option<(Reply, &[u8])>, ProcessEnd> {
        if self.is_dismissed {
            // An answer to what it was asked before, which nobody wants any more. Once, so that no flood holds it up.
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
                // No more than twice of what has come, and no more than a message can have.
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

    /// What has come so far, if it is more than the head: the kind of the answer, and where it will end.
    fn check(&self) -> Result<Option<(Reply, usize)>, ProcessEnd> {
        if self.asked.is_none() && self.filled > 0 {
            return Err(ProcessEnd::Nonsense("something that nobody has asked for".into()));
        }
        let Some(bytes) = self.answer.first_chunk().filter(|_| self.filled >= HEAD) else { return Ok(None) };
        let head = Head::read(*bytes).filter(|head| head.number == self.number);
        let answer = head.and_then(|head| Some((Reply::of(head.kind)?, HEAD + head.len)));
        answer.map(Some).ok_or_else(|| ProcessEnd::Nonsense("bytes that are no answer".into()))
    }

    /// The answer has been read.
    pub(in crate::envs) fn taken(&mut self) {
        self.asked = None;
        self.filled = 0;
    }

    /// Somebody has listened for so long.
    pub(in crate::envs) fn heard(&mut self, time: Duration) {
        if let Some(asked) = &mut self.asked {
            asked.heard += time;
        }
    }

    /// How long it may still take; nothing if nothing was asked for.
    pub(in crate::envs) fn patience(&self, limit: Duration) -> Option<Duration> {
        let asked = self.asked.as_ref()?;
        let clock = limit.saturating_sub(asked.at.elapsed());
        Some(clock.max(limit.min(LISTEN).saturating_sub(asked.heard)))
    }

    /// It has missed its deadline.
    pub(in crate::envs) fn overdue(&self, limit: Duration) -> Option<ProcessEnd> {
        let doing = self.asked.as_ref()?.doing;
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        self.patience(limit).filter(Duration::is_zero).map(|_| ProcessEnd::Overdue { doing, limit_ms })
    }

    /// Keeps the end of what it says on its standard error.
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

    /// What to wait for.
    pub(in crate::envs) fn ends(&self) -> impl Iterator<Item = (End, PollFd<'_>)> {
        let requests =
            (self.sent < self.request.len()).then(|| (End::Requests, PollFd::new(&self.stdin, PollFlags::OUT)));
        let answers = self.asked.is_some().then(|| (End::Answers, PollFd::new(&self.stdout, PollFlags::IN)));
        let words = self.stderr.as_ref().map(|stderr| (End::Words, PollFd::new(stderr, PollFlags::IN)));
        [answers, requests, words].into_iter().flatten()
    }

    /// Its pipe has closed: how it has ended.
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

    /// Ends it, and whatever it has started, and leaves nothing behind.
    fn kill(&mut self) -> Option<std::process::ExitStatus> {
        if std::mem::replace(&mut self.is_gone, true) {
            return None;
        }
        // Before it is waited for, its number is nobody else's.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    /// Ends it; gives the last lines of what it has said.
    pub(in crate::envs) fn end(mut self) -> String {
        self.kill();
        self.listen();
        last_lines(&self.last_words)
    }

    /// Asks it to end by itself, after what it is about.
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

/// The last lines, at most five of them and 500 characters, as text. Rust's backtraces, which name this program's functions
/// and not what went wrong, are left out; of Python's, whose innermost call comes first, the beginning is kept.
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
