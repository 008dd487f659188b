//! The files of a monitor.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{EpisodeStats, MonitorError, film::Film};

const STATS: &str = "stats.jsonl";
const UNFINISHED: &str = ".tmp";

/// The directory of a worker's recordings: `stats.jsonl`, which workers share, and a GIF per episode.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    worker_index: u32,
}

impl Files {
    pub(super) fn open(dir: &Path, worker_index: u32) -> Result<Self, MonitorError> {
        fs::create_dir_all(dir).map_err(failed(dir))?;
        Ok(Self { dir: dir.to_owned(), worker_index })
    }

    /// Returns the highest number of this worker's recordings, 0 if there are none. Removes unfinished files.
    pub(super) fn latest(&self) -> Result<u64, MonitorError> {
        let mut latest = 0;
        for entry in fs::read_dir(&self.dir).map_err(failed(&self.dir))? {
            let path = entry.map_err(failed(&self.dir))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            match self.number(name.trim_end_matches(UNFINISHED)) {
                Some(_) if name.ends_with(UNFINISHED) => fs::remove_file(&path).map_err(failed(&path))?,
                number => latest = latest.max(number.unwrap_or(0)),
            }
        }
        Ok(latest)
    }

    /// Returns the numbers of this worker's episodes that were recorded to their end.
    pub(super) fn complete_episodes(&self) -> Result<BTreeSet<u64>, MonitorError> {
        let path = self.dir.join(STATS);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            read => read.map_err(failed(&path))?,
        };
        // A line that was cut off by a crash is none.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<EpisodeStats>(line).ok());
        let complete = lines.filter(|stats| stats.worker == self.worker_index && stats.complete);
        Ok(complete.map(|stats| stats.episode).collect())
    }

    /// Returns the path of an episode's GIF.
    pub(super) fn film(&self, episode: u64) -> PathBuf {
        self.dir.join(self.name(episode))
    }

    /// Writes an episode. The GIF appears atomically, and before the line that names it.
    pub(super) fn write(&self, film: Film, mut stats: EpisodeStats) -> Result<(), MonitorError> {
        (stats.frames, stats.cut) = (film.frames(), film.cut());
        if film.frames() > 0 {
            let path = self.film(stats.episode);
            let unfinished = self.dir.join(self.name(stats.episode) + UNFINISHED);
            let written = film.encode().map_err(io::Error::other).and_then(|bytes| fs::write(&unfinished, bytes));
            written.and_then(|()| fs::rename(&unfinished, &path)).map_err(|source| {
                // An unfinished file must not use up scarce disk space.
                let _ = fs::remove_file(&unfinished);
                MonitorError::Io { path, source }
            })?;
            stats.file = Some(self.name(stats.episode));
        }
        let path = self.dir.join(STATS);
        add_line(&path, &stats).map_err(failed(&path))
    }

    fn name(&self, episode: u64) -> String {
        format!("episode-{}-{episode}.gif", self.worker_index)
    }

    /// Returns the episode's number in a file name, if the file is one of this worker's.
    fn number(&self, name: &str) -> Option<u64> {
        let (worker, episode) = name.strip_prefix("episode-")?.strip_suffix(".gif")?.split_once('-')?;
        if worker.parse() == Ok(self.worker_index) { episode.parse().ok() } else { None }
    }
}

/// Appends a line with a single write, so that lines of several workers do not mix.
fn add_line(path: &Path, stats: &EpisodeStats) -> io::Result<()> {
    let mut line = serde_json::to_vec(stats)?;
    line.push(b'\n');
    OpenOptions::new().create(true).append(true).open(path)?.write_all(&line)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> MonitorError {
    let path = path.to_owned();
    move |source| MonitorError::Io { path, source }
}
