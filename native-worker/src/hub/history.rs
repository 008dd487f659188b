//! The curves and settings of runs, for pages that compare them.

use rollmesh_core::protocol::{
    Message,
    message::{RunHistory, RunHistoryRequest},
};

use super::actor::Actor;

impl Actor {
    /// Answers a dashboard with the curves and settings of a run that has begun.
    pub(super) fn answer_history(&self, peer: u32, asked: RunHistoryRequest) {
        let RunHistoryRequest { request, run } = asked;
        let history = self.current_history().filter(|history| history.run == run);
        match history.or_else(|| self.queue.history(run).cloned()) {
            Some(history) => self.answer_dashboard(peer, &Message::RunHistory(RunHistory { request, ..history })),
            None => self.answer_request(peer, request, Err(format!("the hub has no run {run} that has begun"))),
        }
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
