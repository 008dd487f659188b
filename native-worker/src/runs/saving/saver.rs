//! Saves checkpoints on a thread of its own, so that a slow disk never blocks the run.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::PathBuf,
    sync::mpsc as std_mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rollmesh_core::{group::Ledger, ids::FragmentNo};
use tokio::sync::mpsc;

use super::{super::output::RunOutput, Snapshot};
use crate::checkpoint::{CHECKPOINTS_DIR, Checkpoints, PolicyCheckpoint, replace};

/// Maximum time between two checkpoints, unless an iteration takes longer.
const MOST_BETWEEN: Duration = Duration::from_secs(10);

/// The ledger of a run, in its directory.
pub(in super::super) const LEDGER: &str = "ledger.json";

/// The files that the thread uses.
pub(in super::super) struct SaverFiles {
    /// The run's directory.
    pub(in super::super) dir: PathBuf,
    /// The configuration's text in the run's directory.
    pub(in super::super) config: String,
    /// `metrics.jsonl` and the journal: synced before a checkpoint that counts their lines.
    pub(in super::super) lines: Vec<File>,
}

/// The result of an attempt to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SaveReport {
    /// The iteration after which it was made.
    pub(crate) iteration: u64,
    /// The checkpoint's number, or the error.
    pub(crate) saved: Result<u64, String>,
}

/// The thread and its schedule.
#[derive(Debug)]
pub(in super::super) struct Saver {
    jobs: std_mpsc::Sender<Snapshot>,
    reports: mpsc::UnboundedReceiver<SaveReport>,
    thread: JoinHandle<()>,
    timetable: Timetable,
    /// The iteration of the newest checkpoint on disk.
    saved: Option<u64>,
    is_busy: bool,
}

impl Saver {
    /// Starts the thread. A resumed run has a checkpoint after the iteration `saved`.
    pub(in super::super) fn spawn(files: SaverFiles, interval: u64, saved: Option<u64>) -> io::Result<Self> {
        let (jobs, queue) = std_mpsc::channel();
        let (sender, reports) = mpsc::unbounded_channel();
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(move || run(&files, &queue, &sender))?;
        let last = (Instant::now(), saved.unwrap_or(0));
        let timetable = Timetable { interval, last, is_hurried: false };
        Ok(Self { jobs, reports, thread, timetable, saved, is_busy: false })
    }

    /// Returns whether a checkpoint is due after this iteration, and the previous one is on disk.
    pub(in super::super) fn is_due(&self, iteration: u64) -> bool {
        !self.is_busy && self.timetable.is_due(iteration, Instant::now())
    }

    /// Makes a checkpoint due after the next iteration.
    pub(in super::super) fn hurry(&mut self) {
        self.timetable.is_hurried = true;
    }

    /// Returns false while a checkpoint is being saved.
    pub(in super::super) fn is_free(&self) -> bool {
        !self.is_busy
    }

    /// Starts saving. The report follows.
    pub(in super::super) fn save(&mut self, snapshot: Snapshot) {
        self.timetable.record_attempt(snapshot.policy.iteration, Instant::now());
        // If the thread has ended, no report comes, and nothing more is saved.
        self.is_busy = true;
        let _ = self.jobs.send(snapshot);
    }

    /// Waits for the next report; `None` if no more come.
    pub(in super::super) async fn next_report(&mut self) -> Option<SaveReport> {
        let report = self.reports.recv().await?;
        self.is_busy = false;
        if report.saved.is_ok() {
            self.saved = Some(report.iteration);
        }
        Some(report)
    }

    /// Waits until everything is saved, finally the snapshot unless it is saved already; returns the remaining reports.
    pub(in super::super) fn finish(self, last: Option<Snapshot>) -> Vec<SaveReport> {
        let Self { jobs, mut reports, thread, saved, timetable, .. } = self;
        // A change since then, namely a taint, has to be saved as well.
        let is_new = |last: &Snapshot| timetable.is_hurried || Some(last.policy.iteration) != saved;
        if let Some(last) = last.filter(is_new) {
            let _ = jobs.send(last);
        }
        drop(jobs);
        let ended = thread.join();
        let mut all: Vec<SaveReport> = std::iter::from_fn(|| reports.try_recv().ok()).collect();
        if ended.is_err() {
            let saved = Err("the thread that saves checkpoints has panicked".into());
            all.push(SaveReport { iteration: timetable.last.1, saved });
        }
        all
    }
}

/// The schedule of checkpoints.
#[derive(Debug)]
struct Timetable {
    /// Number of iterations between two checkpoints.
    interval: u64,
    /// Time and iteration of the last attempt.
    last: (Instant, u64),
    /// True if the next iteration is to be saved.
    is_hurried: bool,
}

impl Timetable {
    fn is_due(&self, iteration: u64, now: Instant) -> bool {
        let (at, last) = self.last;
        let is_late = now.saturating_duration_since(at) >= MOST_BETWEEN;
        iteration > last && (iteration - last >= self.interval || is_late || self.is_hurried)
    }

    fn record_attempt(&mut self, iteration: u64, now: Instant) {
        (self.last, self.is_hurried) = ((now, iteration), false);
    }
}

fn run(files: &SaverFiles, queue: &std_mpsc::Receiver<Snapshot>, reports: &mpsc::UnboundedSender<SaveReport>) {
    let mut shelf = None;
    while let Ok(snapshot) = queue.recv() {
        let iteration = snapshot.policy.iteration;
        let saved = save(files, &mut shelf, snapshot).map_err(|error| error.to_string());
        // The receiver may be dropped; later checkpoints are saved all the same.
        let _ = reports.send(SaveReport { iteration, saved });
    }
}

fn save(files: &SaverFiles, shelf: &mut Option<Shelf>, snapshot: Snapshot) -> io::Result<u64> {
    let (ledger, iteration, doubt) = (snapshot.ledger(), snapshot.policy.iteration, snapshot.group.first_doubt());
    // Everything that the checkpoint counts is synced before it.
    snapshot.output.as_ref().map_or(Ok(()), RunOutput::sync)?;
    let contents = snapshot.into_files(&files.config)?;
    let contents: Vec<(&str, &[u8])> = contents.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    files.lines.iter().try_for_each(File::sync_data)?;
    // Reopened after an error, since the directory may be usable again.
    let mut open = match shelf.take() {
        Some(open) => open,
        None => Shelf::open(files.dir.join(CHECKPOINTS_DIR))?,
    };
    let number = open.save(&contents, iteration, doubt)?;
    *shelf = Some(open);
    write_ledger(&files.dir, &ledger)?;
    Ok(number)
}

/// The checkpoints of a run, and the iteration of each.
pub(super) struct Shelf {
    checkpoints: Checkpoints,
    /// By number.
    iterations: BTreeMap<u64, u64>,
}

impl Shelf {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        let checkpoints = Checkpoints::open(&dir).map_err(io::Error::other)?;
        let numbers = checkpoints.numbers().map_err(io::Error::other)?;
        // A damaged checkpoint is never rolled back to.
        let iteration = |number| PolicyCheckpoint::load(checkpoints.place(number)).ok().map(|found| found.iteration);
        let iterations = numbers.into_iter().filter_map(|number| Some((number, iteration(number)?))).collect();
        Ok(Self { checkpoints, iterations })
    }

    /// Saves a checkpoint. In addition to the usual ones it keeps the newest checkpoint from before the first unaudited
    /// batch: a rollback because of that batch continues from there.
    pub(super) fn save(
        &mut self,
        contents: &[(&str, &[u8])],
        iteration: u64,
        doubt: Option<FragmentNo>,
    ) -> io::Result<u64> {
        let is_clean = |iteration: u64| doubt.is_some_and(|FragmentNo(batch)| iteration <= batch);
        let clean = self.iterations.iter().rev().find(|(_, iteration)| is_clean(**iteration));
        self.checkpoints.keep(clean.map(|(number, _)| *number));
        let number = self.checkpoints.save(contents).map_err(io::Error::other)?;
        self.iterations.insert(number, iteration);
        let there = self.checkpoints.numbers().map_err(io::Error::other)?;
        self.iterations.retain(|number, _| there.contains(number));
        Ok(number)
    }
}

/// Writes the ledger of a run atomically.
pub(in super::super) fn write_ledger(dir: &std::path::Path, ledger: &Ledger) -> io::Result<()> {
    replace(&dir.join(LEDGER), &serde_json::to_vec_pretty(ledger)?)
}

#[cfg(test)]
mod tests {
    use super::{super::snapshot::tests::snapshot, *};

    #[test]
    fn checkpoint_is_due_after_its_iterations_or_ten_seconds() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut timetable = Timetable { interval: 100, last: (began, 7), is_hurried: false };
        assert!(!timetable.is_due(106, at(9_999)) && timetable.is_due(107, at(0)));
        assert!(timetable.is_due(8, at(10_000)), "ten seconds are long enough");
        assert!(!timetable.is_due(7, at(60_000)), "that one is saved");
        timetable.record_attempt(8, at(10_000));
        assert!(!timetable.is_due(9, at(19_999)) && timetable.is_due(9, at(20_000)));
        timetable.is_hurried = true;
        assert!(timetable.is_due(9, at(10_001)) && !timetable.is_due(8, at(10_001)));
        timetable.record_attempt(9, at(10_001));
        assert!(!timetable.is_due(10, at(10_002)), "once");
    }

    #[test]
    fn checkpoint_counts_only_lines_that_are_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        let files = |lines| SaverFiles { dir: directory.path().into(), config: String::new(), lines };
        let metrics = || File::create(directory.path().join("metrics.jsonl")).unwrap();
        // Syncing this file fails.
        let journal = File::open("/dev/null").unwrap();
        assert!(save(&files(vec![metrics(), journal]), &mut None, snapshot()).is_err());
        assert!(!directory.path().join(CHECKPOINTS_DIR).exists());
        assert_eq!(save(&files(vec![metrics()]), &mut None, snapshot()).unwrap(), 0);
    }

    #[test]
    fn newest_checkpoint_from_before_a_batch_in_doubt_is_retained() {
        let directory = tempfile::tempdir().unwrap();
        let mut shelf = Shelf::open(directory.path().into()).unwrap();
        let mut kept = |iteration, doubt: Option<u64>| {
            shelf.save(&[], iteration, doubt.map(FragmentNo)).unwrap();
            let mut kept = shelf.checkpoints.numbers().unwrap();
            kept.reverse();
            kept
        };
        // Checkpoints are numbered by call.
        assert_eq!((kept(10, None), kept(20, None), kept(30, None)), (vec![0], vec![0, 1], vec![1, 2]));
        assert_eq!((kept(40, Some(35)), kept(50, Some(35))), (vec![2, 3], vec![2, 3, 4]));
        assert_eq!(kept(60, Some(35)), [2, 4, 5]);
        assert_eq!(kept(65, Some(45)), [2, 5, 6], "the one after iteration 40 is removed");
        assert_eq!(kept(70, Some(62)), [5, 6, 7], "what was in doubt before was replayed");
        assert_eq!(kept(80, Some(5)), [7, 8], "there is none from before that");
        assert_eq!(kept(90, None), [8, 9]);
    }
}
