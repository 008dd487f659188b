//! Saves checkpoints on a thread of its own, so that no disk ever holds up the run.

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::mpsc as std_mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rollmesh_core::group::Ledger;
use tokio::sync::mpsc;

use super::Snapshot;
use crate::checkpoint::{CHECKPOINTS_DIR, Checkpoints, replace};

/// The longest time between two checkpoints, unless an iteration takes longer.
const MOST_BETWEEN: Duration = Duration::from_secs(10);

/// The books of a run, in its directory.
pub(in super::super) const LEDGER: &str = "ledger.json";

/// What the thread works with.
pub(in super::super) struct SaverFiles {
    /// Of the run.
    pub(in super::super) dir: PathBuf,
    /// The configuration as it is in the run's directory.
    pub(in super::super) config: String,
    /// `metrics.jsonl` and the journal: on the disk before a checkpoint that counts their lines.
    pub(in super::super) lines: Vec<File>,
}

/// How an attempt to save went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SaveReport {
    /// The iteration that it was after.
    pub(crate) iteration: u64,
    /// The checkpoint's number, or why there is none.
    pub(crate) saved: Result<u64, String>,
}

/// The thread and its timetable.
#[derive(Debug)]
pub(in super::super) struct Saver {
    jobs: std_mpsc::Sender<Snapshot>,
    reports: mpsc::UnboundedReceiver<SaveReport>,
    thread: JoinHandle<()>,
    /// Iterations between two checkpoints.
    interval: u64,
    /// When and after which iteration the last attempt was made.
    last: (Instant, u64),
    /// After which iteration the last one was that is on the disk.
    saved: Option<u64>,
    is_busy: bool,
}

impl Saver {
    /// A run that goes on has a checkpoint after the iteration `saved`.
    pub(in super::super) fn spawn(files: SaverFiles, interval: u64, saved: Option<u64>) -> io::Result<Self> {
        let (jobs, queue) = std_mpsc::channel();
        let (sender, reports) = mpsc::unbounded_channel();
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(move || run(&files, &queue, &sender))?;
        Ok(Self { jobs, reports, thread, interval, last: (Instant::now(), saved.unwrap_or(0)), saved, is_busy: false })
    }

    /// True if a checkpoint is due after this iteration, and the one before is on the disk.
    pub(in super::super) fn is_due(&self, iteration: u64) -> bool {
        let (at, last) = self.last;
        !self.is_busy && iteration > last && (iteration - last >= self.interval || at.elapsed() >= MOST_BETWEEN)
    }

    /// The next iteration is to be saved.
    pub(in super::super) fn hurry(&mut self) {
        let (at, iteration) = self.last;
        self.last = (at.checked_sub(MOST_BETWEEN).unwrap_or(at), iteration);
    }

    /// False while a checkpoint is being saved.
    pub(in super::super) fn is_free(&self) -> bool {
        !self.is_busy
    }

    /// Begins to save. The report follows.
    pub(in super::super) fn save(&mut self, snapshot: Snapshot) {
        self.last = (Instant::now(), snapshot.policy.iteration);
        // Without the thread no report comes, and nothing more is saved.
        self.is_busy = true;
        let _ = self.jobs.send(snapshot);
    }

    /// The next report; none if no more come.
    pub(in super::super) async fn next_report(&mut self) -> Option<SaveReport> {
        let report = self.reports.recv().await?;
        self.is_busy = false;
        if report.saved.is_ok() {
            self.saved = Some(report.iteration);
        }
        Some(report)
    }

    /// Waits until everything is saved, the snapshot at last, unless it is already; the reports of it.
    pub(in super::super) fn finish(self, last: Option<Snapshot>) -> Vec<SaveReport> {
        let Self { jobs, mut reports, thread, saved, .. } = self;
        if let Some(last) = last.filter(|last| Some(last.policy.iteration) != saved) {
            let _ = jobs.send(last);
        }
        drop(jobs);
        // A panic there is as good as no report.
        let _ = thread.join();
        std::iter::from_fn(|| reports.try_recv().ok()).collect()
    }
}

fn run(files: &SaverFiles, queue: &std_mpsc::Receiver<Snapshot>, reports: &mpsc::UnboundedSender<SaveReport>) {
    let mut checkpoints = None;
    while let Ok(snapshot) = queue.recv() {
        let iteration = snapshot.policy.iteration;
        let saved = save(files, &mut checkpoints, snapshot).map_err(|error| error.to_string());
        // Whoever asked may be gone; the next ones are saved all the same.
        let _ = reports.send(SaveReport { iteration, saved });
    }
}

fn save(files: &SaverFiles, checkpoints: &mut Option<Checkpoints>, snapshot: Snapshot) -> io::Result<u64> {
    let ledger = snapshot.ledger();
    let contents = snapshot.into_files(&files.config)?;
    let contents: Vec<(&str, &[u8])> = contents.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    files.lines.iter().try_for_each(File::sync_data)?;
    // The directory may be one again that it was not the last time.
    let mut open = match checkpoints.take() {
        Some(open) => open,
        None => Checkpoints::open(files.dir.join(CHECKPOINTS_DIR)).map_err(io::Error::other)?,
    };
    let number = open.save(&contents).map_err(io::Error::other)?;
    *checkpoints = Some(open);
    write_ledger(&files.dir, &ledger)?;
    Ok(number)
}

/// Writes the books of a run; they appear whole or not at all.
pub(in super::super) fn write_ledger(dir: &std::path::Path, ledger: &Ledger) -> io::Result<()> {
    replace(&dir.join(LEDGER), &serde_json::to_vec_pretty(ledger)?)
}
