//! Requests to a worker that acts for others: the rollout thread sends them through its hub, and waits for the answers that
//! the socket receives.

use std::{
    sync::{Mutex, PoisonError, mpsc as std_mpsc},
    time::{Duration, Instant},
};

use rollmesh_core::{
    policy::PolicyError,
    protocol::{
        Kind, Message,
        message::{Infer, Inferred},
    },
};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Bytes;

/// Time for an answer, more than the hub takes to answer a request with an error: it is for a hub that hangs.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// The rollout thread's side.
pub(super) struct Asks {
    outgoing: mpsc::Sender<Bytes>,
    answers: Mutex<Answers>,
    waits: watch::Sender<bool>,
}

struct Answers {
    /// Number of the latest request.
    latest: u64,
    frames: std_mpsc::Receiver<Bytes>,
}

/// The socket's side: takes answers out of what the hub sends, since the session cannot handle frames while its thread waits.
pub(super) struct AnswerFrames {
    frames: std_mpsc::Sender<Bytes>,
    waits: watch::Receiver<bool>,
}

impl AnswerFrames {
    /// Takes a frame that is an answer; returns any other.
    pub(super) fn take(&self, frame: Bytes) -> Option<Bytes> {
        // The kind of a message is the fifth byte of its header.
        if frame.get(4) != Some(&Kind::Inferred.to_wire()) {
            return Some(frame);
        }
        // The thread may have ended.
        let _ = self.frames.send(frame);
        None
    }

    /// Returns true while the thread waits for an answer.
    pub(super) fn is_wanted(&self) -> bool {
        *self.waits.borrow()
    }

    /// Waits until the thread waits for an answer: from then on it takes no frames, and the answer may be behind many.
    pub(super) async fn wanted(&mut self) {
        // Without its thread there is no answer to wait for.
        if self.waits.wait_for(|waits| *waits).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Asks {
    pub(super) fn new(outgoing: mpsc::Sender<Bytes>) -> (Self, AnswerFrames) {
        let (sender, frames) = std_mpsc::channel();
        let (waits, is_waiting) = watch::channel(false);
        let asks = Self { outgoing, answers: Mutex::new(Answers { latest: 0, frames }), waits };
        (asks, AnswerFrames { frames: sender, waits: is_waiting })
    }

    /// Sends a request, and waits for its answer.
    pub(super) fn ask(&self, request: Infer) -> Result<Inferred, PolicyError> {
        self.waits.send_replace(true);
        let answer = self.ask_and_wait(request);
        self.waits.send_replace(false);
        answer
    }

    fn ask_and_wait(&self, request: Infer) -> Result<Inferred, PolicyError> {
        // No code panics while holding the lock.
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.latest += 1;
        let ask = answers.latest;
        let lost = || PolicyError::Failed("the connection to the hub was lost before the outputs came".into());
        let frame = Message::Infer(Infer { ask, ..request }).encode().into();
        self.outgoing.blocking_send(frame).map_err(|_| lost())?;
        let deadline = Instant::now() + ANSWER_DEADLINE;
        loop {
            let frame = match answers.frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(frame) => frame,
                Err(std_mpsc::RecvTimeoutError::Disconnected) => return Err(lost()),
                Err(std_mpsc::RecvTimeoutError::Timeout) => {
                    let seconds = ANSWER_DEADLINE.as_secs();
                    let reason = format!("no worker that acts for others has answered within {seconds} s");
                    return Err(PolicyError::Failed(reason));
                }
            };
            match Message::decode(&frame) {
                Ok(Message::Inferred(answer)) if answer.ask == ask => return Ok(answer),
                // The answer to a request that was given up.
                Ok(Message::Inferred(_)) => {}
                Ok(_) => return Err(PolicyError::Failed("the hub answered with another kind of message".into())),
                Err(error) => return Err(PolicyError::Failed(error.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_is_skipped_and_lost_connection_is_an_error() {
        let (outgoing, mut sent) = mpsc::channel(4);
        let (asks, answers) = Asks::new(outgoing);
        let answer = |ask| Message::Inferred(Inferred { ask, version: 7, ..Inferred::default() }).encode().into();
        let welcome = Bytes::from_static(b"RM\x01\0\x06\0\0\0");
        assert_eq!(answers.take(welcome.clone()), Some(welcome));
        for ask in [0, 1] {
            assert_eq!(answers.take(answer(ask)), None);
        }
        assert_eq!(asks.ask(Infer { rows: 2, ..Infer::default() }).unwrap().ask, 1);
        let Ok(Message::Infer(request)) = Message::decode(&sent.try_recv().unwrap()) else { panic!("no request") };
        assert_eq!((request.ask, request.rows), (1, 2));
        drop(answers);
        assert!(asks.ask(Infer::default()).unwrap_err().to_string().contains("connection to the hub was lost"));
    }
}
