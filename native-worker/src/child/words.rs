//! The last lines of a child's standard error, which often say why it has ended.

use std::{collections::VecDeque, fmt};
#[cfg(unix)]
use std::{
    io::{self, Read as _},
    process::ChildStderr,
    sync::mpsc::{self, Receiver},
    thread,
};

use crate::terminal::printable;

/// Maximum number of bytes of the standard error that are kept.
const KEPT: usize = 16_000;

/// The end of a child's standard error. Its text is the last lines, at most five and 500 characters. Rust backtraces, which
/// name this program's functions and not the cause, are left out; of Python's, whose innermost call comes first, the
/// beginning is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastWords(VecDeque<u8>);

impl LastWords {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        let surplus = self.0.len().saturating_sub(KEPT);
        self.0.drain(..surplus);
    }

    /// Reads a standard error to its end on a thread of its own, and returns a channel for the kept part of it.
    #[cfg(unix)]
    pub(crate) fn listen(mut stderr: ChildStderr) -> io::Result<Receiver<Self>> {
        let (done, words) = mpsc::channel();
        thread::Builder::new().name("last-words".into()).spawn(move || {
            let mut kept = Self::default();
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                kept.push(bytes.get(..read).unwrap_or_default());
            }
            // The receiver may have been dropped.
            let _ = done.send(kept);
        })?;
        Ok(words)
    }
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if let Some(backtrace) = lines.iter().rposition(|line| *line == "stack backtrace:") {
            lines.truncate(backtrace);
        }
        if let Some(fatal) = lines.iter().rposition(|line| line.starts_with("Fatal Python error")) {
            lines.drain(..fatal);
            lines.truncate(5);
        }
        let last = printable(&lines[lines.len().saturating_sub(5)..].join(" | "));
        let surplus = last.chars().count().saturating_sub(500);
        last.chars().skip(surplus).try_for_each(|c| write!(f, "{c}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_few_and_short() {
        let said = |bytes: &[u8]| {
            let mut words = LastWords::default();
            bytes.chunks(7).for_each(|bytes| words.push(bytes));
            words.to_string()
        };
        assert_eq!(said(b"one\n\ntwo\x07\nthree\xFF"), "one | two  | three\u{FFFD}");
        assert_eq!(said(b"1\n2\n3\n4\n5\n6\n7"), "3 | 4 | 5 | 6 | 7");
        assert_eq!(said(&[b'x'; 30_000]).len(), 500);
        assert_eq!(said(b"no memory\nstack backtrace:\n 0: main\n 1: start"), "no memory");
        let python = b"1\nFatal Python error: Aborted\n2\n3\n4\n5\n6";
        assert_eq!(said(python), "Fatal Python error: Aborted | 2 | 3 | 4 | 5");
        assert_eq!(said(b""), "");
    }
}
