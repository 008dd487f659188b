//! Progress of long work: a bar on a terminal, a plain line now and then elsewhere, on standard error.

use std::{
    cell::Cell,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far some work is.
pub(crate) struct Progress {
    printer: Printer,
    plain: bool,
    total: u64,
    unit: &'static str,
    last_line: Cell<Instant>,
}

/// Prints lines of their own on standard error: above the bar, where there is one.
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
    /// Work of `total` units. Shows nothing unless `visible`.
    pub(crate) fn new(total: u64, unit: &'static str, visible: bool) -> Self {
        let terminal = stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(total),
            if visible && terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        // The template is a constant; a fault in it would show as the default style.
        if let Ok(style) = ProgressStyle::with_template("{bar:32.cyan/blue} {human_pos}/{human_len} {prefix} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(unit);
        let plain = visible && !terminal;
        Self { printer: Printer { bar }, plain, total, unit, last_line: Cell::new(Instant::now()) }
    }

    /// The work is this far.
    pub(crate) fn at(&self, position: u64) {
        self.say(position, "");
    }

    /// The work is this far, with more to tell.
    pub(crate) fn say(&self, position: u64, message: &str) {
        self.printer.bar.set_position(position);
        self.printer.bar.set_message(message.to_owned());
        if self.plain && self.last_line.get().elapsed() >= LINE_EVERY {
            self.last_line.set(Instant::now());
            eprintln!("{position}/{} {} {message}", self.total, self.unit);
        }
    }

    /// A line of its own, above the bar.
    pub(crate) fn println(&self, line: &str) {
        self.printer.println(line);
    }

    /// For those who have something to say meanwhile, on other threads.
    pub(crate) fn printer(&self) -> Printer {
        self.printer.clone()
    }

    /// The work is done: the bar goes away, for a summary to take its place.
    pub(crate) fn finish(&self) {
        self.printer.bar.finish_and_clear();
    }
}
