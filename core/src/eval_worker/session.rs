//! An evaluation worker's side of a connection to a hub, without IO: others ask it by its name.

use super::{EvalConversation, EvalDesk, EvaluatorLink, FrameLimits};
use crate::{
    evaluation::EvalWorkerError,
    prelude::*,
    protocol::{
        Message,
        handshake::Identity,
        message::{
            EVALUATOR_WINDOW, EvaluatorBytes, EvaluatorFound, EvaluatorGone, EvaluatorName, EvaluatorTaken,
            MAX_EVALUATOR_BYTES,
        },
    },
    time::Micros,
    worker::SessionState,
};

/// Bytes that were read are granted again in portions of this size.
const GRANT: usize = EVALUATOR_WINDOW / 4;
/// Askers at a time.
const MAX_LINES: usize = 64;

/// A connection to a hub under a name: frames in, frames out, questions answered at a [desk](EvalDesk).
///
/// Native workers and browser tabs both drive one. It ends with its connection: the desk stays, and the next one has
/// another session.
#[derive(Debug)]
pub struct EvalSession {
    link: EvaluatorLink,
    name: String,
    limits: FrameLimits,
    /// Whether the name is this one's, once the hub has said so.
    has_name: Option<bool>,
    lines: BTreeMap<u32, Line>,
}

/// What is on its way to and from one asker.
#[derive(Debug)]
struct Line {
    conversation: EvalConversation,
    /// What has come and was not understood yet; at most a window.
    heard: Vec<u8>,
    /// Bytes that were understood and not granted again.
    taken: usize,
    /// What is to be said, and how much of the first of it was.
    to_say: VecDeque<Vec<u8>>,
    said: usize,
    /// Bytes that the asker has not taken.
    on_their_way: usize,
}

impl EvalSession {
    /// Begins a session: the first frame to send is the `Hello`. Questions are no longer than the limits, nor are all that
    /// have begun together: whoever says more meanwhile is refused.
    #[must_use]
    pub fn new(identity: Identity, name: &str, limits: FrameLimits) -> Self {
        let wish = EvaluatorName { name: name.into(), serves: true };
        let link = EvaluatorLink::new(identity, wish);
        Self { link, name: name.into(), limits, has_name: None, lines: BTreeMap::new() }
    }

    /// Where the session stands.
    #[must_use]
    pub fn state(&self) -> &SessionState {
        self.link.state()
    }

    /// Whether the name is this one's, once the hub has said so. If not, the session is closed.
    #[must_use]
    pub fn has_name(&self) -> Option<bool> {
        self.has_name
    }

    /// True once an asker wants the worker to end, for all.
    #[must_use]
    pub fn wants_shutdown(&self) -> bool {
        self.lines.values().any(|line| line.conversation.wants_shutdown())
    }

    /// When to come back even if nothing happens; none while no poll waits.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.lines.values().filter_map(|line| line.conversation.deadline()).min()
    }

    /// Takes a frame from the hub.
    pub fn handle_frame(&mut self, frame: &[u8], desk: &mut EvalDesk, now: Micros) {
        match self.link.handle_frame(frame) {
            Some(Message::EvaluatorFound(EvaluatorFound { peer, .. })) => {
                self.has_name = Some(peer != 0);
                if peer == 0 {
                    self.link.leave(&format!("the name '{}' is taken", self.name));
                }
            }
            Some(Message::EvaluatorBytes(EvaluatorBytes { peer, data })) => self.hear(peer, &data, desk, now),
            Some(Message::EvaluatorTaken(EvaluatorTaken { peer, bytes })) => {
                if let Some(line) = self.lines.get_mut(&peer) {
                    line.on_their_way = line.on_their_way.saturating_sub(bytes as usize);
                }
            }
            Some(Message::EvaluatorGone(EvaluatorGone { peer })) => {
                let gone = self.lines.remove(&peer);
                gone.into_iter().for_each(|line| line.conversation.end(desk));
            }
            // Nothing else is about evaluators.
            Some(_) | None => {}
        }
    }

    fn hear(&mut self, peer: u32, data: &[u8], desk: &mut EvalDesk, now: Micros) {
        if !self.lines.contains_key(&peer) {
            if self.lines.len() >= MAX_LINES {
                // Whoever is not answered gives up.
                return;
            }
            self.lines.insert(peer, Line::new(EvalConversation::new(self.limits)));
        }
        let held: u64 = self.lines.values().map(Line::held).sum();
        let has_room = held + data.len() as u64 <= self.room();
        if let Some(line) = self.lines.get_mut(&peer)
            // More than there is room for is said by nobody who keeps the rules.
            && line.heard.len() + data.len() <= EVALUATOR_WINDOW
        {
            line.heard.extend_from_slice(data);
            if !has_room {
                let reason = "others are in the middle of saying too much: ask again later";
                line.conversation.give_up(EvalWorkerError::io(reason));
            }
            line.understand(desk, now);
        }
    }

    /// Bytes of questions that may be there: of one as long as any, and of what comes behind it.
    fn room(&self) -> u64 {
        self.limits.text.saturating_add(self.limits.bytes).saturating_add(2 * EVALUATOR_WINDOW as u64)
    }

    /// The next frame to send to the hub. There may be one whenever a frame has come, something has changed at the desk,
    /// or the [deadline](Self::deadline) has passed; also after the end of the session.
    pub fn poll_frame(&mut self, desk: &mut EvalDesk, now: Micros) -> Option<Vec<u8>> {
        let first = self.link.poll_frame();
        if first.is_some() || self.link.is_over() {
            return first;
        }
        let next = self.lines.iter_mut().find_map(|(&peer, line)| line.poll_message(peer, desk, now))?;
        self.link.say(next);
        self.link.poll_frame()
    }

    /// Ends the session on this side's wish, and tells the hub.
    pub fn leave(&mut self, reason: &str) {
        self.link.leave(reason);
    }

    /// The connection is gone, and with it all who have asked over it.
    pub fn end(self, desk: &mut EvalDesk) {
        self.lines.into_values().for_each(|line| line.conversation.end(desk));
    }
}

impl Line {
    fn new(conversation: EvalConversation) -> Self {
        let (heard, to_say) = (Vec::new(), VecDeque::new());
        Self { conversation, heard, taken: 0, to_say, said: 0, on_their_way: 0 }
    }

    /// Bytes that have come, and are no answered question.
    fn held(&self) -> u64 {
        (self.heard.len() + self.conversation.held()) as u64
    }

    /// Hands on what has come, up to a question that waits for its answer.
    fn understand(&mut self, desk: &mut EvalDesk, now: Micros) {
        let taken = self.conversation.hear(&self.heard, desk, now);
        self.heard.drain(..taken);
        self.taken += taken;
    }

    fn poll_message(&mut self, peer: u32, desk: &mut EvalDesk, now: Micros) -> Option<Message> {
        // Answers wait until those before them have gone: who takes none gets no more.
        if self.to_say.is_empty()
            && let Some(answer) = self.conversation.poll_answer(desk, now)
        {
            self.to_say.extend(answer.into_iter().filter(|part| !part.is_empty()));
            self.understand(desk, now);
        }
        if self.taken >= GRANT || (self.taken > 0 && self.heard.is_empty()) {
            // Never more than the window.
            let bytes = u32::try_from(core::mem::take(&mut self.taken)).unwrap_or(u32::MAX);
            return Some(Message::EvaluatorTaken(EvaluatorTaken { peer, bytes }));
        }
        let room = EVALUATOR_WINDOW.saturating_sub(self.on_their_way).min(MAX_EVALUATOR_BYTES);
        let part = self.to_say.front()?;
        let rest = part.get(self.said..)?;
        let data = rest.get(..room.min(rest.len()))?.to_vec();
        if data.is_empty() {
            return None;
        }
        self.said += data.len();
        self.on_their_way += data.len();
        if data.len() == rest.len() {
            self.to_say.pop_front();
            self.said = 0;
        }
        Some(Message::EvaluatorBytes(EvaluatorBytes { peer, data }))
    }
}
