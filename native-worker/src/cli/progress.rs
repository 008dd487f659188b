//! Progress of long work on standard error: a bar on a terminal, otherwise a plain line every few seconds.

use std::{
    cell::Cell,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows the progress of some work.
pub(crate) struct Progress {
    printer: Printer,
    plain: bool,
    total: u64,
    unit: &'static str,
    last_line: Cell<Instant>,
}

/// Prints separate lines on standard error: above the bar, if there is one.
#[derive(Clone)]
pub(crate) struct Printer {
    bar: ProgressBar,
}

impl Printer {
    pub(crate) fn println(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }
}

impl Progress {
    /// Creates the progress of `total` units of work. Shows nothing unless `visible`.
    pub(crate) fn new(total: u64, unit: &'static str, visible: bool) -> Self {
        Self::on(stderr().is_terminal(), total, unit, visible)
    }

    /// Works like [`new`](Self::new), for a terminal or another standard error.
    fn on(terminal: bool, total: u64, unit: &'static str, visible: bool) -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(total),
            if visible && terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        // The template is a constant; an error in it would show the default style.
        if let Ok(style) = ProgressStyle::with_template("{bar:32.cyan/blue} {human_pos}/{human_len} {prefix} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(unit);
        let plain = visible && !terminal;
        Self { printer: Printer { bar }, plain, total, unit, last_line: Cell::new(Instant::now()) }
    }

    /// Sets the progress.
    pub(crate) fn at(&self, position: u64) {
        self.say(position, "");
    }

    /// Sets the progress, with a message.
    pub(crate) fn say(&self, position: u64, message: &str) {
        self.printer.bar.set_position(position);
        self.printer.bar.set_message(message.to_owned());
        if let Some(line) = self.plain_line(Instant::now(), position, message) {
            eprintln!("{line}");
        }
    }

    /// Returns a plain line, if there is no terminal and one is due.
    fn plain_line(&self, now: Instant, position: u64, message: &str) -> Option<String> {
        if !self.plain || now.duration_since(self.last_line.get()) < LINE_EVERY {
            return None;
        }
        self.last_line.set(now);
        let Self { total, unit, .. } = self;
        // The amount of some work is unknown.
        let line =
            if *total == 0 { format!("{unit} {message}") } else { format!("{position}/{total} {unit} {message}") };
        Some(line.trim_end().to_owned())
    }

    /// Prints a separate line, above the bar.
    pub(crate) fn println(&self, line: &str) {
        self.printer.println(line);
    }

    /// Returns a printer for messages from other threads.
    pub(crate) fn printer(&self) -> Printer {
        self.printer.clone()
    }

    /// Removes the bar, so that a summary can take its place.
    pub(crate) fn finish(&self) {
        self.printer.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_without_a_terminal_is_a_line_now_and_then() {
        let progress = Progress::on(false, 100, "KiB", true);
        assert!(progress.printer.bar.is_hidden());
        let begun = progress.last_line.get();
        let mut said = (0..12).filter_map(|second| {
            progress.plain_line(begun + Duration::from_secs(second), 8 * second, &format!("· {second} env steps"))
        });
        assert_eq!(said.next().as_deref(), Some("40/100 KiB · 5 env steps"));
        assert_eq!(said.collect::<Vec<_>>(), ["80/100 KiB · 10 env steps"]);
        let later = |total| Progress::on(false, total, "playing", true).plain_line(begun + 2 * LINE_EVERY, 0, "");
        assert_eq!([later(0), later(9)], [Some("playing".into()), Some("0/9 playing".into())]);
    }

    #[test]
    fn others_see_a_bar_or_nothing() {
        for (terminal, visible) in [(true, true), (true, false), (false, false)] {
            let progress = Progress::on(terminal, 100, "KiB", visible);
            let later = progress.last_line.get() + 2 * LINE_EVERY;
            assert_eq!(progress.plain_line(later, 50, ""), None, "{terminal} {visible}");
        }
    }
}
