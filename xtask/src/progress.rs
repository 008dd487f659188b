//! The progress of a running step: a spinner with the newest line of output on a terminal, regular plain lines
//! elsewhere.

use std::{
    env, fmt,
    io::{self, IsTerminal, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

const SPINNER_TICK: Duration = Duration::from_millis(150);
const PLAIN_TICK: Duration = Duration::from_secs(30);

/// The display of one running step. Shows progress until it is finished.
pub(crate) struct Progress {
    started: Instant,
    stop: Sender<()>,
    ticker: JoinHandle<()>,
}

impl Progress {
    /// Announces the step; `position` is such as `3/12`. Follows the log file at `log`.
    pub(crate) fn start(position: String, about: &str, log: PathBuf) -> Self {
        let started = Instant::now();
        let (stop, stopped) = mpsc::channel();
        let terminal = io::stdout().is_terminal() && io::stderr().is_terminal() && env::var_os("CI").is_none();
        let bar = if terminal { spinner(&position, about) } else { ProgressBar::hidden() };
        if !terminal {
            say(format_args!("[{position}] {about}"));
        }
        let tick = if terminal { SPINNER_TICK } else { PLAIN_TICK };
        let ticker = thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(tick) {
                let newest = last_lines(&log, 1);
                if terminal {
                    bar.set_message(newest);
                    bar.tick();
                } else {
                    say(format_args!("[{position}]   {}: {newest}", seconds(started.elapsed())));
                }
            }
            bar.finish_and_clear();
        });
        Self { started, stop, ticker }
    }

    /// Ends the display and returns the duration of the step.
    pub(crate) fn finish(self) -> Duration {
        let took = self.started.elapsed();
        drop(self.stop);
        // A failed display does not fail the step.
        let _ = self.ticker.join();
        took
    }
}

fn spinner(position: &str, about: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{spinner} {prefix} {elapsed}  {wide_msg:.dim}").expect("a valid template");
    let bar = ProgressBar::new_spinner().with_style(style).with_prefix(format!("[{position}] {about}"));
    bar.tick();
    bar
}

/// Prints one line immediately, also into a pipe. A closed pipe is not an error.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Formats a duration: `0.4 s`, `3 min 12 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

/// Returns the last lines of a file that are not blank. Reads only its end: a build log can be long.
pub(crate) fn last_lines(path: &Path, count: usize) -> String {
    const TAIL_BYTES: u64 = 16 * 1024;
    let mut tail = Vec::new();
    let read = std::fs::File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        file.take(TAIL_BYTES).read_to_end(&mut tail)
    });
    if read.is_err() {
        return String::new();
    }
    let tail = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = tail.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(seconds(Duration::from_millis(420)), "0.4 s");
        assert_eq!(seconds(Duration::from_secs(192)), "3 min 12 s");
    }

    #[test]
    fn the_last_lines_of_a_long_log_leave_out_blank_ones() {
        let log = std::env::temp_dir().join(format!("xtask-last-lines-{}", std::process::id()));
        let text: String = (0..10_000).map(|line| format!("line {line}\n\n")).collect();
        std::fs::write(&log, text).unwrap();
        let last = last_lines(&log, 2);
        std::fs::remove_file(&log).unwrap();
        assert_eq!(last, "line 9998\nline 9999");
    }

    #[test]
    fn a_log_that_is_not_there_has_no_last_lines() {
        assert_eq!(last_lines(Path::new("no/such/log"), 3), "");
    }
}
