//! Callbacks that connect a monitor to a worker.

use std::path::PathBuf;

use rollmesh_core::{
    callbacks::{CallbackError, Callbacks, EpisodeHook},
    env::{EnvError, Frame},
};

use super::{Monitor, MonitorError, MonitorOptions};

/// Callbacks that record a worker's episodes: pictures after every step, and statistics at the end.
///
/// The directory is created when the first episode begins. Episodes of environments without pictures get a line of
/// statistics only.
#[derive(Debug)]
pub struct Recorder {
    directory: PathBuf,
    monitor: Option<Monitor>,
    frame: Frame,
}

impl Recorder {
    /// Creates a recorder to a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), monitor: None, frame: Frame::new() }
    }

    /// Adds the picture of the hook's sub-environment, if it is needed and available.
    fn draw(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), MonitorError> {
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            None => {
                let options = MonitorOptions { worker_index: hook.worker.worker_index, ..MonitorOptions::default() };
                self.monitor.insert(Monitor::new(&self.directory, options)?)
            }
        };
        let env = hook.episode.env();
        if monitor.records(env) {
            monitor.draw(env, &mut self.frame, |frame| hook.env.try_render(env, frame))?;
        }
        Ok(())
    }
}

fn failed(hook: &'static str) -> impl Fn(MonitorError) -> CallbackError {
    move |error| CallbackError::new(format!("{hook} of the monitor"), error.to_string())
}

impl Callbacks for Recorder {
    fn on_episode_start(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.draw(hook).map_err(failed("on_episode_start"))
    }

    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.draw(hook).map_err(failed("on_episode_step"))
    }

    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        let Some(monitor) = &mut self.monitor else { return Ok(()) };
        let mut metrics = hook.episode.metrics();
        metrics.faulty = fault.map(ToString::to_string);
        monitor.end(&metrics).map_err(failed("on_episode_end"))
    }
}
