//! The worker's side of a sub-environment's process. Nothing here blocks on it, except for its exit after a kill.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
    time::{Duration, Instant},
};

use rollmesh_core::env::ProcessEnd;
use rustix::{
    event::{PollFd, PollFlags},
    io::ioctl_fionbio,
};

use super::wire::{ChildReply, ChildRequest, HEAD, Head, MAX_BODY, message};
use crate::child::{self, Child, ChildStreams, LastWords};

/// Size of a read in bytes, and the minimum buffer size.
const CHUNK: usize = 1 << 16;
/// Maximum number of consecutive reads of the standard error, so that a flood does not starve the others.
const MAX_READS: usize = 16;
/// Time for a process to exit after its pipe has closed.
const END: Duration = Duration::from_secs(1);
/// A deadline that passed while the worker was not listening is enforced only after listening this long.
const LISTEN: Duration = Duration::from_secs(1);

/// A process with its non-blocking pipes.
pub(in crate::envs) struct EnvProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Number of the latest request.
    number: u64,
    /// The pending request.
    asked: Option<PendingRequest>,
    /// The latest request, and the number of its bytes that have been sent.
    request: Vec<u8>,
    sent: usize,
    /// The part of the answer that has been read.
    answer: Vec<u8>,
    filled: usize,
    last_words: LastWords,
    is_dismissed: bool,
}

/// A pending request.
struct PendingRequest {
    doing: &'static str,
    at: Instant,
    /// The time for which the worker has listened since.
    heard: Duration,
}

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::envs) enum PipeEnd {
    Requests,
    Answers,
    Words,
}

impl EnvProcess {
    /// Starts a program that uses the protocol of [`wire`](super::wire).
    pub(in crate::envs) fn start(command: Command) -> io::Result<Self> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let (child, ChildStreams { stdin, stdout, stderr }) = child::spawn(command)?;
        ioctl_fionbio(&stdin, true)?;
        ioctl_fionbio(&stdout, true)?;
        ioctl_fionbio(&stderr, true)?;
        Ok(Self {
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
            last_words: LastWords::default(),
            is_dismissed: false,
        })
    }

    pub(in crate::envs) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request. Errors show when the answer is awaited.
    pub(in crate::envs) fn ask(&mut self, doing: &'static str, request: ChildRequest, body: impl FnOnce(&mut Vec<u8>)) {
        self.number = self.number.wrapping_add(1);
        self.asked = Some(PendingRequest { doing, at: Instant::now(), heard: Duration::ZERO });
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
    pub(in crate::envs) fn receive(&mut self) -> Result<Option<(ChildReply, &[u8])>, ProcessEnd> {
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
    fn check(&self) -> Result<Option<(ChildReply, usize)>, ProcessEnd> {
        if self.asked.is_none() && self.filled > 0 {
            return Err(ProcessEnd::Nonsense("an unrequested message".into()));
        }
        let Some(bytes) = self.answer.first_chunk().filter(|_| self.filled >= HEAD) else { return Ok(None) };
        let head = Head::read(*bytes).filter(|head| head.number == self.number);
        let answer = head.and_then(|head| Some((ChildReply::of(head.kind)?, HEAD + head.len)));
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
                Ok(read) if read > 0 => self.last_words.push(bytes.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.stderr = None,
            }
        }
    }

    /// Returns the pipe ends to poll.
    pub(in crate::envs) fn ends(&self) -> impl Iterator<Item = (PipeEnd, PollFd<'_>)> {
        let requests =
            (self.sent < self.request.len()).then(|| (PipeEnd::Requests, PollFd::new(&self.stdin, PollFlags::OUT)));
        let answers = self.asked.is_some().then(|| (PipeEnd::Answers, PollFd::new(&self.stdout, PollFlags::IN)));
        let words = self.stderr.as_ref().map(|stderr| (PipeEnd::Words, PollFd::new(stderr, PollFlags::IN)));
        [answers, requests, words].into_iter().flatten()
    }

    /// Returns the end of the process, after its pipe has closed.
    fn ended(&mut self) -> ProcessEnd {
        let is_over = self.child.exits_within(END);
        match self.child.kill() {
            Some(status) if is_over => match (status.code(), status.signal()) {
                (Some(code), _) => ProcessEnd::Exited(code),
                (None, Some(signal)) => ProcessEnd::Signal(signal),
                (None, None) => ProcessEnd::Nonsense("nothing more".into()),
            },
            _ => ProcessEnd::Nonsense("the end of its answers, but has not ended,".into()),
        }
    }

    /// Ends the process; returns the last lines of its standard error.
    pub(in crate::envs) fn end(mut self) -> String {
        self.child.kill();
        self.listen();
        self.last_words.to_string()
    }

    /// Asks the process to exit after its current request.
    pub(in crate::envs) fn dismiss(&mut self) {
        if self.sent == self.request.len() {
            self.is_dismissed = true;
            self.ask("for its end", ChildRequest::Stop, |_| {});
        }
    }
}
