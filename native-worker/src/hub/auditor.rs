//! Audits of untrusted workers, and the consequences of a failed audit.

use std::{io, path::PathBuf, sync::mpsc, thread, time::Duration};

use rollmesh_core::{
    group::AuditPolicy,
    hub::RunAudits,
    ids::FragmentNo,
    protocol::{Phase, message::RunRow},
};

use super::{actor::Actor, checkpoints::CheckpointNowError, queue::StartCause};
use crate::runs::{RunEnd, RunParts, StartError, Summary, write_summary};

/// Time for the summary of a lost run to be written. The run may have been lost because its directory hangs.
const SUMMARY_PATIENCE: Duration = Duration::from_secs(1);

/// The workers that a hub does not trust, and the settings of their audits.
///
/// Browser tabs are not trusted, nor are workers with a token that a page requested. Local workers are trusted. Other remote
/// workers are trusted unless [`distrust_remote`](Self::distrust_remote) is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distrust {
    /// The fragments of theirs that the hub recomputes.
    pub audits: AuditPolicy,
    /// True to distrust all workers that are not the hub's own. Give each such worker a token of its own: if workers
    /// share the hub's own token, each principal is a single connection, and no token is revoked.
    pub distrust_remote: bool,
    /// The consequence of a failed audit for the run.
    pub on_divergence: OnDivergence,
}

/// The consequence for a run after an untrusted worker failed an audit and its token was revoked. A run that only
/// samples always continues, marked as tainted: its batches have been handed over and cannot be recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDivergence {
    /// The run goes back to before the divergent worker's first unaudited fragment.
    #[default]
    RollBack,
    /// It continues, and its summary says that it is tainted.
    Continue,
}

/// The state that a run that is rolled back passes to the one that continues it.
pub(super) struct StoppedRun {
    iteration: u64,
    phase: Phase,
    /// Env steps that its ledger counts as rejected by audits.
    rejected: u64,
    /// The number of the run that continues it.
    next: u32,
    audits: Option<RunAudits>,
    /// Row, summary and directory, reported if the run cannot continue.
    remains: (RunRow, Summary, Option<PathBuf>),
}

impl Actor {
    /// Stops the run, and begins to make the parts of the run that continues from before a batch. The old run's threads and
    /// files, the lock of its directory, and environments and policies may all take long or hang, so a thread deals with them.
    pub(super) fn roll_back(&mut self, FragmentNo(first): FragmentNo) {
        self.hub.forget_run();
        let audits = self.hub.take_audits();
        let Some(mut run) = self.hub.run.take() else { return };
        self.update = None;
        self.next_lease = run.state.group.next_lease_id();
        let (now, rejected) = (self.now(), run.state.group.ledger().rejected.audit);
        if run.state.iteration() > first {
            run.state.taint();
        }
        let summary = run.summary(RunEnd::Stopped, now);
        let (next, row) = (self.hub.take_run_number(), run.state.final_row(now));
        // The row names the run that a command has to wait for instead of this one.
        self.hub.queue.add_past(row.clone().rolled_back(next), None);
        let remains = (RunRow { run: next, ..row }, summary, run.request.run_dir.clone());
        let stopped =
            StoppedRun { iteration: run.state.iteration(), phase: run.state.phase(), rejected, next, audits, remains };
        let config = run.config().clone();
        let task = move || {
            let task = run.undo(first);
            drop(run);
            task
        };
        self.hub.begin_unlisted_start();
        self.make_parts(StartCause::RollBack(Box::new(stopped)), &config, task);
    }

    /// Begins the run whose parts have been made in place of the stopped one.
    pub(super) fn continue_rolled_back(&mut self, stopped: StoppedRun, parts: Result<RunParts, StartError>) {
        let StoppedRun { iteration: before, phase, rejected, next, audits, remains } = stopped;
        let begun = parts.and_then(|parts| {
            let iteration = parts.iteration();
            self.hub.notice(
                1,
                format!("the run goes back from iteration {before} to {iteration}, before the rows of a quarantined principal"),
            );
            self.begin_run(Some(next), parts)
        });
        match begun {
            Ok(()) => {
                audits.into_iter().for_each(|audits| self.hub.continue_audits(audits));
                if let Some(run) = &mut self.hub.run {
                    run.state.group.count_taken_back(rejected);
                }
                self.reapply_commands(phase);
            }
            Err(error) => {
                let error = format!("the run could not go back to before these rows, and is over: {error}");
                self.hub.notice(2, error.clone());
                self.end_lost_run(remains, error);
            }
        }
    }

    /// Re-applies operators' commands (pause, stop, checkpoints) to a run that was rolled back.
    fn reapply_commands(&mut self, phase: Phase) {
        self.askers.requeue();
        let now = self.now();
        let now_paused =
            self.hub.run.as_mut().filter(|_| phase == Phase::Paused).map_or(Ok(()), |run| run.state.pause(now));
        debug_assert!(now_paused.is_ok(), "a run that has just begun can be paused");
        if phase == Phase::Draining {
            self.hub.drain_run();
        }
        self.save_if_due();
    }

    /// Ends a run that was lost during a rollback. A thread may still hold its directory's lock.
    fn end_lost_run(&mut self, (row, summary, dir): (RunRow, Summary, Option<PathBuf>), error: String) {
        let end = RunEnd::Failed(error.clone());
        let row = RunRow { phase: end.phase().to_wire(), error: error.clone(), ..row };
        let summary = Summary { error: Some(error), end, ..summary };
        if let Some(Err(error)) = dir.map(|dir| write_in_time(dir, summary.clone())) {
            self.hub.notice(2, error.to_string());
        }
        self.hub.queue.add_past(row, None);
        self.ended = Some(summary);
        // Commands for the lost run must not apply to the next one.
        self.hub.course.reset();
        self.turn = None;
        self.syncing.clear();
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.refresh_dashboards();
    }
}

/// Writes a summary on a thread, and waits for [`SUMMARY_PATIENCE`] at most.
fn write_in_time(dir: PathBuf, summary: Summary) -> io::Result<()> {
    let seconds = SUMMARY_PATIENCE.as_secs_f64();
    let late = format!("{}: the summary of the run was not written within {seconds} s", dir.display());
    let (done, written) = mpsc::channel();
    // The receiver may have been dropped.
    thread::Builder::new().spawn(move || _ = done.send(write_summary(&dir, &summary)))?;
    written.recv_timeout(SUMMARY_PATIENCE).unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, late)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        sync::{Arc, Condvar, Mutex},
    };

    use rollmesh_core::{
        env::{EnvRegistry, EnvSpec},
        protocol::Role,
    };
    use tokio::time::timeout;

    use super::*;
    use crate::{
        Registry,
        control::{Control, ControlConfig, Trust},
        hub::{Hub, HubConfig, PendingSummary, actor::Event},
        runs::{RunConfig, RunRequest},
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Constructors of environments hang while it is closed.
    #[derive(Default)]
    struct Gate {
        is_closed: Mutex<bool>,
        changed: Condvar,
    }

    impl Gate {
        fn set_closed(&self, is_closed: bool) {
            *self.is_closed.lock().unwrap() = is_closed;
            self.changed.notify_all();
        }

        fn pass(&self) {
            drop(self.changed.wait_while(self.is_closed.lock().unwrap(), |is_closed| *is_closed).unwrap());
        }
    }

    /// Starts a hub with a run that waits for workers, and begins to roll it back while its environment cannot be made.
    async fn rolling_back(gate: &Arc<Gate>, patience_s: f64, run_dir: Option<&Path>) -> (Hub, PendingSummary) {
        let (cart_pole, passed) = (EnvRegistry::builtin().spec("CartPole-v1").unwrap(), gate.clone());
        let env = EnvSpec::fallible("Gated-v0", move |contexts, kernels| {
            passed.pass();
            cart_pole.make(contexts, kernels)
        });
        let config = HubConfig { dashboard: true, ..HubConfig::local().unwrap() };
        let hub = Hub::start(config, &Registry::builtin().with_env(env)).await.unwrap();
        let config = RunConfig::new("Gated-v0").num_workers(0).fcnet_hiddens(&[4]);
        let config = RunConfig { hung_worker_timeout_s: patience_s, ..config };
        let run_dir = run_dir.map(Path::to_owned);
        let run = hub.train(RunRequest { remote_only: true, run_dir, ..config.into() }).await.unwrap();
        gate.set_closed(true);
        hub.events.send(Event::ask(|actor| actor.roll_back(FragmentNo(0)))).await.unwrap();
        (hub, run)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn run_is_over_when_its_environment_hangs_in_a_rollback() {
        let (gate, dir) = (Arc::default(), tempfile::tempdir().unwrap());
        let (mut hub, run) = rolling_back(&gate, 0.1, Some(dir.path())).await;
        let summary = timeout(PATIENCE, run).await.expect("the hub does not hang").unwrap();
        let text = loop {
            let notice = hub.next_notice().await.unwrap();
            if notice.level == 2 {
                break notice.text;
            }
        };
        let reason = "the environment was not made within 0.1 s (hung_worker_timeout_s)";
        assert_eq!(text, format!("the run could not go back to before these rows, and is over: {reason}"));
        assert_eq!((&summary.end, summary.tainted), (&RunEnd::Failed(text.clone()), false));
        let written: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.path().join("summary.json")).unwrap()).unwrap();
        assert_eq!((&written["end"], &written["error"]), (&"failed".into(), &text.into()));
        gate.set_closed(false);
        let next = hub.train(RunConfig::new("Gated-v0").num_workers(0).fcnet_hiddens(&[4])).await.unwrap();
        drop(next);
        hub.shutdown().await;
    }

    /// Connects to a hub as an operator.
    async fn control(hub: &Hub) -> Control {
        let (url, trust) = (format!("ws://{}", hub.address()), Trust::default());
        let (hub, token, role) = (url.parse().unwrap(), hub.operator_token(), Role::Operator);
        Control::connect(&ControlConfig { hub, token, role, trust, patience: PATIENCE }).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn run_is_awaited_under_the_number_with_which_it_continues_after_a_rollback() {
        for patience_s in [0.0, 0.1] {
            let gate = Arc::default();
            let (hub, _run) = rolling_back(&gate, patience_s, None).await;
            let mut control = control(&hub).await;
            let is_listed = |hub: &Control| hub.runs().iter().any(|row| (row.run, row.continued_by()) == (1, Some(2)));
            control.until("the rollback", is_listed).await.unwrap();
            hub.stop_run().await;
            if patience_s == 0.0 {
                gate.set_closed(false);
            }
            let row = timeout(PATIENCE, control.until_over(1)).await.expect("it ends").unwrap().expect("it had begun");
            let phase = if patience_s == 0.0 { Phase::Stopped } else { Phase::Failed };
            assert_eq!((row.run, row.phase, row.continued_by()), (2, phase.to_wire(), None), "{}", row.error);
            gate.set_closed(false);
            hub.shutdown().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_during_a_rollback_reach_the_run_that_continues() {
        let gate = Arc::default();
        let (hub, run) = rolling_back(&gate, 0.0, None).await;
        hub.stop_run().await;
        gate.set_closed(false);
        let summary = timeout(PATIENCE, run).await.expect("it stops").unwrap();
        assert_eq!(summary.end, RunEnd::Stopped);
        hub.shutdown().await;
    }
}
