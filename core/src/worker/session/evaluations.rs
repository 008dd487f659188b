//! Calls for evaluations, which the worker's [`Evaluates`] executes between the session's messages.

use super::{CallOutcome, is_report_due};
use crate::{
    evaluation::{Evaluates, Ticket},
    ids::CallId,
    prelude::*,
    time::Micros,
    worker::{CommandError, CommandErrorKind, WorkerAnswer, WorkerCommand},
};

/// Most open evaluations: more than a hub requests.
const MAX_OPEN: usize = 4_096;

/// The evaluations of a session's calls. Commands are decoded on arrival, so that weights apply in the order in which they
/// were sent, and a cancellation takes effect immediately.
pub(super) struct Evaluations {
    evaluator: Box<dyn Evaluates>,
    open: VecDeque<(CallId, Ticket)>,
    /// Calls that were cancelled before they arrived, since small messages overtake large ones.
    cancelled: VecDeque<CallId>,
    /// When progress of an evaluation was last reported to the hub.
    reported: Micros,
}

impl Evaluations {
    pub(super) fn new(evaluator: Box<dyn Evaluates>) -> Self {
        Self { evaluator, open: VecDeque::new(), cancelled: VecDeque::new(), reported: Micros(0) }
    }

    /// Handles a call. Returns its result if that is known immediately, which that of an evaluation is not.
    pub(super) fn call(&mut self, call: CallId, body: &[u8]) -> Option<CallOutcome> {
        let done = |result| Some((call, result));
        match WorkerCommand::decode(body) {
            Ok(WorkerCommand::Ping) => done(Ok(WorkerAnswer::Pong)),
            Ok(WorkerCommand::AssertHealthy) => done(Ok(match self.evaluator.begin() {
                Ok(()) => WorkerAnswer::Done,
                Err(error) => WorkerAnswer::Evaluated(Box::new(Err(error))),
            })),
            Ok(WorkerCommand::Stop) => {
                self.evaluator.stop();
                done(Ok(WorkerAnswer::Done))
            }
            Ok(WorkerCommand::Evaluate { .. }) if self.open.len() >= MAX_OPEN => {
                let why = format!("{MAX_OPEN} evaluations wait already");
                done(Err(CommandError::new(CommandErrorKind::Busy, why)))
            }
            Ok(WorkerCommand::Evaluate { weights, request }) => match self.evaluator.submit(weights, request) {
                Ok(ticket) => {
                    self.open.push_back((call, ticket));
                    let at = self.cancelled.iter().position(|cancelled| *cancelled == call)?;
                    self.cancelled.remove(at);
                    self.cancel(call)
                }
                Err(error) => done(Ok(WorkerAnswer::Evaluated(Box::new(Err(error))))),
            },
            Ok(_) => {
                let why = "this worker evaluates, and does nothing else";
                done(Err(CommandError::new(CommandErrorKind::NotSetUp, why)))
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Cancels a call. Returns its result, if it was open.
    pub(super) fn cancel(&mut self, call: CallId) -> Option<CallOutcome> {
        let Some(at) = self.open.iter().position(|(open, _)| *open == call) else {
            self.cancelled.truncate(MAX_OPEN - 1);
            self.cancelled.push_front(call);
            return None;
        };
        let (_, ticket) = self.open.remove(at)?;
        self.evaluator.cancel(ticket);
        Some((call, Err(CommandError::new(CommandErrorKind::Cancelled, "the evaluation was cancelled"))))
    }

    /// Returns the next finished call.
    pub(super) fn poll(&mut self) -> Option<CallOutcome> {
        let evaluator = &mut self.evaluator;
        let over = |(at, (_, ticket)): (usize, &(CallId, Ticket))| Some((at, evaluator.take(*ticket)?));
        let (at, outcome) = self.open.iter().enumerate().find_map(over)?;
        let (call, _) = self.open.remove(at)?;
        Some((call, Ok(WorkerAnswer::Evaluated(Box::new(outcome)))))
    }

    pub(super) fn has_work(&self) -> bool {
        self.evaluator.has_work()
    }

    /// Works for a round, which may take long. Returns the call in progress if its progress is due to be reported.
    pub(super) fn work(&mut self, now: Micros) -> Option<CallId> {
        self.evaluator.work(1);
        let (call, _) = self.open.front().filter(|_| is_report_due(self.reported, now))?;
        self.reported = now;
        Some(*call)
    }

    /// Cancels all calls. The evaluator is kept for another session.
    pub(super) fn end(&mut self) {
        self.open.drain(..).for_each(|(_, ticket)| self.evaluator.cancel(ticket));
        self.cancelled.clear();
    }
}
