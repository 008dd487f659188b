//! The curves and settings of runs, for pages that compare them.

use rollmesh_core::protocol::{
    Frame, Message,
    message::{RunHistory, RunHistoryRequest},
};

use super::actor::Actor;

impl Actor {
    /// Answers a dashboard with the curves and settings of a run that has begun.
    pub(super) fn answer_history(&self, peer: u32, asked: RunHistoryRequest) {
        match answer(asked, self.history(asked.run)) {
            Ok(frame) => self.answer_with_frame(peer, frame),
            Err(reason) => self.answer_request(peer, asked.request, Err(reason)),
        }
    }

    fn history(&self, run: u32) -> Option<RunHistory> {
        let is_current = self.run.as_ref().is_some_and(|current| current.state.number() == run);
        if is_current { self.current_history() } else { self.queue.history(run).cloned() }
    }

    /// Returns the curves so far of the latest run that has begun.
    pub(super) fn current_history(&self) -> Option<RunHistory> {
        let run = self.run.as_ref()?;
        Some(RunHistory {
            request: 0,
            run: run.state.number(),
            config: run.config().to_wire(),
            iterations: self.dashboard.points.at_most(RunHistory::MAX_ITERATIONS),
            evaluations: self.dashboard.evaluations.at_most(RunHistory::MAX_EVALUATIONS),
        })
    }
}

fn answer(asked: RunHistoryRequest, history: Option<RunHistory>) -> Result<Frame, String> {
    let RunHistoryRequest { request, run } = asked;
    let history = history.ok_or_else(|| format!("the hub has no run {run} that has begun"))?;
    // A run that was started with this program may have settings of any size.
    Frame::new(&Message::RunHistory(RunHistory { request, ..history }))
        .map_err(|error| format!("the curves and settings of run {run} are too large for a message: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_that_is_too_large_or_missing_is_answered_with_the_reason() {
        let asked = RunHistoryRequest { request: 7, run: 3 };
        let history = |config: String| Some(RunHistory { run: 3, config, ..RunHistory::default() });
        let frame = Frame::new(&Message::RunHistory(RunHistory { request: 7, run: 3, ..RunHistory::default() }));
        assert_eq!(answer(asked, history(String::new())), Ok(frame.expect("a small message")));
        let reason = answer(asked, history("x".repeat(300_000))).expect_err("it is too large");
        assert!(reason.starts_with("the curves and settings of run 3 are too large for a message: "), "{reason}");
        assert_eq!(answer(asked, None), Err("the hub has no run 3 that has begun".into()));
    }
}
