//! The runs that operators start, one at a time. A thread makes a run's environment and policies, so that the hub serves its
//! peers meanwhile and gives up on an environment that is never made.

use std::{future::pending, pin::Pin, time::Duration};

use rollmesh_core::{
    hub::{RunTurn, StartRefusal},
    protocol::Kind,
    run::RunConfig,
    time::Micros,
};
use tokio::time::timeout;

use super::{actor::Actor, auditor::StoppedRun};
use crate::runs::{RunParts, RunRequest, RunTask, RunWork, SavedRun, StartError, new_run_dir};

/// Directory of a run's outputs within that of the run.
const OUTPUTS: &str = "outputs";
/// The time after which users are notified that an environment is still being made.
const NOTIFY_AFTER: Micros = Micros::from_millis(2_000);

/// An operator's command whose reply comes once its run has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starter {
    pub(super) peer: u32,
    pub(super) kind: Kind,
    pub(super) request: u32,
}

/// The cause of the start of a run.
pub(super) enum StartCause {
    /// An operator has started or resumed it, under this number.
    Operator(Starter, u32),
    /// It was the next one in the queue.
    Waited,
    /// It continues a run from before the rows of a quarantined principal.
    RollBack(Box<StoppedRun>),
}

/// A run that is about to begin.
pub(super) struct Starting {
    cause: StartCause,
    env: String,
    /// Notices of a saved run.
    notices: Vec<String>,
    since: Micros,
    is_notified: bool,
    parts: Pin<Box<dyn Future<Output = Result<RunParts, StartError>> + Send>>,
}

impl Actor {
    /// Starts a run with these settings, in a new directory if the hub has a directory for runs. Such a hub queues the run
    /// while another one is in progress.
    ///
    /// Returns the number of a queued run; `None` if the reply follows once the run has begun.
    pub(super) fn start_from_page(&mut self, starter: Starter, settings: &str) -> Result<Option<u32>, String> {
        let config = RunConfig::of_wire_settings(settings).map_err(|error| error.to_string())?;
        if self.runs_dir.is_none() {
            // Outputs have no place.
            config.refuse_host_settings().map_err(|error| error.to_string())?;
        }
        // This reports errors that can be found without making the environment.
        self.maker.registry.env(config.env()).map_err(|error| error.to_string())?;
        match self.hub.turn_of_run().map_err(|refusal| refusal.to_string())? {
            RunTurn::Now => {
                self.begin(starter, self.new_task(config.clone())?, config);
                Ok(None)
            }
            RunTurn::Later => {
                RunRequest::from(config.clone()).written_out().map_err(|error| error.to_string())?;
                Ok(Some(self.hub.queue_run(config)))
            }
        }
    }

    /// Resumes a run from the hub's directory; the reply follows once it has begun.
    pub(super) fn resume_from_page(&mut self, starter: Starter, saved: SavedRun) -> Result<(), String> {
        self.hub.may_begin().map_err(|refusal| refusal.to_string())?;
        let (notices, config) = (saved.notices().to_vec(), saved.config().clone());
        self.begin(starter, RunTask::Resume(Box::new(saved)), config);
        self.starting.iter_mut().for_each(|starting| starting.notices.clone_from(&notices));
        Ok(())
    }

    fn begin(&mut self, starter: Starter, task: RunTask, config: RunConfig) {
        let made_with = task.request().config.clone();
        let number = self.hub.begin_start(config);
        self.make_parts(StartCause::Operator(starter, number), &made_with, move || Ok(task));
    }

    /// Begins to make the parts of the run that has waited longest. A run that cannot begin does not block the others.
    pub(super) fn make_waiting(&mut self, config: RunConfig) {
        match self.new_task(config) {
            Ok(task) => {
                let config = task.request().config.clone();
                self.make_parts(StartCause::Waited, &config, move || Ok(task));
            }
            Err(error) => {
                let waiting = self.hub.end_start();
                waiting.iter().for_each(|waiting| self.hub.fail_waiting(waiting, error.clone()));
            }
        }
    }

    /// Returns the task of a new run, in a new directory if the hub has a directory for runs.
    fn new_task(&self, mut config: RunConfig) -> Result<RunTask, String> {
        let run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, config.env(), config.rollout.seed));
        if let Some(run_dir) = &run_dir
            && config.refuse_host_settings().is_err()
        {
            // Outputs are names, since they come from another machine.
            let root = run_dir.join(OUTPUTS);
            let root = root.to_str().ok_or("the directory of runs is no UTF-8, so outputs have no place there")?;
            config.rollout.place_outputs(root).map_err(|error| error.to_string())?;
        }
        Ok(RunTask::Begin(Box::new(RunRequest { run_dir, ..config.into() })))
    }

    /// Begins to make the parts of a run with this configuration, on a thread.
    pub(super) fn make_parts(
        &mut self,
        cause: StartCause,
        config: &RunConfig,
        task: impl FnOnce() -> Result<RunTask, StartError> + Send + 'static,
    ) {
        let (env, patience_s) = (config.env().to_owned(), config.hung_worker_timeout_s);
        let making = self.maker.clone().make_on_thread(task, RunWork::Learn);
        let parts = async move {
            if patience_s <= 0.0 {
                return making.await;
            }
            let patience = Duration::from_secs_f64(patience_s);
            timeout(patience, making).await.unwrap_or(Err(StartError::TooLate(patience_s)))
        };
        let (notices, since, is_notified) = (Vec::new(), self.now(), false);
        self.starting = Some(Starting { cause, env, notices, since, is_notified, parts: Box::pin(parts) });
    }

    /// Begins the run whose parts have been made, and replies to the operator who started it.
    pub(super) fn handle_parts(&mut self, parts: Result<RunParts, StartError>) {
        let Some(Starting { cause, notices, .. }) = self.starting.take() else { return };
        let listed = self.hub.end_start();
        match cause {
            StartCause::RollBack(stopped) => self.continue_rolled_back(*stopped, parts),
            StartCause::Operator(Starter { peer, kind, request }, number) => {
                let begun = parts.and_then(|parts| self.start_run(Some(number), parts));
                let begun = begun.map_err(|error| error.to_string());
                if begun.is_ok() {
                    notices.into_iter().for_each(|notice| self.hub.notice(1, notice));
                }
                let number = self.hub.run.as_ref().map_or(0, |run| run.state.number());
                self.hub.reply(peer, kind, request, begun.map(|()| number));
            }
            StartCause::Waited => {
                // Otherwise an operator has removed it.
                if let Some(waiting) = listed
                    && let Err(error) = parts.and_then(|parts| self.start_run(Some(waiting.number), parts))
                {
                    self.hub.fail_waiting(&waiting, error.to_string());
                }
            }
        }
    }

    /// Notifies the user of an environment that takes long to make.
    pub(super) fn notify_of_starting(&mut self) {
        let now = self.now();
        if let Some(starting) = self.starting.as_mut().filter(|starting| !starting.is_notified)
            && now >= starting.since + NOTIFY_AFTER
        {
            starting.is_notified = true;
            self.hub.notice(1, format!("waiting for environment {} to be made", starting.env));
        }
    }

    /// Returns true while a run is stopped and the one that continues it has not begun.
    pub(super) fn is_rolling_back(&self) -> bool {
        matches!(&self.starting, Some(Starting { cause: StartCause::RollBack(_), .. }))
    }

    /// Drops all waiting runs before the hub ends, and reports them.
    pub(super) fn give_up_waiting(&mut self) {
        // A run that has waited is reported with the others.
        if !matches!(&self.starting, Some(Starting { cause: StartCause::Waited, .. })) {
            self.handle_parts(Err(StartRefusal::Leaving.into()));
        }
        self.starting = None;
        self.hub.drop_waiting();
    }
}

/// Waits for the parts of the run that is about to begin.
pub(super) async fn next_parts(starting: &mut Option<Starting>) -> Result<RunParts, StartError> {
    match starting {
        Some(starting) => starting.parts.as_mut().await,
        None => pending().await,
    }
}
