//! The rules of evaluations that programs request from evaluation workers.

use std::collections::BTreeMap;

use rollmesh_core::{protocol::AskOutcome, time::Micros};

use super::RunEvent;

/// The time within which a request is answered: all queued evaluations of a worker finish, and the hub detects lost
/// connections.
pub(super) const ANSWERED_WITHIN: Micros = Micros::from_secs(30);
/// The time within which an evaluation ends that was cancelled or whose program has disconnected.
const CANCELLED_WITHIN: Micros = Micros::from_secs(4);

/// The checker's model of requests for evaluations.
#[derive(Debug, Default)]
pub(super) struct AskModel {
    asks: BTreeMap<u64, AskState>,
    /// The times at which evaluation workers last lost their connections.
    lost: BTreeMap<usize, Micros>,
}

#[derive(Clone, Copy, Debug)]
struct AskState {
    asker: usize,
    evaluator: usize,
    sent_at: Micros,
    cancelled_at: Option<Micros>,
    is_answered: bool,
}

impl AskModel {
    pub(super) fn step(&mut self, event: &RunEvent, at: Micros) -> Result<(), &'static str> {
        let must = |rule: bool, text| if rule { Ok(()) } else { Err(text) };
        match *event {
            RunEvent::AskSent { asker, evaluator, ask } => {
                let state = AskState { asker, evaluator, sent_at: at, cancelled_at: None, is_answered: false };
                self.asks.insert(ask, state);
            }
            RunEvent::AskCancelled { ask } => {
                self.asks.entry(ask).and_modify(|state| _ = state.cancelled_at.get_or_insert(at));
            }
            RunEvent::AskerLost { asker } => {
                for state in self.asks.values_mut().filter(|state| state.asker == asker) {
                    state.cancelled_at.get_or_insert(at);
                }
            }
            RunEvent::EvaluatorLost { evaluator } => _ = self.lost.insert(evaluator, at),
            RunEvent::AskEvaluated { ask } => {
                let cancelled_at = self.asks.get(&ask).and_then(|state| state.cancelled_at);
                must(cancelled_at.is_none_or(|since| at < since + CANCELLED_WITHIN), "it was cancelled long before")?;
            }
            RunEvent::AskAnswered { ask, outcome, is_own } => {
                let state = self.asks.get_mut(&ask).ok_or("it was not asked")?;
                must(!std::mem::replace(&mut state.is_answered, true), "it was answered before")?;
                let is_in_time = state.cancelled_at.is_some() || at <= state.sent_at + ANSWERED_WITHIN;
                must(is_in_time, "it is answered too late")?;
                let has_lost = self.lost.contains_key(&state.evaluator);
                match outcome {
                    AskOutcome::Done => must(is_own, "it is the answer to something else")?,
                    AskOutcome::Left | AskOutcome::UnknownName => must(has_lost, "the worker has not left")?,
                    AskOutcome::Failed => must(state.cancelled_at.is_some(), "the worker has not refused it")?,
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks at the end of the simulation that no request without a cancellation is overdue.
    pub(super) fn check_answered(&self, at: Micros) -> Result<(), &'static str> {
        let is_late = |state: &AskState| {
            let is_open = !state.is_answered && state.cancelled_at.is_none();
            is_open && state.sent_at + ANSWERED_WITHIN < at
        };
        if self.asks.values().any(is_late) { Err("a program gets no answer") } else { Ok(()) }
    }
}
