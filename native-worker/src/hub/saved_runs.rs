//! The runs below the hub's directory of runs: they are listed, resumed and deleted on request, by the names of their
//! directories. Threads for blocking work read the files, and pass their results to the actor.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rollmesh_core::protocol::{
    Kind, Message,
    message::{RunHistory, SavedRunRequest, SavedRunRow, SavedRuns},
};
use tokio::task::spawn_blocking;

use super::{
    actor::{Actor, Event},
    queue::Starter,
};
use crate::{
    envs::catch_panics,
    files::if_exists,
    runs::{FoundRun, SavedCurves, SavedRun, delete_run},
};

/// Maximum number of requests whose files are being read.
const MAX_READING: usize = 8;
const NO_DIRECTORY: &str = "this hub has no directory of runs; start it with `rollmesh hub`";

/// The result of a thread's work for a request.
#[derive(Debug)]
pub(super) enum SavedRunLookup {
    /// The answer.
    Answer(Box<Message>),
    /// A run to resume.
    Run(Box<SavedRun>),
    /// The run is deleted.
    Deleted,
}

/// The outcome of a request, for the actor.
#[derive(Debug)]
pub(super) struct Finding {
    peer: u32,
    kind: Kind,
    request: u32,
    found: Result<SavedRunLookup, String>,
}

impl Actor {
    pub(super) fn list_saved_runs(&mut self, peer: u32, request: u32) {
        self.read_files(peer, Kind::SavedRunsRequest, request, move |runs| {
            let list = SavedRuns { request, ..saved_runs(runs)? };
            Ok(SavedRunLookup::Answer(Box::new(Message::SavedRuns(list))))
        });
    }

    pub(super) fn answer_saved_run(&mut self, peer: u32, SavedRunRequest { request, id }: SavedRunRequest) {
        self.read_files(peer, Kind::SavedRunRequest, request, move |runs| {
            let curves = SavedCurves::read(&directory_of(runs, &id)?).map_err(|error| error.to_string())?;
            let history = RunHistory { request, ..curves.history() };
            Ok(SavedRunLookup::Answer(Box::new(Message::RunHistory(history))))
        });
    }

    pub(super) fn resume_saved_run(&mut self, peer: u32, SavedRunRequest { request, id }: SavedRunRequest) {
        self.read_files(peer, Kind::ResumeRun, request, move |runs| {
            let saved = SavedRun::load(directory_of(runs, &id)?).map_err(|error| error.to_string())?;
            Ok(SavedRunLookup::Run(Box::new(saved)))
        });
    }

    pub(super) fn delete_saved_run(&mut self, peer: u32, SavedRunRequest { request, id }: SavedRunRequest) {
        self.read_files(peer, Kind::DeleteRun, request, move |runs| {
            delete_run(&directory_of(runs, &id)?).map_err(|error| error.to_string())?;
            Ok(SavedRunLookup::Deleted)
        });
    }

    /// Reads files for a peer on another thread; [`handle_finding`](Self::handle_finding) gets the outcome.
    fn read_files(
        &mut self,
        peer: u32,
        kind: Kind,
        request: u32,
        read: impl FnOnce(&Path) -> Result<SavedRunLookup, String> + Send + 'static,
    ) {
        let refused = match &self.runs_dir {
            None => Some(NO_DIRECTORY.to_owned()),
            Some(_) if self.num_reading >= MAX_READING => {
                Some(format!("the hub reads the files of {MAX_READING} requests already; try again"))
            }
            Some(_) => None,
        };
        if let Some(reason) = refused {
            return self.hub.answer(peer, request, Err(reason));
        }
        let (runs, events) = (self.runs_dir.clone().unwrap_or_default(), self.children.events.clone());
        self.num_reading += 1;
        spawn_blocking(move || {
            let found = read_guarded(&runs, read);
            // The hub may have stopped meanwhile.
            let _ = events.blocking_send(Event::FilesRead(Finding { peer, kind, request, found }));
        });
    }

    /// Answers the request, or begins to resume the run.
    pub(super) fn handle_finding(&mut self, finding: Finding) {
        let Finding { peer, kind, request, found } = finding;
        self.num_reading -= 1;
        let done = match found {
            Ok(SavedRunLookup::Answer(message)) => return self.hub.answer(peer, request, Ok(*message)),
            Ok(SavedRunLookup::Deleted) => Ok(0),
            Ok(SavedRunLookup::Run(saved)) => match self.resume_from_page(Starter { peer, kind, request }, *saved) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            Err(reason) => Err(reason),
        };
        self.hub.reply(peer, kind, request, done);
    }
}

/// Reads files; a panic is an error, so that the request is answered and does not count as being read any more.
fn read_guarded(
    runs: &Path,
    read: impl FnOnce(&Path) -> Result<SavedRunLookup, String>,
) -> Result<SavedRunLookup, String> {
    let (mut read, mut found) = (Some(read), None);
    catch_panics(&mut || found = read.take().map(|read| read(runs)))
        .map_err(|panic| format!("the hub failed to read the files: {panic}"))?;
    found.expect("the closure was called once")
}

/// Returns the directory of a run by its id. An id is one name without separators, and names no link: nothing outside of the
/// directory of runs can be read or deleted.
fn directory_of(runs: &Path, id: &str) -> Result<PathBuf, String> {
    let unknown = || format!("there is no saved run {id:?}; list the runs again");
    let is_name = !id.is_empty() && !id.starts_with('.') && !id.contains(['/', '\\', ':', '\0']);
    if !is_name {
        return Err(unknown());
    }
    let dir = runs.join(id);
    let is_dir = fs::symlink_metadata(&dir).is_ok_and(|metadata| metadata.is_dir());
    if is_dir && dir.join("config.toml").is_file() { Ok(dir) } else { Err(unknown()) }
}

/// Lists the newest runs. Files of runs that are left out are not read.
fn saved_runs(runs: &Path) -> Result<SavedRuns, String> {
    let failed = |error| format!("{}: {error}", runs.display());
    // The first run creates the directory.
    let Some(entries) = if_exists(fs::read_dir(runs)).map_err(failed)? else { return Ok(SavedRuns::default()) };
    let mut all: Vec<(SystemTime, String)> = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        if let Ok(id) = entry.file_name().into_string()
            && let Ok(dir) = directory_of(runs, &id)
        {
            let changed = fs::metadata(dir.join("metrics.jsonl")).and_then(|file| file.modified());
            all.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), id));
        }
    }
    all.sort_by(|a, b| b.cmp(a));
    let left_out = all.len().saturating_sub(SavedRuns::MAX) as u32;
    all.truncate(SavedRuns::MAX);
    let runs = all.into_iter().map(|(_, id)| row(FoundRun::of(&runs.join(&id)), id)).collect();
    Ok(SavedRuns { request: 0, left_out, runs })
}

/// Returns a run's row. Texts of users are shortened, so that a list of all runs fits into a message: a character has at most
/// four bytes.
fn row(found: FoundRun, id: String) -> SavedRunRow {
    let first = |text: &str, most: usize| text.chars().take(most).collect();
    SavedRunRow {
        id,
        state: found.state,
        env: first(&found.env, 60),
        algo: first(&found.algo, 60),
        seed: found.seed,
        env_steps: found.env_steps,
        episode_return_mean: found.episode_return_mean.map_or(f32::NAN, |mean| mean as f32),
        error: first(&found.error.unwrap_or_default(), 150),
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::MessageFrame;

    use super::*;

    #[test]
    fn ids_name_directories_of_runs_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let runs = root.path().join("runs");
        let run = |path: PathBuf| {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("config.toml"), "env = \"CartPole-v1\"\nseed = 3").unwrap();
        };
        run(runs.join("a"));
        run(root.path().join("outside"));
        fs::create_dir_all(runs.join("no-run")).unwrap();
        std::os::unix::fs::symlink(root.path().join("outside"), runs.join("link")).unwrap();
        assert_eq!(directory_of(&runs, "a"), Ok(runs.join("a")));
        for id in ["", ".", "..", "../outside", "a/../../outside", "link", "no-run", "b", "a\0", "/"] {
            assert!(directory_of(&runs, id).is_err_and(|error| error.contains("no saved run")), "{id:?}");
        }
        let list = saved_runs(&runs).unwrap();
        let rows: Vec<_> = list.runs.iter().map(|row| (&*row.id, &*row.state, row.seed)).collect();
        assert_eq!((rows, list.left_out), (vec![("a", "interrupted", 3)], 0));
        assert_eq!(saved_runs(&runs.join("none")), Ok(SavedRuns::default()));
    }

    #[test]
    fn panic_while_files_are_read_is_an_error() {
        let panics = |_: &Path| panic!("out of range");
        let error = read_guarded(Path::new("runs"), panics).expect_err("it panicked");
        assert!(error.ends_with("out of range"), "{error}");
        assert!(read_guarded(Path::new("runs"), |_| Ok(SavedRunLookup::Deleted)).is_ok());
    }

    #[test]
    fn list_of_the_most_and_longest_rows_fits_into_a_message() {
        let long = || "ä".repeat(1_000);
        let found = || FoundRun {
            state: "interrupted".into(),
            env: long(),
            algo: long(),
            error: Some(long()),
            ..FoundRun::default()
        };
        let runs = (0..SavedRuns::MAX).map(|_| row(found(), "x".repeat(255))).collect();
        assert!(MessageFrame::new(&Message::SavedRuns(SavedRuns { request: 1, left_out: 1, runs })).is_ok());
    }
}
