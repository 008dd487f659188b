//! Which steps to run, running them, and the table of where the time went.

use std::{
    fmt, panic,
    path::Path,
    sync::{Condvar, Mutex},
    thread,
    time::Duration,
};

use anyhow::{Error, Result, anyhow, bail};

use crate::{
    job::Job,
    progress::{self, Progress, say, seconds},
    workspace,
};

/// One thing that can succeed or fail by itself.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it does, in the words of the progress line.
    pub(crate) about: &'static str,
    /// Earlier steps without which this one makes no sense.
    pub(crate) needs: &'static [&'static str],
    /// Takes minutes: only run when named or asked for.
    pub(crate) long: bool,
    /// Begun as soon as what it needs has passed, concurrently with the others and at the lowest priority: it compiles, and
    /// most tests wait more than they compute.
    pub(crate) early: bool,
    pub(crate) run: fn(&Job) -> Result<()>,
}

/// The steps to run, in the order of `steps`: the named ones, or all if none is named, with what they need.
pub(crate) fn select<'a>(steps: &'a [Step], named: &[String], long: bool) -> Result<Vec<&'a Step>> {
    if let Some(unknown) = named.iter().find(|name| steps.iter().all(|step| step.name != name.as_str())) {
        bail!("there is no step `{unknown}`; `cargo xtask test --list` names them");
    }
    let mut wanted: Vec<bool> = steps
        .iter()
        .map(|step| if named.is_empty() { long || !step.long } else { named.iter().any(|name| name == step.name) })
        .collect();
    // What a step needs stands before it, so one pass from the end finds everything.
    for index in (0..steps.len()).rev() {
        if wanted[index] {
            for (earlier, step) in steps[..index].iter().enumerate() {
                wanted[earlier] |= steps[index].needs.contains(&step.name);
            }
        }
    }
    Ok(steps.iter().zip(wanted).filter_map(|(step, wanted)| wanted.then_some(step)).collect())
}

/// Every step on a line of its own.
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

/// What came of every step.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// Runs the steps in order, and early ones as soon as what they need has passed. A failure stops only the steps that need the
/// failed one.
pub(crate) fn run(steps: &[&Step]) -> Report {
    let board = Board::default();
    thread::scope(|scope| {
        for &step in steps.iter().filter(|step| step.early) {
            scope.spawn(|| board.enter(step.name, attempt(step, &board)));
        }
        let mut report = Report::default();
        for (index, step) in steps.iter().enumerate() {
            report.rows.push(run_step(step, &format!("{:2}/{}", index + 1, steps.len()), &board));
        }
        report
    })
}

/// What came of a step: what it notes, or why it failed.
enum Worked {
    Passed(String),
    Failed(Error),
    /// This one, which it needs, had failed.
    Lacks(&'static str),
}

/// What came of the steps that have ended, for those that wait for it.
#[derive(Default)]
struct Board {
    ended: Mutex<Vec<(&'static str, Worked)>>,
    changed: Condvar,
}

impl Board {
    fn enter(&self, name: &'static str, worked: Worked) {
        self.ended.lock().expect("no thread panics while it holds it").push((name, worked));
        self.changed.notify_all();
    }

    /// Waits until the step has ended, and returns what `read` makes of what came of it.
    fn wait<T>(&self, name: &str, read: impl Fn(&Worked) -> T) -> T {
        let mut ended = self.ended.lock().expect("no thread panics while it holds it");
        loop {
            if let Some((_, worked)) = ended.iter().find(|(other, _)| *other == name) {
                return read(worked);
            }
            ended = self.changed.wait(ended).expect("no thread panics while it holds it");
        }
    }
}

/// Runs a step once what it needs has passed.
fn attempt(step: &Step, board: &Board) -> Worked {
    let passed = |worked: &Worked| matches!(worked, Worked::Passed(_));
    if let Some(missing) = step.needs.iter().find(|needed| !board.wait(needed, passed)) {
        return Worked::Lacks(missing);
    }
    // Others wait for what comes of it.
    match panic::catch_unwind(|| work(step)) {
        Ok(Ok(note)) => Worked::Passed(note),
        Ok(Err(error)) => Worked::Failed(error),
        Err(_) => Worked::Failed(anyhow!("the step panicked")),
    }
}

fn work(step: &Step) -> Result<String> {
    let job = Job::new(step.name, step.early)?;
    (step.run)(&job)?;
    Ok(job.into_note())
}

fn run_step(step: &Step, position: &str, board: &Board) -> Row {
    let log = Job::log_of(step.name);
    let display = Progress::start(position.to_owned(), step.about, log.clone());
    if !step.early {
        board.enter(step.name, attempt(step, board));
    }
    board.wait(step.name, |_| ());
    let took = display.finish();
    let outcome = board.wait(step.name, |worked| match worked {
        Worked::Passed(note) => {
            let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
            say(format_args!("[{position}] {} ok, {}{note}", step.name, seconds(took)));
            Outcome::Passed
        }
        Worked::Failed(error) => {
            explain(position, step, &log, error, took);
            Outcome::Failed
        }
        Worked::Lacks(missing) => {
            say(format_args!("[{position}] {}: not run, because `{missing}` failed", step.name));
            Outcome::NotRun
        }
    });
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

    /// What the report says of each step.
    fn results(steps: &[&Step]) -> Vec<String> {
        let report = run(steps).to_string();
        let rows = report.lines().skip(2).take(steps.len());
        rows.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn early_steps_run_concurrently_and_are_reported_in_their_place() {
        static BEGUN: Mutex<bool> = Mutex::new(false);
        static CHANGED: Condvar = Condvar::new();
        let wait = |_: &Job| {
            let limit = Duration::from_secs(60);
            let (begun, _) = CHANGED.wait_timeout_while(BEGUN.lock().unwrap(), limit, |begun| !*begun).unwrap();
            if *begun { Ok(()) } else { bail!("no step has begun") }
        };
        let begin = |_: &Job| {
            *BEGUN.lock().unwrap() = true;
            CHANGED.notify_all();
            bail!("as it should")
        };
        let first = Step { run: wait, ..step("xtask-test-first", &[], false) };
        let tool = Step { early: true, ..step("xtask-test-tool", &[], false) };
        let built = Step { early: true, run: begin, ..step("xtask-test-built", &["xtask-test-tool"], false) };
        let last = step("xtask-test-last", &["xtask-test-built"], false);
        assert_eq!(results(&[&first, &tool, &built, &last]), ["ok", "ok", "FAILED", "not"]);
    }

    #[test]
    fn a_step_that_panics_has_failed() {
        let panics = Step { early: true, run: |_| panic!("as it should"), ..step("xtask-test-panic", &[], false) };
        let later = Step { early: true, ..step("xtask-test-later", &["xtask-test-panic"], false) };
        assert_eq!(results(&[&panics, &later]), ["FAILED", "not"]);
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
        assert!(!report.all_passed());
        assert!(report.to_string().ends_with("\n1 passed, 2 failed\n"), "{report}");
    }
}
