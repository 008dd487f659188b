//! The work of a tab for a hub, independent of the state of the socket: the tab samples for the hub's run, or evaluates
//! for handles that find it by its name.

use rollmesh_core::{
    eval_worker::{EvalMakers, InlineEvalWorker},
    evaluation::check_name,
    kernels::Kernels,
    protocol::{Connection, Role},
    run::RunConfig,
    time::Micros,
    worker::{RolloutWorkerBuilder, WorkerSession, core_fingerprint},
};

use super::{
    page::{Status, Task},
    scope,
};
use crate::envs::registry;

/// The number of steps of all slots of a lease between two readings of the clock.
const VECTOR_STEPS: u32 = 16;

/// The session of a tab, over all its connections.
pub(crate) struct Work {
    pub(crate) session: WorkerSession,
    /// The worker that evaluates, with its weights.
    evaluator: Option<InlineEvalWorker>,
    /// Whether the tab has worked since the latest status.
    has_worked: bool,
}

impl Work {
    /// Begins a task. Fails with the error of its description.
    pub(crate) fn new(task: &Task) -> Result<Self, String> {
        let connection = Connection::new(task.identity(Role::Worker, core_fingerprint(Kernels::PORTABLE)));
        let session = |connection| WorkerSession::new(connection, registry(), Kernels::PORTABLE);
        let Some(run) = &task.run else {
            // With a clock the worker samples in spans, between which messages are received and sent.
            let session = session(connection);
            let session = session.with_workers(|| RolloutWorkerBuilder::new(registry()).clock(scope::now));
            return Ok(Self { session, evaluator: None, has_worked: false });
        };
        let evaluator = evaluator(&task.name, run)?;
        let session = session(connection.staying()).with_evaluator(Box::new(evaluator.clone()));
        Ok(Self { session, evaluator: Some(evaluator), has_worked: false })
    }

    /// Works for a fraction of a slice.
    pub(crate) fn work(&mut self, now: Micros) {
        self.session.work(VECTOR_STEPS, now);
        self.has_worked = true;
    }

    /// Returns whether a handle has ended the work.
    pub(crate) fn is_stopped(&self) -> bool {
        self.evaluator.as_ref().is_some_and(InlineEvalWorker::is_stopped)
    }

    /// Returns the status of a tab with a connection.
    pub(crate) fn status(&mut self) -> Status {
        let session = &self.session;
        let has_worked = std::mem::take(&mut self.has_worked);
        let status = Status {
            state: if session.connection().is_ready() { "idle" } else { "connecting" },
            worker: session.worker_id().filter(|_| session.connection().is_ready()).map_or(0, |id| id.0),
            ..Status::default()
        };
        if let Some(evaluator) = &self.evaluator {
            let is_evaluating = status.state == "idle" && evaluator.is_playing();
            let state = if is_evaluating { "evaluating" } else { status.state };
            let (env_steps, evaluations) = (evaluator.env_steps(), evaluator.evaluations());
            return Status { state, env_steps, evaluations, ..status };
        }
        let inability = session.inability();
        Status {
            state: match status.state {
                "idle" if inability.is_some() => "unable",
                "idle" if has_worked => "sampling",
                state => state,
            },
            reason: inability.map_or_else(String::new, |(_, inability)| inability.to_string()),
            env_steps: session.counters().env_steps,
            fragments: session.counters().leases_done,
            weights_version: session.weights_version().map_or(0, |version| version.0),
            ..status
        }
    }
}

/// Creates the worker that evaluates the policy of a run. Fails with the error of its description.
fn evaluator(name: &str, run: &RunConfig) -> Result<InlineEvalWorker, String> {
    check_name(name).map_err(|error| error.to_string())?;
    run.refuse_host_settings().map_err(|error| format!("a tab has no process of its own: {error}"))?;
    let makers = EvalMakers::of_run(run, &registry(), Kernels::PORTABLE).map_err(|error| error.to_string())?;
    Ok(InlineEvalWorker::new(makers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluators_that_no_tab_can_be_are_refused() {
        let mut run = RunConfig::new("CartPole-v1");
        let refused = |name: &str, run: &RunConfig| evaluator(name, run).err().unwrap_or_default();
        assert_eq!(refused("judge", &run), "");
        assert!(refused("no name", &run).starts_with("'no name' cannot be the name of an evaluation worker"));
        run.host.evaluator.cpus = 1;
        assert!(refused("judge", &run).starts_with("a tab has no process of its own: host"));
        assert!(refused("judge", &RunConfig::new("Nowhere-v0")).contains("there is no environment 'Nowhere-v0'"));
    }
}
