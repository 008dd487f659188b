//! The files of a monitor.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::{EpisodeStats, MonitorError, film::Film};
use crate::{checkpoint::replace, files::if_exists, lines::LineFile};

const STATS: &str = "stats.jsonl";
const UNFINISHED: &str = ".tmp";

/// The directory of a worker's recordings: `stats.jsonl`, which workers share, and a GIF per episode.
#[derive(Debug)]
pub(super) struct RecordingFiles {
    dir: PathBuf,
    worker_index: u32,
}

impl RecordingFiles {
    pub(super) fn open(dir: &Path, worker_index: u32) -> Result<Self, MonitorError> {
        fs::create_dir_all(dir).map_err(failed(dir))?;
        Ok(Self { dir: dir.to_owned(), worker_index })
    }

    /// Returns the highest number of this worker's recordings, 0 if there are none. Removes unfinished files.
    pub(super) fn latest(&self) -> Result<u64, MonitorError> {
        let own = self.lines()?.into_iter().filter_map(|(_, stats)| stats).filter(|stats| self.is_own(stats));
        Ok(own.map(|stats| stats.episode).chain(self.films()?).max().unwrap_or(0))
    }

    /// Removes the recordings from after `steps` env steps of this episode, each of which has a picture at most. Other
    /// workers must not be adding lines.
    pub(super) fn forget_after(&self, episode: u64, steps: u32) -> Result<(), MonitorError> {
        let is_before = |stats: &EpisodeStats| {
            let is_open = stats.length.is_none() && stats.frames <= steps as usize;
            stats.episode < episode || stats.episode == episode && is_open
        };
        let is_kept = |stats: &EpisodeStats| !self.is_own(stats) || is_before(stats);
        let (kept, removed): (Vec<_>, Vec<_>) =
            self.lines()?.into_iter().partition(|(_, stats)| stats.as_ref().is_some_and(is_kept));
        if !removed.is_empty() {
            let text: String = kept.iter().map(|(line, _)| format!("{line}\n")).collect();
            let path = self.dir.join(STATS);
            replace(&path, text.as_bytes()).map_err(failed(&path))?;
        }
        let is_named = kept
            .iter()
            .filter_map(|(_, stats)| stats.as_ref())
            .any(|stats| self.is_own(stats) && stats.episode == episode);
        let first = if is_named { episode + 1 } else { episode };
        for path in self.films()?.range(first..).map(|number| self.film(*number)) {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Returns the lines of all workers, with their statistics; `None` for a line that was cut off by a crash.
    fn lines(&self) -> Result<Vec<(String, Option<EpisodeStats>)>, MonitorError> {
        let path = self.dir.join(STATS);
        let bytes = if_exists(fs::read(&path)).map_err(failed(&path))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| (line.to_owned(), serde_json::from_str(line).ok()))
            .collect())
    }

    fn is_own(&self, stats: &EpisodeStats) -> bool {
        stats.worker == self.worker_index
    }

    /// Returns the numbers of this worker's GIFs. Removes unfinished ones.
    fn films(&self) -> Result<BTreeSet<u64>, MonitorError> {
        let mut films = BTreeSet::new();
        for entry in fs::read_dir(&self.dir).map_err(failed(&self.dir))? {
            let path = entry.map_err(failed(&self.dir))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            match self.number(name.trim_end_matches(UNFINISHED)) {
                Some(_) if name.ends_with(UNFINISHED) => fs::remove_file(&path).map_err(failed(&path))?,
                number => films.extend(number),
            }
        }
        Ok(films)
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
            let written = film.encode().map_err(io::Error::other).and_then(|bytes| replace(&path, &bytes));
            written.map_err(failed(&path))?;
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

/// Appends a line, or leaves the file as it was. Workers that share the file take turns, so that their lines do not mix, and
/// none cuts off the line of another one.
fn add_line(path: &Path, stats: &EpisodeStats) -> io::Result<()> {
    let mut line = serde_json::to_vec(stats)?;
    line.push(b'\n');
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    match file.lock() {
        // Some file systems have no locks.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
        locked => locked?,
    }
    let bytes = file.metadata()?.len();
    LineFile::new(file, bytes).add(&line)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> MonitorError {
    let path = path.to_owned();
    move |source| MonitorError::Io { path, source }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// Set in the process whose files may not grow beyond the shell's limit of one block, 512 bytes or 1 KiB.
    const DIR: &str = "ROLLMESH_TEST_FULL_DISK";
    const TEST: &str = "monitor::files::tests::line_that_does_not_fit_on_the_disk_leaves_no_partial_line";

    #[test]
    fn line_that_does_not_fit_on_the_disk_leaves_no_partial_line() {
        let stats = |episode| EpisodeStats { episode, ..EpisodeStats::default() };
        if let Some(dir) = env::var_os(DIR) {
            let path = Path::new(&dir).join(STATS);
            assert!((0..1_000).any(|_| add_line(&path, &stats(1)).is_err()), "the disk never gets full");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        // A write beyond the limit writes what fits, as on a full disk; without the trap it would also be a signal.
        let mut limited = Command::new("sh");
        limited.args(["-c", "trap '' XFSZ && ulimit -f 1 && exec \"$0\" --exact \"$1\""]);
        let end = limited.arg(env::current_exe().unwrap()).arg(TEST).env(DIR, dir.path()).output().unwrap();
        assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stdout));
        add_line(&dir.path().join(STATS), &stats(2)).unwrap();
        let text = fs::read_to_string(dir.path().join(STATS)).unwrap();
        let episodes: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<EpisodeStats>(line).expect(line).episode).collect();
        assert!(episodes.len() > 2 && episodes.ends_with(&[1, 2]), "{episodes:?}");
    }
}
