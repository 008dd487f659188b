//! The runs that operators start, one at a time. A thread makes a run's environment and policies, so that the hub serves its
//! peers meanwhile and gives up on an environment that is never made.

use std::{future::pending, pin::Pin, time::Duration};

use rollmesh_core::{
    hub::{RunQueue, WaitingRun},
    protocol::{Kind, Phase, message::RunRow},
    run::RunConfig,
    time::Micros,
};
use tokio::time::timeout;

use super::{actor::Actor, auditor::StoppedRun};
use crate::runs::{Run, RunParts, RunRequest, RunTask, RunWork, SavedRun, StartError, new_run_dir};

/// Directory of a run's outputs within that of the run.
const OUTPUTS: &str = "outputs";
/// When users learn that an environment is still being made.
const NOTIFY_AFTER: Micros = Micros::from_millis(2_000);

/// An operator's command whose reply comes once its run has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starter {
    pub(super) peer: u32,
    pub(super) kind: Kind,
    pub(super) request: u32,
}

/// Why a run is about to begin.
pub(super) enum StartCause {
    /// An operator has started or resumed it, under this number.
    Operator(Starter, u32),
    /// It has waited under this number.
    Waited(u32),
    /// It continues a run from before the rows of a quarantined principal.
    RollBack(StoppedRun),
}

impl StartCause {
    /// Returns the number under which the run is listed, in a hub with a queue.
    fn number(&self) -> Option<u32> {
        match self {
            Self::Operator(_, number) | Self::Waited(number) => Some(*number),
            Self::RollBack(_) => None,
        }
    }
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
        // Immediately reports errors that can be found without making the environment.
        self.maker.registry.env(config.env()).map_err(|error| error.to_string())?;
        if !self.hub.keeps_queue || self.hub.is_leaving || self.is_free() && self.hub.queue.is_empty() {
            self.begin_config(StartCause::Operator(starter, self.next_run), config.clone())?;
            self.list_starting(config);
            return Ok(None);
        }
        if self.hub.queue.is_full() {
            return Err(format!("{} runs wait already: remove one of them first", RunQueue::MAX_WAITING));
        }
        RunRequest::from(config.clone()).written_out().map_err(|error| error.to_string())?;
        self.hub.queue.push(WaitingRun { number: self.next_run, config });
        self.next_run += 1;
        Ok(Some(self.next_run - 1))
    }

    /// Resumes a run from the hub's directory; the reply follows once it has begun.
    pub(super) fn resume_from_page(&mut self, starter: Starter, saved: SavedRun) -> Result<(), String> {
        let (notices, config) = (saved.notices().to_vec(), saved.config().clone());
        self.begin(StartCause::Operator(starter, self.next_run), RunTask::Resume(Box::new(saved)))?;
        self.starting.iter_mut().for_each(|starting| starting.notices.clone_from(&notices));
        self.list_starting(config);
        Ok(())
    }

    /// Lists the run that is about to begin as the first one that waits, so that operators see it and can remove it.
    fn list_starting(&mut self, config: RunConfig) {
        if self.hub.keeps_queue {
            self.hub.queue.push(WaitingRun { number: self.next_run, config });
            self.next_run += 1;
            self.hub.refresh_dashboards();
        }
    }

    fn begin_config(&mut self, cause: StartCause, mut config: RunConfig) -> Result<(), String> {
        let run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, config.env(), config.rollout.seed));
        if let Some(run_dir) = &run_dir
            && config.refuse_host_settings().is_err()
        {
            // They are names, since they come from another machine.
            let root = run_dir.join(OUTPUTS);
            let root = root.to_str().ok_or("the directory of runs is no UTF-8, so outputs have no place there")?;
            config.rollout.place_outputs(root).map_err(|error| error.to_string())?;
        }
        self.begin(cause, RunTask::Begin(Box::new(RunRequest { run_dir, ..config.into() })))
    }

    /// Begins to make a run's parts.
    fn begin(&mut self, cause: StartCause, task: RunTask) -> Result<(), String> {
        if self.hub.is_leaving {
            return Err(StartError::HubExited.to_string());
        }
        if !self.is_free() {
            return Err(StartError::Busy.to_string());
        }
        let config = task.request().config.clone();
        self.make_parts(cause, &config, move || Ok(task));
        Ok(())
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
        match cause {
            StartCause::RollBack(stopped) => self.continue_rolled_back(stopped, parts),
            StartCause::Operator(Starter { peer, kind, request }, number) => {
                let is_removed = self.hub.queue.remove(number).is_none() && self.hub.keeps_queue;
                let parts = if is_removed { Err(StartError::Removed) } else { parts };
                let begun = parts.and_then(|parts| self.start_run(Some(number), parts));
                let begun = begun.map_err(|error| error.to_string());
                if begun.is_ok() {
                    notices.into_iter().for_each(|notice| self.hub.notice(1, notice));
                }
                let number = self.hub.run.as_ref().map_or(0, |run| run.state.number());
                self.hub.reply(peer, kind, request, begun.map(|()| number));
            }
            // An operator has removed it.
            StartCause::Waited(number) if !self.hub.queue.contains(number) => {}
            StartCause::Waited(number) => match parts.and_then(|parts| self.start_run(Some(number), parts)) {
                Ok(()) => _ = self.hub.queue.remove(number),
                Err(error) => self.fail_waiting(number, error.to_string()),
            },
        }
    }

    fn fail_waiting(&mut self, number: u32, error: String) {
        self.hub.notice(2, format!("run {number} could not begin: {error}"));
        if let Some(waiting) = self.hub.queue.remove(number) {
            self.hub.queue.add_past(RunRow { phase: Phase::Failed.to_wire(), error, ..waiting.row() }, None);
        }
    }

    /// Notifies the user of an environment that takes long to make, and gives up a run that an operator has removed.
    pub(super) fn notify_of_starting(&mut self) {
        let number = self.starting.as_ref().and_then(|starting| starting.cause.number());
        if number.is_some_and(|number| self.hub.keeps_queue && !self.hub.queue.contains(number)) {
            self.handle_parts(Err(StartError::Removed));
        }
        let now = self.now();
        if let Some(starting) = self.starting.as_mut().filter(|starting| !starting.is_notified)
            && now >= starting.since + NOTIFY_AFTER
        {
            starting.is_notified = true;
            self.hub.notice(1, format!("waiting for environment {} to be made", starting.env));
        }
    }

    /// True if a run can begin: none is in progress or starting, and the previous one is completely finished.
    pub(super) fn is_free(&self) -> bool {
        self.hub.run.as_ref().is_none_or(Run::is_over) && self.finishing.is_none() && self.starting.is_none()
    }

    /// True while a run is stopped and the one that continues it has not begun.
    pub(super) fn is_rolling_back(&self) -> bool {
        matches!(&self.starting, Some(Starting { cause: StartCause::RollBack(_), .. }))
    }

    /// Begins the run that has waited longest, if possible, and returns whether it has changed something. A run that cannot
    /// begin does not block the others.
    pub(super) fn begin_next_run(&mut self) -> bool {
        if self.hub.is_leaving || !self.is_free() {
            return false;
        }
        // It is listed as waiting, and can be removed, until it begins.
        let Some(WaitingRun { number, config }) = self.hub.queue.first().cloned() else { return false };
        if let Err(error) = self.begin_config(StartCause::Waited(number), config) {
            self.fail_waiting(number, error);
        }
        true
    }

    /// Drops all waiting runs before the hub ends, and reports them.
    pub(super) fn give_up_waiting(&mut self) {
        // The place of a run that has waited is given up below.
        if !matches!(&self.starting, Some(Starting { cause: StartCause::Waited(_), .. })) {
            self.handle_parts(Err(StartError::HubExited));
        }
        self.starting = None;
        let numbers: Vec<String> =
            std::iter::from_fn(|| self.hub.queue.pop()).map(|run| run.number.to_string()).collect();
        if !numbers.is_empty() {
            self.hub.notice(2, format!("the hub ends before these runs have begun: {}", numbers.join(", ")));
        }
    }
}

/// Waits for the parts of the run that is about to begin.
pub(super) async fn next_parts(starting: &mut Option<Starting>) -> Result<RunParts, StartError> {
    match starting {
        Some(starting) => starting.parts.as_mut().await,
        None => pending().await,
    }
}
