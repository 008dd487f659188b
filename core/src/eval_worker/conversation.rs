//! What one asker says to an evaluation worker, over whatever carries bytes, and what it is answered.

use super::{EvalAnswer, EvalAsk, EvalDesk, Found, FrameLimits, FrameReader, Polled, frame_start, weights_from_bytes};
use crate::{
    evaluation::{EvalWorkerError, Ticket},
    prelude::*,
    time::Micros,
};

/// The longest time that a poll waits at the worker; a longer one asks again.
pub const LONGEST_POLL: Micros = Micros::from_secs(10);

/// One asker's questions and their answers, one at a time. Does not wait: its caller comes back when something has
/// changed at the desk, or at the [deadline](Self::deadline).
#[derive(Debug)]
pub struct EvalConversation {
    pending: VecDeque<Ticket>,
    reader: FrameReader,
    asked: Option<Asked>,
    wants_shutdown: bool,
    /// Something was said that no handle says; nothing more is heard.
    is_over: bool,
}

/// A question that was not answered yet.
#[derive(Debug)]
enum Asked {
    Answered(EvalAnswer),
    Poll { until: Micros },
}

/// An answer's bytes: those before what is no JSON, and those.
pub type AnswerBytes = [Vec<u8>; 2];

impl EvalConversation {
    /// A new asker at a desk, whose questions are no longer than this.
    #[must_use]
    pub fn new(limits: FrameLimits) -> Self {
        let reader = FrameReader::new(limits);
        Self { pending: VecDeque::new(), reader, asked: None, wants_shutdown: false, is_over: false }
    }

    /// Takes what the asker says, up to the end of a question, and says how many bytes that were. None while a question
    /// waits for its answer.
    pub fn hear(&mut self, bytes: &[u8], desk: &mut EvalDesk, now: Micros) -> usize {
        if self.is_over {
            return bytes.len();
        }
        if self.asked.is_some() {
            return 0;
        }
        let heard = self.reader.push(bytes).and_then(|taken| Ok((taken, self.reader.take()?)));
        match heard {
            Ok((taken, ask)) => {
                self.asked = ask.map(|(ask, bytes)| self.ask(ask, &bytes, desk, now));
                taken
            }
            Err(error) => {
                self.give_up(EvalWorkerError::io(error));
                bytes.len()
            }
        }
    }

    fn ask(&mut self, ask: EvalAsk, bytes: &[u8], desk: &mut EvalDesk, now: Micros) -> Asked {
        Asked::Answered(match ask {
            EvalAsk::Submit { request, earlier } => {
                let weights = weights_from_bytes(bytes);
                let ticket =
                    weights.and_then(|weights| desk.submit_for(&mut self.pending, (weights, request, earlier)));
                ticket.map_or_else(EvalAnswer::Trouble, EvalAnswer::Ticket)
            }
            EvalAsk::Poll { timeout_ms } => {
                return Asked::Poll { until: now + Micros::from_millis(timeout_ms).min(LONGEST_POLL) };
            }
            EvalAsk::Shutdown => {
                self.wants_shutdown = true;
                EvalAnswer::Done
            }
            EvalAsk::Hello { .. } => {
                self.is_over = true;
                EvalAnswer::Trouble(EvalWorkerError::io("nobody has asked for a token"))
            }
        })
    }

    /// How many bytes of a question are there.
    #[must_use]
    pub fn held(&self) -> usize {
        self.reader.held()
    }

    /// Hears nothing more, and forgets what was heard of a question; the asker is told why.
    pub fn give_up(&mut self, error: EvalWorkerError) {
        self.is_over = true;
        self.reader = FrameReader::new(self.reader.limits());
        self.asked = Some(Asked::Answered(EvalAnswer::Trouble(error)));
    }

    /// The answer, once there is one.
    pub fn poll_answer(&mut self, desk: &mut EvalDesk, now: Micros) -> Option<AnswerBytes> {
        let answer = match self.asked.take()? {
            Asked::Answered(answer) => answer,
            Asked::Poll { until } => match desk.poll(&mut self.pending) {
                Polled::NotYet if now < until => {
                    self.asked = Some(Asked::Poll { until });
                    return None;
                }
                Polled::NotYet => EvalAnswer::NotYet,
                Polled::Nothing => EvalAnswer::Nothing,
                Polled::Found(Some(ticket), outcome) => {
                    let (found, bytes) = Found::of(ticket, outcome.map(Some));
                    return Some(told(EvalAnswer::Found(found), bytes));
                }
                Polled::Found(None, Err(error)) => EvalAnswer::Trouble(error),
                Polled::Found(None, Ok(_)) => EvalAnswer::Nothing,
            },
        };
        Some(told(answer, Vec::new()))
    }

    /// When a poll has waited for long enough; none while no poll waits.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        match self.asked {
            Some(Asked::Poll { until }) => Some(until),
            Some(Asked::Answered(_)) | None => None,
        }
    }

    /// True while a question waits for its answer.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// True once the worker is to end, for all.
    #[must_use]
    pub fn wants_shutdown(&self) -> bool {
        self.wants_shutdown
    }

    /// True once nothing more is heard.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The asker is gone, and with it what it has asked for.
    pub fn end(self, desk: &mut EvalDesk) {
        self.pending.into_iter().for_each(|ticket| desk.cancel(ticket));
    }
}

/// An answer that cannot be told is an error that can.
fn told(answer: EvalAnswer, bytes: Vec<u8>) -> AnswerBytes {
    match frame_start(&answer, &bytes) {
        Ok(start) => [start, bytes],
        Err(error) => {
            let error = EvalWorkerError::failed(format!("its result cannot be told: {error}"));
            let answer = match answer {
                EvalAnswer::Found(found) => EvalAnswer::Found(Found::of(found.ticket, Err(error)).0),
                _ => EvalAnswer::Trouble(error),
            };
            // A few words always fit.
            [frame_start(&answer, &[]).unwrap_or_default(), Vec::new()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{Earlier, EvaluationRequest};

    fn ask(ask: &EvalAsk) -> Vec<u8> {
        frame_start(ask, &[]).unwrap()
    }

    fn answer(parts: Option<AnswerBytes>) -> EvalAnswer {
        let mut reader = FrameReader::new(FrameLimits::MAX);
        let [start, bytes] = parts.expect("an answer");
        assert_eq!(reader.push(&[start, bytes].concat()).is_ok(), reader.missing() == 0);
        reader.take().unwrap().expect("a whole answer").0
    }

    #[test]
    fn a_poll_waits_for_its_deadline_and_what_comes_after_it_for_the_answer() {
        let mut desk = EvalDesk::new();
        desk.engine_ready();
        let mut conversation = EvalConversation::new(FrameLimits::MAX);
        let request = EvaluationRequest::new(5);
        let questions = [
            ask(&EvalAsk::Submit { request, earlier: Earlier::Cancel }),
            ask(&EvalAsk::Poll { timeout_ms: 30 }),
            ask(&EvalAsk::Shutdown),
        ];
        let mut bytes = &questions.concat()[..];
        let mut hear = |conversation: &mut EvalConversation, desk: &mut EvalDesk, now| {
            let taken = conversation.hear(bytes, desk, Micros(now));
            bytes = &bytes[taken..];
            taken
        };
        assert_eq!(hear(&mut conversation, &mut desk, 0), questions[0].len());
        assert_eq!(hear(&mut conversation, &mut desk, 0), 0, "the answer comes first");
        assert!(matches!(answer(conversation.poll_answer(&mut desk, Micros(0))), EvalAnswer::Ticket(Ticket(1))));
        assert_eq!(hear(&mut conversation, &mut desk, 5_000), questions[1].len());
        assert_eq!(conversation.deadline(), Some(Micros::from_millis(35)));
        assert_eq!(conversation.poll_answer(&mut desk, Micros::from_millis(34)), None);
        assert!(matches!(answer(conversation.poll_answer(&mut desk, Micros::from_millis(35))), EvalAnswer::NotYet));
        hear(&mut conversation, &mut desk, 0);
        assert!(matches!(answer(conversation.poll_answer(&mut desk, Micros(0))), EvalAnswer::Done));
        assert!(conversation.wants_shutdown() && !conversation.is_asked());
        conversation.end(&mut desk);
        assert!(desk.next_order().is_none(), "what a gone asker has asked for is not done");
    }

    #[test]
    fn who_says_something_else_is_told_so_and_heard_no_more() {
        let mut desk = EvalDesk::new();
        for bytes in [vec![0xff; 16], [&1u64.to_le_bytes()[..], &0u64.to_le_bytes(), b"{"].concat()] {
            let mut conversation = EvalConversation::new(FrameLimits { text: 64, bytes: 0 });
            assert_eq!(conversation.hear(&bytes, &mut desk, Micros(0)), bytes.len());
            let trouble = answer(conversation.poll_answer(&mut desk, Micros(0)));
            assert!(matches!(trouble, EvalAnswer::Trouble(EvalWorkerError::Io(_))) && conversation.is_over());
            conversation.hear(&ask(&EvalAsk::Shutdown), &mut desk, Micros(0));
            assert!(!conversation.wants_shutdown() && !conversation.is_asked());
        }
    }
}
