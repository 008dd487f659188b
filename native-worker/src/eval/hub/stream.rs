//! A handle's way to a worker through a hub, as a stream of bytes that blocks.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Read, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message,
    message::{EVALUATOR_WINDOW, EvaluatorBytes, EvaluatorTaken, MAX_EVALUATOR_BYTES},
};
use tokio::sync::Notify;

use super::super::connection::{ANSWER, Line};

/// Bytes that were read are granted again in portions of this size.
const GRANT: usize = EVALUATOR_WINDOW / 4;

/// Between a handle and its connection: what has come from the other side and was not read, what is to be said to it, and
/// how much of that it has not taken.
#[derive(Default)]
pub(super) struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
    /// Tells the connection that there is something to be said.
    pub(super) notify: Arc<Notify>,
}

#[derive(Default)]
pub(super) struct PipeState {
    pub(super) peer: u32,
    bytes: VecDeque<u8>,
    pub(super) outgoing: VecDeque<Message>,
    /// Bytes that the other side has not taken.
    on_their_way: usize,
    /// The connection is over.
    end: Option<String>,
    /// The handle is gone.
    pub(super) is_dropped: bool,
}

impl Pipe {
    pub(super) fn state(&self) -> MutexGuard<'_, PipeState> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, message: impl FnOnce(u32) -> Message) {
        let mut state = self.state();
        let message = message(state.peer);
        // A connection that is over says so by itself.
        state.outgoing.push_back(message);
        drop(state);
        self.notify.notify_waiters();
    }

    pub(super) fn add(&self, data: &[u8]) {
        let mut state = self.state();
        if state.bytes.len() + data.len() > EVALUATOR_WINDOW {
            state.end = Some("the other side sends more than there is room for".into());
        } else {
            state.bytes.extend(data);
        }
        self.changed.notify_all();
    }

    pub(super) fn taken(&self, bytes: u32) {
        let mut state = self.state();
        state.on_their_way = state.on_their_way.saturating_sub(bytes as usize);
        self.changed.notify_all();
    }

    pub(super) fn end(&self, reason: &str) {
        self.state().end.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    /// Waits until something is so, or there is nothing more to wait for.
    fn until(
        &self,
        patience: Option<Duration>,
        mut is_so: impl FnMut(&PipeState) -> bool,
    ) -> io::Result<MutexGuard<'_, PipeState>> {
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        let mut state = self.state();
        loop {
            if is_so(&state) {
                return Ok(state);
            }
            if let Some(reason) = &state.end {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone()));
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A handle's bytes to and from the worker. Its connection ends with it.
pub(super) struct HubStream {
    pipe: Arc<Pipe>,
    patience: Option<Duration>,
    /// Bytes that were read and not granted again.
    read: usize,
}

impl HubStream {
    pub(super) fn over(pipe: Arc<Pipe>) -> Self {
        Self { pipe, patience: None, read: 0 }
    }
}

impl fmt::Debug for HubStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubStream").finish_non_exhaustive()
    }
}

impl Drop for HubStream {
    fn drop(&mut self) {
        self.pipe.state().is_dropped = true;
        self.pipe.notify.notify_waiters();
    }
}

impl Read for HubStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.pipe.until(self.patience, |state| !state.bytes.is_empty())?;
        let read = state.bytes.read(buffer)?;
        let is_empty = state.bytes.is_empty();
        drop(state);
        self.read += read;
        if is_empty || self.read >= GRANT {
            // Never more than the window.
            let bytes = u32::try_from(std::mem::take(&mut self.read)).unwrap_or(u32::MAX);
            self.pipe.say(|peer| Message::EvaluatorTaken(EvaluatorTaken { peer, bytes }));
        }
        Ok(read)
    }
}

impl Write for HubStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state =
            self.pipe.until(Some(ANSWER), |state| state.end.is_none() && state.on_their_way < EVALUATOR_WINDOW)?;
        let room = (EVALUATOR_WINDOW - state.on_their_way).min(MAX_EVALUATOR_BYTES);
        let data: Vec<u8> = bytes.iter().copied().take(room).collect();
        if data.is_empty() {
            return Ok(0);
        }
        state.on_their_way += data.len();
        drop(state);
        let written = data.len();
        self.pipe.say(|peer| Message::EvaluatorBytes(EvaluatorBytes { peer, data }));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line for HubStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.patience = patience;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (HubStream, Arc<Pipe>) {
        let pipe = Arc::new(Pipe::default());
        pipe.state().peer = 3;
        (HubStream::over(pipe.clone()), pipe)
    }

    #[test]
    fn no_more_is_on_its_way_than_there_is_room_for() {
        let (mut line, pipe) = line();
        let all = vec![7; EVALUATOR_WINDOW];
        line.write_all(&all).unwrap();
        assert!(pipe.state().on_their_way == EVALUATOR_WINDOW);
        pipe.taken(5);
        assert_eq!(line.write(&all).unwrap(), 5);
        pipe.end("it is over");
        assert_eq!(line.write(&all).unwrap_err().to_string(), "it is over");
        let mut bytes = 0;
        while let Some(Message::EvaluatorBytes(EvaluatorBytes { peer: 3, data })) = pipe.state().outgoing.pop_front() {
            assert!(data.len() <= MAX_EVALUATOR_BYTES);
            bytes += data.len();
        }
        assert_eq!(bytes, EVALUATOR_WINDOW + 5);
    }

    #[test]
    fn what_was_read_is_granted_again() {
        let (mut line, pipe) = line();
        line.patience = Some(Duration::ZERO);
        assert_eq!(line.read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        pipe.add(&[1, 2, 3, 4, 5]);
        let mut three = [0; 3];
        line.read_exact(&mut three).unwrap();
        assert!(three == [1, 2, 3] && pipe.state().outgoing.is_empty());
        assert_eq!(line.read(&mut [0; 4]).unwrap(), 2);
        let granted = Message::EvaluatorTaken(EvaluatorTaken { peer: 3, bytes: 5 });
        assert_eq!(pipe.state().outgoing.pop_front(), Some(granted));
        // What came before the end is read.
        pipe.add(&[6]);
        pipe.end("it is over");
        assert_eq!(line.read(&mut [0; 4]).unwrap(), 1);
        assert_eq!(line.read(&mut [0; 4]).unwrap_err().to_string(), "it is over");
        pipe.add(&vec![0; EVALUATOR_WINDOW + 1]);
        assert!(pipe.state().bytes.is_empty());
    }
}
