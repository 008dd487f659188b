//! Sets of calls that were started together.

use super::{CallError, CallResult};
use crate::{ids::WorkerId, prelude::*, time::Micros};

/// A set of calls whose caller waits for the results.
#[derive(Debug)]
pub(super) struct CallSet<T> {
    /// In the order of ids.
    answers: Vec<(WorkerId, Option<Result<T, CallError>>)>,
    /// Calls that may still be answered.
    pub(super) open: usize,
    pub(super) deadline: Option<Micros>,
    pub(super) marks_healthy: bool,
}

impl<T> CallSet<T> {
    pub(super) fn new(deadline: Option<Micros>, marks_healthy: bool) -> Self {
        Self { answers: Vec::new(), open: 0, deadline, marks_healthy }
    }

    /// Adds a call and returns its place. A call that has an answer already is over.
    pub(super) fn add(&mut self, worker: WorkerId, answer: Option<Result<T, CallError>>) -> usize {
        self.open += usize::from(answer.is_none());
        self.answers.push((worker, answer));
        self.answers.len() - 1
    }

    pub(super) fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Ends the call at a place, with a result or without.
    pub(super) fn end(&mut self, place: usize, result: Option<Result<T, CallError>>) {
        self.open = self.open.saturating_sub(1);
        if let Some((_, answer)) = self.answers.get_mut(place) {
            *answer = result;
        }
    }

    pub(super) fn into_results(self) -> Vec<CallResult<T>> {
        let answers = self.answers.into_iter();
        answers.filter_map(|(worker, answer)| Some(CallResult { worker, result: answer?, tag: None })).collect()
    }
}
