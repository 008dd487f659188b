//! Runs that operators ask for.

use rollmesh_core::run::RunConfig;

use super::actor::Actor;
use crate::train::{RunRequest, Task, new_run_dir};

impl Actor {
    /// Begins a run with these settings, in a new directory if the hub has one for such runs.
    pub(super) fn start_from_page(&mut self, settings: &str) -> Result<(), String> {
        let config = RunConfig::of_wire_settings(settings).map_err(|error| error.to_string())?;
        let run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, config.env(), config.rollout.seed));
        self.start_run(Task::Train(Box::new(RunRequest { run_dir, ..config.into() })))
            .map_err(|error| error.to_string())?;
        self.begin_first_iteration();
        Ok(())
    }
}
