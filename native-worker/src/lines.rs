//! Append-only files of lines, which tolerate a full disk.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
};

/// Maximum bytes of queued lines per file: those of thousands of iterations.
pub(crate) const MAX_WAITING_BYTES: usize = 4 << 20;

/// The line that marks a gap.
const GAP: &[u8] = b"{\"gap\":\"lines are missing here, there was no room for them\"}\n";

/// Returns the results of `parse` for the lines of a file. Lines for which it returns `None` are skipped, such as an
/// incomplete last one, or one that is not UTF-8.
pub(crate) fn parsed<T>(file: File, mut parse: impl FnMut(&[u8]) -> Option<T>) -> impl Iterator<Item = io::Result<T>> {
    BufReader::new(file).split(b'\n').filter_map(move |line| line.map(|line| parse(&line)).transpose())
}

/// A file to which complete lines are appended.
#[derive(Debug)]
pub(crate) struct LineFile {
    /// Open for appending.
    file: File,
    /// Length of the complete lines.
    bytes: u64,
    /// True if a partial line may follow them.
    is_torn: bool,
}

impl LineFile {
    /// Wraps a file with this many bytes of complete lines.
    pub(crate) fn new(file: File, bytes: u64) -> Self {
        Self { file, bytes, is_torn: false }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a line, or leaves the file as it was. A single write, so that readers do not see a partial line.
    pub(crate) fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        let written = self.file.write_all(line);
        match written {
            Ok(()) => self.bytes += line.len() as u64,
            Err(_) => self.is_torn = self.file.set_len(self.bytes).is_err(),
        }
        written
    }
}

/// Queues lines that could not be written until they can. They keep their order; those beyond a limit are dropped and
/// counted.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// The file's name in messages.
    file: &'static str,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    state: BacklogState,
    /// Number of lines dropped since the last successful write, and in total.
    missing: u64,
    lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BacklogState {
    Writing,
    Waiting,
    Losing,
}

/// A notice about a file of lines.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineNotice {
    /// A line could not be written.
    #[error("{file} cannot be written, its lines wait in memory and are tried again: {error}")]
    Waiting { file: &'static str, error: io::Error },
    /// Lines were dropped because the queue is full.
    #[error("{file} still cannot be written, lines that cannot wait any more are lost: {error}")]
    Losing { file: &'static str, error: io::Error },
    /// A line could not be serialised: it is lost.
    #[error("a line of {file} cannot be written as JSON: {error}")]
    NoJson { file: &'static str, error: serde_json::Error },
    /// A file for another program could not be written; the run continues without it.
    #[error("{file} could not be written, and gets no more of this run: {error}")]
    Abandoned { file: &'static str, error: io::Error },
    /// All queued lines have been written.
    #[error("{file} is written again, nothing of it is lost: there is room again")]
    Whole { file: &'static str },
    /// All queued lines have been written, with a gap.
    #[error("{file} is written again, {lost} lines of it are lost: there is room again")]
    Gap { file: &'static str, lost: u64 },
}

impl LineNotice {
    /// Returns the level of the notice: 0 is good, 2 is bad.
    pub(crate) fn level(&self) -> u8 {
        match self {
            Self::Waiting { .. } | Self::Losing { .. } | Self::NoJson { .. } => 2,
            Self::Whole { .. } => 0,
            Self::Gap { .. } | Self::Abandoned { .. } => 1,
        }
    }
}

impl Backlog {
    pub(crate) fn new(file: &'static str) -> Self {
        Self { file, waiting: VecDeque::new(), waiting_bytes: 0, state: BacklogState::Writing, missing: 0, lost: 0 }
    }

    /// Writes a line after the queued ones, or queues it, too.
    pub(crate) fn add(&mut self, line: Vec<u8>, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> Option<LineNotice> {
        let written = self.write_waiting(&mut write).and_then(|()| write(&line));
        if written.is_err() {
            self.hold(line);
        }
        self.state_change(written)
    }

    /// Retries the queued lines.
    pub(crate) fn retry(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> Option<LineNotice> {
        let written = self.write_waiting(&mut write);
        self.state_change(written)
    }

    /// Returns the number of queued bytes.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes as u64
    }

    /// Returns the number of lines missing in the file: dropped ones and those in the queue.
    pub(crate) fn missing(&self) -> u64 {
        let waiting = self.waiting.iter().filter(|line| *line != GAP).count();
        self.lost + waiting as u64
    }

    fn write_waiting(&mut self, write: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        while let Some(line) = self.waiting.front() {
            write(line)?;
            self.waiting_bytes -= line.len();
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn hold(&mut self, line: Vec<u8>) {
        if self.waiting_bytes + line.len() <= MAX_WAITING_BYTES {
            return self.push(line);
        }
        self.missing += 1;
        self.lost += 1;
        if self.waiting.back().is_none_or(|last| last != GAP) {
            self.push(GAP.to_vec());
        }
    }

    fn push(&mut self, line: Vec<u8>) {
        self.waiting_bytes += line.len();
        self.waiting.push_back(line);
    }

    /// Returns a notice if the state has changed.
    fn state_change(&mut self, written: io::Result<()>) -> Option<LineNotice> {
        let state = match &written {
            Ok(()) => BacklogState::Writing,
            Err(_) if self.missing > 0 => BacklogState::Losing,
            Err(_) => BacklogState::Waiting,
        };
        let before = std::mem::replace(&mut self.state, state);
        let file = self.file;
        match written {
            _ if state == before => None,
            Err(error) if state == BacklogState::Losing => Some(LineNotice::Losing { file, error }),
            Err(error) => Some(LineNotice::Waiting { file, error }),
            Ok(()) => Some(match std::mem::take(&mut self.missing) {
                0 => LineNotice::Whole { file },
                lost => LineNotice::Gap { file, lost },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io::ErrorKind};

    use super::*;

    /// A disk with this much free space, and its content.
    #[derive(Default)]
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Disk {
        fn write(&mut self, line: &[u8]) -> io::Result<()> {
            self.room = self.room.checked_sub(line.len()).ok_or(ErrorKind::StorageFull)?;
            self.text.extend(line);
            Ok(())
        }
    }

    fn line(number: usize) -> Vec<u8> {
        format!("{number:06}\n").into_bytes()
    }

    #[test]
    fn lines_wait_for_disk_space_and_are_written_in_order() {
        let disk = RefCell::new(Disk { room: 3 * 7, ..Disk::default() });
        let mut lines = Backlog::new("lines");
        let write = |line: &[u8]| disk.borrow_mut().write(line);
        let notices: Vec<String> = (0..6).filter_map(|n| lines.add(line(n), write)).map(|n| n.to_string()).collect();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].starts_with("lines cannot be written, its lines wait in memory"), "{notices:?}");
        assert_eq!((lines.waiting_bytes(), lines.missing(), disk.borrow().text.len()), (21, 3, 21));
        disk.borrow_mut().room = 7;
        assert!(lines.retry(write).is_none(), "there is more to write");
        disk.borrow_mut().room = 1_000;
        assert!(matches!(lines.add(line(6), write), Some(LineNotice::Whole { .. })));
        assert!(lines.retry(write).is_none() && lines.add(line(7), write).is_none());
        assert_eq!(disk.borrow().text, (0..8).flat_map(line).collect::<Vec<u8>>());
        assert_eq!((lines.waiting_bytes(), lines.missing()), (0, 0));
    }

    #[test]
    fn lines_beyond_the_backlog_are_counted_and_leave_a_gap() {
        let disk = RefCell::new(Disk::default());
        let mut lines = Backlog::new("lines");
        let write = |line: &[u8]| disk.borrow_mut().write(line);
        let fit = MAX_WAITING_BYTES / 7;
        let mut notices: Vec<LineNotice> = (0..fit + 10).filter_map(|n| lines.add(line(n), write)).collect();
        assert!(matches!(notices[..], [LineNotice::Waiting { .. }, LineNotice::Losing { .. }]), "{notices:?}");
        assert_eq!((lines.missing(), lines.waiting_bytes()), (fit as u64 + 10, (fit * 7 + GAP.len()) as u64));
        disk.borrow_mut().room = usize::MAX;
        notices.extend(lines.add(line(fit + 10), write));
        assert!(matches!(notices[2..], [LineNotice::Gap { lost: 10, .. }]), "{notices:?}");
        let written = [(0..fit).flat_map(line).collect(), GAP.to_vec(), line(fit + 10)].concat();
        assert!(disk.borrow().text == written, "a gap is marked where it is");
        // The next gap is counted separately, and all of them together.
        disk.borrow_mut().room = 0;
        assert!((0..fit + 2).filter_map(|n| lines.add(line(n), write)).count() == 2);
        disk.borrow_mut().room = usize::MAX;
        assert!(matches!(lines.retry(write), Some(LineNotice::Gap { lost: 2, .. })));
        assert_eq!(lines.missing(), 12);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn half_a_line_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let mut lines = LineFile::new(file, 0);
        lines.add(b"first\n").unwrap();
        // As after a disk became full in the middle of a line, which could not be truncated either.
        File::options().append(true).open(&path).unwrap().write_all(b"hal").unwrap();
        lines.is_torn = true;
        lines.add(b"second\n").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), lines.bytes()), (b"first\nsecond\n".to_vec(), 13));
        // A file that accepts nothing at all.
        let mut full = LineFile::new(File::options().append(true).open("/dev/full").unwrap(), 0);
        assert_eq!(full.add(b"line\n").unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(full.bytes(), 0);
    }
}
