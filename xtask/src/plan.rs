//! The selection of steps, running them, and the table of their durations.

use std::{
    fmt,
    path::Path,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};

use crate::{
    job::Job,
    progress::{self, Progress, say, seconds},
    workspace,
};

/// A unit of work that can succeed or fail by itself.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// The description in the progress line.
    pub(crate) about: &'static str,
    /// Earlier steps that this one requires.
    pub(crate) needs: &'static [&'static str],
    /// True if it takes minutes: it runs only if it is named, or with `--long`.
    pub(crate) long: bool,
    /// True if it begins with the first step, concurrently with the others, because only late ones need it. It needs
    /// none itself.
    pub(crate) early: bool,
    pub(crate) run: fn(&Job) -> Result<()>,
}

/// Returns the steps to run, in the order of `steps`: the named ones, or all if none is named, with the steps that they
/// need.
pub(crate) fn select<'a>(steps: &'a [Step], named: &[String], long: bool) -> Result<Vec<&'a Step>> {
    if let Some(unknown) = named.iter().find(|name| steps.iter().all(|step| step.name != name.as_str())) {
        bail!("there is no step `{unknown}`; `cargo xtask test --list` names them");
    }
    let mut wanted: Vec<bool> = steps
        .iter()
        .map(|step| if named.is_empty() { long || !step.long } else { named.iter().any(|name| name == step.name) })
        .collect();
    // The steps that a step needs are before it, so one pass from the end finds all of them.
    for index in (0..steps.len()).rev() {
        if wanted[index] {
            for (earlier, step) in steps[..index].iter().enumerate() {
                wanted[earlier] |= steps[index].needs.contains(&step.name);
            }
        }
    }
    Ok(steps.iter().zip(wanted).filter_map(|(step, wanted)| wanted.then_some(step)).collect())
}

/// Lists every step on a separate line.
pub(crate) fn list(steps: &[Step]) -> String {
    steps
        .iter()
        .map(|step| format!("{:16} {}{}\n", step.name, step.about, if step.long { " (--long)" } else { "" }))
        .collect()
}

enum Outcome {
    Passed,
    Failed,
    /// A step that it needs had failed.
    NotRun,
}

struct Row {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// The outcomes of all steps.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// Runs the steps in order. A failure stops only the steps that need the failed one.
pub(crate) fn run(steps: &[&Step]) -> Report {
    thread::scope(|scope| {
        let begun: Vec<_> = steps.iter().map(|step| step.early.then(|| scope.spawn(|| work(step)))).collect();
        let mut report = Report::default();
        for (index, (step, begun)) in steps.iter().zip(begun).enumerate() {
            let row = run_step(step, begun, format!("{:2}/{}", index + 1, steps.len()), &report);
            report.rows.push(row);
        }
        report
    })
}

/// The result of a step, with its note.
type Worked = Result<String>;

fn work(step: &Step) -> Worked {
    let job = Job::new(step.name)?;
    (step.run)(&job)?;
    Ok(job.into_note())
}

fn run_step(step: &Step, begun: Option<ScopedJoinHandle<'_, Worked>>, position: String, earlier: &Report) -> Row {
    if let Some(missing) = step.needs.iter().find(|needed| earlier.lacks(needed)) {
        say(format_args!("[{position}] {}: not run, because `{missing}` failed", step.name));
        return Row { name: step.name, outcome: Outcome::NotRun, took: Duration::ZERO };
    }
    let log = Job::log_of(step.name);
    let display = Progress::start(position.clone(), step.about, log.clone());
    let result = match begun {
        Some(thread) => thread.join().unwrap_or_else(|_| Err(anyhow!("the step panicked"))),
        None => work(step),
    };
    let took = display.finish();
    let outcome = match result {
        Ok(note) => {
            let note = if note.is_empty() { note } else { format!(" ({note})") };
            say(format_args!("[{position}] {} ok, {}{note}", step.name, seconds(took)));
            Outcome::Passed
        }
        Err(error) => {
            explain(&position, step, &log, &error, took);
            Outcome::Failed
        }
    };
    Row { name: step.name, outcome, took }
}

fn explain(position: &str, step: &Step, log: &Path, error: &anyhow::Error, took: Duration) {
    const SHOWN_LINES: usize = 60;
    let last = progress::last_lines(log, SHOWN_LINES);
    if !last.is_empty() {
        say(format_args!("{last}\n"));
    }
    say(format_args!("[{position}] {} FAILED after {}: {error:#}", step.name, seconds(took)));
    let path = log.strip_prefix(workspace::root()).unwrap_or(log);
    say(format_args!("  whole output: {}\n  to repeat it: cargo xtask test {}\n", path.display(), step.name));
}

impl Report {
    pub(crate) fn all_passed(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.outcome, Outcome::Passed))
    }

    fn lacks(&self, name: &str) -> bool {
        self.rows.iter().any(|row| row.name == name && !matches!(row.outcome, Outcome::Passed))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:16} {:>8}  {:>14}", "step", "result", "time")?;
        for row in &self.rows {
            let result = match row.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotRun => "not run",
            };
            writeln!(f, "{:16} {result:>8}  {:>14}", row.name, seconds(row.took))?;
        }
        let total = self.rows.iter().map(|row| row.took).sum();
        writeln!(f, "{:16} {:>8}  {:>14}\n", "total", "", seconds(total))?;
        let passed = self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Passed)).count();
        writeln!(f, "{passed} passed, {} failed", self.rows.len() - passed)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::OnceLock, time::Instant};

    use super::*;

    const fn step(name: &'static str, needs: &'static [&'static str], long: bool) -> Step {
        Step { name, about: "", needs, long, early: false, run: |_| Ok(()) }
    }

    const STEPS: &[Step] = &[
        step("target", &[], false),
        step("page", &["target"], false),
        step("hashes", &[], true),
        step("e2e", &["page"], false),
    ];

    fn names(named: &[&str], long: bool) -> Vec<&'static str> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        select(STEPS, &named, long).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn a_named_step_brings_what_it_needs() {
        assert_eq!(names(&["e2e"], false), ["target", "page", "e2e"]);
        assert_eq!(names(&["hashes"], false), ["hashes"]);
    }

    #[test]
    fn long_steps_run_when_asked_for() {
        assert_eq!(names(&[], false), ["target", "page", "e2e"]);
        assert_eq!(names(&[], true), ["target", "page", "hashes", "e2e"]);
    }

    #[test]
    fn early_steps_run_concurrently_and_are_reported_in_their_place() {
        static BEGUN: OnceLock<()> = OnceLock::new();
        let wait = |_: &Job| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while BEGUN.get().is_none() && Instant::now() < deadline {
                thread::yield_now();
            }
            if BEGUN.get().is_some() { Ok(()) } else { bail!("no step has begun") }
        };
        let begin = |_: &Job| {
            BEGUN.get_or_init(|| ());
            bail!("as it should")
        };
        let first = Step { run: wait, ..step("xtask-test-first", &[], false) };
        let tool = Step { early: true, run: begin, ..step("xtask-test-tool", &[], false) };
        let last = step("xtask-test-last", &["xtask-test-tool"], false);
        let report = run(&[&first, &tool, &last]).to_string();
        let results: Vec<&str> = report.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(results[1..4], ["ok", "FAILED", "not"], "{report}");
    }

    #[test]
    fn an_unknown_step_is_refused() {
        let error = select(STEPS, &["pgae".to_owned()], false).err().unwrap();
        assert!(error.to_string().contains("pgae"), "{error}");
    }

    #[test]
    fn the_report_counts_what_was_not_run_as_failed() {
        let row = |name, outcome| Row { name, outcome, took: Duration::ZERO };
        let report = Report {
            rows: vec![row("target", Outcome::Failed), row("page", Outcome::NotRun), row("fmt", Outcome::Passed)],
        };
        assert!(report.lacks("target") && report.lacks("page") && !report.lacks("fmt"));
        assert!(!report.all_passed());
        assert!(report.to_string().ends_with("\n1 passed, 2 failed\n"), "{report}");
    }
}
