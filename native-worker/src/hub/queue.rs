//! The queue of runs that operators started: one runs at a time.

use std::collections::VecDeque;

use rollmesh_core::{
    protocol::{
        Message, Phase,
        message::{RunHistory, RunList, RunRow},
    },
    run::RunConfig,
    time::Micros,
};

use super::actor::Actor;
use crate::train::{Run, RunRequest, Task, Work, new_run_dir};

/// Maximum number of waiting runs.
const MAX_WAITING: usize = 64;
/// Maximum number of past runs that are listed; the run directories have all of them.
const MAX_PAST: usize = 64;

/// The hub's waiting and past runs.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    past: VecDeque<PastRun>,
}

/// A run that is over.
struct PastRun {
    row: RunRow,
    /// `None` if it could not begin.
    history: Option<RunHistory>,
}

/// A waiting run; its number is assigned already.
struct Waiting {
    number: u32,
    config: RunConfig,
}

impl Waiting {
    fn row(&self) -> RunRow {
        RunRow {
            run: self.number,
            env: self.config.env().into(),
            algo: self.config.algorithm.clone().unwrap_or_default(),
            seed: self.config.rollout.seed,
            episode_return_mean: f32::NAN,
            ..RunRow::default()
        }
    }
}

impl Queue {
    fn remember(&mut self, row: RunRow, history: Option<RunHistory>) {
        if self.past.len() == MAX_PAST {
            self.past.pop_front();
        }
        self.past.push_back(PastRun { row, history });
    }

    /// Returns the curves and settings of a past run.
    pub(super) fn history(&self, number: u32) -> Option<&RunHistory> {
        self.past.iter().filter_map(|run| run.history.as_ref()).find(|history| history.run == number)
    }

    /// Returns the rows of all runs but the current one.
    fn rows(&self) -> impl Iterator<Item = RunRow> {
        let waiting = self.waiting.iter().zip(1..).map(|(run, place)| RunRow { place, ..run.row() });
        self.past.iter().map(|run| run.row.clone()).chain(waiting)
    }
}

impl Actor {
    /// Starts a run with these settings, in a new directory if the hub has a directory for runs. Such a hub queues the run
    /// while another one is going on.
    ///
    /// Returns the run's number.
    pub(super) fn start_from_page(&mut self, settings: &str) -> Result<u32, String> {
        let config = RunConfig::of_wire_settings(settings).map_err(|error| error.to_string())?;
        if !self.lets_runs_wait() || self.is_free() && self.queue.waiting.is_empty() {
            self.begin_from_page(None, config)?;
            return Ok(self.run.as_ref().map_or(0, |run| run.state.number()));
        }
        if self.queue.waiting.len() == MAX_WAITING {
            return Err(format!("{MAX_WAITING} runs wait already: remove one of them first"));
        }
        // Reports errors at once that can be found without making the environment, which may take long.
        self.registry.env(config.env()).map_err(|error| error.to_string())?;
        RunRequest::from(config.clone()).written_out().map_err(|error| error.to_string())?;
        self.queue.waiting.push_back(Waiting { number: self.next_run, config });
        self.next_run += 1;
        Ok(self.next_run - 1)
    }

    /// False if the hub ends with its run.
    fn lets_runs_wait(&self) -> bool {
        self.runs_dir.is_some() && !self.is_leaving
    }

    fn begin_from_page(&mut self, number: Option<u32>, config: RunConfig) -> Result<(), String> {
        let run_dir = self.runs_dir.as_deref().map(|runs| new_run_dir(runs, config.env(), config.rollout.seed));
        let task = Task::Begin(Box::new(RunRequest { run_dir, ..config.into() }));
        self.start_run(number, task, Work::Learn).map_err(|error| error.to_string())
    }

    /// True if a run can begin: none is going on, and the previous one is completely finished.
    fn is_free(&self) -> bool {
        self.run.as_ref().is_none_or(Run::is_over)
    }

    /// Begins the run that has waited longest, if possible, and returns whether one has begun. A run that cannot begin does not
    /// block the others.
    pub(super) fn begin_next_run(&mut self) -> bool {
        while !self.is_leaving && self.is_free() {
            let Some(waiting) = self.queue.waiting.pop_front() else { return false };
            let (number, row) = (waiting.number, waiting.row());
            let Err(error) = self.begin_from_page(Some(number), waiting.config) else { return true };
            self.notice(2, format!("run {number} could not begin: {error}"));
            self.queue.remember(RunRow { phase: Phase::Failed.to_wire(), error, ..row }, None);
        }
        false
    }

    /// Moves the current run, which is over, to the past runs.
    pub(super) fn remember_run(&mut self) {
        let now = self.now();
        if let Some(run) = &self.run {
            let status = run.state.status(now);
            let (env_steps, episode_return_mean) = (status.env_steps, status.episode_return_mean);
            let row = RunRow { env_steps, episode_return_mean, ..row_of(run, now) };
            self.queue.remember(row, self.current_history());
        }
    }

    /// Removes a waiting run from the queue.
    pub(super) fn remove_run(&mut self, number: u32) -> Result<(), String> {
        let waiting = &mut self.queue.waiting;
        let place = waiting.iter().position(|run| run.number == number);
        let place = place.ok_or_else(|| format!("no run {number} waits; one that has begun is stopped"))?;
        waiting.remove(place);
        Ok(())
    }

    /// Drops all waiting runs before the hub ends, and reports them.
    pub(super) fn give_up_waiting(&mut self) {
        let numbers: Vec<String> = self.queue.waiting.drain(..).map(|run| run.number.to_string()).collect();
        if !numbers.is_empty() {
            self.notice(2, format!("the hub ends before these runs have begun: {}", numbers.join(", ")));
        }
    }

    /// Returns all runs by number, the waiting ones last: a run that was rolled back has a higher number than they have, and
    /// comes before them.
    pub(super) fn run_list(&self) -> Message {
        let now = self.now();
        let current = self.run.as_ref().filter(|run| !run.is_over()).map(|run| row_of(run, now));
        let mut runs: Vec<RunRow> = self.queue.rows().chain(current).collect();
        runs.sort_by_key(|row| (row.place, row.run));
        // Texts of users are shortened; the run's files have the full ones.
        runs.iter_mut().for_each(|row| {
            [&mut row.env, &mut row.error, &mut row.run_dir].into_iter().for_each(|text| *text = first_of(text));
        });
        Message::RunList(RunList { may_wait: self.lets_runs_wait(), runs })
    }
}

/// Returns the row of the current run, without values that change all the time.
fn row_of(run: &Run, now: Micros) -> RunRow {
    let status = run.state.status(now);
    RunRow {
        run: status.run,
        phase: status.phase,
        place: 0,
        env: status.env,
        algo: status.algo,
        seed: status.seed,
        env_steps: 0,
        episode_return_mean: f32::NAN,
        error: status.error,
        run_dir: status.run_dir,
    }
}

/// Shortens a text so that a list of all runs fits into a message: a character has at most four bytes.
fn first_of(text: &str) -> String {
    text.chars().take(150).collect()
}
