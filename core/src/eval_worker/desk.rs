//! Where evaluations are asked for and handed out: who gets what, and what an engine is to be told next.

use super::{EvalDone, EvalOrder, EvalWorkerError};
use crate::{
    evaluation::{Asker, Earlier, Evaluation, EvaluationQueue, EvaluationRequest, Ticket},
    weights::Weights,
};

/// An evaluation that waits.
#[derive(Debug)]
struct Job {
    weights: Option<Given>,
    request: EvaluationRequest,
}

/// Weights, and with which evaluation they were given.
#[derive(Clone, Debug)]
struct Given {
    number: u64,
    weights: Weights,
}

/// What the engine was told to do.
#[derive(Debug)]
struct Current {
    ticket: Ticket,
    weights: Option<Given>,
    /// It was told that nobody wants that any more.
    is_cancelled: bool,
}

/// A result, or an error, once.
pub type EvalOutcome = Result<Evaluation, EvalWorkerError>;

/// What came of asking.
#[derive(Debug, PartialEq)]
pub enum Polled {
    /// A result or an error; without a ticket it concerns the worker.
    Found(Option<Ticket>, EvalOutcome),
    /// Nothing so soon.
    NotYet,
    /// Nothing, and there is nothing to wait for.
    Nothing,
}

/// An evaluation worker but for what plays, the [engine](super::EvalEngine), which its caller makes, tells
/// [orders](Self::next_order), and replaces when it fails.
///
/// Weights stay with the worker: an evaluation without any has those that were given last, by whichever asker. Those that
/// the policy does not take are forgotten, and the last that could be evaluated count again.
#[derive(Debug, Default)]
pub struct EvalDesk {
    queue: EvaluationQueue<Job, EvalOutcome>,
    current: Option<Current>,
    /// The number of the weights that the engine was given last.
    engine_has: Option<u64>,
    /// The engine failed while nobody waited for anything.
    trouble: Option<EvalWorkerError>,
    /// The first engine is there, or has failed.
    has_begun: bool,
    /// The weights that were given last, and how many have been.
    weights: Option<Given>,
    given: u64,
    /// Those that were evaluated last.
    accepted: Option<Given>,
    askers: u64,
    is_stopped: bool,
}

impl EvalDesk {
    /// Nobody has asked for anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new asker, with nothing asked for.
    pub fn asker(&mut self) -> Asker {
        self.askers += 1;
        Asker(self.askers)
    }

    /// An evaluation is asked for.
    ///
    /// # Errors
    /// [`EvalWorkerError::Stopped`], [`EvalWorkerError::QueueFull`].
    pub fn submit(
        &mut self,
        asker: Asker,
        weights: Option<Weights>,
        request: EvaluationRequest,
        earlier: Earlier,
    ) -> Result<Ticket, EvalWorkerError> {
        if self.is_stopped {
            return Err(EvalWorkerError::Stopped);
        }
        let given = match weights {
            Some(weights) => Some(Given { number: self.given + 1, weights }),
            // Not what the engine has: that may be another one by then.
            None => self.weights.clone(),
        };
        let ticket = self.queue.submit(asker, Job { weights: given.clone(), request }, earlier)?;
        self.given = given.as_ref().map_or(self.given, |given| self.given.max(given.number));
        self.weights = given;
        // What is asked for now will tell if that is still so.
        self.trouble = None;
        Ok(ticket)
    }

    /// The next result of an asker.
    pub fn poll(&mut self, asker: Asker) -> Polled {
        if let Some((ticket, outcome)) = self.queue.poll(asker) {
            return Polled::Found(Some(ticket), outcome);
        }
        if let Some(trouble) = self.trouble.take() {
            return Polled::Found(None, Err(trouble));
        }
        if self.is_stopped || (self.has_begun && !self.queue.is_pending(asker)) {
            return Polled::Nothing;
        }
        Polled::NotYet
    }

    /// An asker is gone.
    pub fn forget(&mut self, asker: Asker) {
        self.queue.forget(asker);
    }

    /// No more evaluations, for nobody.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// True once it is [stopped](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// True while the engine has something to do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// True if there is something for an engine to do, or the first one has not begun.
    #[must_use]
    pub fn wants_engine(&self) -> bool {
        !self.is_stopped && (!self.has_begun || self.current.is_some() || self.queue.has_waiting())
    }

    /// What the engine is to be told, if there is anything. Weights only if it does not have them.
    pub fn next_order(&mut self) -> Option<EvalOrder> {
        if self.is_stopped {
            return None;
        }
        if let Some(current) = &mut self.current {
            let is_news = !current.is_cancelled && self.queue.is_cancelled(current.ticket);
            current.is_cancelled |= is_news;
            return is_news.then_some(EvalOrder::Cancel(current.ticket));
        }
        let (ticket, Job { weights, request }) = self.queue.start()?;
        self.current = Some(Current { ticket, weights: weights.clone(), is_cancelled: false });
        let new = weights.filter(|given| self.engine_has.replace(given.number) != Some(given.number));
        Some(EvalOrder::Evaluate { ticket, weights: new.map(|given| given.weights), request })
    }

    /// The engine is there.
    pub fn engine_ready(&mut self) {
        self.has_begun = true;
    }

    /// The engine is gone, and had nothing to do. The next one has no weights.
    pub fn engine_gone(&mut self) {
        self.engine_has = None;
    }

    /// The engine has failed. Tells whoever waits for what it did, or else whoever asks next. An evaluation that has not
    /// been begun meets the same trouble, and is told then.
    pub fn engine_failed(&mut self, error: EvalWorkerError) {
        self.has_begun = true;
        self.engine_gone();
        match self.current.take() {
            Some(current) => self.queue.finish(current.ticket, Err(error)),
            None if !self.queue.has_waiting() => self.trouble = Some(error),
            None => {}
        }
    }

    /// An evaluation is over. True if the engine must be replaced: whatever state its environment and policy are in, the
    /// next evaluation has others.
    #[must_use]
    pub fn finish(&mut self, done: EvalDone) -> bool {
        let EvalDone { ticket, result } = done;
        let Some(current) = self.current.take_if(|current| current.ticket == ticket) else { return false };
        match &result {
            Ok(Some(_)) => self.accepted = current.weights,
            Err(EvalWorkerError::Weights(_)) => {
                let number = |given: &Option<Given>| given.as_ref().map(|given| given.number);
                if number(&self.weights) == number(&current.weights) {
                    self.weights = self.accepted.clone();
                }
            }
            Ok(None) | Err(_) => {}
        }
        let has_failed = result.is_err();
        if has_failed {
            self.engine_gone();
        }
        let cancelled = || EvalWorkerError::failed("it was cancelled");
        self.queue.finish(ticket, result.and_then(|found| found.ok_or_else(cancelled)));
        has_failed
    }
}
