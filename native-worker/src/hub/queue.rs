//! The queue of runs that operators started: one runs at a time.

use rollmesh_core::{
    hub::{RunQueue, WaitingRun},
    protocol::{Phase, message::RunRow},
    run::RunConfig,
};

use super::actor::Actor;
use crate::train::{Run, RunRequest, Task, Work, new_run_dir};

/// Directory of a run's outputs within that of the run.
const OUTPUTS: &str = "outputs";

impl Actor {
    /// Starts a run with these settings, in a new directory if the hub has a directory for runs. Such a hub queues the run
    /// while another one is going on.
    ///
    /// Returns the run's number.
    pub(super) fn start_from_page(&mut self, settings: &str) -> Result<u32, String> {
        let config = RunConfig::of_wire_settings(settings).map_err(|error| error.to_string())?;
        if self.runs_dir.is_none() {
            // Outputs have no place.
            config.refuse_host_settings().map_err(|error| error.to_string())?;
        }
        if !self.hub.keeps_queue || self.hub.is_leaving || self.is_free() && self.hub.queue.is_empty() {
            self.begin_from_page(None, config)?;
            return Ok(self.hub.run.as_ref().map_or(0, |run| run.state.number()));
        }
        if self.hub.queue.is_full() {
            return Err(format!("{} runs wait already: remove one of them first", RunQueue::MAX_WAITING));
        }
        // Reports errors at once that can be found without making the environment, which may take long.
        self.registry.env(config.env()).map_err(|error| error.to_string())?;
        RunRequest::from(config.clone()).written_out().map_err(|error| error.to_string())?;
        self.hub.queue.push(WaitingRun { number: self.next_run, config });
        self.next_run += 1;
        Ok(self.next_run - 1)
    }

    fn begin_from_page(&mut self, number: Option<u32>, mut config: RunConfig) -> Result<(), String> {
        let run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, config.env(), config.rollout.seed));
        if let Some(run_dir) = &run_dir
            && config.refuse_host_settings().is_err()
        {
            // They are names, since they come from another machine.
            let root = run_dir.join(OUTPUTS);
            let root = root.to_str().ok_or("the directory of runs is no UTF-8, so outputs have no place there")?;
            config.rollout.place_outputs(root).map_err(|error| error.to_string())?;
        }
        let task = Task::Begin(Box::new(RunRequest { run_dir, ..config.into() }));
        self.start_run(number, task, Work::Learn).map_err(|error| error.to_string())
    }

    /// True if a run can begin: none is going on, and the previous one is completely finished.
    pub(super) fn is_free(&self) -> bool {
        self.hub.run.as_ref().is_none_or(Run::is_over) && self.finishing.is_none()
    }

    /// Begins the run that has waited longest, if possible, and returns whether one has begun. A run that cannot begin does not
    /// block the others.
    pub(super) fn begin_next_run(&mut self) -> bool {
        while !self.hub.is_leaving && self.is_free() {
            let Some(waiting) = self.hub.queue.pop() else { return false };
            let (number, row) = (waiting.number, waiting.row());
            let Err(error) = self.begin_from_page(Some(number), waiting.config) else { return true };
            self.hub.notice(2, format!("run {number} could not begin: {error}"));
            self.hub.queue.add_past(RunRow { phase: Phase::Failed.to_wire(), error, ..row }, None);
        }
        false
    }

    /// Drops all waiting runs before the hub ends, and reports them.
    pub(super) fn give_up_waiting(&mut self) {
        let numbers: Vec<String> =
            std::iter::from_fn(|| self.hub.queue.pop()).map(|run| run.number.to_string()).collect();
        if !numbers.is_empty() {
            self.hub.notice(2, format!("the hub ends before these runs have begun: {}", numbers.join(", ")));
        }
    }
}
