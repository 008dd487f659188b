//! Recording episodes: a GIF for each, and a line of statistics.
//!
//! A [`Monitor`] writes into a directory, `monitor_path` in a worker's settings. It gets a picture after every step, and the
//! episode's metrics at its end. Its [`Schedule`] determines which episodes it records; the others need no pictures. Several
//! workers may share a directory, if their indices differ.
//!
//! ```
//! use rollmesh::monitor::{EpisodeStats, Monitor, MonitorOptions};
//! use rollmesh_core::{
//!     env::{CartPole, Frame, VectorEnv as _},
//!     episode::RolloutMetrics,
//!     kernels::Kernels,
//! };
//!
//! # let dir = std::env::temp_dir().join(format!("rollmesh-monitor-doc-{}", std::process::id()));
//! let mut monitor = Monitor::new(&dir, MonitorOptions::default())?;
//! let mut frame = Frame::new();
//! let mut env = CartPole::new(1, Kernels::PORTABLE);
//! for x in [0.0, 0.1, 0.2] {
//!     env.set_state(0, [x, 0.0, -x, 0.0])?;
//!     if monitor.records(0) && env.render_at(0, &mut frame) {
//!         monitor.frame(0, &frame)?;
//!     }
//! }
//! monitor.end(&RolloutMetrics { length: 3, episode_return: 3.0, ..RolloutMetrics::default() })?;
//!
//! let line: EpisodeStats = serde_json::from_str(&std::fs::read_to_string(dir.join("stats.jsonl"))?)?;
//! assert_eq!((line.file.as_deref(), line.frames), (Some("episode-0-1.gif"), 3));
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod files;
mod film;
mod recorder;
mod schedule;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use rollmesh_core::{env::Frame, episode::RolloutMetrics, evaluation::Evaluation};
use serde::{Deserialize, Serialize};

use self::{files::RecordingFiles, film::Film};

pub use self::{film::Cut, recorder::Recorder, schedule::Schedule};

/// The episodes that are recorded, and limits of their recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorOptions {
    /// Index of the worker, which is part of the files' names.
    pub worker_index: u32,
    /// The episodes that are recorded.
    pub schedule: Schedule,
    /// Maximum number of pictures of an episode. There are about 33 per second.
    pub max_frames: usize,
    /// Maximum size of an episode's GIF in bytes; also the memory for each episode that is being recorded.
    pub max_bytes: usize,
}

impl Default for MonitorOptions {
    /// Returns the default: worker 0, the cubic schedule, a minute and 16 MiB.
    fn default() -> Self {
        Self { worker_index: 0, schedule: Schedule::Cubic, max_frames: 2_000, max_bytes: 1 << 24 }
    }
}

/// A line of `stats.jsonl`: the statistics of a recorded episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeStats {
    /// Index of the worker.
    pub worker: u32,
    /// Number of the episode among the worker's, from 1, in the order in which they began.
    pub episode: u64,
    /// Index of the sub-environment.
    pub env: usize,
    /// Env steps; `None` if the recording was stopped before the episode's end.
    pub length: Option<u32>,
    /// Sum of the raw rewards of all agents; `None` if it is not finite, or before the episode's end.
    pub episode_return: Option<f64>,
    /// The GIF, in the same directory; `None` if there were no pictures.
    pub file: Option<String>,
    /// Number of pictures.
    pub frames: usize,
    /// The reason that its end is missing, if it is.
    pub cut: Option<Cut>,
    /// True if the episode was recorded to its end.
    pub complete: bool,
    /// The reason that the episode was lost, if it was.
    pub faulty: Option<String>,
    /// The reason that the environment could not be rendered, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub render_error: Option<String>,
}

/// An error of recording an episode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The operating system reported an error.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Recordings of another run would be overwritten.
    #[error("{0} holds the recordings of another run: name another directory, or remove it")]
    Occupied(PathBuf),
    /// A picture has another size than the first one, or no pixels.
    #[error("cannot add a picture of {} x {} pixels to {path}: its pictures have {} x {}", found[0], found[1], wanted[0], wanted[1])]
    FrameSize {
        /// The GIF it was for.
        path: PathBuf,
        /// Width and height of the first picture, 0 if there is none.
        wanted: [u32; 2],
        /// Width and height of this one.
        found: [u32; 2],
    },
}

/// Records episodes.
///
/// Dropping it finishes open episodes like [`stop`](Self::stop), ignoring errors.
#[derive(Debug)]
pub struct Monitor {
    files: RecordingFiles,
    options: MonitorOptions,
    /// Number of the latest episode.
    begun: u64,
    /// The open episode of each sub-environment.
    open: BTreeMap<usize, RecordedEpisode>,
}

/// An open episode.
#[derive(Debug)]
struct RecordedEpisode {
    number: u64,
    /// Its pictures, if it is recorded.
    film: Option<Film>,
    render_error: Option<String>,
}

impl Monitor {
    /// Creates a monitor that records into a directory, which is created if needed. Episode numbers continue after those
    /// that this worker has recorded there before, so that none is overwritten.
    ///
    /// # Errors
    /// [`MonitorError::Io`].
    pub fn new(dir: impl AsRef<Path>, options: MonitorOptions) -> Result<Self, MonitorError> {
        let files = RecordingFiles::open(dir.as_ref(), options.worker_index)?;
        let begun = files.latest()?;
        Ok(Self { files, options, begun, open: BTreeMap::new() })
    }

    /// Returns whether this worker has recorded episodes in this directory before.
    pub(crate) fn has_recordings(&self) -> bool {
        self.begun > 0
    }

    /// Removes this worker's recordings from after this number of env steps of an episode: those of later episodes, and
    /// that of this one if it has more pictures or an end.
    pub(crate) fn forget_after(&mut self, episode: u64, steps: u32) -> Result<(), MonitorError> {
        self.files.forget_after(episode, steps)?;
        self.begun = self.files.latest()?;
        Ok(())
    }

    /// Drops unfinished episodes.
    pub(crate) fn discard(&mut self) {
        self.open.clear();
    }

    /// Sets the number of the next episode that begins.
    pub(crate) fn number_next(&mut self, number: u64) {
        self.begun = number - 1;
    }

    /// Returns whether pictures of this sub-environment's episode are needed.
    #[must_use]
    pub fn records(&mut self, env: usize) -> bool {
        self.film(env).1.is_some_and(|film| film.cut().is_none())
            && self.open.get(&env).is_some_and(|episode| episode.render_error.is_none())
    }

    /// Adds a picture to the episode of a sub-environment, unless it is not recorded.
    ///
    /// # Errors
    /// [`MonitorError::FrameSize`].
    pub fn frame(&mut self, env: usize, frame: &Frame) -> Result<(), MonitorError> {
        let (number, film) = self.film(env);
        let added = film.map_or(Ok(()), |film| film.add(frame));
        added.map_err(|(wanted, found)| MonitorError::FrameSize { path: self.files.film(number), wanted, found })
    }

    /// Adds the picture that `render` draws; returns false if it draws none. If it fails, the episode gets no more pictures and its
    /// statistics have the error.
    ///
    /// # Errors
    /// [`MonitorError::FrameSize`].
    pub fn draw(
        &mut self,
        env: usize,
        frame: &mut Frame,
        render: impl FnOnce(&mut Frame) -> bool,
    ) -> Result<bool, MonitorError> {
        let is_drawn = render(frame);
        if is_drawn {
            self.frame(env, frame)?;
        } else if let (Some(reason), Some(episode)) = (frame.take_failure(), self.open.get_mut(&env)) {
            episode.render_error = Some(reason);
        }
        Ok(is_drawn)
    }

    /// Ends the episode of the sub-environment in the metrics, and writes its files if it is recorded.
    ///
    /// # Errors
    /// [`MonitorError::Io`]. Then this episode is lost, but not the next one.
    pub fn end(&mut self, metrics: &RolloutMetrics) -> Result<(), MonitorError> {
        // An episode without any picture counts, too.
        self.film(metrics.env);
        let Some(RecordedEpisode { number, film: Some(film), render_error }) = self.open.remove(&metrics.env) else {
            return Ok(());
        };
        let stats = EpisodeStats {
            render_error,
            length: Some(metrics.length),
            episode_return: Some(metrics.episode_return).filter(|sum| sum.is_finite()),
            complete: metrics.faulty.is_none(),
            faulty: metrics.faulty.clone(),
            ..self.stats(number, metrics.env)
        };
        self.files.write(film, stats)
    }

    /// Writes unfinished episodes as far as they were recorded, and marks them. Idempotent.
    ///
    /// # Errors
    /// The first [`MonitorError::Io`]; the other episodes are written nevertheless.
    pub fn stop(&mut self) -> Result<(), MonitorError> {
        let mut result = Ok(());
        for (env, RecordedEpisode { number, film, .. }) in core::mem::take(&mut self.open) {
            if let Some(film) = film.filter(|film| film.frames() > 0) {
                let written = self.files.write(film, self.stats(number, env));
                result = result.and(written);
            }
        }
        result
    }

    /// Returns the number and film of a sub-environment's episode, which begins if there is none.
    fn film(&mut self, env: usize) -> (u64, Option<&mut Film>) {
        let episode = self.open.entry(env).or_insert_with(|| {
            self.begun += 1;
            let MonitorOptions { schedule, max_frames, max_bytes, .. } = self.options;
            let film = schedule.includes(self.begun).then(|| Film::new(max_frames, max_bytes));
            RecordedEpisode { number: self.begun, film, render_error: None }
        });
        (episode.number, episode.film.as_mut())
    }

    /// Returns the statistics of an episode before its end.
    fn stats(&self, episode: u64, env: usize) -> EpisodeStats {
        EpisodeStats { worker: self.options.worker_index, episode, env, ..EpisodeStats::default() }
    }
}

/// A GIF of the first episode of an evaluation's first sub-environment.
pub(crate) struct EpisodeGif {
    /// The file.
    pub(crate) gif: Vec<u8>,
    /// Number of pictures, limited as in a [`Monitor`].
    pub(crate) pictures: usize,
    /// Number of steps of the episode that were played.
    pub(crate) steps: usize,
}

impl EpisodeGif {
    /// Draws the episode; `None` if its environment has no pictures.
    pub(crate) fn of(found: &Evaluation) -> Option<io::Result<Self>> {
        let frames = found.frames.as_ref()?;
        let first = found.episodes.iter().find(|episode| episode.env == 0);
        let steps = first.map_or(frames.len(), |episode| episode.len as usize);
        let MonitorOptions { max_frames, max_bytes, .. } = MonitorOptions::default();
        let (mut film, mut frame) = (Film::new(max_frames, max_bytes), Frame::new());
        let [_, height, width, _] = frames.shape().map(|n| u32::try_from(n).unwrap_or(0));
        for rgb in frames.iter().take(steps) {
            if frame.set(width, height, rgb) && film.add(&frame).is_err() {
                return Some(Err(io::Error::other("the pictures are too large for a GIF")));
            }
        }
        let pictures = film.frames();
        Some(film.encode().map(|gif| Self { gif, pictures, steps }).map_err(io::Error::other))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // An error cannot be reported here.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests;
